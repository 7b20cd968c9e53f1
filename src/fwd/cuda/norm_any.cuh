/* The norm of any head and its rotation on CUDA, where vectors cannot be (norm.cuh): a block has a row, and each of its warps one head
 * at a time, element by element. */
#ifndef TROPE_FWD_CUDA_NORM_ANY_CUH
#define TROPE_FWD_CUDA_NORM_ANY_CUH

#include "core/norm.h"
#include "fwd/cuda/lane_job.cuh"
#include "fwd/cuda/norm_any_call.cuh"

template <int OF_DTYPE> struct any_norm : rotation<OF_DTYPE, false, ROWS_ANY, ANGLES_ANY, true> {
    typedef norm_any_call call;
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

/* The factor of an element of a head. */
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

/* An element of a head with a norm. */
template <int DTYPE, typename REAL>
__device__ __forceinline__ REAL normalised(const trope_plan_norm &n, REAL x, REAL rstd, uint32_t head, int32_t e)
{
    x = multiplied(x, rstd);
    if (n.rounding == TROPE_NORM_ROUND_TWICE)
        x = round_to<DTYPE>(x);
    x = multiplied(x, load_weight<REAL>(n, head, e));
    return n.rounding ? round_to<DTYPE>(x) : x;
}

/* A binary tree over the elements of a head, neighbours first: a warp adds 32 of them, whose sums are a binary counter. */
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

    /* For all threads of a warp, each with one value. */
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

/* A head, and the warp that has it. */
template <class R> struct any_head {
    typedef typename R::element element;
    typedef typename R::real real;

    const norm_any_call &call;
    const head_operand &o;
    block_row<int64_t> row;
    uint32_t head, lane;
    int64_t number; /* of the row: batch * tokens + token */

    __device__ __forceinline__ any_head(const norm_any_call &of_call, const head_operand &of,
                                        const block_row<int64_t> &of_row, uint32_t of_head)
        : call(of_call), o(of), row(of_row), head(of_head), lane(thread_of_warp())
    {
        number = row.batch(call.shape) * call.plan.plan.tokens + row.token(call.shape);
    }

    __device__ __forceinline__ char *find(const head_tensor &t) const
    {
        const uint32_t group = head / o.heads_per_group;
        return t.base + row.outer * t.outer + row.inner * t.inner + (int64_t)group * t.group +
               (int64_t)(head - group * o.heads_per_group) * t.head;
    }

    __device__ __forceinline__ real load(const char *at, const head_tensor &t, int32_t e) const
    {
        return to_real<R::DTYPE>(*(const element *)(at + e * t.element));
    }

    __device__ __forceinline__ real *rstd_place() const
    {
        return (real *)o.norm.rstd + number * o.heads + head;
    }

    /* rstd of a head of x or src. For all threads of the warp. */
    __device__ __forceinline__ real find_rstd(const char *at, const head_tensor &t) const
    {
        warp_tree<real> tree;
        if (o.norm.rstd && o.norm.reads_rstd)
            return *rstd_place();
        for (int32_t first = 0; first < o.head_dim; first += 32) {
            const int32_t e = first + (int32_t)lane;
            const real x = e < o.head_dim ? load(at, t, e) : 0;
            tree.add(multiplied(x, x));
        }
        return reciprocal_root(tree.total() / (real)o.head_dim, (real)o.norm.eps);
    }

    /* An element of src, normalised if heads are. */
    __device__ __forceinline__ real value(const char *from, real rstd, int32_t e) const
    {
        const real x = load(from, o.src, e);
        return o.norm.is_given ? normalised<R::DTYPE>(o.norm, x, rstd, head, e) : x;
    }

    __device__ __forceinline__ bool is_window(int32_t e) const
    {
        return e >= o.rotary_offset && e < o.rotary_offset + o.rotary_dim;
    }

    /* Room for the window of the warp's head, in shared memory. */
    __device__ __forceinline__ real *window() const
    {
        return (real *)(shared + call.window_at + thread_of_block() / 32 * call.window_size);
    }

    /* Padding, and what is neither rotated nor normalised: filled, or copied. */
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

    /* A pair of the window, rotated by the coefficients of a row of the block. */
    __device__ __forceinline__ typename pair_types<R::DTYPE>::pair
    rotate_values(typename pair_types<R::DTYPE>::pair x, uint32_t of_row, int32_t pair, int32_t rounding, bool own) const
    {
        lane_coefficients<R> c;
        c.load_from(call.shape, place_of_couple<R>(call.shape, of_row, (uint32_t)pair, 0), own);
        return rotate_pair<R::DTYPE>(
            rounding, x, {c.first.of[0].cosine, c.first.of[0].sine, c.second.of[0].cosine, c.second.of[0].sine});
    }

    __device__ __forceinline__ void rotate(bool own) const
    {
        const trope_plan &plan = call.plan.plan;
        const int32_t pairs = o.rotary_dim / 2;
        const char *const from = find(o.src);
        char *const to = find(o.dst);
        const real rstd = o.norm.is_given ? find_rstd(from, o.src) : (real)1;
        if (o.norm.rstd && !o.norm.reads_rstd && lane == 0)
            *rstd_place() = rstd;
        if (!o.dst.base)
            return;
        __syncwarp();
        for (int32_t i = (int32_t)lane; i < o.rotary_dim; i += 32)
            window()[i] = value(from, rstd, o.rotary_offset + i);
        __syncwarp();
        for (int32_t pair = (int32_t)lane; pair < pairs; pair += 32) {
            const auto y = rotate_values({window()[trope_first_of_pair(plan.interleaved_src, plan.parts, pairs, pair)],
                                          window()[trope_second_of_pair(plan.interleaved_src, plan.parts, pairs, pair)]},
                                         0, pair, plan.rounding, own);
            char *const at = to + o.rotary_offset * o.dst.element;
            const int32_t first = trope_first_of_pair(plan.interleaved_dst, plan.parts, pairs, pair),
                          second = trope_second_of_pair(plan.interleaved_dst, plan.parts, pairs, pair);
            *(element *)(at + first * o.dst.element) = from_real<R::DTYPE>(y.first);
            *(element *)(at + second * o.dst.element) = from_real<R::DTYPE>(y.second);
        }
        for (int32_t e = (int32_t)lane; e < o.head_dim && (o.norm.is_given || !o.in_place); e += 32) {
            if (is_window(e))
                continue;
            *(element *)(to + e * o.dst.element) =
                o.norm.is_given ? from_real<R::DTYPE>(value(from, rstd, e)) : *(const element *)(from + e * o.src.element);
        }
    }
};

template <class R>
__global__ void __launch_bounds__(32 * NORM_WARPS)
    norm_any_kernel(KERNEL_PARAMETER(norm_any_call) call, KERNEL_PARAMETER(typename R::steps) steps)
{
    const int64_t number = blockIdx.x;
    const bool own = find_coefficients<R>(
        call, steps, number, 1, []() {}, []() {}, []() {});
    const int32_t action = action_of_row<R>(call, 0);
    const block_row<int64_t> row = find_row<ADDRESSES_ANY, int64_t>(call.shape, number);
    for (uint32_t i = 0; i < call.operands; i++) {
        const head_operand &o = call.of[i];
        for (uint32_t head = thread_of_block() / 32; head < o.heads; head += NORM_WARPS) {
            const any_head<R> h(call, o, row, head);
            if (action == TROPE_ROW_ROTATE && (o.rotary_dim || o.norm.is_given)) {
                h.rotate(own);
                continue;
            }
            if (o.norm.rstd && !o.norm.reads_rstd && h.lane == 0)
                *h.rstd_place() = 0;
            if (o.dst.base)
                h.pass(action);
        }
    }
    check_sequences<R::WIDE>(call.plan.plan.sequences, call.plan.plan.status);
}

#endif
