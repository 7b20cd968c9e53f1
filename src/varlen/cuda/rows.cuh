/* The rows of a block: their positions on each axis, and whether they are rotated or padding. They lie in shared memory. */
#ifndef TROPE_VARLEN_CUDA_ROWS_CUH
#define TROPE_VARLEN_CUDA_ROWS_CUH

#include "varlen/cuda/search.cuh"
#include "varlen/row.h"

/* How the positions of rows are found. ROWS_SEARCHED takes cu_seqlens in one array of int32, on one rank, so that its kernels
 * need fewer registers and instructions than those of ROWS_SEARCHED_GENERIC. Packed sequences with ids are ROWS_ANY. */
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

/* Whether ROWS_SEARCHED can take the sequences of a packed call. */
static inline bool search_is_usual(const trope_sequences &s)
{
    return !is_wide_search(s) && s.unpadded == s.boundaries && !s.boundaries_64 && !s.starts && !s.ids && s.cp.size == 1;
}

/* The same sequences. The fields that are the same in all calls of ROWS_SEARCHED become constants. */
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

/* Whether the elements of a row are filled, with zeros or NaN, instead of rotated or copied. If the row's sequence is invalid,
 * only the elements that would be rotated are filled. */
__device__ __forceinline__ bool is_filled(int32_t action, bool rotates)
{
    return action == TROPE_ROW_ZERO || action == TROPE_ROW_POISON || (action == TROPE_ROW_INVALID && rotates);
}

/* The rows of a block, in shared memory. POSITION: int64_t, or int32_t where that is enough. */
template <typename POSITION> struct block_rows {
    int2 *bounds;       /* of packed calls, two of each row: where its sequence is stored, and what cu_seqlens say */
    POSITION *position; /* 2^axis_bits of each row. With a table: a row of the table, or NO_POSITION, which gives NaN */
    int32_t *action;    /* of packed calls: first what is known of each row, IS_..., then TROPE_ROW_... */
    uint32_t axis_bits;

    __device__ __forceinline__ block_rows(char *at, uint32_t rows_of_block, bool is_packed, uint32_t axis_bits_of_rows)
        : bounds((int2 *)at), position((POSITION *)(bounds + (is_packed ? 2 * rows_of_block : 0))),
          axis_bits(axis_bits_of_rows)
    {
        action = (int32_t *)(position + (rows_of_block << axis_bits));
    }
};

/* The position that stands for one beyond the table. */
#define NO_POSITION (-1)

/* Without ids all axes have the same positions. */
static inline uint32_t axis_bits_of_rows(const trope_plan &plan)
{
    static_assert(TROPE_MAX_AXES == 4, "axis_bits_of_rows");
    return plan.sequences.ids && plan.axes > 1 ? 2 : 0;
}

static inline size_t bytes_of_block_rows(const trope_plan &plan, uint32_t rows)
{
    const size_t of_packed = plan.sequences.boundaries ? 2 * sizeof(int2) + sizeof(int32_t) : 0;
    return rows * ((sizeof(int64_t) << axis_bits_of_rows(plan)) + of_packed);
}

/* The position that coefficients are made of. With a table (only if ANY_TABLE) it is limited to the rows of the table as the call
 * says: to the nearest row, or to NO_POSITION. */
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

/* Reports bits of `status`. Never in a loop: in a loop with an atomic operation the compiler lets the threads of a warp part
 * (YIELD), and barriers and branches behind it may go wrong. */
__device__ __forceinline__ void report(const trope_plan &plan, int32_t bits)
{
    if (bits && plan.status)
        atomicOr(plan.status, bits);
}

__device__ __forceinline__ void report_if_missing(const trope_plan &plan, bool is_missing)
{
    report(plan, is_missing ? TROPE_STATUS_POSITION : 0);
}

/* The array of ids, or of start positions of batch entries, that each thread reads for its pairs. Strides are in bytes. */
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
};

static inline index_source plan_source(const trope_sequences &s)
{
    const int64_t size = (s.ids ? s.ids_64 : s.starts_64) ? 8 : 4;
    if (s.ids)
        return {
            (const char *)s.ids, s.id_batch_stride * size, s.id_token_stride * size, s.id_axis_stride * size, s.ids_64, 1};
    return {(const char *)s.starts, size, 0, 0, s.starts_64, 0};
}

/* The position of a token for which this index was read: an id, or the start of its batch entry. */
__device__ __forceinline__ int64_t position_of_index(const trope_sequences &s, const index_source &source,
                                                     const raw_index &index, int64_t token)
{
    const int64_t value = index.value(source.is_64);
    if (source.is_id)
        return value;
    const trope_span span = trope_span_of_start(&s, value);
    return trope_add_position(span.first, trope_index_in_sequence(&s, &span, token));
}

/* What is known of a row before its sequence is checked. */
enum { IS_PADDING = 1, IS_VALID = 2 };

/* A token of a packed call. */
struct packed_token {
    int64_t position; /* without ids */
    bool is_padding;
    bool is_valid;        /* it is in no sequence, or in one that was checked in 64 bits */
    narrow_bounds bounds; /* to be checked otherwise */
};

/* The search of one thread, in 64 bits. Not inline: few calls need it. */
static __device__ __noinline__ packed_token find_wide_token(const trope_plan &plan, int64_t token)
{
    const trope_sequences &s = plan.sequences;
    const trope_span span = trope_find_span(&s, 0, token);
    const int64_t index = trope_index_in_sequence(&s, &span, token);
    const bool is_valid = span.sequence < 0 || trope_check_sequence(&s, span.sequence) == TROPE_BOUNDS_VALID;
    return {trope_add_position(span.first, index),
            (bool)trope_is_padding(&span, index),
            is_valid,
            {-1, 0, 0, 0}}; /* bounds that are wrong */
}

/* Issues the first loads of a warp's search. WIDE: 32 bits may be too few for the call. */
template <int ROWS, bool WIDE>
__device__ __forceinline__ boundary_round begin_search(const trope_plan &plan, bool is_wanted)
{
    const trope_sequences s = known_sequences<ROWS>(plan.sequences);
    boundary_round round;
    round.begin(s, is_wanted && (ROWS != ROWS_ANY || s.boundaries) && !(WIDE && is_wide_search(s)));
    return round;
}

/* Reads the positions of rows: ids, or positions in batch entries. Each thread takes a row and an axis at a time. Returns whether any
 * is missing. */
template <bool ANY_TABLE, typename POSITION, class LOCATE>
__device__ __forceinline__ bool read_rows(const trope_plan &plan, uint32_t count, const block_rows<POSITION> &rows,
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
        position = finish_position<ANY_TABLE>(plan, plan.used_axes >> axis & 1, position);
        any_is_missing = any_is_missing || is_missing<ANY_TABLE>(plan, position);
        rows.position[i] = (POSITION)position;
    }
    return any_is_missing;
}

#define MOST_SEARCHED_ROWS 32 /* of a block: one for each thread of the warp that searches */

/* The first warp of the block finds the positions of the rows of a packed call. The other warps wait for them, so what is done with
 * the rows is decided later, by decide_rows. */
template <int ROWS, bool WIDE, bool ANY_TABLE, typename POSITION, class LOCATE>
__device__ __forceinline__ void search_rows(const trope_plan &plan, const boundary_round &round, int64_t first_token,
                                            uint32_t count, const block_rows<POSITION> &rows, LOCATE locate)
{
    const trope_sequences s = known_sequences<ROWS>(plan.sequences);
    const uint32_t row = thread_of_warp();
    const bool has_ids = ROWS == ROWS_ANY && plan.sequences.ids;
    const auto take = [&](const packed_token &token) {
        if (!has_ids)
            rows.position[row] = (POSITION)finish_position<ANY_TABLE>(plan, true, token.position);
        rows.bounds[2 * row] = {token.bounds.begin, token.bounds.end};
        rows.bounds[2 * row + 1] = {token.bounds.unpadded_begin, token.bounds.unpadded_end};
        rows.action[row] = (token.is_padding ? IS_PADDING : 0) | (token.is_valid ? IS_VALID : 0);
    };
    if (!WIDE || !is_wide_search(s))
        search_boundaries(s, round, (int32_t)first_token, (int32_t)count, (int32_t)row, [&](const found_bounds &found) {
            const narrow_span span = narrow_span_of_bounds(&s, found.before, found.bounds, found.start);
            const int32_t index = narrow_index_in_sequence(&s, &span, (int32_t)first_token + (int32_t)row);
            take({s.starts ? trope_add_position(span.first, index) : span.first + index,
                  (bool)narrow_is_padding(&span, index), (bool)narrow_is_gap(&s, found.before), found.bounds});
        });
    else if (row < count)
        take(find_wide_token(plan, first_token + row));
    if (has_ids)
        read_rows<ANY_TABLE>(plan, count, rows, row, 32, locate);
}

/* Decides what is done with each row, TROPE_ROW_..., and reports what is wrong. A warp calls this behind a barrier, with its number of
 * threads. `of_padding` is the action for padding. */
template <int ROWS, bool ANY_TABLE, typename POSITION>
__device__ __forceinline__ void decide_rows(const trope_plan &plan, int32_t of_padding, uint32_t count,
                                            const block_rows<POSITION> &rows, uint32_t threads)
{
    const trope_sequences s = known_sequences<ROWS>(plan.sequences);
    int32_t status = 0;
#pragma unroll 1
    for (uint32_t row = thread_of_warp(); row < count; row += threads) {
        const int2 stored = rows.bounds[2 * row], unpadded = rows.bounds[2 * row + 1];
        const int32_t state = rows.action[row];
        const bool is_padding = state & IS_PADDING,
                   is_valid = state & IS_VALID ||
                              narrow_check_bounds(&s, {stored.x, stored.y, unpadded.x, unpadded.y}) == TROPE_BOUNDS_VALID;
        const int32_t action = !is_valid ? TROPE_ROW_INVALID : is_padding ? of_padding : (int32_t)TROPE_ROW_ROTATE;
        status |= is_padding && of_padding == TROPE_ROW_POISON ? TROPE_STATUS_PADDING : 0;
#pragma unroll 1
        for (int axis = 0; axis < (ROWS == ROWS_ANY && rows.axis_bits ? plan.axes : 1); axis++)
            if (action == TROPE_ROW_ROTATE &&
                is_missing<ANY_TABLE>(plan, rows.position[(row << rows.axis_bits) + (uint32_t)axis]))
                status |= TROPE_STATUS_POSITION;
        rows.action[row] = action;
    }
    report(plan, status);
}

#endif
