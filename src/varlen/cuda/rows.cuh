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

/* MAY_HAVE_TABLE: positions may be rows of a table, which has an end. */
template <int ROWS, bool MAY_HAVE_TABLE> struct row_lookup {
    int64_t id;
    span_search search;

    /* After the kernel before this one has ended, before the loads of data. */
    __device__ __forceinline__ void request(const trope_plan &plan, int64_t batch, int64_t token, int axis)
    {
        const trope_sequences &s = plan.sequences;
        if (ROWS == ROWS_FROM_TOKENS)
            return;
        if (s.ids)
            id = load_index_at_once(s.ids, s.ids_64,
                                    axis * s.id_axis_stride + batch * s.id_batch_stride + token * s.id_token_stride);
        else if (!s.boundaries)
            id = s.starts ? load_index_at_once(s.starts, s.starts_64, batch) : 0;
        if (ROWS == ROWS_SEARCHED && s.boundaries)
            search.request(s, token);
    }

    __device__ __forceinline__ found_row finish(const trope_plan &plan, const token_positions &positions, int64_t token)
    {
        const trope_sequences &s = plan.sequences;
        found_row row = {0, TROPE_ROW_ROTATE, false};
        if (ROWS == ROWS_FROM_TOKENS) {
            row.position = positions.of((uint32_t)token);
            return row;
        }
        found_span found = {trope_span_of_dense(&s, id), false};
        if (ROWS == ROWS_SEARCHED && s.boundaries)
            found = search.finish(s, token);
        const int64_t index = trope_index_in_sequence(&s, &found.span, token);
        if (ROWS == ROWS_SEARCHED && trope_is_padding(&found.span, index))
            row.action = action_of_padding(plan);
        row.position = s.ids ? id : trope_position_of_index(&found.span, index);
        if (MAY_HAVE_TABLE && row.action == TROPE_ROW_ROTATE)
            limit_position(plan, &row);
        row.poisoned = row.poisoned || found.faulty;
        return row;
    }
};

#endif
