/* The position of a token: token -> sequence -> position. This header, with the rules of sequence_template.h and the
 * layouts of context_parallel.h, is the only code that knows cu_seqlens, context parallel ranks, start positions and ids.
 * Both backends and trope_positions use it.
 *
 * A caller that visits tokens in order keeps the span of the last one:
 *
 *     if (token < span.begin || token >= span.end) span = trope_find_span(s, batch, token);
 *     index = trope_index_in_sequence(s, &span, token);
 *     position = trope_position(s, &span, index, batch, token, axis);
 *
 * On CUDA, a warp searches cu_seqlens (varlen/cuda/search.cuh). The other rules are the same. */
#ifndef TROPE_VARLEN_POSITION_H
#define TROPE_VARLEN_POSITION_H

#include <stdint.h>

#include "core/host_device.h"
#include "core/plan.h"
#include "varlen/context_parallel.h"

#ifdef __CUDACC__ /* varlen/cuda/search.cuh */
__device__ int64_t load_index(const void *array, int32_t is_64, int64_t i);
#endif

/* The faults that the bounds of a sequence can have. */
typedef enum trope_bounds_fault {
    TROPE_BOUNDS_VALID,
    TROPE_BOUNDS_ORDER,          /* the sequence begins before 0, or ends before it begins */
    TROPE_BOUNDS_UNPADDED_ORDER, /* the same fault in cu_seqlens, in a call with cu_seqlens_padded */
    TROPE_BOUNDS_END,            /* it ends after the end of the stream of all ranks */
    TROPE_BOUNDS_ROOM,           /* it has more tokens than cu_seqlens_padded has room for */
    TROPE_BOUNDS_BEGIN_SPLIT,    /* it begins at an offset that cp_size does not divide */
    TROPE_BOUNDS_LENGTH_SPLIT    /* its length cannot be split over the ranks */
} trope_bounds_fault;

/* Returns the bit of `status` that reports a fault. */
TROPE_HD int32_t trope_status_of_fault(trope_bounds_fault fault)
{
    return fault == TROPE_BOUNDS_VALID         ? 0
           : fault >= TROPE_BOUNDS_BEGIN_SPLIT ? TROPE_STATUS_CP_LENGTH
                                               : TROPE_STATUS_CU_SEQLENS;
}

/* Loads element i of an array of int32 or int64. */
TROPE_HD int64_t trope_load_index(const void *array, int32_t is_64, int64_t i)
{
#ifdef __CUDA_ARCH__
    return load_index(array, is_64, i);
#else
    return is_64 ? ((const int64_t *)array)[i] : ((const int32_t *)array)[i];
#endif
}

#define INTEGER            int64_t
#define FN(name)           trope_##name
#define DIVIDE(divisor, n) trope_divide_wide(divisor, n)
#include "varlen/sequence_template.h"

TROPE_HD trope_bounds trope_load_bounds(const trope_position_source *s, int64_t before)
{
    const int64_t first = before > 0 ? before - 1 : 0, second = before < s->count ? before : s->count;
    trope_bounds b;
    b.begin = trope_load_index(s->boundaries, s->boundaries_64, first);
    b.end = trope_load_index(s->boundaries, s->boundaries_64, second);
    b.unpadded_begin = trope_load_index(s->unpadded, s->boundaries_64, first);
    b.unpadded_end = trope_load_index(s->unpadded, s->boundaries_64, second);
    return b;
}

/* Loads the start position of a sequence. It is 0 for a gap, and in a call without start positions. */
TROPE_HD int64_t trope_load_start(const trope_position_source *s, int64_t before)
{
    return s->starts && !trope_is_gap(s, before) ? trope_load_index(s->starts, s->starts_64, before - 1) : 0;
}

/* Checks the bounds of a sequence. Without sequences, there is one boundary, which is checked as a sequence of no
 * tokens. */
TROPE_HD trope_bounds_fault trope_check_sequence(const trope_position_source *s, int64_t sequence)
{
    return trope_check_bounds(s, trope_load_bounds(s, s->count ? sequence + 1 : 0));
}

TROPE_HD trope_span trope_sequence_span(const trope_position_source *s, int64_t sequence)
{
    return trope_span_of_bounds(s, sequence + 1, trope_load_bounds(s, sequence + 1), trope_load_start(s, sequence + 1));
}

/* Returns the span of a batch entry in a call without cu_seqlens. It is the whole entry, which starts at position
 * `start`. */
TROPE_HD trope_span trope_span_of_start(const trope_position_source *s, int64_t start)
{
    trope_span span;
    span.begin = -s->cp.skipped;
    span.end = s->tokens;
    span.sequence = 0;
    span.unpadded = INT64_MAX;
    span.first = start;
    return span;
}

TROPE_HD trope_span trope_dense_span(const trope_position_source *s, int64_t batch)
{
    trope_span span = trope_span_of_start(s, s->starts ? trope_load_index(s->starts, s->starts_64, batch) : 0);
    span.sequence = batch;
    return span;
}

/* Returns the number of boundaries at or before a token: 0, sequence + 1, or count + 1. Empty sequences contain no token
 * and are skipped. */
TROPE_HD int64_t trope_boundaries_before(const trope_position_source *s, int64_t token)
{
    const int64_t after = trope_cp_after(&s->cp, token);
    int64_t low = 0, high = s->count + 1;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (trope_load_index(s->boundaries, s->boundaries_64, middle) < after)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Returns the span that contains a token. */
TROPE_HD trope_span trope_find_span(const trope_position_source *s, int64_t batch, int64_t token)
{
    if (!s->boundaries)
        return trope_dense_span(s, batch);
    const int64_t before = trope_boundaries_before(s, token);
    return trope_span_of_bounds(s, before, trope_load_bounds(s, before), trope_load_start(s, before));
}

/* Adds an index to the first position. A sum beyond 64 bits is out of every range, so it becomes INT64_MAX. */
TROPE_HD int64_t trope_add_position(int64_t first, int64_t index)
{
    return index > INT64_MAX - (first > 0 ? first : 0) ? INT64_MAX : first + index;
}

TROPE_HD int64_t trope_load_id(const trope_position_source *s, int64_t batch, int64_t token, int axis)
{
    const int64_t plane = s->position_axes > 1 ? axis * s->id_axis_stride : 0;
    return trope_load_index(s->ids, s->ids_64, plane + batch * s->id_batch_stride + token * s->id_token_stride);
}

TROPE_HD int64_t trope_position(const trope_position_source *s, const trope_span *span, int64_t index, int64_t batch,
                                int64_t token, int axis)
{
    return s->ids ? trope_load_id(s, batch, token, axis) : trope_add_position(span->first, index);
}

/* Returns the position of a token in a call without cu_seqlens, ids and start positions. */
TROPE_HD int64_t trope_dense_position(const trope_position_source *s, int64_t token)
{
    const trope_span span = trope_dense_span(s, 0);
    return trope_index_in_sequence(s, &span, token);
}

#endif
