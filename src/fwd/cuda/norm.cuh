/* The norm and the rotation of heads on CUDA, in the register block of the rotation. The threads of a head are in one
 * warp and add its squares by shuffles. If the norm comes before the rotation, they do so while other threads compute
 * coefficients. Each thread has the same item of NORM_HEADS consecutive heads. The work that is the same for these heads
 * is done only once. It is two fifths of the instructions for one head. */
#ifndef TROPE_FWD_CUDA_NORM_CUH
#define TROPE_FWD_CUDA_NORM_CUH

#include "core/norm.h"
#include "fwd/cuda/norm_call.cuh"
#include "fwd/cuda/rotate.cuh"
#include "fwd/cuda/token_sums.cuh"

/* The launch bounds of a kernel if a multiprocessor should hold `blocks` blocks of NORM_THREADS. They are stated as one
 * large block, because blocks with whole tokens may be larger and have as many registers for each thread. */
constexpr block_limit norm_limit(int blocks)
{
    return {NORM_THREADS * blocks, 1};
}

/* ORDER is TROPE_NORM_BEFORE or AFTER, or 0 for a kernel that contains both. With AFTER, a thread keeps more values in
 * registers. */
template <int OF_DTYPE, int OF_POSITIONS, int OF_ANGLES, int ORDER>
struct norm_rotation : rotation<OF_DTYPE, true, OF_POSITIONS, OF_ANGLES, false> {
    typedef norm_call call;
    static constexpr block_limit LIMIT = norm_limit(ORDER == TROPE_NORM_BEFORE ? 6 : 4);
    static constexpr bool HAS_ORDER = ORDER != 0;
    typedef norm_rotation<OF_DTYPE, OF_POSITIONS, OF_ANGLES, TROPE_NORM_BEFORE> before;
    typedef norm_rotation<OF_DTYPE, OF_POSITIONS, OF_ANGLES, TROPE_NORM_AFTER> after;
    static constexpr int HEADS = NORM_HEADS;
    static constexpr bool ALWAYS_FAST = OF_POSITIONS != POSITIONS_GENERIC;
    static constexpr bool IS_AFTER = ORDER == TROPE_NORM_AFTER;
    /* Whether the kernel takes norms over tokens. In the other kernels, the code for them would make norms over heads of 42
     * MB 1 to 4 % slower. */
    static constexpr bool TOKENS = OF_POSITIONS == POSITIONS_GENERIC || OF_POSITIONS == POSITIONS_FROM_TOKENS ||
                                   (OF_POSITIONS == POSITIONS_READ && OF_ANGLES == ANGLES_TABLE);
};

/* Norms over tokens in a kernel of their own. */
template <int OF_DTYPE, int OF_POSITIONS, int OF_ANGLES>
struct token_norm_rotation : norm_rotation<OF_DTYPE, OF_POSITIONS, OF_ANGLES, TROPE_NORM_BEFORE> {
    static constexpr bool TOKENS = true;
};

/* Loads COUNT words of 4 bytes. COUNT is 2 or a multiple of 4. */
template <int COUNT> __device__ __forceinline__ void load_words(const char *from, uint32_t *to)
{
    if constexpr (COUNT == 2) {
        const uint2 words = *(const uint2 *)from;
        to[0] = words.x, to[1] = words.y;
    } else {
#pragma unroll
        for (int i = 0; i < COUNT; i += 4) {
            const uint4 words = *(const uint4 *)(from + i * sizeof(uint32_t));
            to[i] = words.x, to[i + 1] = words.y, to[i + 2] = words.z, to[i + 3] = words.w;
        }
    }
}

/* The elements of an item's two vectors in fp32, in memory order. */
template <class R> struct item_values {
    float of[2][R::PAIRS];

    /* All elements are zero. */
    __device__ __forceinline__ item_values() : of()
    {
    }

    __device__ __forceinline__ explicit item_values(const typename R::data &v)
    {
#pragma unroll
        for (int i = 0; i < 2 * R::PAIRS; i++)
            of[i / R::PAIRS][i % R::PAIRS] = (float)v.template of_pair<false>(i % R::PAIRS, i / R::PAIRS);
    }

    __device__ __forceinline__ void multiply(const item_values &other)
    {
#pragma unroll
        for (int i = 0; i < 2 * R::PAIRS; i++)
            of[i / R::PAIRS][i % R::PAIRS] =
                trope_mul(of[i / R::PAIRS][i % R::PAIRS], other.of[i / R::PAIRS][i % R::PAIRS]);
    }

    __device__ __forceinline__ void multiply(float factor)
    {
#pragma unroll
        for (int i = 0; i < 2 * R::PAIRS; i++)
            of[i / R::PAIRS][i % R::PAIRS] = trope_mul(of[i / R::PAIRS][i % R::PAIRS], factor);
    }

    /* Adds `factor` times other, fused. */
    __device__ __forceinline__ void add(const item_values &other, float factor)
    {
#pragma unroll
        for (int i = 0; i < 2 * R::PAIRS; i++)
            of[i / R::PAIRS][i % R::PAIRS] =
                trope_fma(other.of[i / R::PAIRS][i % R::PAIRS], factor, of[i / R::PAIRS][i % R::PAIRS]);
    }

    /* Subtracts `factor` times other, fused. */
    __device__ __forceinline__ void subtract(const item_values &other, float factor)
    {
#pragma unroll
        for (int i = 0; i < 2 * R::PAIRS; i++)
            of[i / R::PAIRS][i % R::PAIRS] =
                trope_fma(-other.of[i / R::PAIRS][i % R::PAIRS], factor, of[i / R::PAIRS][i % R::PAIRS]);
    }

    __device__ __forceinline__ void round()
    {
#pragma unroll
        for (int i = 0; i < 2 * R::PAIRS; i++)
            of[i / R::PAIRS][i % R::PAIRS] = round_to<R::DTYPE>(of[i / R::PAIRS][i % R::PAIRS]);
    }

    template <bool INTERLEAVED> __device__ __forceinline__ float of_pair(int e, int which) const
    {
        return INTERLEAVED ? of[(2 * e + which) / R::PAIRS][(2 * e + which) % R::PAIRS] : of[which][e];
    }

    template <bool INTERLEAVED> __device__ __forceinline__ float &of_pair(int e, int which)
    {
        return INTERLEAVED ? of[(2 * e + which) / R::PAIRS][(2 * e + which) % R::PAIRS] : of[which][e];
    }

    /* Loads the factors of the norm, with plus_one included. `first` is the index of an element in the segment's
     * weights. */
    __device__ __forceinline__ void load_weights(const norm_call &call, const block_norm &n, uint32_t first)
    {
        const uint32_t second = first + call.join * R::PAIRS;
        if (call.weight_dtype == TROPE_F32) {
            load_words<R::PAIRS>(n.weight + first * sizeof(float), (uint32_t *)of[0]);
            load_words<R::PAIRS>(n.weight + second * sizeof(float), (uint32_t *)of[1]);
        } else {
            uint32_t raw[2][R::PAIRS / 2];
            load_words<R::PAIRS / 2>(n.weight + first * sizeof(uint16_t), raw[0]);
            load_words<R::PAIRS / 2>(n.weight + second * sizeof(uint16_t), raw[1]);
            if (call.weight_dtype == TROPE_BF16)
                convert<TROPE_BF16>(raw);
            else
                convert<TROPE_F16>(raw);
        }
        if (call.plus_one) {
#pragma unroll
            for (int i = 0; i < 2 * R::PAIRS; i++)
                of[i / R::PAIRS][i % R::PAIRS] = trope_add(1.0f, of[i / R::PAIRS][i % R::PAIRS]);
        }
    }

  private:
    template <int DTYPE> __device__ __forceinline__ void convert(const uint32_t raw[2][R::PAIRS / 2])
    {
#pragma unroll
        for (int i = 0; i < 2 * R::PAIRS; i++)
            of[i / R::PAIRS][i % R::PAIRS] =
                to_real<DTYPE>((uint16_t)(raw[i / R::PAIRS][i % R::PAIRS / 2] >> 16 * (i % 2)));
    }
};

/* Rotates the heads of a thread by the coefficients of its item in the window. TRANSPOSED: by the transposed matrix. */
template <class R, bool INTERLEAVED, bool TRANSPOSED>
__device__ __forceinline__ void rotate_heads(const block_shape &shape, const block_item &at, int32_t rounding, bool own,
                                             item_values<R> *heads)
{
    constexpr int TOGETHER = item_coefficients<R>::TOGETHER;
#pragma unroll
    for (int e = 0; e < R::PAIRS; e += TOGETHER) {
        item_coefficients<R> c;
        c.load(shape, at, e, own);
        if (TRANSPOSED)
            c.transpose();
#pragma unroll
        for (int h = 0; h < R::HEADS; h++) {
            float y[2][TOGETHER];
            c.template rotate<INTERLEAVED>(rounding, heads[h], e, y);
#pragma unroll
            for (int i = 0; i < 2 * TOGETHER; i++)
                heads[h].template of_pair<INTERLEAVED>(e + i / 2, i % 2) = y[i % 2][i / 2];
        }
    }
}

/* Returns the sum of a vector's elements by a binary tree, neighbours first. */
template <int COUNT> __device__ __forceinline__ float sum_of_vector(const float *values)
{
    if constexpr (COUNT == 1)
        return values[0];
    else
        return trope_add(sum_of_vector<COUNT / 2>(values), sum_of_vector<COUNT / 2>(values + COUNT / 2));
}

/* COUNT sums over heads of a thread. */
template <class R, int COUNT = R::HEADS> struct head_sums {
    float first[COUNT], second[COUNT]; /* over the item's first and second vector */

    __device__ __forceinline__ void take(int head, const item_values<R> &values)
    {
        first[head] = sum_of_vector<R::PAIRS>(values.of[0]);
        second[head] = sum_of_vector<R::PAIRS>(values.of[1]);
    }

    /* Adds the items of each sum. All threads of a warp must call it. (A sum of -0 becomes +0, as if the head were
     * padded.) */
    __device__ __forceinline__ void add_items(const norm_call &call, bool present)
    {
        if (call.any_idles && !present) {
#pragma unroll
            for (int h = 0; h < COUNT; h++)
                first[h] = second[h] = 0;
        }
        if (call.join >= call.head_items) {
#pragma unroll
            for (uint32_t step = 1; step < 32; step *= 2) {
                if (step == call.head_items)
                    break;
                add_neighbours(step);
            }
            join();
        } else {
#pragma unroll 1
            for (uint32_t step = 1; step < call.head_items; step *= 2) {
                if (step == call.join)
                    join();
                add_neighbours(step);
            }
        }
#pragma unroll
        for (int h = 0; h < COUNT; h++)
            first[h] = trope_add(first[h], 0.0f);
    }

    /* Computes the mean over each head. Call this after add_items. */
    __device__ __forceinline__ void find_means(const norm_call &call, float *means) const
    {
#pragma unroll
        for (int h = 0; h < COUNT; h++)
            means[h] = call.reciprocal != 0 ? trope_mul(first[h], call.reciprocal) : first[h] / (float)call.head_dim;
    }

  private:
    __device__ __forceinline__ void add_neighbours(uint32_t step)
    {
#pragma unroll
        for (int h = 0; h < COUNT; h++) {
            first[h] = trope_add(first[h], __shfl_xor_sync(UINT32_MAX, first[h], (int)step));
            second[h] = trope_add(second[h], __shfl_xor_sync(UINT32_MAX, second[h], (int)step));
        }
    }

    __device__ __forceinline__ void join()
    {
#pragma unroll
        for (int h = 0; h < COUNT; h++)
            first[h] = trope_add(first[h], second[h]);
    }
};

template <class R> struct norm_job {
    item_job<R> of[R::HEADS]; /* the first head is present if any head is present */
    float rstd[R::HEADS];
    uint32_t use; /* 0: there is no item; 1: the item has no norm; 2: it has a norm */

    __device__ __forceinline__ norm_job(const typename R::call &call, typename R::index first_token, uint32_t tokens,
                                        uint32_t in_block)
    {
        of[0] = item_job<R>(call, first_token, tokens, in_block);
#pragma unroll
        for (int h = 1; h < R::HEADS; h++) {
            const typename R::segment &s = segment(call);
            of[h] = of[h - 1];
            of[h].item.head++;
            of[h].item.present = of[h].item.present && of[h].item.head < s.heads;
            if (of[h].item.present)
                of[h].from =
                    found_here(call.shape.any_is_intricate && s.is_intricate ? of[h].find_src(call, of[h].item.head)
                                                                             : of[h].from + s.src.head);
        }
        use = item().present ? 1 + norm(call).is_given : 0;
    }

    __device__ __forceinline__ const block_item &item() const
    {
        return of[0].item;
    }

    __device__ __forceinline__ bool is_present() const
    {
        return use > 0;
    }

    __device__ __forceinline__ bool has_norm() const
    {
        return use > 1;
    }

    __device__ __forceinline__ const typename R::segment &segment(const typename R::call &call) const
    {
        return call.segments[item().segment];
    }

    __device__ __forceinline__ const block_norm &norm(const typename R::call &call) const
    {
        return call.norms[item().segment];
    }

    /* Returns whether the item's elements rotate. */
    __device__ __forceinline__ bool is_window(const typename R::call &call) const
    {
        return item().in_head - call.first_window_item < call.window_items && norm(call).rotates;
    }

    /* Returns the index in the head of the first element of the item's first vector. */
    __device__ __forceinline__ uint32_t find_element(const typename R::call &call) const
    {
        const uint32_t in_head = item().in_head, in_run = in_head & (call.join - 1);
        return (2 * in_head - in_run) * R::PAIRS;
    }

    /* (The token is found again, so that it occupies no registers in the meantime.) */
    __device__ __forceinline__ void find_token_again(const typename R::call &call)
    {
        const typename R::index first_token = first_token_of_block<typename R::index>(call.shape);
#pragma unroll
        for (int h = 0; h < R::HEADS; h++)
            of[h].token =
                find_token<R::ADDRESSES, typename R::index>(call.shape, first_token + (typename R::index)item().in_block);
    }

    /* Returns the index of the token: batch * tokens + token. */
    __device__ __forceinline__ int64_t find_number(const typename R::call &call)
    {
        find_token_again(call);
        return of[0].token.batch(call.shape) * call.plan.plan.tokens + of[0].token.index(call.shape);
    }

    __device__ __forceinline__ float *rstd_place(const typename R::call &call, int h)
    {
        const int64_t number = find_number(call);
        return norm(call).rstd + (R::TOKENS && call.is_token ? number : number * segment(call).heads + of[h].item.head);
    }

    __device__ __forceinline__ void load(const typename R::call &call)
    {
#pragma unroll
        for (int h = 0; h < R::HEADS; h++)
            of[h].load(call);
    }

    /* Finds the rstd of each head from its squares, or leaves the sums to find_token_rstd. All threads of a warp must
     * call it. */
    __device__ __forceinline__ void find_rstd(const typename R::call &call, head_sums<R> *squares)
    {
        squares->add_items(call, is_present());
        if (R::TOKENS && __builtin_expect(call.adds_heads && !call.reads_rstd, 0))
            return leave_sums(call, *squares);
        squares->find_means(call, rstd);
        find_rstd_of_means(call);
    }

    /* Finds the rstd of a token, if the block adds its heads. `in_block` is the index in the block of the first token
     * that its threads process. All threads of the block must call it. */
    __device__ __forceinline__ void find_token_rstd(const typename R::call &call, typename R::index first_token,
                                                    uint32_t in_block, uint32_t count, bool of_caller)
    {
        if (!R::TOKENS || __builtin_expect(!call.adds_heads || call.reads_rstd, 1))
            return;
        add_tokens<R>(call, first_token, in_block, count, of_caller);
#pragma unroll
        for (int h = 0; h < R::HEADS; h++)
            rstd[h] = mean_of_token(call);
        find_rstd_of_means(call);
    }

    /* Leaves the sums in shared memory for add_tokens. */
    __device__ __forceinline__ void leave_sums(const typename R::call &call, const head_sums<R> &sums) const
    {
        if (!has_norm() || item().in_head)
            return;
#pragma unroll
        for (int h = 0; h < R::HEADS; h++)
            if (of[h].item.present)
                token_room(call, threadIdx.z)[norm(call).heads_at + of[h].item.head] = sums.first[h];
    }

    /* Returns the mean over the token. Call this after add_tokens. */
    __device__ __forceinline__ float mean_of_token(const typename R::call &call) const
    {
        return token_room(call, threadIdx.z)[call.token_heads + item().segment];
    }

    /* Replaces the means in the array `rstd` by rstd. */
    __device__ __forceinline__ void find_rstd_of_means(const typename R::call &call)
    {
        const bool reads = call.has_rstd && has_norm() && norm(call).rstd && norm(call).reads_rstd;
#pragma unroll
        for (int h = 0; h < R::HEADS; h++) {
            rstd[h] = trope_reciprocal_root(rstd[h], call.eps);
            if (reads && of[h].item.present)
                rstd[h] = *rstd_place(call, h);
        }
    }

    /* Finds the rstd of the heads from the vectors `x`. */
    __device__ __forceinline__ void find_rstd(const typename R::call &call, typename R::data *x[R::HEADS])
    {
        head_sums<R> sums;
#pragma unroll
        for (int h = 0; h < R::HEADS; h++) {
            item_values<R> squares(*x[h]);
            squares.multiply(squares);
            x[h]->forget();
            sums.take(h, squares);
        }
        find_rstd(call, &sums);
    }

    /* Rotates the heads with vectors `v` into `x`, and finds their rstd, for a norm after the rotation. BACKWARD: the
     * coefficients are for the other direction. All threads of a warp must call it. */
    template <bool BACKWARD>
    __device__ __forceinline__ void rotate_first(const typename R::call &call, int32_t action,
                                                 typename R::data *v[R::HEADS], item_values<R> *x)
    {
        head_sums<R> sums;
#pragma unroll
        for (int h = 0; h < R::HEADS; h++)
            x[h] = item_values<R>(*v[h]);
        if (has_norm() && action == TROPE_TOKEN_ROTATE && is_window(call))
            rotate<true, BACKWARD>(call, TROPE_ROUND_ONCE, false, x);
#pragma unroll
        for (int h = 0; h < R::HEADS; h++) {
            item_values<R> squares(x[h]);
            squares.multiply(squares);
            sums.take(h, squares);
        }
        find_rstd(call, &sums);
    }

    __device__ __forceinline__ void write_rstd(const typename R::call &call, bool rotates)
    {
        if (!call.has_rstd || !norm(call).rstd || norm(call).reads_rstd || item().in_head)
            return;
#pragma unroll
        for (int h = 0; h < R::HEADS; h++)
            if (of[h].item.present && !(R::TOKENS && call.is_token && of[h].item.head))
                *rstd_place(call, h) = rotates ? rstd[h] : 0;
    }

    __device__ __forceinline__ void multiply_by_weights(const typename R::call &call, item_values<R> *x) const
    {
        const block_norm &n = norm(call);
        if (!has_norm() || !n.weight)
            return;
        item_values<R> weights;
#pragma unroll
        for (int h = 0; h < R::HEADS; h++) {
            if (h == 0 || (n.weight_of_head && of[h].item.present))
                weights.load_weights(call, n, of[h].item.head * n.weight_of_head + find_element(call));
            x[h].multiply(weights);
        }
    }

    template <bool FAST, bool TRANSPOSED = false>
    __device__ __forceinline__ void rotate(const typename R::call &call, int32_t rounding, bool own,
                                           item_values<R> *x) const
    {
        block_item at = item();
        at.in_head -= call.first_window_item;
        if (call.plan.plan.interleaved_src)
            rotate_heads<R, true, TRANSPOSED>(call.shape, at, FAST ? (int32_t)TROPE_ROUND_ONCE : rounding, !FAST && own, x);
        else
            rotate_heads<R, false, TRANSPOSED>(call.shape, at, FAST ? (int32_t)TROPE_ROUND_ONCE : rounding, !FAST && own,
                                               x);
    }

    /* FAST: the call rounds once, and both elements of each pair have the same coefficients. With a norm after the
     * rotation, `x` is the result of rotate_first. */
    template <bool FAST>
    __device__ __forceinline__ void finish_norm(const typename R::call &call, bool own, item_values<R> *x)
    {
#pragma unroll
        for (int h = 0; h < R::HEADS; h++) {
            if (!R::IS_AFTER)
                x[h] = item_values<R>(of[h].v);
            x[h].multiply(rstd[h]);
            if (!FAST && call.rounding == TROPE_NORM_ROUND_TWICE)
                x[h].round();
        }
        multiply_by_weights(call, x);
#pragma unroll
        for (int h = 0; h < R::HEADS; h++)
            if (!FAST && call.rounding)
                x[h].round();
        if (!R::IS_AFTER && is_window(call))
            rotate<FAST>(call, call.plan.plan.rounding, own, x);
        store_heads(call, x);
    }

    __device__ __forceinline__ void store_heads(const typename R::call &call, const item_values<R> *x)
    {
#pragma unroll
        for (int h = 0; h < R::HEADS; h++)
            of[h].v.template set_pairs<R::PAIRS, false>(0, x[h].of);
        store_anywhere(call);
    }

    /* Fills or copies a token of padding. */
    __device__ __forceinline__ void finish_padding(const typename R::call &call, int32_t action)
    {
        if (!is_filled(action, true) && segment(call).in_place)
            return;
#pragma unroll
        for (int h = 0; h < R::HEADS; h++)
            if (is_filled(action, true))
                of[h].v.fill(filling_of<R::DTYPE>(action));
        store_anywhere(call);
    }

    /* Finishes items without a norm. */
    __device__ __forceinline__ void finish_others(const typename R::call &call, int32_t action, bool own)
    {
#pragma unroll 1
        for (int h = 0; h < R::HEADS && of[0].item.present; h++) {
            of[0].prepare(call);
            if (of[0].is_fast(call, action, own))
                of[0].template rotate_fast<false>(call);
            else
                of[0].finish(call, action, own);
#pragma unroll
            for (int i = 1; i < R::HEADS; i++)
                of[i - 1] = of[i];
        }
    }

  private:
    __device__ __forceinline__ void store_anywhere(const typename R::call &call)
    {
        if (!call.shape.all_are_alike)
            find_token_again(call);
#pragma unroll
        for (int h = 0; h < R::HEADS; h++) {
            char *const to = of[h].find_to(call);
            if (of[h].item.present)
                of[h].v.store(to, to + segment(call).dst.second);
        }
    }
};

template <class R> __device__ __forceinline__ void norm_block(const norm_call &call, const typename R::steps &steps)
{
    const block_shape &shape = call.shape;
    const typename R::index first_token = first_token_of_block<typename R::index>(shape);
    const uint32_t tokens = count_tokens(shape, first_token);
    norm_job<R> job(call, first_token, tokens, threadIdx.z);
    typename R::data *of_heads[R::HEADS] = {&job.of[0].v, &job.of[1].v};
    const bool own = find_coefficients<R>(
        call, steps, first_token, tokens, [&]() { job.load(call); }, []() {},
        [&]() {
            if (!R::IS_AFTER)
                job.find_rstd(call, of_heads);
        });
    const int32_t action = action_of_token<R>(call, job.item().in_block < tokens ? job.item().in_block : 0);
    item_values<R> x[R::HEADS];
    if (R::IS_AFTER)
        job.template rotate_first<false>(call, action, of_heads, x);
    job.find_token_rstd(call, first_token, 0, tokens, true);
    if (job.has_norm() && !job.segment(call).dst.base) {
        /* (The call wants only token_sums.) */
    } else if (job.has_norm()) {
        const bool rotates = action == TROPE_TOKEN_ROTATE;
        job.write_rstd(call, rotates);
        if (rotates && (R::ALWAYS_FAST || (call.plan.plan.rounding == TROPE_ROUND_ONCE && !own)))
            job.template finish_norm<true>(call, own, x);
        else if (rotates)
            job.template finish_norm<false>(call, own, x);
        else
            job.finish_padding(call, action);
    } else {
        job.finish_others(call, action, own);
    }
    if (may_search(R::POSITIONS) && is_filled(action, false) && job.item().in_block < tokens)
        fill_rest<R>(call, action, &job.of[0]);
    if (may_search(R::POSITIONS))
        check_sequences<R::WIDE>(known_position_source<R::POSITIONS>(call.plan.plan.position_source),
                                 call.plan.plan.status);
}

/* Calls run(R()). If R has both orders, it passes R::before or R::after instead, as the call requires. */
template <class R, class RUN> __device__ __forceinline__ void run_in_order(const norm_call &call, RUN run)
{
    static_assert(!R::TOKENS || R::LIMIT.threads >= TOKEN_THREADS, "");
    if constexpr (R::HAS_ORDER)
        run(R());
    else if (call.is_after)
        run(typename R::after());
    else
        run(typename R::before());
}

template <class R>
__global__ void __launch_bounds__(R::LIMIT.threads, R::LIMIT.blocks)
    norm_kernel(KERNEL_PARAMETER(norm_call) call, KERNEL_PARAMETER(typename R::steps) steps)
{
    run_in_order<R>(call, [&](auto of) { norm_block<decltype(of)>(call, steps); });
}

#endif
