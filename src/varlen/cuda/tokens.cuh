/* The tokens of a block: their positions on each axis, and whether they are rotated or are padding. The data lies in
 * shared memory. */
#ifndef TROPE_VARLEN_CUDA_TOKENS_CUH
#define TROPE_VARLEN_CUDA_TOKENS_CUH

#include "varlen/cuda/search.cuh"
#include "varlen/token.h"

/* How a kernel finds the positions of tokens. POSITIONS_SEARCHED supports only cu_seqlens in one int32 array on one
 * rank, so its kernels need fewer registers and instructions than the kernels of POSITIONS_SEARCHED_GENERIC. Packed
 * sequences with ids use POSITIONS_GENERIC. */
enum position_kind {
    POSITIONS_FROM_TOKENS,
    POSITIONS_READ,
    POSITIONS_SEARCHED,
    POSITIONS_SEARCHED_GENERIC,
    POSITIONS_GENERIC
};

__host__ __device__ constexpr bool may_search(int positions)
{
    return positions >= POSITIONS_SEARCHED;
}

/* Whether the tokens belong to packed sequences, so that some of them may be padding. */
template <int POSITIONS> __device__ __forceinline__ bool have_actions(const trope_plan &plan)
{
    return POSITIONS == POSITIONS_SEARCHED || POSITIONS == POSITIONS_SEARCHED_GENERIC ||
           (POSITIONS == POSITIONS_GENERIC && plan.position_source.boundaries);
}

/* Whether POSITIONS_SEARCHED supports the sequences of a call with packed sequences. */
static inline bool search_is_fast(const trope_position_source &s)
{
    return !is_wide_search(s) && s.unpadded == s.boundaries && !s.boundaries_64 && !s.starts && !s.ids && s.cp.size == 1;
}

/* Returns a copy of s. For POSITIONS_SEARCHED, the fields that are the same in all its calls become constants. */
template <int POSITIONS>
__device__ __forceinline__ trope_position_source known_position_source(const trope_position_source &s)
{
    trope_position_source known = s;
    if (POSITIONS == POSITIONS_SEARCHED) {
        known.unpadded = s.boundaries;
        known.boundaries_64 = 0;
        known.starts = known.ids = NULL;
        known.cp = {1, 1, 0, 1, {0, 0}, {1, 1, 0}, 0};
        known.position_axes = 1;
    }
    return known;
}

/* Whether the elements of a token are filled with zeros or NaN instead of being rotated or copied. If the token's
 * sequence is invalid, only the elements that would be rotated are filled. */
__device__ __forceinline__ bool is_filled(int32_t action, bool rotates)
{
    return action == TROPE_TOKEN_ZERO || action == TROPE_TOKEN_POISON || (action == TROPE_TOKEN_INVALID && rotates);
}

/* The tokens of a block, in shared memory. POSITION is int64_t, or int32_t where 32 bits suffice. */
template <typename POSITION> struct block_tokens {
    int2 *bounds; /* packed sequences: two for each token, its sequence's bounds in memory, and its bounds in cu_seqlens */
    POSITION *position; /* 2^axis_bits for each token. With a table: a row of the table, or NO_POSITION, which gives NaN */
    int32_t *action;    /* packed sequences: IS_... bits before decide_actions, TROPE_TOKEN_... after it */
    uint32_t axis_bits;

    __device__ __forceinline__ block_tokens(char *at, uint32_t tokens_of_block, bool is_packed,
                                            uint32_t axis_bits_of_tokens)
        : bounds((int2 *)at), position((POSITION *)(bounds + (is_packed ? 2 * tokens_of_block : 0))),
          axis_bits(axis_bits_of_tokens)
    {
        action = (int32_t *)(position + (tokens_of_block << axis_bits));
    }
};

/* Stands for a position beyond the table. */
#define NO_POSITION (-1)

/* Without ids, all axes have the same positions, so one position for each token suffices. */
static inline uint32_t axis_bits_of_tokens(const trope_plan &plan)
{
    static_assert(TROPE_MAX_AXES == 4, "axis_bits_of_tokens");
    return plan.position_source.ids && plan.pair_axes > 1 ? 2 : 0;
}

static inline size_t bytes_of_block_tokens(const trope_plan &plan, uint32_t tokens)
{
    const size_t of_packed = plan.position_source.boundaries ? 2 * sizeof(int2) + sizeof(int32_t) : 0;
    return tokens * ((sizeof(int64_t) << axis_bits_of_tokens(plan)) + of_packed);
}

/* Returns the position from which coefficients are computed. With a table (only if ANY_TABLE), the call's policy for
 * positions beyond the table applies: they become the nearest row of the table, or NO_POSITION. */
template <bool ANY_TABLE>
__device__ __forceinline__ int64_t finish_position(const trope_plan &plan, bool is_used, int64_t position)
{
    if (!ANY_TABLE || plan.angles.source == TROPE_ANGLES_PHASE || (uint64_t)position < (uint64_t)plan.angles.rows)
        return position;
    return is_used && trope_limit_position(&plan, &position) ? NO_POSITION : is_used ? position : 0;
}

/* Whether finish_position found that the table has no such position. */
template <bool ANY_TABLE> __device__ __forceinline__ bool is_missing(const trope_plan &plan, int64_t position)
{
    return ANY_TABLE && position == NO_POSITION && plan.angles.source != TROPE_ANGLES_PHASE;
}

/* Sets bits of the call's status word. Do not call this in a loop. If a loop has an atomic operation, the compiler lets
 * the threads of a warp diverge (YIELD). Barriers and branches after the loop may then give wrong results. */
__device__ __forceinline__ void report(const trope_plan &plan, int32_t bits)
{
    if (bits && plan.status)
        atomicOr(plan.status, bits);
}

__device__ __forceinline__ void report_if_missing(const trope_plan &plan, bool is_missing)
{
    report(plan, is_missing ? TROPE_STATUS_POSITION : 0);
}

/* The array from which each thread reads the positions of its pairs: ids, or start positions of batch entries. Strides
 * are in bytes. */
struct index_source {
    const char *base;
    int64_t batch, token, axis;
    int32_t is_64, is_id;

    /* STRIDE is int32_t if 32 bits suffice for the strides (ids_are_narrow). */
    template <typename STRIDE>
    __device__ __forceinline__ const char *address(int64_t of_batch, int64_t of_token, int32_t of_axis) const
    {
        return base + (STRIDE)of_batch * (int64_t)(STRIDE)batch + (STRIDE)of_token * (int64_t)(STRIDE)token +
               of_axis * (int64_t)(STRIDE)axis;
    }
};

static inline index_source plan_source(const trope_position_source &s)
{
    const int64_t size = (s.ids ? s.ids_64 : s.starts_64) ? 8 : 4;
    if (s.ids)
        return {
            (const char *)s.ids, s.id_batch_stride * size, s.id_token_stride * size, s.id_axis_stride * size, s.ids_64, 1};
    return {(const char *)s.starts, size, 0, 0, s.starts_64, 0};
}

/* Returns the position of a token from the index that was read for it: an id, or the start position of its batch entry. */
__device__ __forceinline__ int64_t position_of_index(const trope_position_source &s, const index_source &source,
                                                     const raw_index &index, int64_t token)
{
    const int64_t value = index.value(source.is_64);
    if (source.is_id)
        return value;
    const trope_span span = trope_span_of_start(&s, value);
    return trope_add_position(span.first, trope_index_in_sequence(&s, &span, token));
}

/* State of a token before its sequence is checked. */
enum { IS_PADDING = 1, IS_VALID = 2 };

/* The result of a search for a token of packed sequences. */
struct packed_token {
    int64_t position; /* unused if the call has ids */
    bool is_padding;
    bool is_valid;        /* the token is in no sequence, or a check of its sequence in 64 bits succeeded */
    narrow_bounds bounds; /* if not is_valid, decide_actions checks these bounds */
};

/* One thread searches for one token in 64 bits. Not inline, because few calls need it. */
static __device__ __noinline__ packed_token find_wide_token(const trope_plan &plan, int64_t token)
{
    const trope_position_source &s = plan.position_source;
    const trope_span span = trope_find_span(&s, 0, token);
    const int64_t index = trope_index_in_sequence(&s, &span, token);
    const bool is_valid = span.sequence < 0 || trope_check_sequence(&s, span.sequence) == TROPE_BOUNDS_VALID;
    return {trope_add_position(span.first, index),
            (bool)trope_is_padding(&span, index),
            is_valid,
            {-1, 0, 0, 0}}; /* invalid bounds */
}

/* Issues the first loads of a warp's search. WIDE says that the kernel also takes calls for which 32 bits may not
 * suffice; such calls load nothing here. */
template <int POSITIONS, bool WIDE>
__device__ __forceinline__ boundary_round begin_search(const trope_plan &plan, bool is_wanted)
{
    const trope_position_source s = known_position_source<POSITIONS>(plan.position_source);
    boundary_round round;
    round.begin(s, is_wanted && (POSITIONS != POSITIONS_GENERIC || s.boundaries) && !(WIDE && is_wide_search(s)));
    return round;
}

/* Reads the positions of the block's tokens: ids, or positions in batch entries. In each iteration, a thread takes one
 * axis of one token. Returns whether any position is missing from the table. */
template <bool ANY_TABLE, typename POSITION, class LOCATE>
__device__ __forceinline__ bool read_positions(const trope_plan &plan, uint32_t count, const block_tokens<POSITION> &tokens,
                                               uint32_t thread, uint32_t threads, LOCATE locate)
{
    const trope_position_source &s = plan.position_source;
    bool any_is_missing = false;
#pragma unroll 1
    for (uint32_t i = thread; i < count << tokens.axis_bits; i += threads) {
        const uint32_t in_block = i >> tokens.axis_bits;
        const int axis = (int)(i - (in_block << tokens.axis_bits));
        if (axis >= plan.pair_axes)
            continue;
        int64_t batch, token, position;
        locate(in_block, &batch, &token);
        if (s.ids) {
            position = trope_load_id(&s, batch, token, axis);
        } else {
            const trope_span span = trope_dense_span(&s, batch);
            position = trope_add_position(span.first, trope_index_in_sequence(&s, &span, token));
        }
        position = finish_position<ANY_TABLE>(plan, plan.used_axes >> axis & 1, position);
        any_is_missing = any_is_missing || is_missing<ANY_TABLE>(plan, position);
        tokens.position[i] = (POSITION)position;
    }
    return any_is_missing;
}

#define MOST_SEARCHED_TOKENS 32 /* one token for each thread of the warp that searches */

/* Finds the positions of the block's tokens in packed sequences. Only the first warp of the block calls this, and the
 * other warps wait for it. So decide_actions makes all other decisions about tokens later. */
template <int POSITIONS, bool WIDE, bool ANY_TABLE, typename POSITION, class LOCATE>
__device__ __forceinline__ void search_positions(const trope_plan &plan, const boundary_round &round, int64_t first_token,
                                                 uint32_t count, const block_tokens<POSITION> &tokens, LOCATE locate)
{
    const trope_position_source s = known_position_source<POSITIONS>(plan.position_source);
    const uint32_t in_block = thread_of_warp();
    const bool has_ids = POSITIONS == POSITIONS_GENERIC && plan.position_source.ids;
    const auto take = [&](const packed_token &token) {
        if (!has_ids)
            tokens.position[in_block] = (POSITION)finish_position<ANY_TABLE>(plan, true, token.position);
        tokens.bounds[2 * in_block] = {token.bounds.begin, token.bounds.end};
        tokens.bounds[2 * in_block + 1] = {token.bounds.unpadded_begin, token.bounds.unpadded_end};
        tokens.action[in_block] = (token.is_padding ? IS_PADDING : 0) | (token.is_valid ? IS_VALID : 0);
    };
    if (!WIDE || !is_wide_search(s))
        search_boundaries(
            s, round, (int32_t)first_token, (int32_t)count, (int32_t)in_block, [&](const found_bounds &found) {
                const narrow_span span = narrow_span_of_bounds(&s, found.before, found.bounds, found.start);
                const int32_t index = narrow_index_in_sequence(&s, &span, (int32_t)first_token + (int32_t)in_block);
                take({s.starts ? trope_add_position(span.first, index) : span.first + index,
                      (bool)narrow_is_padding(&span, index), (bool)narrow_is_gap(&s, found.before), found.bounds});
            });
    else if (in_block < count)
        take(find_wide_token(plan, first_token + in_block));
    if (has_ids)
        read_positions<ANY_TABLE>(plan, count, tokens, in_block, 32, locate);
}

/* Decides the action of each token (TROPE_TOKEN_...) and reports errors. A warp calls this after a barrier. `threads` is
 * the number of threads of that warp, and `of_padding` is the action for padding. */
template <int POSITIONS, bool ANY_TABLE, typename POSITION>
__device__ __forceinline__ void decide_actions(const trope_plan &plan, int32_t of_padding, uint32_t count,
                                               const block_tokens<POSITION> &tokens, uint32_t threads)
{
    const trope_position_source s = known_position_source<POSITIONS>(plan.position_source);
    int32_t status = 0;
#pragma unroll 1
    for (uint32_t in_block = thread_of_warp(); in_block < count; in_block += threads) {
        const int2 stored = tokens.bounds[2 * in_block], unpadded = tokens.bounds[2 * in_block + 1];
        const int32_t state = tokens.action[in_block];
        const bool is_padding = state & IS_PADDING,
                   is_valid = state & IS_VALID ||
                              narrow_check_bounds(&s, {stored.x, stored.y, unpadded.x, unpadded.y}) == TROPE_BOUNDS_VALID;
        const int32_t action = !is_valid ? TROPE_TOKEN_INVALID : is_padding ? of_padding : (int32_t)TROPE_TOKEN_ROTATE;
        status |= is_padding && of_padding == TROPE_TOKEN_POISON ? TROPE_STATUS_PADDING : 0;
#pragma unroll 1
        for (int axis = 0; axis < (POSITIONS == POSITIONS_GENERIC && tokens.axis_bits ? plan.pair_axes : 1); axis++)
            if (action == TROPE_TOKEN_ROTATE &&
                is_missing<ANY_TABLE>(plan, tokens.position[(in_block << tokens.axis_bits) + (uint32_t)axis]))
                status |= TROPE_STATUS_POSITION;
        tokens.action[in_block] = action;
    }
    report(plan, status);
}

#endif
