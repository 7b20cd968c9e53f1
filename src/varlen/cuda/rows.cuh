/* The rows of a block on the device: what is done with each of them, and its position on each axis, in shared memory. */
#ifndef TROPE_VARLEN_CUDA_ROWS_CUH
#define TROPE_VARLEN_CUDA_ROWS_CUH

#include "varlen/cuda/search.cuh"
#include "varlen/row.h"

/* How positions are found. ROWS_SEARCHED is for simple calls (is_simple in fwd/cuda/usual.cuh): their kernel has fewer registers
 * than that of every other packed call (ROWS_SEARCHED_GENERIC), and so more warps at a time. */
enum row_kind { ROWS_FROM_TOKENS, ROWS_READ, ROWS_SEARCHED, ROWS_SEARCHED_GENERIC, ROWS_ANY };

__host__ __device__ constexpr bool may_search(int rows)
{
    return rows >= ROWS_SEARCHED;
}

/* Whether rows have sequences, so that some of them may be padding. */
template <int ROWS> __device__ __forceinline__ bool have_actions(const trope_plan &plan)
{
    return ROWS == ROWS_SEARCHED || ROWS == ROWS_SEARCHED_GENERIC || (ROWS == ROWS_ANY && plan.sequences.boundaries);
}

/* Whether one array of int32 and one rank are all that a packed call has. */
static inline bool search_is_usual(const trope_sequences &s)
{
    return !is_wide_search(s) && s.unpadded == s.boundaries && !s.boundaries_64 && !s.starts && !s.ids && s.cp.size == 1;
}

/* The same sequences, with what the kernel of ROWS_SEARCHED knows of them as constants. */
template <int ROWS> __device__ __forceinline__ trope_sequences known_sequences(const trope_sequences &s)
{
    trope_sequences known = s;
    if (ROWS == ROWS_SEARCHED) {
        known.unpadded = s.boundaries;
        known.boundaries_64 = 0;
        known.starts = known.ids = NULL;
        known.cp = {1, 1, 0, 1, {0, 0}, {1, 1, 0}, 0};
        known.axes = 1;
    }
    return known;
}

__device__ __forceinline__ bool is_rotated(int32_t action)
{
    return action == TROPE_ROW_ROTATE || action == TROPE_ROW_INVALID;
}

/* Where the rows of a block are in shared memory. */
struct block_rows {
    int64_t *position; /* of each row, 2^axis_bits of them */
    int32_t *action;   /* of each row */
    uint32_t axis_bits;

    __device__ __forceinline__ block_rows(char *at, uint32_t rows_of_block, int32_t axes)
        : position((int64_t *)at), axis_bits(axes == 1 ? 0 : 2)
    {
        static_assert(TROPE_MAX_AXES == 4, "axis_bits");
        action = (int32_t *)(position + (rows_of_block << axis_bits));
    }
};

static inline size_t bytes_of_block_rows(const trope_plan &plan, uint32_t rows)
{
    return rows * (sizeof(int64_t) * (plan.axes == 1 ? 1 : TROPE_MAX_AXES) + sizeof(int32_t));
}

/* What is done with a token of a sequence, or of a gap, that has this index in it. */
__device__ __forceinline__ int32_t find_action(const trope_plan &plan, bool is_valid, bool is_padding)
{
    if (!is_valid)
        return TROPE_ROW_INVALID;
    if (!is_padding)
        return TROPE_ROW_ROTATE;
    const int32_t action = trope_action_of_padding(&plan.sequences);
    if (action == TROPE_ROW_POISON && plan.status)
        atomicOr(plan.status, TROPE_STATUS_PADDING);
    return action;
}

/* Leaves the row of a token, and its position where no id says it. */
__device__ __forceinline__ void leave_row(const trope_sequences &s, int32_t action, int64_t position, uint32_t row,
                                          const block_rows &rows)
{
    rows.action[row] = action;
    if (s.ids)
        return;
#pragma unroll 1
    for (int axis = 0; axis < 1 << rows.axis_bits; axis++)
        rows.position[(row << rows.axis_bits) + axis] = position;
}

/* By one thread, in 64 bits. Not inline: few calls need it. */
static __device__ __noinline__ void find_wide_row(const trope_plan &plan, int64_t token, uint32_t row, block_rows rows)
{
    const trope_sequences &s = plan.sequences;
    const trope_span span = trope_find_span(&s, 0, token);
    const int64_t index = trope_index_in_sequence(&s, &span, token);
    const bool is_valid = span.sequence < 0 || trope_check_sequence(&s, span.sequence) == TROPE_BOUNDS_VALID;
    leave_row(s, find_action(plan, is_valid, trope_is_padding(&span, index)), trope_add_position(span.first, index), row,
              rows);
}

#define MOST_SEARCHED_ROWS 32 /* of a block: a thread of the warp that searches has one */

/* The rows of a packed call, by the first warp of the block. */
template <int ROWS>
__device__ __forceinline__ void search_rows(const trope_plan &plan, int64_t first_token, uint32_t count,
                                            const block_rows &rows)
{
    const trope_sequences s = known_sequences<ROWS>(plan.sequences);
    const uint32_t row = thread_of_warp();
    if (ROWS == ROWS_ANY && is_wide_search(plan.sequences)) {
        if (row < count)
            find_wide_row(plan, first_token + row, row, rows);
        return;
    }
    const int32_t before = search_boundaries(s, (int32_t)first_token, (int32_t)count);
    if (row >= count)
        return;
    bool is_valid;
    const narrow_span span = find_span_after(s, before, &is_valid);
    const int32_t index = narrow_index_in_sequence(&s, &span, (int32_t)first_token + (int32_t)row);
    const int32_t action = find_action(plan, is_valid, narrow_is_padding(&span, index));
    leave_row(s, action, s.starts ? trope_add_position(span.first, index) : span.first + index, row, rows);
}

/* The positions of rows that have ids, or that belong to batch entries: a thread has a row and an axis. */
template <class LOCATE>
__device__ __forceinline__ void read_rows(const trope_plan &plan, uint32_t count, const block_rows &rows, uint32_t thread,
                                          uint32_t threads, LOCATE locate)
{
    const trope_sequences &s = plan.sequences;
#pragma unroll 1
    for (uint32_t i = thread; i < count << rows.axis_bits; i += threads) {
        const int axis = (int)(i & ((1u << rows.axis_bits) - 1));
        if (axis >= plan.axes)
            continue;
        int64_t batch, token;
        locate(i >> rows.axis_bits, &batch, &token);
        if (s.ids) {
            rows.position[i] = trope_load_id(&s, batch, token, axis);
        } else {
            const trope_span span = trope_dense_span(&s, batch);
            rows.position[i] = trope_add_position(span.first, trope_index_in_sequence(&s, &span, token));
        }
    }
}

#endif
