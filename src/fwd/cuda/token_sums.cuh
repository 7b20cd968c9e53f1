/* Norms over tokens on CUDA, in all vector kernels but token_gradient.cuh. A block has all heads of its tokens. The threads
 * of each head leave its sum in shared memory, and one warp adds the sums of a token's heads for each operand. */
#ifndef TROPE_FWD_CUDA_TOKEN_SUMS_CUH
#define TROPE_FWD_CUDA_TOKEN_SUMS_CUH

#include "fwd/cuda/find_coefficients.cuh"
#include "fwd/cuda/norm_call.cuh"

/* Returns the shared memory of one token: the sum of each head, then the mean of each segment. `in_block` is the token's
 * index among those that the block processes at the same time. */
__device__ __forceinline__ float *token_room(const norm_call &call, uint32_t in_block)
{
    return (float *)(shared_memory + call.shape.terms_at) + in_block * TOKEN_ROOM(call.token_heads);
}

/* Returns the sum of at most MOST_TOKEN_HEADS values, by a binary tree. All threads of a warp must call it. */
template <class VALUE> __device__ __forceinline__ float add_in_warp(uint32_t count, VALUE value)
{
    const uint32_t lane = thread_of_warp();
    float total = 0;
    for (uint32_t first = 0; first < count; first += 32) {
        float sum = first + lane < count ? value(first + lane) : 0;
#pragma unroll
        for (int step = 1; step < 32; step *= 2)
            sum = trope_add(sum, __shfl_xor_sync(UINT32_MAX, sum, step));
        if (lane == first / 32)
            total = sum;
    }
#pragma unroll
    for (int step = 1; step < 32; step *= 2)
        total = trope_add(total, __shfl_xor_sync(UINT32_MAX, total, step));
    return total;
}

/* Finds the mean of a segment for one token, whose index in the block is `in_block`. `room` is the shared memory of the
 * token. of_caller: it also writes the sums of the heads to the caller's token_sums, or reads the sums of all ranks from
 * there. All threads of a warp must call it. */
template <class R>
__device__ __forceinline__ void add_token(const typename R::call &call, float *room, uint32_t segment,
                                          typename R::index first_token, uint32_t in_block, bool of_caller)
{
    const block_norm &n = call.norms[segment];
    const uint32_t heads = call.segments[segment].heads, lane = thread_of_warp();
    const block_token<typename R::index> at =
        find_token<R::ADDRESSES, typename R::index>(call.shape, first_token + (typename R::index)in_block);
    const bool rotates = action_of_token<R>(call, in_block) == TROPE_TOKEN_ROTATE;
    const int64_t tokens = call.plan.plan.batch * call.plan.plan.tokens;
    float *const sums = n.sums + at.batch(call.shape) * call.plan.plan.tokens + at.index(call.shape);
    const bool reads = of_caller && n.sums_read, writes = of_caller && n.sums && !n.sums_read;
    for (uint32_t head = lane; writes && head < heads; head += 32)
        sums[head * tokens] = rotates ? room[n.heads_at + head] : 0;
    float mean = add_in_warp(reads ? n.sums_read : heads,
                             [&](uint32_t head) { return reads ? sums[head * tokens] : room[n.heads_at + head]; }) /
                 n.elements;
    if (!IS_DIRECT<R> && n.axes && rotates && !has_positions<R>(call, n.axes, in_block))
        mean = NAN;
    if (lane == 0)
        room[call.token_heads + segment] = mean;
}

/* Adds the sums that threads have left for tokens [in_block, in_block + count) of the block. All threads of the block
 * must call it. */
template <class R>
__device__ __forceinline__ void add_tokens(const typename R::call &call, typename R::index first_token, uint32_t in_block,
                                           uint32_t count, bool of_caller)
{
    const uint32_t segments = call.shape.segments, warps = threads_of_block() / 32; /* without an incomplete last warp */
    __syncthreads();
    if (thread_of_block() / 32 < warps)
        for (uint32_t i = thread_of_block() / 32; i < count * segments; i += warps)
            if (call.norms[i % segments].is_given)
                add_token<R>(call, token_room(call, i / segments), i % segments, first_token, in_block + i / segments,
                             of_caller);
    __syncthreads();
}

#endif
