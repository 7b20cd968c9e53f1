/* The backward of norms on CUDA, by vectors: the register block of norm.cuh, with dy for src, dx for dst, and x besides. */
#ifndef TROPE_BWD_CUDA_NORM_GRADIENT_CUH
#define TROPE_BWD_CUDA_NORM_GRADIENT_CUH

#include "bwd/cuda/norm_gradient_call.cuh"
#include "fwd/cuda/norm.cuh"

template <int OF_DTYPE, int OF_ROWS, int OF_ANGLES>
struct norm_gradient_pass : rotation<OF_DTYPE, true, OF_ROWS, OF_ANGLES, false> {
    typedef norm_gradient_call call;
    static constexpr block_limit LIMIT = {NORM_THREADS, 3};
};

/* Whether a row, which is rotated, adds to d_weight of an operand: not where one of its positions is out of a table. */
template <class R>
__device__ __forceinline__ bool counts_for_weights(const typename R::call &call, uint32_t axes, uint32_t row)
{
    bool counts = true;
    if constexpr (R::ROWS == ROWS_ANY) {
        const block_rows<int64_t> rows = rows_of_block<R>(call);
#pragma unroll 1
        for (uint32_t axis = 0; axes >> axis; axis++)
            if (axes >> axis & 1 && is_missing<true>(call.plan.plan, rows.position[(row << rows.axis_bits) +
                                                                                   (rows.axis_bits ? axis : 0)]))
                counts = false;
    }
    return counts;
}

/* The terms of d_weight of a block, in shared memory: one element of a lane after another, of all threads each. */
__device__ __forceinline__ float *shared_terms_of(const block_shape &shape)
{
    return (float *)(shared + shape.terms_at);
}

template <class R> __device__ __forceinline__ void leave_terms(const block_shape &shape, const lane_values<R> &terms)
{
    float *const to = shared_terms_of(shape) + thread_of_block();
#pragma unroll
    for (int i = 0; i < 2 * R::PAIRS; i++)
        to[i * NORM_TERMS] = terms.of[i / R::PAIRS][i % R::PAIRS];
}

template <class R> struct norm_gradient_job : norm_job<R> {
    typename R::lane x;
    char *from_x;

    __device__ __forceinline__ norm_gradient_job(const norm_gradient_call &call, typename R::index first_row, uint32_t rows)
        : norm_job<R>(call, first_row, rows)
    {
        const block_tensor<int32_t> &t = call.x[this->item.segment];
        from_x = this->from + call.x_moved[this->item.segment];
        if (!call.x_is_alike)
            from_x = this->has_norm() ? find_address<R::ADDRESSES>(call.shape, this->segment(call), t, this->row,
                                                                 this->item.head, this->item.lane)
                                    : t.base;
        from_x = found_here(from_x);
    }

    __device__ __forceinline__ void load_both(const norm_gradient_call &call)
    {
        this->load(call);
        x.load(from_x, from_x + call.x[this->item.segment].second);
    }

    /* For all threads of a warp. */
    __device__ __forceinline__ void finish_gradient(const norm_gradient_call &call, int32_t action, bool own)
    {
        const bool rotates = this->has_norm() && action == TROPE_ROW_ROTATE,
                   is_stored = this->segment(call).dst.base != NULL;
        lane_values<R> g(this->v);
        if (rotates && this->is_window(call)) {
            if (R::ANGLES == ANGLES_PHASE || !own)
                this->template rotate<true>(call, TROPE_ROUND_ONCE, own, &g);
            else
                this->template rotate<false>(call, TROPE_ROUND_ONCE, own, &g);
        }
        if (call.sums.of_runs) {
            lane_values<R> terms(x);
            terms.multiply(this->rstd);
            terms.multiply(g);
            if (R::ROWS == ROWS_FROM_TOKENS ||
                (rotates && counts_for_weights<R>(call, call.of[this->item.segment].axes, this->item.row)))
                leave_terms<R>(call.shape, terms);
            else
                leave_terms<R>(call.shape, lane_values<R>());
            x.forget();
        }
        if (this->has_norm())
            this->weights.multiply(call, this->norm(call), &g);
        lane_values<R> products(x);
        products.multiply(g);
        x.forget();
        const float slope = trope_norm_slope(mean_of_head<R>(call, this->is_present(), products), this->rstd);
        if (rotates && is_stored) {
            g.subtract(lane_values<R>(x), slope);
            g.multiply(this->rstd);
            this->v.template set_pairs<R::PAIRS, false>(0, g.of);
            this->store_anywhere(call);
        } else if (this->is_present() && !rotates && is_stored) {
            this->finish_copy(call, action, this->norm(call).is_given);
        }
    }
};

__device__ __forceinline__ void clear_counters(const left_sums &s)
{
    for (uint32_t i = thread_of_block(); i < s.counters && blockIdx.x + blockIdx.y == 0; i += threads_of_block())
        s.counter[i] = 0;
}

/* Adds the terms of the block's cell. A thread has a weight of an operand at a time. */
template <class R> __device__ __forceinline__ void add_cell(const norm_gradient_call &call, uint32_t rows)
{
    const block_shape &shape = call.shape;
    const uint32_t head_dim = call.head_dim, slice = slice_of_block(shape), lanes = call.head_lanes,
                   first_unit = slice * shape.units_of_block;
#pragma unroll 1
    for (uint32_t i = thread_of_block(); i < call.operands * head_dim; i += threads_of_block()) {
        uint32_t segment = 0, e = i;
        for (; e >= head_dim; e -= head_dim)
            segment++;
        const operand_gradient &o = call.of[segment];
        const uint32_t begin = max(o.first_head, first_unit), end = min(o.after_head, first_unit + shape.units_of_block);
        if (!o.is_wanted || begin >= end)
            continue;
        const uint32_t vector = e / R::PAIRS, of_run = vector & (2 * call.join - 1), which = of_run >= call.join,
                       lane = (vector - of_run) / 2 + of_run - which * call.join;
        const float *from =
            shared_terms_of(shape) + (which * R::PAIRS + e % R::PAIRS) * NORM_TERMS + (begin - first_unit) * lanes + lane;
        float sum = 0;
#pragma unroll 1
        for (uint32_t row = 0; row < rows; row++, from += shape.units_of_block * lanes) {
#pragma unroll 8
            for (uint32_t head = 0; head < end - begin; head++)
                sum = trope_add(sum, from[head * lanes]);
        }
        __stcs((float *)call.sums.of_runs + (size_t)block_of_rows(shape) * call.sums.width + o.sums_at +
                   (slice - o.first_slice) * head_dim + e,
               sum);
    }
}

template <class R>
__global__ void __launch_bounds__(R::LIMIT.threads, R::LIMIT.blocks)
    norm_gradient_kernel(KERNEL_PARAMETER(norm_gradient_call) call, KERNEL_PARAMETER(typename R::steps) steps)
{
    const block_shape &shape = call.shape;
    const typename R::index first_row = (typename R::index)block_of_rows(shape) * (typename R::index)shape.rows_of_block;
    const uint32_t rows = (uint32_t)min((typename R::index)shape.rows_of_block, (typename R::index)shape.rows - first_row);
    norm_gradient_job<R> job(call, first_row, rows);
    const bool own = find_coefficients<R>(
        call, steps, first_row, rows, [&]() { job.load_both(call); }, []() {}, [&]() { job.prepare_norm(call, &job.x); });
    const int32_t action = action_of_row<R>(call, job.item.row < rows ? job.item.row : 0);
    job.finish_gradient(call, action, own);
    if (call.sums.of_runs) {
        clear_counters(call.sums);
        __syncthreads();
        add_cell<R>(call, rows);
    }
    if (may_search(R::ROWS) && is_filled(action, false) && job.item.row < rows)
        fill_rest<R>(call, action, &job);
    if (may_search(R::ROWS))
        check_sequences<R::WIDE>(known_sequences<R::ROWS>(call.plan.plan.sequences), call.plan.plan.status);
}

#endif
