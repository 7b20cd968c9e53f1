/* The norm of heads before their rotation on CUDA, in the register block of the rotation: the threads of a head, which are in one
 * warp, add its squares by shuffles while others make coefficients. */
#ifndef TROPE_FWD_CUDA_NORM_CUH
#define TROPE_FWD_CUDA_NORM_CUH

#include "core/norm.h"
#include "fwd/cuda/norm_call.cuh"
#include "fwd/cuda/rotate.cuh"

template <int OF_DTYPE, int OF_ROWS, int OF_ANGLES>
struct norm_rotation : rotation<OF_DTYPE, true, OF_ROWS, OF_ANGLES, false> {
    typedef norm_call call;
    static constexpr block_limit LIMIT = {NORM_THREADS, 4};
};

/* The elements of a lane's two vectors in fp32, as they are in memory. */
template <class R> struct lane_values {
    float of[2][R::PAIRS];

    /* Zeros. */
    __device__ __forceinline__ lane_values() : of()
    {
    }

    __device__ __forceinline__ explicit lane_values(const typename R::lane &v)
    {
#pragma unroll
        for (int i = 0; i < 2 * R::PAIRS; i++)
            of[i / R::PAIRS][i % R::PAIRS] = (float)v.template of_pair<false>(i % R::PAIRS, i / R::PAIRS);
    }

    __device__ __forceinline__ void multiply(const lane_values &other)
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

    /* Less `factor` times other, fused. */
    __device__ __forceinline__ void subtract(const lane_values &other, float factor)
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

    /* By the coefficients of a lane of the window. */
    template <bool INTERLEAVED>
    __device__ __forceinline__ void rotate(const block_shape &shape, const block_item &at, int32_t rounding, bool own)
    {
        constexpr int TOGETHER = lane_coefficients<R>::TOGETHER;
#pragma unroll
        for (int e = 0; e < R::PAIRS; e += TOGETHER) {
            lane_coefficients<R> c;
            float y[2][TOGETHER];
            c.load(shape, at, e, own);
            c.template rotate<INTERLEAVED>(rounding, *this, e, y);
#pragma unroll
            for (int i = 0; i < 2 * TOGETHER; i++) {
                const int pair = e + i / 2, which = i % 2;
                if (INTERLEAVED)
                    of[(2 * pair + which) / R::PAIRS][(2 * pair + which) % R::PAIRS] = y[which][i / 2];
                else
                    of[which][pair] = y[which][i / 2];
            }
        }
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

/* The mean over a head. For all threads of a warp. (A sum of -0 becomes +0, as if a head were padded.) */
template <class R>
__device__ __forceinline__ float mean_of_head(const norm_call &call, bool present, const lane_values<R> &values)
{
    float first = sum_of_vector<R::PAIRS>(values.of[0]), second = sum_of_vector<R::PAIRS>(values.of[1]);
    if (call.any_idles && !present)
        first = second = 0;
    if (call.join >= call.head_lanes) {
#pragma unroll
        for (uint32_t step = 1; step < 32; step *= 2) {
            if (step == call.head_lanes)
                break;
            first = trope_add(first, __shfl_xor_sync(UINT32_MAX, first, (int)step));
            second = trope_add(second, __shfl_xor_sync(UINT32_MAX, second, (int)step));
        }
        first = trope_add(first, second);
    } else {
#pragma unroll 1
        for (uint32_t step = 1; step < call.head_lanes; step *= 2) {
            if (step == call.join)
                first = trope_add(first, second);
            first = trope_add(first, __shfl_xor_sync(UINT32_MAX, first, (int)step));
            second = trope_add(second, __shfl_xor_sync(UINT32_MAX, second, (int)step));
        }
    }
    const float sum = trope_add(first, 0.0f);
    return call.reciprocal != 0 ? trope_mul(sum, call.reciprocal) : sum / (float)call.head_dim;
}

/* COUNT words of 4 bytes. */
template <int COUNT> __device__ __forceinline__ void load_words(const char *from, uint32_t *to)
{
    if constexpr (COUNT == 4) {
        const uint4 words = *(const uint4 *)from;
        to[0] = words.x, to[1] = words.y, to[2] = words.z, to[3] = words.w;
    } else {
        const uint2 words = *(const uint2 *)from;
        to[0] = words.x, to[1] = words.y;
    }
}

/* The weights of a lane's elements. Of 16 bits they are loaded early; of 32 bits, which are more than registers can hold, when they are
 * needed. */
template <class R> struct lane_weights {
    static constexpr int WORDS = R::PAIRS / 2;
    uint32_t first;         /* element of the segment's weights */
    uint32_t raw[2][WORDS]; /* of 16 bits, as they are in memory */

    __device__ __forceinline__ void load(const norm_call &call, const block_norm &n, uint32_t from)
    {
        first = from;
        if (call.weight_dtype != TROPE_F32 && n.weight) {
            load_words<WORDS>(n.weight + first * sizeof(uint16_t), raw[0]);
            load_words<WORDS>(n.weight + (first + call.join * R::PAIRS) * sizeof(uint16_t), raw[1]);
        }
    }

    __device__ __forceinline__ void multiply(const norm_call &call, const block_norm &n, lane_values<R> *x) const
    {
        if (n.weight && call.plus_one)
            multiply<true>(call, n, x);
        else if (n.weight)
            multiply<false>(call, n, x);
    }

  private:
    template <bool PLUS_ONE>
    __device__ __forceinline__ void multiply(const norm_call &call, const block_norm &n, lane_values<R> *x) const
    {
        if (call.weight_dtype == TROPE_F32) {
#pragma unroll
            for (int i = 0; i < 2 * R::PAIRS; i += 4) {
                uint32_t words[4];
                load_words<4>(n.weight + (first + i / R::PAIRS * call.join * R::PAIRS + i % R::PAIRS) * sizeof(float),
                              words);
#pragma unroll
                for (int j = 0; j < 4; j++)
                    multiply_by<PLUS_ONE>(trope_float_from_bits(words[j]), i + j, x);
            }
        } else if (call.weight_dtype == TROPE_BF16) {
#pragma unroll
            for (int i = 0; i < 2 * R::PAIRS; i++)
                multiply_by<PLUS_ONE>(trope_bf16_to_f32(half(i)), i, x);
        } else {
#pragma unroll
            for (int i = 0; i < 2 * R::PAIRS; i++)
                multiply_by<PLUS_ONE>(trope_f16_to_f32(half(i)), i, x);
        }
    }

    __device__ __forceinline__ uint16_t half(int i) const
    {
        return (uint16_t)(raw[i / R::PAIRS][i % R::PAIRS / 2] >> 16 * (i % 2));
    }

    template <bool PLUS_ONE> static __device__ __forceinline__ void multiply_by(float w, int i, lane_values<R> *x)
    {
        float *const of = &x->of[i / R::PAIRS][i % R::PAIRS];
        *of = trope_mul(*of, PLUS_ONE ? trope_add(1.0f, w) : w);
    }
};

template <class R> struct norm_job : lane_job<R> {
    lane_weights<R> weights;
    float rstd;
    uint32_t use; /* 0: there is no item, 1: it has no norm, 2: it has one */

    __device__ __forceinline__ norm_job(const typename R::call &call, typename R::index first_row, uint32_t rows)
        : lane_job<R>(call, first_row, rows)
    {
        use = this->item.present ? 1 + norm(call).is_given : 0;
    }

    __device__ __forceinline__ bool is_present() const
    {
        return use > 0;
    }

    __device__ __forceinline__ bool has_norm() const
    {
        return use > 1;
    }

    __device__ __forceinline__ const block_norm &norm(const typename R::call &call) const
    {
        return call.norms[this->item.segment];
    }

    /* Whether the lane's elements rotate. */
    __device__ __forceinline__ bool is_window(const typename R::call &call) const
    {
        return this->item.lane - call.first_lane < call.window_lanes && norm(call).rotates;
    }

    /* The element of a head that a lane's first vector begins with. */
    __device__ __forceinline__ uint32_t find_element(const typename R::call &call) const
    {
        const uint32_t lane = this->item.lane, in_run = lane & (call.join - 1);
        return (2 * lane - in_run) * R::PAIRS;
    }

    /* (Found again, so that it needs no registers meanwhile.) */
    __device__ __forceinline__ void find_row_again(const typename R::call &call)
    {
        const typename R::index first_row = first_row_of_block<typename R::index>(call.shape);
        this->row = find_row<R::ADDRESSES, typename R::index>(call.shape, first_row + (typename R::index)this->item.row);
    }

    __device__ __forceinline__ float *rstd_place(const typename R::call &call)
    {
        const trope_plan &plan = call.plan.plan;
        find_row_again(call);
        const int64_t row = this->row.batch(call.shape) * plan.tokens + this->row.token(call.shape);
        return norm(call).rstd + row * this->segment(call).heads + this->item.head;
    }

    /* Loads the weights, and finds the rstd of the head that `x` is a lane of. For all threads of a warp. */
    __device__ __forceinline__ void prepare_norm(const typename R::call &call, typename R::lane *x)
    {
        if (has_norm())
            weights.load(call, norm(call), this->item.head * norm(call).weight_of_head + find_element(call));
        lane_values<R> squares(*x);
        squares.multiply(squares);
        x->forget();
        rstd = trope_reciprocal_root(mean_of_head<R>(call, is_present(), squares), call.eps);
        if (call.has_rstd && has_norm() && norm(call).rstd && norm(call).reads_rstd)
            rstd = *rstd_place(call);
    }

    template <bool USUAL>
    __device__ __forceinline__ void rotate(const typename R::call &call, int32_t rounding, bool own,
                                           lane_values<R> *x) const
    {
        block_item at = this->item;
        at.lane -= call.first_lane;
        if (call.plan.plan.interleaved_src)
            x->template rotate<true>(call.shape, at, USUAL ? (int32_t)TROPE_ROUND_ONCE : rounding, !USUAL && own);
        else
            x->template rotate<false>(call.shape, at, USUAL ? (int32_t)TROPE_ROUND_ONCE : rounding, !USUAL && own);
    }

    /* USUAL: rounds once, and both elements of each pair have the same coefficients. */
    template <bool USUAL> __device__ __forceinline__ void finish_norm(const typename R::call &call, bool own)
    {
        lane_values<R> x(this->v);
        x.multiply(rstd);
        if (!USUAL && call.rounding == TROPE_NORM_ROUND_TWICE)
            x.round();
        weights.multiply(call, norm(call), &x);
        if (!USUAL && call.rounding)
            x.round();
        if (is_window(call))
            rotate<USUAL>(call, call.plan.plan.rounding, own, &x);
        this->v.template set_pairs<R::PAIRS, false>(0, x.of);
        this->store_anywhere(call);
    }

    /* Padding: filled, or copied. */
    __device__ __forceinline__ void finish_padding(const typename R::call &call, int32_t action)
    {
        if (is_filled(action, true))
            this->v.fill(filling_of<R::DTYPE>(action));
        else if (this->segment(call).in_place)
            return;
        this->store_anywhere(call);
    }

    __device__ __forceinline__ void store_anywhere(const typename R::call &call)
    {
        if (!call.shape.all_are_alike)
            find_row_again(call);
        char *const to = this->find_to(call);
        this->v.store(to, to + this->segment(call).dst.second);
    }
};

template <class R>
__global__ void __launch_bounds__(R::LIMIT.threads, R::LIMIT.blocks)
    norm_kernel(KERNEL_PARAMETER(norm_call) call, KERNEL_PARAMETER(typename R::steps) steps)
{
    const block_shape &shape = call.shape;
    const typename R::index first_row = first_row_of_block<typename R::index>(shape);
    const uint32_t rows = count_rows(shape, first_row);
    norm_job<R> job(call, first_row, rows);
    const bool own = find_coefficients<R>(
        call, steps, first_row, rows, [&]() { job.load(call); }, []() {}, [&]() { job.prepare_norm(call, &job.v); });
    const int32_t action = action_of_row<R>(call, job.item.row < rows ? job.item.row : 0);
    if (job.has_norm()) {
        const bool rotates = action == TROPE_ROW_ROTATE;
        if (call.has_rstd && job.norm(call).rstd && !job.norm(call).reads_rstd && job.item.lane == 0)
            *job.rstd_place(call) = rotates ? job.rstd : 0;
        if (rotates && (R::PLAIN || (call.plan.plan.rounding == TROPE_ROUND_ONCE && !own)))
            job.template finish_norm<true>(call, own);
        else if (rotates)
            job.template finish_norm<false>(call, own);
        else
            job.finish_padding(call, action);
    } else if (job.is_present()) {
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
