/* The norm of heads before their rotation on CUDA, in the register block of the rotation: the threads of a head, which are in one
 * warp, add its squares by shuffles. */
#ifndef TROPE_FWD_CUDA_NORM_CUH
#define TROPE_FWD_CUDA_NORM_CUH

#include "core/norm.h"
#include "fwd/cuda/norm_call.cuh"
#include "fwd/cuda/rotate.cuh"

template <int OF_DTYPE, int OF_ROWS, int OF_ANGLES> struct norm_rotation : rotation<OF_DTYPE, true, OF_ROWS, OF_ANGLES, false> {
    typedef norm_call call;
};

/* The elements of a lane's two vectors, as they are in memory. */
template <class R> struct lane_values {
    float of[2][R::PAIRS];

    __device__ __forceinline__ explicit lane_values(const typename R::lane &v)
    {
#pragma unroll
        for (int i = 0; i < 2 * R::PAIRS; i++)
            of[i / R::PAIRS][i % R::PAIRS] = (float)v.template of_pair<false>(i % R::PAIRS, i / R::PAIRS);
    }

    template <bool INTERLEAVED> __device__ __forceinline__ float of_pair(int e, int which) const
    {
        return INTERLEAVED ? of[(2 * e + which) / R::PAIRS][(2 * e + which) % R::PAIRS] : of[which][e];
    }
};

/* A binary tree over the elements of a vector, neighbours first. */
template <int COUNT> __device__ __forceinline__ float sum_of_vector(const float *values)
{
    if constexpr (COUNT == 1)
        return values[0];
    else
        return trope_add(sum_of_vector<COUNT / 2>(values), sum_of_vector<COUNT / 2>(values + COUNT / 2));
}

/* The sum over a head: of each lane the sums of its two vectors. For all threads of a warp. (-0 becomes +0, as if a head were padded.) */
__device__ __forceinline__ float sum_of_head(uint32_t most_lanes, uint32_t lanes, uint32_t join, float first, float second)
{
#pragma unroll 1
    for (uint32_t step = 1; step < most_lanes; step *= 2) {
        if (step == join)
            first = trope_add(first, second);
        const float other_first = __shfl_xor_sync(UINT32_MAX, first, (int)step),
                    other_second = __shfl_xor_sync(UINT32_MAX, second, (int)step);
        if (step < lanes)
            first = trope_add(first, other_first);
        if (step < join)
            second = trope_add(second, other_second);
    }
    return trope_add(join >= lanes ? trope_add(first, second) : first, 0.0f);
}

/* The factors of a vector of a head, from element `first` on. */
template <int COUNT>
__device__ __forceinline__ void load_weights(const block_norm &n, uint32_t head, uint32_t first, float *w)
{
    const uint32_t at = head * n.weight_of_head + first;
    if (n.weight_dtype == TROPE_F32) {
#pragma unroll
        for (int i = 0; i < COUNT / 4; i++)
            ((float4 *)w)[i] = ((const float4 *)n.weight)[at / 4 + i];
    } else {
        uint32_t raw[COUNT / 2];
#pragma unroll
        for (int i = 0; i < COUNT / 4; i++)
            ((uint2 *)raw)[i] = ((const uint2 *)n.weight)[at / 4 + i];
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const uint16_t bits = (uint16_t)(raw[i / 2] >> 16 * (i % 2));
            w[i] = n.weight_dtype == TROPE_F16 ? trope_f16_to_f32(bits) : trope_bf16_to_f32(bits);
        }
    }
#pragma unroll
    for (int i = 0; i < COUNT && n.plus_one; i++)
        w[i] = trope_add(1.0f, w[i]);
}

template <class R> struct norm_job : lane_job<R> {
    using lane_job<R>::lane_job;

    __device__ __forceinline__ const block_norm &norm(const typename R::call &call) const
    {
        return call.norms[this->item.segment];
    }

    /* Whether the lane's elements rotate. */
    __device__ __forceinline__ bool is_window(const block_norm &n) const
    {
        return this->item.lane - n.first_lane < n.window_lanes;
    }

    /* The element of a head that a lane's first vector begins with, or its second. */
    __device__ __forceinline__ uint32_t find_element(const block_norm &n, int which) const
    {
        const uint32_t lane = this->item.lane, run = lane / n.join;
        return ((run * 2 + (uint32_t)which) * n.join + (lane - run * n.join)) * R::PAIRS;
    }

    __device__ __forceinline__ float *find_rstd(const typename R::call &call) const
    {
        const trope_plan &plan = call.plan.plan;
        const int64_t row = this->row.batch(call.shape) * plan.tokens + this->row.token(call.shape);
        return norm(call).rstd + row * this->segment(call).heads + this->item.head;
    }

    /* For all threads of a warp. */
    __device__ __forceinline__ float sum_squares(const typename R::call &call, const lane_values<R> &x) const
    {
        const block_norm &n = norm(call);
        float square[2][R::PAIRS];
#pragma unroll
        for (int i = 0; i < 2 * R::PAIRS; i++)
            square[i / R::PAIRS][i % R::PAIRS] = this->item.present
                                                     ? trope_mul(x.of[i / R::PAIRS][i % R::PAIRS], x.of[i / R::PAIRS][i % R::PAIRS])
                                                     : 0;
        return sum_of_head(call.most_lanes, this->segment(call).lanes.divisor, n.join, sum_of_vector<R::PAIRS>(square[0]),
                           sum_of_vector<R::PAIRS>(square[1]));
    }

    __device__ __forceinline__ void normalise(const block_norm &n, float rstd, lane_values<R> *x) const
    {
#pragma unroll
        for (int which = 0; which < 2; which++) {
            float w[R::PAIRS];
            if (n.weight_dtype)
                load_weights<R::PAIRS>(n, this->item.head, find_element(n, which), w);
#pragma unroll
            for (int i = 0; i < R::PAIRS; i++) {
                float value = trope_mul(x->of[which][i], rstd);
                if (n.rounding == TROPE_NORM_ROUND_TWICE)
                    value = round_to<R::DTYPE>(value);
                if (n.weight_dtype)
                    value = trope_mul(value, w[i]);
                if (n.rounding)
                    value = round_to<R::DTYPE>(value);
                x->of[which][i] = value;
            }
        }
    }

    /* INTERLEAVED: src is. */
    template <bool INTERLEAVED>
    __device__ __forceinline__ void rotate_values(const typename R::call &call, const lane_values<R> &x, bool own)
    {
        constexpr int TOGETHER = lane_coefficients<R>::TOGETHER;
        block_item at = this->item;
        at.lane -= norm(call).first_lane;
#pragma unroll
        for (int e = 0; e < R::PAIRS; e += TOGETHER) {
            lane_coefficients<R> c;
            float y[2][TOGETHER];
            c.load(call.shape, at, e, own);
            c.template rotate<INTERLEAVED>(R::PLAIN ? TROPE_ROUND_ONCE : call.plan.plan.rounding, x, e, y);
            this->v.template set_pairs<TOGETHER, false>(e, y);
        }
    }

    /* Rotates what is in the window, and stores the lane. */
    __device__ __forceinline__ void finish_norm(const typename R::call &call, const lane_values<R> &x, bool own)
    {
        const typename R::segment &s = this->segment(call);
        const trope_plan &plan = call.plan.plan;
        const bool rotates = is_window(norm(call));
        if (!rotates) {
            this->v.template set_pairs<R::PAIRS, false>(0, x.of);
        } else if (plan.interleaved_src) {
            rotate_values<true>(call, x, own);
        } else {
            rotate_values<false>(call, x, own);
        }
        if (rotates && plan.interleaved_dst)
            this->v.join();
        const block_tensor<typename R::stride> dst = rotates ? s.dst : unrotated_dst(s);
        char *const to = this->find_dst(call, dst);
        this->v.store(to, to + dst.second);
    }

    /* Padding: filled, or copied with its elements at their places. */
    __device__ __forceinline__ void finish_padding(const typename R::call &call, int32_t action)
    {
        const block_tensor<typename R::stride> dst = unrotated_dst(this->segment(call));
        char *const to = this->find_dst(call, dst);
        if (is_filled(action, true))
            this->v.fill(filling_of<R::DTYPE>(action));
        else if (this->segment(call).in_place)
            return;
        this->v.store(to, to + dst.second);
    }
};

template <class R>
__global__ void __launch_bounds__(R::LIMIT.threads, R::LIMIT.blocks)
    norm_kernel(KERNEL_PARAMETER(norm_call) call, KERNEL_PARAMETER(typename R::steps) steps)
{
    const block_shape &shape = call.shape;
    const typename R::index first_row = (typename R::index)block_of_rows(shape) * (typename R::index)shape.rows_of_block;
    const uint32_t rows = (uint32_t)min((typename R::index)shape.rows_of_block, (typename R::index)shape.rows - first_row);
    norm_job<R> job(call, first_row, rows);
    const bool own = find_coefficients<R>(
        call, steps, first_row, rows, [&]() { job.load(call); }, []() {});
    const block_norm &n = job.norm(call);
    const int32_t action = action_of_row<R>(call, job.item.row < rows ? job.item.row : 0);
    lane_values<R> x(job.v);
    float rstd = trope_reciprocal_root(job.sum_squares(call, x), n.head_dim, n.eps);
    if (job.item.present && n.is_given) {
        const bool rotates = action == TROPE_ROW_ROTATE;
        if (n.rstd && n.reads_rstd)
            rstd = *job.find_rstd(call);
        else if (n.rstd && job.item.lane == 0)
            *job.find_rstd(call) = rotates ? rstd : 0;
        if (rotates) {
            job.normalise(n, rstd, &x);
            job.finish_norm(call, x, own);
        } else {
            job.finish_padding(call, action);
        }
    } else if (job.item.present) {
        job.prepare(call);
        if (job.is_usual(call, action, own))
            job.template rotate_usually<false>(call);
        else
            job.finish(call, action, own);
    }
    if (may_search(R::ROWS) && is_filled(action, false) && job.item.row < rows)
        fill_rest<R>(call, action, &job);
    if (may_search(R::ROWS))
        check_sequences<R::WIDE>(known_sequences<R::ROWS>(call.plan.plan.sequences), call.plan.plan.status);
}

#endif
