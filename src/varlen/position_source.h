/* Converts the fields of a call to a trope_position_source. */
#ifndef TROPE_VARLEN_POSITION_SOURCE_H
#define TROPE_VARLEN_POSITION_SOURCE_H

#include <string.h>

#include "core/plan.h"
#include "varlen/context_parallel.h"

/* `args` must be valid, with ids_stride filled in for every layout of ids. */
static inline trope_position_source trope_plan_position_source(const trope_args *args)
{
    trope_position_source s;
    memset(&s, 0, sizeof s);
    s.boundaries = args->cu_seqlens_padded ? args->cu_seqlens_padded : args->cu_seqlens;
    s.unpadded = args->cu_seqlens;
    s.boundaries_64 = args->cu_seqlens_dtype == TROPE_I64;
    s.count = args->sequences;
    s.tokens = args->tokens;
    s.starts = args->start_positions;
    s.starts_64 = args->position_dtype == TROPE_I64;
    s.ids = args->position_ids;
    s.ids_64 = args->position_dtype == TROPE_I64;
    s.id_axis_stride = args->ids_stride[0];
    s.id_batch_stride = args->ids_stride[1];
    s.id_token_stride = args->ids_stride[2];
    s.padding = args->padding;
    s.position_axes = args->position_axes ? args->position_axes : 1;
    s.stream = args->stream_positions;
    s.cp = trope_plan_cp(args->cp_layout, args->cp_size ? args->cp_size : 1, args->cp_rank, args->tokens);
    return s;
}

#endif
