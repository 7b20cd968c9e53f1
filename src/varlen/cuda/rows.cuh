/* The rows of a block on the device: what is done with each of them, and its position on each axis, in shared memory. */
#ifndef TROPE_VARLEN_CUDA_ROWS_CUH
#define TROPE_VARLEN_CUDA_ROWS_CUH

#include "varlen/cuda/search.cuh"
#include "varlen/row.h"

/* How positions are found. Those of packed sequences are searched: with ROWS_SEARCHED in one array of int32, on one rank, which
 * needs fewer registers than ROWS_SEARCHED_GENERIC and so leaves room for more warps. Packed sequences with ids are ROWS_ANY. */
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

/* Whether one array of int32 and one rank are all that the sequences of a packed call have. */
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

/* What becomes of the heads of a row: they are rotated; or filled, with zeros, or with NaN; or copied. Of a row whose sequence is
 * invalid only what would be rotated is filled. */
__device__ __forceinline__ bool is_filled(int32_t action, bool rotates)
{
    return action == TROPE_ROW_ZERO || action == TROPE_ROW_POISON || (action == TROPE_ROW_INVALID && rotates);
}

/* The rows of a block, in shared memory. POSITION: int64_t, or int32_t where that is enough. */
template <typename POSITION> struct block_rows {
    POSITION *position; /* of each row, 2^axis_bits of them. With a table: a row that it has. NO_POSITION makes NaN. */
    int32_t *action;    /* of each row: TROPE_ROW_... */
    uint32_t axis_bits;

    __device__ __forceinline__ block_rows(char *at, uint32_t rows_of_block, uint32_t axis_bits_of_rows)
        : position((POSITION *)at), axis_bits(axis_bits_of_rows)
    {
        action = (int32_t *)(position + (rows_of_block << axis_bits));
    }
};

/* What no table has as a row. */
#define NO_POSITION (-1)

/* Without ids all axes have the same positions. */
static inline uint32_t axis_bits_of_rows(const trope_plan &plan)
{
    static_assert(TROPE_MAX_AXES == 4, "axis_bits_of_rows");
    return plan.sequences.ids && plan.axes > 1 ? 2 : 0;
}

static inline size_t bytes_of_block_rows(const trope_plan &plan, uint32_t rows)
{
    return rows * ((sizeof(int64_t) << axis_bits_of_rows(plan)) + sizeof(int32_t));
}

/* What the coefficients of a row are made of: a position, or where ANY_TABLE, if there is a table, the row of it: the position's
 * own, the nearest one, or NO_POSITION. */
template <bool ANY_TABLE>
__device__ __forceinline__ int64_t finish_position(const trope_plan &plan, bool is_used, int64_t position)
{
    if (!ANY_TABLE || plan.angles.source == TROPE_ANGLES_PHASE || (uint64_t)position < (uint64_t)plan.angles.rows)
        return position;
    return is_used && trope_limit_position(&plan, &position) ? NO_POSITION : is_used ? position : 0;
}

/* Whether a finished position is one that the table does not have. */
template <bool ANY_TABLE> __device__ __forceinline__ bool is_missing(const trope_plan &plan, int64_t position)
{
    return ANY_TABLE && position == NO_POSITION && plan.angles.source != TROPE_ANGLES_PHASE;
}

/* Reports a missing position. Never in a loop: where a loop has an atomic operation, the compiler lets the threads of a warp part
 * for good (YIELD), and barriers and branches behind it then go wrong. */
__device__ __forceinline__ void report_if_missing(const trope_plan &plan, bool is_missing)
{
    if (is_missing && plan.status)
        atomicOr(plan.status, TROPE_STATUS_POSITION);
}

/* What each thread reads for a pair of a row without sequences: its id, or where its batch entry starts. Bytes from one to the
 * next. */
struct index_source {
    const char *base;
    int64_t batch, token, axis;
    int32_t is_64, is_id;

    /* STRIDE: int32_t if that is enough for strides (strides_of_ids_are_usual). */
    template <typename STRIDE>
    __device__ __forceinline__ const char *address(int64_t of_batch, int64_t of_token, int32_t of_axis) const
    {
        return base + (STRIDE)of_batch * (int64_t)(STRIDE)batch + (STRIDE)of_token * (int64_t)(STRIDE)token +
               of_axis * (int64_t)(STRIDE)axis;
    }

    template <typename STRIDE>
    __device__ __forceinline__ void load(int64_t of_batch, int64_t of_token, int32_t of_axis, raw_index *index) const
    {
        load_4_or_8(address<STRIDE>(of_batch, of_token, of_axis), is_64, &index->low, &index->high);
    }

    /* Nothing if there is nothing to be read. */
    template <typename STRIDE>
    __device__ __forceinline__ void load_if(int64_t of_batch, int64_t of_token, int32_t of_axis, raw_index *index) const
    {
        load_4_or_8_if(base != NULL, address<STRIDE>(of_batch, of_token, of_axis), is_64, &index->low, &index->high);
    }
};

static inline index_source plan_source(const trope_sequences &s)
{
    const int64_t size = (s.ids ? s.ids_64 : s.starts_64) ? 8 : 4;
    if (s.ids)
        return {
            (const char *)s.ids, s.id_batch_stride * size, s.id_token_stride * size, s.id_axis_stride * size, s.ids_64, 1};
    return {(const char *)s.starts, size, 0, 0, s.starts_64, 0};
}

/* The position that an index says which was read for a token. */
__device__ __forceinline__ int64_t position_of_index(const trope_sequences &s, const index_source &source,
                                                     const raw_index &index, int64_t token)
{
    const int64_t value = index.value(source.is_64);
    if (source.is_id)
        return value;
    const trope_span span = trope_span_of_start(&s, value);
    return trope_add_position(span.first, trope_index_in_sequence(&s, &span, token));
}

/* A token of a packed call. */
struct packed_token {
    bool is_padding, is_valid;
    int64_t position; /* if no id says it */

    /* What is done with it, TROPE_ROW_... `of_padding`: with padding. */
    __device__ __forceinline__ int32_t action(const trope_plan &plan, int32_t of_padding) const
    {
        if (is_padding && of_padding == TROPE_ROW_POISON && plan.status)
            atomicOr(plan.status, TROPE_STATUS_PADDING);
        const int32_t action = is_padding ? of_padding : (int32_t)TROPE_ROW_ROTATE;
        return is_valid ? action : (int32_t)TROPE_ROW_INVALID;
    }
};

/* By one thread, in 64 bits. Not inline: few calls need it. */
static __device__ __noinline__ packed_token find_wide_token(const trope_plan &plan, int64_t token)
{
    const trope_sequences &s = plan.sequences;
    const trope_span span = trope_find_span(&s, 0, token);
    const int64_t index = trope_index_in_sequence(&s, &span, token);
    return {(bool)trope_is_padding(&span, index),
            span.sequence < 0 || trope_check_sequence(&s, span.sequence) == TROPE_BOUNDS_VALID,
            trope_add_position(span.first, index)};
}

/* Asks for what the search of a warp begins with. WIDE: 32 bits may be too few for it. */
template <int ROWS, bool WIDE>
__device__ __forceinline__ boundary_round begin_search(const trope_plan &plan, bool is_wanted)
{
    const trope_sequences s = known_sequences<ROWS>(plan.sequences);
    boundary_round round;
    round.begin(s, is_wanted && (ROWS != ROWS_ANY || s.boundaries) && !(WIDE && is_wide_search(s)));
    return round;
}

/* For all threads of a warp: each gets token number `which` of those that follow each other from `first` on. */
template <int ROWS, bool WIDE>
__device__ __forceinline__ packed_token find_packed_token(const trope_plan &plan, const boundary_round &round,
                                                          int64_t first, int32_t tokens, int32_t which)
{
    const trope_sequences s = known_sequences<ROWS>(plan.sequences);
    if (WIDE && is_wide_search(plan.sequences))
        return find_wide_token(plan, first + which);
    const found_bounds found = search_boundaries(s, round, (int32_t)first, tokens, which);
    const narrow_span span = narrow_span_of_bounds(&s, found.before, found.bounds);
    const int32_t index = narrow_index_in_sequence(&s, &span, (int32_t)first + which);
    return {(bool)narrow_is_padding(&span, index),
            narrow_is_gap(&s, found.before) || narrow_check_bounds(&s, found.bounds) == TROPE_BOUNDS_VALID,
            s.starts ? trope_add_position(span.first, index) : span.first + index};
}

/* The positions of rows that have ids, or that belong to batch entries: each of `threads` threads has a row and an axis. */
template <int ROWS, bool ANY_TABLE, typename POSITION, class LOCATE>
__device__ __forceinline__ void read_rows(const trope_plan &plan, uint32_t count, const block_rows<POSITION> &rows,
                                          uint32_t thread, uint32_t threads, LOCATE locate)
{
    const trope_sequences &s = plan.sequences;
    bool any_is_missing = false;
#pragma unroll 1
    for (uint32_t i = thread; i < count << rows.axis_bits; i += threads) {
        const uint32_t row = i >> rows.axis_bits;
        const int axis = (int)(i - (row << rows.axis_bits));
        if (axis >= plan.axes)
            continue;
        int64_t batch, token, position;
        locate(row, &batch, &token);
        if (s.ids) {
            position = trope_load_id(&s, batch, token, axis);
        } else {
            const trope_span span = trope_dense_span(&s, batch);
            position = trope_add_position(span.first, trope_index_in_sequence(&s, &span, token));
        }
        const bool is_used =
            (!have_actions<ROWS>(plan) || rows.action[row] == TROPE_ROW_ROTATE) && plan.used_axes >> axis & 1;
        position = finish_position<ANY_TABLE>(plan, is_used, position);
        any_is_missing = any_is_missing || is_missing<ANY_TABLE>(plan, position);
        rows.position[i] = (POSITION)position;
    }
    report_if_missing(plan, any_is_missing);
}

#define MOST_SEARCHED_ROWS 32 /* of a block: a thread of the warp that searches has one */

/* The rows of a packed call, by the first warp of the block. `of_padding`: what is done with padding. */
template <int ROWS, bool WIDE, bool ANY_TABLE, typename POSITION, class LOCATE>
__device__ __forceinline__ void search_rows(const trope_plan &plan, const boundary_round &round, int32_t of_padding,
                                            int64_t first_token, uint32_t count, const block_rows<POSITION> &rows,
                                            LOCATE locate)
{
    const uint32_t row = thread_of_warp();
    const packed_token token =
        find_packed_token<ROWS, WIDE>(plan, round, first_token, (int32_t)count, (int32_t)min(row, count - 1));
    const bool has_ids = ROWS == ROWS_ANY && plan.sequences.ids;
    if (row < count) {
        const int32_t action = token.action(plan, of_padding);
        rows.action[row] = action;
        if (!has_ids) {
            const int64_t position = finish_position<ANY_TABLE>(plan, action == TROPE_ROW_ROTATE, token.position);
            report_if_missing(plan, is_missing<ANY_TABLE>(plan, position));
            rows.position[row] = (POSITION)position;
        }
    }
    if (has_ids) {
        __syncwarp();
        read_rows<ROWS, ANY_TABLE>(plan, count, rows, row, 32, locate);
    }
}

#endif
