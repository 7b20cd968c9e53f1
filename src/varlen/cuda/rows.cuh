/* Rows on the device: the one policy by which a token's position is found, for the rotation and for the gradient of the angles.
 * A thread asks for what has to be read (request), asks for other things, and then has the row (finish). */
#ifndef TROPE_VARLEN_CUDA_ROWS_CUH
#define TROPE_VARLEN_CUDA_ROWS_CUH

#include "core/cuda/early_launch.cuh"
#include "varlen/cuda/search.cuh"
#include "varlen/row.h"

/* How positions are found: they follow from the tokens; they are read (ids, start positions of batch entries); their
 * sequence is searched for, by all threads of a warp for one token; or in whatever way the call asks for. */
enum row_kind { ROWS_FROM_TOKENS, ROWS_READ, ROWS_SEARCHED, ROWS_ANY };

__host__ __device__ constexpr bool may_search(int rows)
{
    return rows == ROWS_SEARCHED || rows == ROWS_ANY;
}

/* Whether rows have sequences, and so some of them may be padding. */
template <int ROWS> __device__ __forceinline__ bool have_actions(const trope_plan &plan)
{
    return ROWS == ROWS_SEARCHED || (ROWS == ROWS_ANY && plan.sequences.boundaries);
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

/* What is read for a row: its ids, or where its batch entry starts. Bytes from one to the next. (Searched rows always read
 * something, if only a boundary: a branch would part loads from what waits for them.) */
struct row_source {
    const char *base; /* NULL: nothing is */
    int64_t axis, batch, token;
    int32_t is_64;
    int32_t is_id, is_start; /* it is the position; the index is added to it */

    __device__ __forceinline__ void load(int of_axis, int64_t of_batch, int64_t of_token, raw_index *index) const
    {
        index->load(base + of_axis * axis + of_batch * batch + of_token * token, is_64);
    }
};

static inline row_source plan_source(const trope_sequences &s)
{
    const int64_t size = (s.ids ? s.ids_64 : s.starts_64) ? 8 : 4, axis = s.id_axis_stride * size;
    if (s.ids)
        return {(const char *)s.ids, axis, s.id_batch_stride * size, s.id_token_stride * size, s.ids_64, 1, 0};
    if (s.starts && !s.boundaries)
        return {(const char *)s.starts, 0, size, 0, s.starts_64, 0, 1};
    return {(const char *)s.boundaries, 0, 0, 0, 0, 0, 0};
}

/* How the rows of a call are found. */
struct row_shape {
    int32_t from_tokens;
    token_positions positions; /* then */
    row_source source;
    search_shape search;
};

/* A row as the pairs of one axis see it. */
struct found_row {
    int64_t position; /* of a table: a row that it has */
    int32_t action;   /* TROPE_ROW_... */
    int32_t poisoned;

    /* That of another thread of the warp. */
    __device__ __forceinline__ found_row of_thread(int thread) const
    {
        found_row other;
        other.position = __shfl_sync(UINT32_MAX, position, thread);
        other.action = action;
        other.poisoned = __shfl_sync(UINT32_MAX, poisoned, thread);
        return other;
    }
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
    row->poisoned = 1;
    if (plan.status)
        atomicOr(plan.status, TROPE_STATUS_POSITION);
}

__device__ __forceinline__ int32_t action_of_padding(const trope_plan &plan)
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

__device__ __forceinline__ found_place place_of_sequence(const trope_sequences &s, const found_sequence &found,
                                                         int32_t token)
{
    const trope_narrow_bounds &b = found.bounds;
    const int32_t begin = trope_narrow_local_boundary(&s, b.begin), index = token - begin;
    if (found.number < 0)
        return {index, 0, true, false};
    const int32_t local = trope_narrow_local_boundary(&s, b.end) - begin,
                  in_sequence = trope_narrow_cp_position(s.cp_layout, s.cp_size, s.cp_rank, local, index);
    const int64_t first = s.starts ? trope_load_index(s.starts, s.starts_64, found.number) : s.stream ? b.real_begin : 0;
    return {in_sequence, first, in_sequence >= b.real_end - b.real_begin, trope_narrow_fault_of_bounds(&s, b) != 0};
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

/* One row, by the threads of a warp, each for an axis.
 * ANY_TABLE: positions may be rows of a table, which has an end. ANY_WIDTH: 32 bits may be too few for a search. */
template <int ROWS, bool ANY_TABLE, bool ANY_WIDTH> struct row_lookup {
    raw_index read;
    span_search search;

    /* After the kernel before this one has ended. */
    __device__ __forceinline__ void request(const trope_plan &plan, const row_shape &shape, int64_t batch, int64_t token,
                                            int axis)
    {
        const row_source &from = shape.source;
        if (ROWS == ROWS_FROM_TOKENS)
            return;
        if (ROWS != ROWS_ANY || from.base)
            from.load(axis, batch, token, &read);
        if (have_actions<ROWS>(plan) && !(ANY_WIDTH && shape.search.is_wide))
            search.request(plan.sequences, shape.search, (int32_t)token);
    }

    __device__ __forceinline__ void await_all(uint32_t *condition) const
    {
        if (ROWS == ROWS_READ || ROWS == ROWS_SEARCHED)
            await(read.low, condition);
        if (ROWS == ROWS_SEARCHED)
            search.await_all(condition);
    }

    __device__ __forceinline__ found_row finish(const trope_plan &plan, const row_shape &shape, int64_t token,
                                                uint32_t axis)
    {
        found_place place = {0, 0, false, false};
        if (have_actions<ROWS>(plan))
            place = find_place(plan, shape.search, token);
        return finish_place(plan, shape, read, place, token, axis,
                            place.is_padding ? action_of_padding(plan) : TROPE_ROW_ROTATE);
    }

    /* With the place of a searched row at hand. */
    static __device__ __forceinline__ found_row finish_place(const trope_plan &plan, const row_shape &shape,
                                                             const raw_index &read, const found_place &place, int64_t token,
                                                             uint32_t axis, int32_t action)
    {
        const trope_sequences &s = plan.sequences;
        found_row row = {0, action, place.faulty};
        if (ROWS == ROWS_FROM_TOKENS || (ROWS == ROWS_ANY && shape.from_tokens)) {
            row.position = shape.positions.of((uint32_t)token);
            return row;
        }
        if (shape.source.is_id || shape.source.is_start)
            row.position = read.value(shape.source.is_64);
        if (have_actions<ROWS>(plan)) {
            if (!shape.source.is_id)
                row.position = trope_add_position(place.first, place.index);
        } else if (!shape.source.is_id) {
            const trope_span span = trope_span_of_dense(&s, 0);
            row.position = trope_add_position(row.position, trope_index_in_sequence(&s, &span, token));
        }
        if (ANY_TABLE && row.action == TROPE_ROW_ROTATE && plan.used_axes >> axis & 1)
            limit_position(plan, &row);
        return row;
    }

  private:
    __device__ __forceinline__ found_place find_place(const trope_plan &plan, const search_shape &shape,
                                                      int64_t token) const
    {
        const trope_sequences &s = plan.sequences;
        if (ANY_WIDTH && shape.is_wide)
            return find_place_widely(s, 0, token);
        const int32_t narrow = (int32_t)token;
        return place_of_sequence(s, search.finish(s, shape, narrow, trope_narrow_first_after(&s, narrow)), narrow);
    }
};

#endif
