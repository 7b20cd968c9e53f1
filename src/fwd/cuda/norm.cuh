/* The norm of heads before their rotation on CUDA, in the register block of the rotation: the threads of a head, which are in one
 * warp, add its squares by shuffles. */
#ifndef TROPE_FWD_CUDA_NORM_CUH
#define TROPE_FWD_CUDA_NORM_CUH

#include "core/norm.h"
#include "fwd/cuda/norm_call.cuh"
#include "fwd/cuda/rotate.cuh"

template <int OF_DTYPE, int OF_ROWS, int OF_ANGLES>
struct norm_rotation : rotation<OF_DTYPE, true, OF_ROWS, OF_ANGLES, false> {
    typedef norm_call call;
    static constexpr block_limit LIMIT = {320, 4};
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

/* The sum over a head: of each lane the sums of its two vectors. For all threads of a warp. (-0 becomes +0, as if a head were
 * padded.) */
__device__ __forceinline__ float sum_of_head(const norm_call &call, const block_norm &n, uint32_t lanes, float first,
                                             float second)
{
    if (call.heads_are_alike) {
#pragma unroll 1
        for (uint32_t step = 1; step < call.most_lanes; step *= 2) {
            if (step == call.most_join)
                first = trope_add(first, second);
            first = trope_add(first, __shfl_xor_sync(UINT32_MAX, first, (int)step));
            if (step < call.most_join)
                second = trope_add(second, __shfl_xor_sync(UINT32_MAX, second, (int)step));
        }
    } else {
#pragma unroll 1
        for (uint32_t step = 1; step < call.most_lanes; step *= 2) {
            if (step == n.join && step < lanes)
                first = trope_add(first, second);
            const float other_first = __shfl_xor_sync(UINT32_MAX, first, (int)step),
                        other_second = __shfl_xor_sync(UINT32_MAX, second, (int)step);
            if (step < lanes)
                first = trope_add(first, other_first);
            if (step < n.join)
                second = trope_add(second, other_second);
        }
    }
    return trope_add(n.join >= lanes ? trope_add(first, second) : first, 0.0f);
}

/* The factors of a vector of a head, from element `first` on. */
template <int COUNT>
__device__ __forceinline__ void load_weights(const block_norm &n, uint32_t head, uint32_t first, float *w)
{
    const uint32_t at = head * n.weight_of_head + first;
    if (n.weight_dtype == TROPE_F32) {
        const uint4 *const from = (const uint4 *)(n.weight + at * sizeof(float));
#pragma unroll
        for (int i = 0; i < COUNT / 4; i++) {
            const uint4 raw = from[i];
            w[4 * i] = trope_float_from_bits(raw.x);
            w[4 * i + 1] = trope_float_from_bits(raw.y);
            w[4 * i + 2] = trope_float_from_bits(raw.z);
            w[4 * i + 3] = trope_float_from_bits(raw.w);
        }
    } else {
        const uint2 *const from = (const uint2 *)(n.weight + at * sizeof(uint16_t));
        uint32_t raw[COUNT / 2];
#pragma unroll
        for (int i = 0; i < COUNT / 4; i++) {
            const uint2 two = from[i];
            raw[2 * i] = two.x;
            raw[2 * i + 1] = two.y;
        }
        if (n.weight_dtype == TROPE_BF16) {
#pragma unroll
            for (int i = 0; i < COUNT; i++)
                w[i] = trope_bf16_to_f32((uint16_t)(raw[i / 2] >> 16 * (i % 2)));
        } else {
#pragma unroll
            for (int i = 0; i < COUNT; i++)
                w[i] = trope_f16_to_f32((uint16_t)(raw[i / 2] >> 16 * (i % 2)));
        }
    }
    if (n.plus_one) {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            w[i] = trope_add(1.0f, w[i]);
    }
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
    __device__ __forceinline__ uint32_t find_element(const block_norm &n, uint32_t which) const
    {
        const uint32_t lane = this->item.lane, in_run = lane & (n.join - 1);
        return (2 * (lane - in_run) + which * n.join + in_run) * R::PAIRS;
    }

    __device__ __forceinline__ float *rstd_place(const typename R::call &call) const
    {
        const trope_plan &plan = call.plan.plan;
        const int64_t row = this->row.batch(call.shape) * plan.tokens + this->row.token(call.shape);
        return norm(call).rstd + row * this->segment(call).heads + this->item.head;
    }

    /* For all threads of a warp. */
    __device__ __forceinline__ float find_rstd(const typename R::call &call, const lane_values<R> &x) const
    {
        const block_norm &n = norm(call);
        float square[2][R::PAIRS];
#pragma unroll
        for (int i = 0; i < 2 * R::PAIRS; i++)
            square[i / R::PAIRS][i % R::PAIRS] =
                trope_mul(x.of[i / R::PAIRS][i % R::PAIRS], x.of[i / R::PAIRS][i % R::PAIRS]);
        const float first = sum_of_vector<R::PAIRS>(square[0]), second = sum_of_vector<R::PAIRS>(square[1]);
        const float sum = sum_of_head(call, n, this->segment(call).lanes.divisor, this->item.present ? first : 0,
                                      this->item.present ? second : 0);
        return trope_reciprocal_root(sum, n.head_dim, n.eps);
    }

    __device__ __forceinline__ void normalise(const block_norm &n, float rstd, lane_values<R> *x) const
    {
#pragma unroll
        for (uint32_t which = 0; which < 2; which++) {
            float w[R::PAIRS], *const of = x->of[which];
            if (n.weight_dtype)
                load_weights<R::PAIRS>(n, this->item.head, find_element(n, which), w);
#pragma unroll
            for (int i = 0; i < R::PAIRS; i++)
                of[i] = trope_mul(of[i], rstd);
            if (!R::PLAIN && n.rounding == TROPE_NORM_ROUND_TWICE) {
#pragma unroll
                for (int i = 0; i < R::PAIRS; i++)
                    of[i] = round_to<R::DTYPE>(of[i]);
            }
            if (n.weight_dtype) {
#pragma unroll
                for (int i = 0; i < R::PAIRS; i++)
                    of[i] = trope_mul(of[i], w[i]);
            }
            if (!R::PLAIN && n.rounding) {
#pragma unroll
                for (int i = 0; i < R::PAIRS; i++)
                    of[i] = round_to<R::DTYPE>(of[i]);
            }
        }
    }

    /* INTERLEAVED: src is. */
    template <bool INTERLEAVED>
    __device__ __forceinline__ void rotate_values(const typename R::call &call, const lane_values<R> &x, int32_t rounding,
                                                  bool own)
    {
        constexpr int TOGETHER = lane_coefficients<R>::TOGETHER;
        block_item at = this->item;
        at.lane -= norm(call).first_lane;
#pragma unroll
        for (int e = 0; e < R::PAIRS; e += TOGETHER) {
            lane_coefficients<R> c;
            float y[2][TOGETHER];
            c.load(call.shape, at, e, own);
            c.template rotate<INTERLEAVED>(rounding, x, e, y);
            this->v.template set_pairs<TOGETHER, false>(e, y);
        }
    }

    /* Rotates what is in the window, and stores the lane. */
    __device__ __forceinline__ void finish_norm(const typename R::call &call, const lane_values<R> &x, bool own)
    {
        const typename R::segment &s = this->segment(call);
        const trope_plan &plan = call.plan.plan;
        const bool rotates = is_window(norm(call)), is_usual = R::PLAIN || (plan.rounding == TROPE_ROUND_ONCE && !own);
        if (!rotates)
            this->v.template set_pairs<R::PAIRS, false>(0, x.of);
        else if (is_usual && !plan.interleaved_src)
            rotate_values<false>(call, x, TROPE_ROUND_ONCE, false);
        else if (is_usual)
            rotate_values<true>(call, x, TROPE_ROUND_ONCE, false);
        else if (!plan.interleaved_src)
            rotate_values<false>(call, x, plan.rounding, own);
        else
            rotate_values<true>(call, x, plan.rounding, own);
        if (rotates && plan.interleaved_dst)
            this->v.join();
        const block_tensor<typename R::stride> dst = rotates ? s.dst : unrotated_dst(s);
        char *const to = call.shape.all_are_alike ? this->from + s.moved : this->find_dst(call, dst);
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
    float rstd = job.find_rstd(call, x);
    if (job.item.present && n.is_given) {
        const bool rotates = action == TROPE_ROW_ROTATE;
        if (n.rstd && n.reads_rstd)
            rstd = *job.rstd_place(call);
        else if (n.rstd && job.item.lane == 0)
            *job.rstd_place(call) = rotates ? rstd : 0;
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
