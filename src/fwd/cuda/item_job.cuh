/* The work of a thread on its item of a register block, from load to store. */
#ifndef TROPE_FWD_CUDA_ITEM_JOB_CUH
#define TROPE_FWD_CUDA_ITEM_JOB_CUH

#include "fwd/cuda/find_coefficients.cuh"

/* The template parameters of a kernel, and constants and types derived from them. IS_WIDE: strides, tokens and sequences
 * may need 64 bits, and there may be any number of operands and pairs. */
template <int OF_DTYPE, bool OF_VECTORS, int OF_POSITIONS, int OF_ANGLES, bool IS_WIDE> struct rotation {
    static constexpr int DTYPE = OF_DTYPE, POSITIONS = OF_POSITIONS, ANGLES = OF_ANGLES;
    static constexpr bool VECTORS = OF_VECTORS, WIDE = IS_WIDE;
    static constexpr uint32_t STEPS = OF_ANGLES == ANGLES_TABLE           ? 1
                                      : OF_POSITIONS == POSITIONS_GENERIC ? TROPE_MAX_PAIRS
                                                                          : FAST_PAIRS;
    static constexpr block_limit LIMIT = block_limits(OF_POSITIONS, IS_WIDE);
    static constexpr int HEADS = 1; /* the number of consecutive heads of a thread */
    typedef typename elements<OF_DTYPE>::type element;
    typedef typename elements<OF_DTYPE>::real real;
    typedef item_pairs<OF_DTYPE, OF_VECTORS> data;
    typedef std::conditional_t<IS_WIDE, int64_t, int32_t> index, stride;
    typedef std::conditional_t<IS_WIDE, wide_call, narrow_call> call;
    typedef block_segment<stride> segment;
    typedef phase_steps<STEPS> steps;
    static constexpr int PAIRS = data::WIDTH;
    /* Whether all calls of the kernel take the fast path (rotates_fast in vector_calls.cuh). */
    static constexpr bool ALWAYS_FAST = OF_POSITIONS != POSITIONS_FROM_TOKENS && OF_POSITIONS != POSITIONS_GENERIC;
    static constexpr int ADDRESSES = OF_POSITIONS == POSITIONS_SEARCHED           ? ADDRESSES_SIMPLE
                                     : OF_POSITIONS == POSITIONS_SEARCHED_GENERIC ? ADDRESSES_OF_ONE_ENTRY
                                                                                  : ADDRESSES_GENERIC;
};

/* ---- the rotation of an item ---- */

/* The coefficients of a few pairs of an item, which are loaded together. */
template <class R> struct item_coefficients {
    static constexpr int TOGETHER = COUPLES_TOGETHER<R>;
    couples<R, TOGETHER> first, second;

    /* Loads coefficients, beginning at a place in shared memory. `own`: the two elements of a pair may have different
     * coefficients. */
    __device__ __forceinline__ void load_from(const block_shape &shape, uint32_t place, bool own)
    {
        const couple<R::DTYPE> *const from = (const couple<R::DTYPE> *)shared_memory + place;
        first = *(const couples<R, TOGETHER> *)from;
        second = first;
        if (own)
            second = *(const couples<R, TOGETHER> *)(from + shape.second_at);
    }

    /* Loads the coefficients of pairs e and e + 1. */
    __device__ __forceinline__ void load(const block_shape &shape, const block_item &item, int e, bool own)
    {
        load_from(shape, place_of_couple<R>(shape, item.in_block, item.in_head, (uint32_t)e), own);
    }

    /* Rounds as NATIVE does, for callers whose plan says ONCE because they need the unrounded coefficients first. */
    __device__ __forceinline__ void round(int32_t rounding)
    {
#pragma unroll
        for (int i = 0; i < TOGETHER && rounding == TROPE_ROUND_NATIVE; i++) {
            first.of[i].round();
            second.of[i].round();
        }
    }

    /* Transposes the matrix, which then rotates in the other direction. */
    __device__ __forceinline__ void transpose()
    {
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const typename R::real sine = first.of[i].sine;
            first.of[i].sine = -second.of[i].sine;
            second.of[i].sine = -sine;
        }
    }

    /* Returns the rotated pair i. */
    __device__ __forceinline__ typename pair_types<R::DTYPE>::pair
    rotate_one(int32_t rounding, typename pair_types<R::DTYPE>::pair x, int i) const
    {
        return rotate_pair<R::DTYPE>(rounding, x,
                                     {first.of[i].cosine, first.of[i].sine, second.of[i].cosine, second.of[i].sine});
    }

    /* Returns M x of pair i, as forward computes it before a norm. This object must have the unrounded coefficients of
     * backward. */
    __device__ __forceinline__ typename pair_types<R::DTYPE>::pair
    rotate_forward(int32_t rounding, typename pair_types<R::DTYPE>::pair x, int i) const
    {
        item_coefficients c = *this;
        c.round(rounding);
        c.transpose();
        const auto u = c.rotate_one(rounding, x, i);
        if (rounding == TROPE_ROUND_ONCE)
            return u;
        return {round_to<R::DTYPE>(u.first), round_to<R::DTYPE>(u.second)};
    }

    /* Rotates pairs e and e + 1 of an item. */
    template <bool INTERLEAVED, class VALUES>
    __device__ __forceinline__ void rotate(int32_t rounding, const VALUES &v, int e, typename R::real y[2][TOGETHER]) const
    {
        typedef typename R::real real;
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const auto rotated = rotate_one(
                rounding,
                {(real)v.template of_pair<INTERLEAVED>(e + i, 0), (real)v.template of_pair<INTERLEAVED>(e + i, 1)}, i);
            y[0][i] = rotated.first;
            y[1][i] = rotated.second;
        }
    }
};

/* Returns an element of dst plus a term. NATIVE rounds the term first. */
template <class R>
__device__ __forceinline__ typename R::real accumulated(int32_t rounding, typename R::real old_dst, typename R::real term)
{
    return old_dst + (rounding == TROPE_ROUND_NATIVE ? round_to<R::DTYPE>(term) : term);
}

/* Adds old_dst to the results of a few pairs. */
template <class R>
__device__ __forceinline__ void add_to(int32_t rounding, const typename R::data &old_dst, int e,
                                       typename R::real y[2][item_coefficients<R>::TOGETHER])
{
#pragma unroll
    for (int i = 0; i < 2 * item_coefficients<R>::TOGETHER; i++) {
        const int which = i / item_coefficients<R>::TOGETHER, pair = i % item_coefficients<R>::TOGETHER;
        y[which][pair] = accumulated<R>(rounding, old_dst.template of_pair<false>(e + pair, which), y[which][pair]);
    }
}

/* Returns an element that passes through, as a term of a sum. The addition gives an fp32 NaN the same bits as other
 * arithmetic does. */
__device__ __forceinline__ float term_of(float x)
{
    return trope_add(x, -0.0f);
}

__device__ __forceinline__ double term_of(double x)
{
    return x;
}

/* Returns the element that fills padding. */
template <int DTYPE> __device__ __forceinline__ typename elements<DTYPE>::type filling_of(int32_t action)
{
    typedef typename elements<DTYPE>::real real;
    return action == TROPE_TOKEN_ZERO ? (typename elements<DTYPE>::type)0 : from_real<DTYPE>((real)NAN);
}

/* The item of a thread, from load to store. */
template <class R> struct item_job {
    block_item item;
    block_token<typename R::index> token;
    typename R::data v;
    char *to;   /* with ALWAYS_FAST, it is computed early, which frees the registers of its terms */
    char *from; /* idle threads load a dummy address: a branch would make the compiler wait for the loads too early */

    item_job() = default;

    /* in_block is the token's index in the block, unless consecutive threads have consecutive tokens. */
    __device__ __forceinline__ item_job(const typename R::call &call, typename R::index first_token, uint32_t tokens,
                                        uint32_t in_block)
    {
        if (R::ADDRESSES == ADDRESSES_SIMPLE || call.shape.is_simple)
            find<ADDRESSES_SIMPLE>(call, first_token, tokens, in_block);
        else
            find<R::ADDRESSES>(call, first_token, tokens, in_block);
        to = NULL;
    }

    __device__ __forceinline__ const typename R::segment &segment(const typename R::call &call) const
    {
        return call.segments[item.segment];
    }

    __device__ __forceinline__ char *find_src(const typename R::call &call, uint32_t head) const
    {
        return find_src<R::ADDRESSES>(call, head);
    }

    /* Call this after await_previous(). */
    __device__ __forceinline__ void load(const typename R::call &call)
    {
        v.load(from, from + segment(call).src.second);
    }

    /* Call this after the waits for all small loads, because it may have branches. */
    __device__ __forceinline__ void prepare(const typename R::call &call)
    {
        if (R::ALWAYS_FAST)
            to = find_to(call);
    }

    __device__ __forceinline__ void store(const typename R::call &call) const
    {
        char *const at = R::ALWAYS_FAST ? to : find_to(call);
        v.store(at, at + segment(call).dst.second);
    }

    __device__ __forceinline__ char *find_to(const typename R::call &call) const
    {
        const typename R::segment &s = segment(call);
        return call.shape.all_are_alike ? from + s.moved : find_dst(call, s.dst);
    }

    __device__ __forceinline__ char *find_dst(const typename R::call &call,
                                              const block_tensor<typename R::stride> &dst) const
    {
        return find_address<R::ADDRESSES>(call.shape, segment(call), dst, token, item.head, item.in_head);
    }

    /* Returns whether rotate_fast can finish the item: it rotates, rounds once and does not accumulate, and both
     * elements of each pair have the same coefficients. */
    __device__ __forceinline__ bool is_fast(const typename R::call &call, int32_t action, bool own) const
    {
        return action == TROPE_TOKEN_ROTATE && (R::ALWAYS_FAST ? segment(call).rotates : segment(call).is_fast) && !own;
    }

    /* INTERLEAVED: src and dst are interleaved, and the vectors stay interleaved. */
    template <bool INTERLEAVED> __device__ __forceinline__ void rotate_fast(const typename R::call &call)
    {
        constexpr int TOGETHER = item_coefficients<R>::TOGETHER;
        if (!INTERLEAVED && call.plan.plan.interleaved_src)
            v.separate();
#pragma unroll
        for (int e = 0; e < R::PAIRS; e += TOGETHER) {
            item_coefficients<R> c;
            typename R::real y[2][TOGETHER];
            c.load(call.shape, item, e, false);
            c.template rotate<INTERLEAVED>(TROPE_ROUND_ONCE, v, e, y);
            v.template set_pairs<TOGETHER, INTERLEAVED>(e, y);
        }
        if (!INTERLEAVED && call.plan.plan.interleaved_dst)
            v.join();
        store(call);
    }

    /* Rotates with any rounding, and adds old_dst if the segment accumulates. `own`: the elements of a pair may have
     * different coefficients. */
    __device__ __forceinline__ void rotate(const typename R::call &call, bool own, const typename R::data &old_dst)
    {
        constexpr int TOGETHER = item_coefficients<R>::TOGETHER;
        const trope_plan &plan = call.plan.plan;
        if (plan.interleaved_src)
            v.separate();
#pragma unroll
        for (int e = 0; e < R::PAIRS; e += TOGETHER) {
            item_coefficients<R> c;
            typename R::real y[2][TOGETHER];
            c.load(call.shape, item, e, own);
            c.template rotate<false>(plan.rounding, v, e, y);
            if (segment(call).accumulate)
                add_to<R>(plan.rounding, old_dst, e, y);
            v.template set_pairs<TOGETHER, false>(e, y);
        }
        if (plan.interleaved_dst)
            v.join();
    }

    __device__ __forceinline__ void add_unrotated(const typename R::data &old_dst)
    {
        constexpr int TOGETHER = item_coefficients<R>::TOGETHER;
#pragma unroll
        for (int e = 0; e < R::PAIRS; e += TOGETHER) {
            typename R::real y[2][TOGETHER];
#pragma unroll
            for (int i = 0; i < 2 * TOGETHER; i++)
                y[i / TOGETHER][i % TOGETHER] = term_of(v.template of_pair<false>(e + i % TOGETHER, i / TOGETHER));
            add_to<R>(TROPE_ROUND_ONCE, old_dst, e, y);
            v.template set_pairs<TOGETHER, false>(e, y);
        }
    }

    /* Finishes all other items: copies, padding, sums, and rotations with rare options. Copied elements of padding keep
     * their places in the head, with any pairings. */
    __device__ __forceinline__ void finish(const typename R::call &call, int32_t action, bool own)
    {
        const typename R::segment &s = segment(call);
        const bool rotates = action == TROPE_TOKEN_ROTATE && s.rotates, fills = is_filled(action, s.rotates),
                   adds = !R::ALWAYS_FAST && s.accumulate;
        if (fills ? action == TROPE_TOKEN_ZERO && adds : !rotates && s.in_place)
            return; /* dst already has the result */
        if (R::ALWAYS_FAST) {
            if (fills)
                v.fill(filling_of<R::DTYPE>(action));
            return store(call);
        }
        const block_tensor<typename R::stride> dst = rotates ? s.dst : unrotated_dst(s);
        char *const at = find_dst(call, dst);
        typename R::data old_dst;
        if (adds) {
            old_dst.load(at, at + dst.second);
            if (rotates && call.plan.plan.interleaved_dst)
                old_dst.separate();
        }
        if (fills)
            v.fill(filling_of<R::DTYPE>(action));
        else if (rotates)
            rotate(call, own, old_dst);
        else if (adds)
            add_unrotated(old_dst);
        if (!rotates && adds && s.is_odd && item.in_head == 0) /* item 0's second vector is another item's first */
            v.store_first(at);
        else
            v.store(at, at + dst.second);
    }

    /* Sets the item to number i of a segment's items. */
    __device__ __forceinline__ void take_item(const typename R::segment &s, uint32_t i)
    {
        item.head = trope_divide(&s.head_items, i);
        item.in_head = i - item.head * s.head_items.divisor;
    }

  private:
    template <int ADDRESSES>
    __device__ __forceinline__ void find(const typename R::call &call, typename R::index first_token, uint32_t tokens,
                                         uint32_t in_block)
    {
        item = find_item<!R::VECTORS, ADDRESSES>(call, tokens, in_block);
        item.head *= R::HEADS;
        token = find_token<ADDRESSES, typename R::index>(call.shape, first_token + (typename R::index)item.in_block);
        from = segment(call).src.base;
        if (item.present)
            from = find_src<ADDRESSES>(call, item.head);
    }

    template <int ADDRESSES> __device__ __forceinline__ char *find_src(const typename R::call &call, uint32_t head) const
    {
        const typename R::segment &s = segment(call);
        return found_here(find_address<ADDRESSES>(call.shape, s, s.src, token, head, item.in_head));
    }
};

#endif
