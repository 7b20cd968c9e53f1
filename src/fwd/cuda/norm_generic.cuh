/* The norm and the rotation of any head on CUDA, in either order, for calls that norm.cuh cannot take. A block has one
 * token. Each of its warps processes one head at a time, element by element. */
#ifndef TROPE_FWD_CUDA_NORM_GENERIC_CUH
#define TROPE_FWD_CUDA_NORM_GENERIC_CUH

#include "core/norm.h"
#include "fwd/cuda/item_job.cuh"
#include "fwd/cuda/norm_generic_call.cuh"

template <int OF_DTYPE> struct generic_norm : rotation<OF_DTYPE, false, POSITIONS_GENERIC, ANGLES_GENERIC, true> {
    typedef norm_generic_call call;
};

__device__ __forceinline__ float reciprocal_root(float mean, float eps)
{
    return trope_reciprocal_root(mean, eps);
}

__device__ __forceinline__ double reciprocal_root(double mean, double eps)
{
    return trope_reciprocal_root_f64(mean, eps);
}

__device__ __forceinline__ float multiplied(float a, float b)
{
    return trope_mul(a, b);
}

__device__ __forceinline__ double multiplied(double a, double b)
{
    return trope_mul_double(a, b);
}

__device__ __forceinline__ float added(float a, float b)
{
    return trope_add(a, b);
}

__device__ __forceinline__ double added(double a, double b)
{
    return trope_add_double(a, b);
}

__device__ __forceinline__ float fused(float a, float b, float c)
{
    return trope_fma(a, b, c);
}

__device__ __forceinline__ double fused(double a, double b, double c)
{
    return trope_fma_double(a, b, c);
}

/* Returns the factor of an element: its weight, or weight + 1. */
template <typename REAL> __device__ __forceinline__ REAL load_weight(const trope_plan_norm &n, uint32_t head, int32_t e)
{
    const int64_t at = (int64_t)head * n.weight_of_head + e;
    REAL w = 1;
    if (n.weight_dtype == TROPE_F64)
        w = (REAL)((const double *)n.weight)[at];
    else if (n.weight_dtype == TROPE_F32)
        w = ((const float *)n.weight)[at];
    else if (n.weight_dtype == TROPE_F16)
        w = trope_f16_to_f32(((const uint16_t *)n.weight)[at]);
    else if (n.weight_dtype == TROPE_BF16)
        w = trope_bf16_to_f32(((const uint16_t *)n.weight)[at]);
    return n.plus_one ? added((REAL)1, w) : w;
}

/* Returns the gradient of the input x of a norm. g is the gradient of the result, multiplied by the weight. */
template <typename REAL> __device__ __forceinline__ REAL gradient_of_norm(REAL x, REAL g, REAL slope, REAL rstd)
{
    return multiplied(rstd, fused(-x, slope, g));
}

/* Returns an element of a head after the norm. */
template <int DTYPE, typename REAL>
__device__ __forceinline__ REAL normalised(const trope_plan_norm &n, REAL x, REAL rstd, uint32_t head, int32_t e)
{
    x = multiplied(x, rstd);
    if (n.rounding == TROPE_NORM_ROUND_TWICE)
        x = round_to<DTYPE>(x);
    x = multiplied(x, load_weight<REAL>(n, head, e));
    return n.rounding ? round_to<DTYPE>(x) : x;
}

/* A binary tree over the elements of a head, neighbours first. A warp adds 32 elements at a time, and a binary counter
 * adds these sums. */
template <typename REAL> struct warp_tree {
    uint32_t count = 0;
    REAL level[27];

    __device__ __forceinline__ void push(int at, REAL sum)
    {
        int l = at;
#pragma unroll 1
        for (; count >> l & 1; l++)
            sum = added(level[l], sum);
        level[l] = sum;
        count += 1u << at;
    }

    /* Adds one value of each thread. All threads of a warp must call it. */
    __device__ __forceinline__ void add(REAL value)
    {
#pragma unroll
        for (int step = 1; step < 32; step *= 2)
            value = added(value, __shfl_xor_sync(UINT32_MAX, value, step));
        push(0, value);
    }

    __device__ __forceinline__ REAL total()
    {
#pragma unroll 1
        while (count & (count - 1))
            push(__ffs((int)count) - 1, (REAL)0);
        return added(level[__ffs((int)count) - 1], (REAL)0);
    }
};

/* A head, and the warp that processes it. */
template <class R> struct generic_head {
    typedef typename R::element element;
    typedef typename R::real real;

    const norm_generic_call &call;
    const head_operand &o;
    block_token<int64_t> token;
    uint32_t head, lane;
    int64_t number; /* of the token: batch * tokens + token */

    __device__ __forceinline__ generic_head(const norm_generic_call &of_call, const head_operand &of,
                                            const block_token<int64_t> &of_token, uint32_t of_head)
        : call(of_call), o(of), token(of_token), head(of_head), lane(thread_of_warp())
    {
        number = token.batch(call.shape) * call.plan.plan.tokens + token.index(call.shape);
    }

    __device__ __forceinline__ char *find(const head_tensor &t) const
    {
        const uint32_t group = head / o.heads_per_group;
        return t.base + token.outer * t.outer + token.inner * t.inner + (int64_t)group * t.group +
               (int64_t)(head - group * o.heads_per_group) * t.head;
    }

    __device__ __forceinline__ real load(const char *at, const head_tensor &t, int32_t e) const
    {
        return to_real<R::DTYPE>(*(const element *)(at + e * t.element));
    }

    /* Returns the index of the head in arrays with one value for each head, or of the token if the norm is over tokens. */
    __device__ __forceinline__ int64_t index() const
    {
        return o.norm.is_token ? number : number * o.heads + head;
    }

    __device__ __forceinline__ real *rstd_place() const
    {
        return (real *)o.norm.rstd + index();
    }

    /* Returns the sum over the head of a function of its elements. All threads of the warp must call it. */
    template <class VALUE> __device__ __forceinline__ real find_sum(VALUE value) const
    {
        warp_tree<real> tree;
        for (int32_t first = 0; first < o.head_dim; first += 32) {
            const int32_t e = first + (int32_t)lane;
            tree.add(e < o.head_dim ? value(e) : 0);
        }
        return tree.total();
    }

    template <class VALUE> __device__ __forceinline__ real find_squares(VALUE value) const
    {
        return find_sum([&](int32_t e) { return multiplied(value(e), value(e)); });
    }

    /* Returns rstd from the sum of squares of the head, or of all heads of its token. */
    __device__ __forceinline__ real rstd_of(real squares) const
    {
        return reciprocal_root(squares / (real)o.norm.elements, (real)o.norm.eps);
    }

    __device__ __forceinline__ bool reads_rstd() const
    {
        return o.norm.rstd && o.norm.reads_rstd;
    }

    __device__ __forceinline__ bool is_window(int32_t e) const
    {
        return e >= o.rotary_offset && e < o.rotary_offset + o.rotary_dim;
    }

    /* Returns shared memory for the window of the warp's head. */
    __device__ __forceinline__ real *window() const
    {
        return (real *)(shared_memory + call.window_at + thread_of_block() / 32 * call.window_size);
    }

    /* Fills or copies a head that is padding, or a head without rotation and norm. */
    __device__ __forceinline__ void pass(int32_t action) const
    {
        const char *const from = find(o.src);
        char *const to = find(o.dst);
        if (!is_filled(action, true) && o.in_place)
            return;
        for (int32_t e = (int32_t)lane; e < o.head_dim; e += 32) {
            *(element *)(to + e * o.dst.element) =
                is_filled(action, true) ? filling_of<R::DTYPE>(action) : *(const element *)(from + e * o.src.element);
        }
    }

    /* Loads the coefficients of a pair of the window. in_block is the index of the token in the block. */
    __device__ __forceinline__ item_coefficients<R> load_coefficients(uint32_t in_block, int32_t pair, bool own) const
    {
        item_coefficients<R> c;
        c.load_from(call.shape, place_of_couple<R>(call.shape, in_block, (uint32_t)pair, 0), own);
        return c;
    }

    /* Writes the window to shared memory. find(pair) computes its pairs. */
    template <class FIND> __device__ __forceinline__ void fill_window(int32_t interleaved, FIND find) const
    {
        const int32_t parts = call.plan.plan.parts, pairs = o.rotary_dim / 2;
        __syncwarp();
        for (int32_t pair = (int32_t)lane; pair < pairs; pair += 32) {
            const auto y = find(pair);
            window()[trope_first_of_pair(interleaved, parts, pairs, pair)] = y.first;
            window()[trope_second_of_pair(interleaved, parts, pairs, pair)] = y.second;
        }
        __syncwarp();
    }

    __device__ __forceinline__ void store(char *to, int32_t e, real value) const
    {
        *(element *)(to + e * o.dst.element) = from_real<R::DTYPE>(value);
    }

    __device__ __forceinline__ void share_rstd(real rstd) const
    {
        if (o.norm.rstd && !o.norm.reads_rstd && lane == 0)
            *rstd_place() = rstd;
    }

    /* Returns the place of a head's sum in the caller's array. */
    __device__ __forceinline__ real *sum_place(int64_t of_head) const
    {
        const trope_plan &plan = call.plan.plan;
        return (real *)o.norm.sums + of_head * (plan.batch * plan.tokens) + number;
    }

    /* Returns the sum over all heads of the token, by a binary tree. A warp computes the sum of each head by sum(head)
     * and writes it to the caller's array, or reads it from there. All threads of the block must call it. */
    template <class SUM> __device__ __forceinline__ real add_heads(SUM sum) const
    {
        constexpr int REAL_DTYPE = sizeof(real) == sizeof(double) ? TROPE_F64 : TROPE_F32;
        real *const some = room_for_heads();
        const int64_t read = o.norm.sums_read, heads = read ? read : o.heads;
        warp_tree<real> tree;
        for (int64_t first = 0; first < heads; first += HEADS_AT_A_TIME) {
            const uint32_t count = (uint32_t)min(heads - first, (int64_t)HEADS_AT_A_TIME);
            __syncthreads(); /* the previous sums have been added */
            for (uint32_t i = thread_of_block() / 32; i < count; i += NORM_WARPS) {
                const real found = read ? *sum_place(first + i) : sum((uint32_t)first + i);
                if (lane == 0)
                    some[i] = found;
                if (lane == 0 && o.norm.sums && !read)
                    *sum_place(first + i) = from_real<REAL_DTYPE>(found);
            }
            __syncthreads();
            for (uint32_t i = 0; i < count; i += 32)
                tree.add(i + lane < count ? some[i + lane] : 0);
        }
        return tree.total();
    }

    /* Returns the sum of squares of the elements that are normalised. */
    __device__ __forceinline__ real find_squares(bool own) const
    {
        if (o.norm.is_after)
            rotate_window(own);
        return find_squares([&](int32_t e) { return o.norm.is_after ? rotated(e) : source(e); });
    }

    /* Normalises, rotates and stores the head. of_token is the rstd of a norm over tokens. */
    __device__ __forceinline__ void rotate(bool own, real of_token) const
    {
        char *const to = find(o.dst);
        if (o.norm.is_given && o.norm.is_after)
            return normalise_rotated(to, own, of_token);
        const trope_plan &plan = call.plan.plan;
        const char *const from = find(o.src);
        const real rstd = o.norm.is_token    ? of_token
                          : !o.norm.is_given ? (real)1
                          : reads_rstd()     ? *rstd_place()
                                             : rstd_of(find_squares(own));
        const auto value = [&](int32_t e) {
            return o.norm.is_given ? normalised<R::DTYPE>(o.norm, source(e), rstd, head, e) : source(e);
        };
        share_rstd(rstd);
        fill_window(plan.interleaved_dst, [&](int32_t pair) { return rotated_pair(value, pair, own); });
        for (int32_t e = (int32_t)lane; e < o.head_dim; e += 32) {
            if (is_window(e))
                store(to, e, window()[e - o.rotary_offset]);
            else if (o.norm.is_given)
                store(to, e, value(e));
            else if (!o.in_place)
                *(element *)(to + e * o.dst.element) = *(const element *)(from + e * o.src.element);
        }
    }

  private:
    /* Returns an array in shared memory, the same array in all calls of add_heads in a kernel. Even with this array, a
     * block fits into the shared memory that CUDA gives without a request. */
    static __device__ __forceinline__ real *room_for_heads()
    {
        __shared__ real some[HEADS_AT_A_TIME];
        static_assert(sizeof some + UNASKED_SHARED_MEMORY <= 48 << 10, "launch_early must ask for more");
        return some;
    }

    __device__ __forceinline__ real source(int32_t e) const
    {
        return load(find(o.src), o.src, e);
    }

    template <class VALUE>
    __device__ __forceinline__ typename pair_types<R::DTYPE>::pair rotated_pair(VALUE value, int32_t pair, bool own) const
    {
        const trope_plan &plan = call.plan.plan;
        const int32_t pairs = o.rotary_dim / 2, first = trope_first_of_pair(plan.interleaved_src, plan.parts, pairs, pair),
                      second = trope_second_of_pair(plan.interleaved_src, plan.parts, pairs, pair);
        return load_coefficients(0, pair, own)
            .rotate_one(plan.rounding, {value(o.rotary_offset + first), value(o.rotary_offset + second)}, 0);
    }

    /* Writes the rotated window to shared memory. */
    __device__ __forceinline__ void rotate_window(bool own) const
    {
        const auto value = [&](int32_t e) { return source(e); };
        fill_window(call.plan.plan.interleaved_dst, [&](int32_t pair) { return rotated_pair(value, pair, own); });
    }

    /* Returns an element after the rotation. Native modes round it before a norm. */
    __device__ __forceinline__ real rotated(int32_t e) const
    {
        const real u = is_window(e) ? window()[e - o.rotary_offset] : source(e);
        return o.norm.rounding ? round_to<R::DTYPE>(u) : u;
    }

    /* Applies a norm after the rotation. A poisoned position makes the whole head NaN, even if the caller gives rstd. */
    __device__ __forceinline__ void normalise_rotated(char *to, bool own, real of_token) const
    {
        rotate_window(own);
        const real rstd = !has_positions<R>(call, o.axes, 0) ? rstd_of((real)NAN)
                          : o.norm.is_token                  ? of_token
                          : reads_rstd()                     ? *rstd_place()
                                                             : rstd_of(find_squares([&](int32_t e) { return rotated(e); }));
        share_rstd(rstd);
        for (int32_t e = (int32_t)lane; e < o.head_dim; e += 32)
            store(to, e, normalised<R::DTYPE>(o.norm, rotated(e), rstd, head, e));
    }
};

/* Returns the rstd of a norm over tokens. All threads of the block must call it. */
template <class R>
__device__ __forceinline__ typename R::real find_rstd_of_token(const norm_generic_call &call, const head_operand &o,
                                                               const block_token<int64_t> &token, int32_t action, bool own)
{
    const generic_head<R> first(call, o, token, 0);
    if (first.reads_rstd())
        return *first.rstd_place();
    return first.rstd_of(first.add_heads([&](uint32_t head) {
        return action == TROPE_TOKEN_ROTATE ? generic_head<R>(call, o, token, head).find_squares(own) : 0;
    }));
}

template <class R>
__global__ void __launch_bounds__(32 * NORM_WARPS)
    norm_generic_kernel(KERNEL_PARAMETER(norm_generic_call) call, KERNEL_PARAMETER(typename R::steps) steps)
{
    const int64_t number = blockIdx.x;
    const bool own = find_coefficients<R>(
        call, steps, number, 1, []() {}, []() {}, []() {});
    const int32_t action = action_of_token<R>(call, 0);
    const block_token<int64_t> token = find_token<ADDRESSES_GENERIC, int64_t>(call.shape, number);
    for (uint32_t i = 0; i < call.operands; i++) {
        const head_operand &o = call.of[i];
        const typename R::real of_token = o.norm.is_token ? find_rstd_of_token<R>(call, o, token, action, own) : 0;
        for (uint32_t head = thread_of_block() / 32; o.dst.base && head < o.heads; head += NORM_WARPS) {
            const generic_head<R> h(call, o, token, head);
            if (action == TROPE_TOKEN_ROTATE && (o.rotary_dim || o.norm.is_given)) {
                h.rotate(own, of_token);
                continue;
            }
            if (o.norm.rstd && !o.norm.reads_rstd && h.lane == 0)
                *h.rstd_place() = 0;
            h.pass(action);
        }
    }
    check_sequences<R::WIDE>(call.plan.plan.position_source, call.plan.plan.status);
}

#endif
