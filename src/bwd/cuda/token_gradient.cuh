/* The backward of norms over tokens on CUDA, fast path. As in the walk of norm_gradient.cuh, the threads of a block go
 * through its tokens with the same heads, and keep their sums of d_weight. Three things make it faster than that walk:
 *
 * - The sums of squares and of products are exchanged together, with one barrier for each token. Each warp then adds them
 *   for itself. Consecutive tokens use different halves of the shared memory, so a second barrier is not needed.
 * - The vectors of the next token are copied to shared memory while the block processes a token.
 * - A thread has one head and needs few registers, so a multiprocessor holds more threads.
 *
 * All heads of an operand fill whole warps, so the threads of a warp belong to one operand. For all conditions, see
 * can_have_one_head in plan_norm_gradient.cuh. */
#ifndef TROPE_BWD_CUDA_TOKEN_GRADIENT_CUH
#define TROPE_BWD_CUDA_TOKEN_GRADIENT_CUH

#include "bwd/cuda/norm_gradient.cuh"

template <int OF_DTYPE>
struct token_gradient : norm_gradient_pass<OF_DTYPE, POSITIONS_GENERIC, ANGLES_GENERIC, TROPE_NORM_BEFORE> {
    static constexpr block_limit LIMIT = {ONE_HEAD_THREADS, 1};
    static constexpr int HEADS = 1;
};

/* The sums of a token's heads in shared memory. For each of two consecutive tokens, they are the sums of squares of all
 * operands, then the sums of products. */
struct exchanged_sums {
    uint32_t left; /* where the thread leaves the sum of squares of its head, in floats */
    uint32_t from; /* the first sum that the thread adds: half of a warp adds squares, and the other half adds products */

    __device__ __forceinline__ exchanged_sums(const norm_gradient_call &call, uint32_t segment, uint32_t head)
        : left(call.exchanged[segment].at + head)
    {
        const uint32_t lane = thread_of_warp();
        from = lane / ADDING_LANES * call.token_sums + call.exchanged[segment].at +
               lane % ADDING_LANES * call.exchanged[segment].lane_sums;
    }

    /* Sets all sums to zero, because an operand may have fewer heads than sums. A barrier must follow before threads leave
     * sums. */
    static __device__ __forceinline__ void clear(const norm_gradient_call &call)
    {
        for (uint32_t i = thread_of_block(); i < 2 * 2 * call.token_sums; i += threads_of_block())
            of_token(call, 0)[i] = 0;
    }

    __device__ __forceinline__ void leave(const norm_gradient_call &call, uint32_t in_block, float squares,
                                          float products) const
    {
        of_token(call, in_block)[left] = squares;
        of_token(call, in_block)[left + call.token_sums] = products;
    }

    /* Finds the means over the operand's heads, after a barrier. All threads of a warp must call this. */
    __device__ __forceinline__ void find_means(const norm_gradient_call &call, uint32_t segment, float elements,
                                               uint32_t in_block, float *of_squares, float *of_products) const
    {
        const float *const sums = of_token(call, in_block) + from;
        const uint32_t count = call.exchanged[segment].lane_sums;
        float sum = sums[0];
        if (count == 2)
            sum = sum_of_vector<2>(sums);
        if (count == 4)
            sum = sum_of_vector<4>(sums);
        if (count == 8)
            sum = sum_of_vector<8>(sums);
#pragma unroll
        for (int step = 1; step < ADDING_LANES; step *= 2)
            sum = trope_add(sum, __shfl_xor_sync(UINT32_MAX, sum, step));
        sum /= elements;
        *of_squares = __shfl_sync(UINT32_MAX, sum, 0);
        *of_products = __shfl_sync(UINT32_MAX, sum, ADDING_LANES);
    }

  private:
    static __device__ __forceinline__ float *of_token(const norm_gradient_call &call, uint32_t in_block)
    {
        return (float *)(shared_memory + call.shape.terms_at) + in_block % 2 * 2 * call.token_sums;
    }
};

/* A thread's vectors of dy and x in shared memory, which are copied ahead of their use. */
template <class R> struct vectors_ahead {
    uint4 *of; /* groups_of_thread */

    __device__ __forceinline__ explicit vectors_ahead(const norm_gradient_call &call)
        : of(groups_of_thread<4, uint4>(call.vectors_ahead_at))
    {
    }

    __device__ __forceinline__ void ask(const char *dy, const char *x, int32_t second) const
    {
        copy_ahead(dy, &of[0]);
        copy_ahead(dy + second, &of[32]);
        copy_ahead(x, &of[64]);
        copy_ahead(x + second, &of[96]);
    }

    __device__ __forceinline__ void take(typename R::data *dy, typename R::data *x) const
    {
        await_copies();
        dy->bits[0] = of[0];
        dy->bits[1] = of[32];
        x->bits[0] = of[64];
        x->bits[1] = of[96];
    }
};

/* Adds the squares of x and the products x * (weight * g) over an item's two vectors. */
template <class R>
__device__ __forceinline__ void take_squares_and_products(const typename R::data &x, const typename R::data &weights,
                                                          const item_values<R> &g, head_sums<R, 2> *sums)
{
#pragma unroll
    for (int vector = 0; vector < 2; vector++) {
        float squares[R::PAIRS], products[R::PAIRS];
#pragma unroll
        for (int e = 0; e < R::PAIRS; e++) {
            const float of = x.template of_pair<false>(e, vector);
            squares[e] = trope_mul(of, of);
            products[e] = trope_mul(of, trope_mul(g.of[vector][e], weights.template of_pair<false>(e, vector)));
        }
        (vector ? sums->second : sums->first)[SQUARES] = sum_of_vector<R::PAIRS>(squares);
        (vector ? sums->second : sums->first)[PRODUCTS] = sum_of_vector<R::PAIRS>(products);
    }
}

template <class R>
__global__ void __launch_bounds__(R::LIMIT.threads, R::LIMIT.blocks)
    token_gradient_kernel(KERNEL_PARAMETER(norm_gradient_call) call, KERNEL_PARAMETER(typename R::steps) steps)
{
    enum { PRESENT = 1, ROTATES = 2, LEAVES = 4 };
    const block_shape &shape = call.shape;
    const typename R::index first_token = first_token_of_block<typename R::index>(shape);
    const uint32_t tokens = count_tokens(shape, first_token);
    exchanged_sums::clear(call);
    find_coefficients<R>(
        call, steps, first_token, tokens, []() {}, []() {}, []() {});
    const thread_sums<R> sums(call);
    norm_gradient_job<R> job(call, first_token, tokens, 0);
    typename R::data &v = job.of[0].v, weights, x;
    const uint32_t segment = job.item().segment, weight = job.item().head * call.head_dim + job.find_element(call);
    const typename R::segment &s = call.segments[segment];
    const block_norm &n = call.norms[segment];
    const exchanged_sums exchanged(call, segment, job.item().head);
    const vectors_ahead<R> ahead(call);
    uint32_t use = job.is_present() ? PRESENT : 0, left = (uint32_t)shape.inner_tokens - (uint32_t)job.of[0].token.inner;
    char *dy = job.of[0].from;
    if (use && job.is_window(call))
        use |= ROTATES;
    if (use && !job.item().in_head)
        use |= LEAVES;
    if (use)
        weights.load(n.weight + weight * sizeof(typename R::element),
                     n.weight + (weight + call.join * R::PAIRS) * sizeof(typename R::element));
    else
        weights.fill(0);
    ahead.ask(dy, dy + call.x_moved[segment], s.src.second);
#pragma unroll 1
    for (uint32_t in_block = 0; in_block < tokens; in_block++) {
        head_sums<R, 2> of_head;
        float rstd, mean;
        ahead.take(&v, &x);
        job.of[0].item.in_block = in_block;
        item_values<R> g(v);
        use = found_here(use); /* (so that the compiler keeps no register for each condition) */
        if (use & ROTATES)
            job.template rotate<true>(call, TROPE_ROUND_ONCE, false, &g);
        weights.forget();
        take_squares_and_products<R>(x, weights, g, &of_head);
        x.forget();
        of_head.add_items(call, true);
        if (use & LEAVES)
            exchanged.leave(call, in_block, of_head.first[SQUARES], of_head.first[PRODUCTS]);
        const int32_t action = action_of_token<R>(call, in_block);
        const bool rotates = use & PRESENT && action == TROPE_TOKEN_ROTATE,
                   is_missing = call.plan.plan.angles.source != TROPE_ANGLES_PHASE && rotates &&
                                !has_positions<R>(call, n.axes, in_block);
        __syncthreads();
        int64_t step = s.src.inner;
        if (--left == 0) {
            step = s.src.outer - (shape.inner_tokens - 1) * (int64_t)s.src.inner;
            left = (uint32_t)shape.inner_tokens;
        }
        step = use & PRESENT ? step : 0; /* idle threads stay at their dummy address */
        if (in_block + 1 < tokens)
            ahead.ask(dy + step, dy + step + call.x_moved[segment], s.src.second);
        exchanged.find_means(call, segment, n.elements, in_block, &rstd, &mean);
        rstd = n.reads_rstd ? n.rstd[first_token + (typename R::index)in_block]
                            : trope_reciprocal_root(is_missing ? (float)NAN : rstd, call.eps);
        mean = is_missing ? (float)NAN : mean;
        if (rotates && !is_missing) {
            item_values<R> terms(x);
            terms.multiply(g);
            sums.add(0, terms, rstd);
        }
        bool is_stored = use & PRESENT && s.dst.base;
        if (rotates) {
            weights.forget();
            x.forget();
            g.multiply(item_values<R>(weights));
            g.subtract(item_values<R>(x), trope_norm_slope(mean, rstd));
            g.multiply(rstd);
            v.template set_pairs<R::PAIRS, false>(0, g.of);
        } else if (is_filled(action, true)) {
            v.fill(filling_of<R::DTYPE>(action));
        } else if (s.in_place) {
            is_stored = false;
        } else {
            v.load(dy, dy + s.src.second);
        }
        if (is_stored)
            v.store(dy + s.moved, dy + s.moved + s.src.second);
        dy += step;
    }
    norm_gradient_job<R>(call, first_token, tokens, 0).leave_terms_of_heads(call, sums);
    check_sequences<R::WIDE>(call.plan.plan.position_source, call.plan.plan.status);
}

#endif
