/* Rows on the device: the one policy by which a token's position is found, for the rotation and for the gradient of the angles.
 * A thread asks for what has to be read (request), asks for other things, and then has the row (finish). */
#ifndef TROPE_VARLEN_CUDA_ROWS_CUH
#define TROPE_VARLEN_CUDA_ROWS_CUH

#include "core/cuda/early_launch.cuh"
#include "varlen/cuda/search.cuh"
#include "varlen/row.h"

/* How positions are found: they follow from the tokens; they are read (ids, start positions of batch entries); or their
 * sequence is searched for, by all threads of a warp for one token. Searched rows are any rows. */
enum row_kind { ROWS_FROM_TOKENS, ROWS_READ, ROWS_SEARCHED };

/* As trope_load_index; the load stays where it is, before others that are issued later. */
__device__ __forceinline__ int64_t load_index_at_once(const void *array, int32_t is_64, int64_t i)
{
    return is_64 ? load_at_once((const int64_t *)array + i) : (int64_t)load_at_once((const int32_t *)array + i);
}

/* The positions of rows from tokens: of all of them, or of those of a context parallel rank, which are one run, two, or every
 * so manieth. */
struct token_positions {
    uint32_t scale, first, second_run, gap;

    __device__ __forceinline__ uint32_t of(uint32_t token) const
    {
        const uint32_t position = token * scale + first;
        return token < second_run ? position : position + gap;
    }
};

/* A row as one pair sees it: the position on its axis. */
struct found_row {
    int64_t position; /* of a table: a row that it has */
    trope_row_action action;
    bool poisoned;
};

/* Brings a position into the rows of a table, if the call has one, or poisons and reports it. */
__device__ __forceinline__ void limit_position(const trope_plan &plan, found_row *row)
{
    const int64_t rows = plan.angles.rows;
    if (plan.angles.source == TROPE_ANGLES_PHASE || (row->position >= 0 && row->position < rows))
        return;
    row->position = row->position < 0 ? 0 : rows - 1;
    if (plan.angles.out_of_range != TROPE_RANGE_POISON)
        return;
    row->poisoned = true;
    if (plan.status)
        atomicOr(plan.status, TROPE_STATUS_POSITION);
}

__device__ __forceinline__ trope_row_action action_of_padding(const trope_plan &plan)
{
    switch (plan.sequences.padding) {
    case TROPE_PADDING_ROTATE:
        return TROPE_ROW_ROTATE;
    case TROPE_PADDING_ZERO:
        return TROPE_ROW_ZERO;
    case TROPE_PADDING_COPY:
        return TROPE_ROW_COPY;
    default: /* the caller promised that there is none */
        if (plan.status)
            atomicOr(plan.status, TROPE_STATUS_PADDING);
        return TROPE_ROW_POISON;
    }
}

/* What a token is in, and its index there. */
struct found_place {
    int64_t index, first; /* first: added to the index */
    bool is_padding, faulty;
};

__device__ __forceinline__ found_place place_of_sequence(const trope_sequences &s, const found_sequence &found, int32_t token)
{
    found_place place;
    const trope_span span = found.number < 0 ? trope_span_of_gap(&s, found.bounds.begin, found.bounds.end)
                                             : trope_span_of_bounds(&s, found.number, found.bounds);
    place.index = trope_index_in_sequence(&s, &span, token);
    place.first = span.first;
    place.is_padding = trope_is_padding(&span, place.index);
    place.faulty = found.number >= 0 && trope_fault_of_bounds(&s, found.bounds) != 0;
    return place;
}

/* By each thread alone. Not inline: calls for which 32 bits are too few are rare. */
static __device__ __noinline__ found_place find_place_widely(const trope_sequences &s, int64_t batch, int64_t token)
{
    const trope_span span = trope_find_span(&s, batch, token);
    found_place place;
    place.index = trope_index_in_sequence(&s, &span, token);
    place.first = span.first;
    place.is_padding = trope_is_padding(&span, place.index);
    place.faulty = s.boundaries && span.sequence >= 0 && trope_sequence_fault(&s, span.sequence) != 0;
    return place;
}

/* ANY_TABLE: positions may be rows of a table, which has an end. */
template <int ROWS, bool ANY_TABLE> struct row_lookup {
    int64_t id;
    span_search search;

    /* After the kernel before this one has ended, before the loads of data. */
    __device__ __forceinline__ void request(const trope_plan &plan, const search_shape &shape, int64_t batch, int64_t token,
                                            int axis)
    {
        const trope_sequences &s = plan.sequences;
        if (ROWS == ROWS_FROM_TOKENS)
            return;
        if (s.ids)
            id = load_index_at_once(s.ids, s.ids_64,
                                    axis * s.id_axis_stride + batch * s.id_batch_stride + token * s.id_token_stride);
        else if (!s.boundaries)
            id = s.starts ? load_index_at_once(s.starts, s.starts_64, batch) : 0;
        if (ROWS == ROWS_SEARCHED && s.boundaries && !shape.is_wide)
            search.request(s, shape, (int32_t)token);
    }

    __device__ __forceinline__ found_row finish(const trope_plan &plan, const search_shape &shape,
                                                const token_positions &positions, int64_t token)
    {
        const trope_sequences &s = plan.sequences;
        found_row row = {0, TROPE_ROW_ROTATE, false};
        if (ROWS == ROWS_FROM_TOKENS) {
            row.position = positions.of((uint32_t)token);
            return row;
        }
        if (ROWS == ROWS_SEARCHED && s.boundaries) {
            const found_place place =
                shape.is_wide
                    ? find_place_widely(s, 0, token)
                    : place_of_sequence(s, search.finish(s, shape, (int32_t)trope_first_after(&s, token)), (int32_t)token);
            if (place.is_padding)
                row.action = action_of_padding(plan);
            row.position = s.ids ? id : trope_add_position(place.first, place.index);
            row.poisoned = place.faulty;
        } else {
            const trope_span span = trope_span_of_dense(&s, id);
            row.position = s.ids ? id : trope_add_position(id, trope_index_in_sequence(&s, &span, token));
        }
        if (ANY_TABLE && row.action == TROPE_ROW_ROTATE)
            limit_position(plan, &row);
        return row;
    }
};

#endif
