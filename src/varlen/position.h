/* Where a token is: token -> sequence -> position. Context parallel layouts, cu_seqlens, padding, ids and start positions
 * live here and nowhere else, for both backends and for trope_positions.
 *
 * A caller walks tokens in order and keeps the span that the last token was found in:
 *
 *     if (token < span.begin || token >= span.end) span = trope_find_span(&s, token);
 *     index = trope_index_in_sequence(&s, &span, token);
 *     position = trope_position(&s, &span, index, batch, token, axis);
 */
#ifndef TROPE_VARLEN_POSITION_H
#define TROPE_VARLEN_POSITION_H

#include <stdint.h>

#include "core/host_device.h"
#include "core/plan.h"
#include "varlen/offsets.h"

/* Tokens [begin, end) of a batch entry that belong to one sequence, or to a gap between sequences. */
typedef struct trope_span {
    int64_t begin, end; /* local tokens; with FLAT the sequence's, which may lie on other ranks */
    int64_t sequence;   /* -1 for a gap */
    int64_t real;       /* tokens with an index from here on are padding */
    int64_t first;      /* added to the index */
} trope_span;

#define TROPE_NO_END INT64_MAX

TROPE_HD int64_t trope_load_index(const void *array, int32_t is_64, int64_t i)
{
    return is_64 ? ((const int64_t *)array)[i] : ((const int32_t *)array)[i];
}

/* With begin and end at hand. */
TROPE_HD trope_bounds trope_add_real_bounds(const trope_sequences *s, int64_t sequence, int64_t begin, int64_t end)
{
    trope_bounds b = {begin, end, begin, end};
    if (s->real != s->boundaries) {
        b.real_begin = trope_load_index(s->real, s->boundaries_64, sequence);
        b.real_end = trope_load_index(s->real, s->boundaries_64, sequence + 1);
    }
    return b;
}

TROPE_HD trope_bounds trope_load_bounds(const trope_sequences *s, int64_t sequence)
{
    return trope_add_real_bounds(s, sequence, trope_load_index(s->boundaries, s->boundaries_64, sequence),
                                 trope_load_index(s->boundaries, s->boundaries_64, sequence + 1));
}

TROPE_HD trope_span trope_span_of_bounds(const trope_sequences *s, int64_t sequence, trope_bounds b)
{
    trope_span span;
    span.begin = trope_local_boundary(s, b.begin);
    span.end = trope_local_boundary(s, b.end);
    span.sequence = sequence;
    span.real = b.real_end - b.real_begin;
    span.first = s->starts ? trope_load_index(s->starts, s->starts_64, sequence) : s->stream ? b.real_begin : 0;
    return span;
}

TROPE_HD trope_span trope_sequence_span(const trope_sequences *s, int64_t sequence)
{
    return trope_span_of_bounds(s, sequence, trope_load_bounds(s, sequence));
}

TROPE_HD int32_t trope_sequence_fault(const trope_sequences *s, int64_t sequence)
{
    return trope_fault_of_bounds(s, trope_load_bounds(s, sequence));
}

/* Those of the one boundary that there is without sequences. */
TROPE_HD int32_t trope_boundary_fault(const trope_sequences *s)
{
    const int64_t boundary = trope_load_index(s->boundaries, s->boundaries_64, 0),
                  real = trope_load_index(s->real, s->boundaries_64, 0);
    const trope_bounds none = {boundary, boundary, real, real};
    return trope_fault_of_bounds(s, none);
}

/* The span of a batch entry without cu_seqlens that starts at position `first`: all of it. */
TROPE_HD trope_span trope_span_of_dense(const trope_sequences *s, int64_t first)
{
    trope_span span;
    span.begin = s->cp_layout == TROPE_CP_FLAT ? -s->cp_rank * s->tokens : 0;
    span.end = s->tokens;
    span.sequence = 0;
    span.real = TROPE_NO_END;
    span.first = first;
    return span;
}

TROPE_HD trope_span trope_dense_span(const trope_sequences *s, int64_t batch)
{
    trope_span span = trope_span_of_dense(s, s->starts ? trope_load_index(s->starts, s->starts_64, batch) : 0);
    span.sequence = batch;
    return span;
}

/* What a token is in that is before the first sequence, or after the last: between two global offsets. */
TROPE_HD trope_span trope_span_of_gap(const trope_sequences *s, int64_t begin, int64_t end)
{
    trope_span gap;
    gap.begin = trope_local_boundary(s, begin);
    gap.end = end < TROPE_NO_END ? trope_local_boundary(s, end) : end;
    gap.sequence = -1;
    gap.real = 0;
    gap.first = 0;
    return gap;
}

/* That of a token which has no boundary at or before it (count = 0), or all. */
TROPE_HD trope_span trope_gap_after(const trope_sequences *s, int64_t count)
{
    if (count)
        return trope_span_of_gap(s, trope_load_index(s->boundaries, s->boundaries_64, s->count), TROPE_NO_END);
    return trope_span_of_gap(s, 0, trope_load_index(s->boundaries, s->boundaries_64, 0));
}

/* The span that holds a token, by bisection. Empty sequences hold none and are stepped over. */
TROPE_HD trope_span trope_find_span(const trope_sequences *s, int64_t batch, int64_t token)
{
    if (!s->boundaries)
        return trope_dense_span(s, batch);
    const int64_t after = trope_first_after(s, token);
    int64_t low = 0, high = s->count + 1; /* how many boundaries are at or before the token */
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (trope_load_index(s->boundaries, s->boundaries_64, middle) < after)
            low = middle + 1;
        else
            high = middle;
    }
    return low > 0 && low <= s->count ? trope_sequence_span(s, low - 1) : trope_gap_after(s, low);
}

TROPE_HD int64_t trope_index_in_sequence(const trope_sequences *s, const trope_span *span, int64_t token)
{
    const int64_t i = token - span->begin;
    return span->sequence < 0 ? i : trope_cp_position(s->cp_layout, s->cp_size, s->cp_rank, span->end - span->begin, i);
}

TROPE_HD int trope_is_padding(const trope_span *span, int64_t index)
{
    return index >= span->real;
}

/* The position of an index in a sequence that starts at `first`. A sum beyond 64 bits is out of any range, and stays so. */
TROPE_HD int64_t trope_add_position(int64_t first, int64_t index)
{
    return index > INT64_MAX - (first > 0 ? first : 0) ? INT64_MAX : first + index;
}

TROPE_HD int64_t trope_position(const trope_sequences *s, const trope_span *span, int64_t index, int64_t batch,
                                int64_t token, int axis)
{
    if (!s->ids)
        return trope_add_position(span->first, index);
    const int64_t row = s->axes > 1 ? axis * s->id_axis_stride : 0;
    return trope_load_index(s->ids, s->ids_64, row + batch * s->id_batch_stride + token * s->id_token_stride);
}

/* The position of a token without cu_seqlens, ids and start positions. */
TROPE_HD int64_t trope_dense_position(const trope_sequences *s, int64_t token)
{
    const trope_span span = trope_dense_span(s, 0);
    return trope_index_in_sequence(s, &span, token);
}

#endif
