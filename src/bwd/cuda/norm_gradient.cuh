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
    if constexpr (!IS_DIRECT<R>) {
        const auto rows = rows_of_block<R>(call);
#pragma unroll 1
        for (uint32_t axis = 0; axes >> axis; axis++)
            if (axes >> axis & 1 &&
                is_missing<R::ANGLES != ANGLES_PHASE>(call.plan.plan,
                                                      rows.position[(row << rows.axis_bits) + (rows.axis_bits ? axis : 0)]))
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

__device__ __forceinline__ void clear_counters(const left_sums &s)
{
    for (uint32_t i = thread_of_block(); i < s.counters && blockIdx.x + blockIdx.y == 0; i += threads_of_block())
        s.counter[i] = 0;
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
            from_x = this->is_present() ? find_address<R::ADDRESSES>(call.shape, this->segment(call), t, this->row,
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
        const bool rotates = this->is_present() && action == TROPE_ROW_ROTATE,
                   is_stored = this->segment(call).dst.base != NULL;
        lane_values<R> g(this->v);
        if (rotates && this->is_window(call)) {
            if (R::PLAIN || R::ANGLES == ANGLES_PHASE || !own)
                this->template rotate<true>(call, TROPE_ROUND_ONCE, own, &g);
            else
                this->template rotate<false>(call, TROPE_ROUND_ONCE, own, &g);
        }
        if (call.sums.of_runs) {
            lane_values<R> terms(x);
            terms.multiply(this->rstd);
            terms.multiply(g);
            if (IS_DIRECT<R> || (rotates && counts_for_weights<R>(call, call.of[this->item.segment].axes, this->item.row)))
                leave_terms<R>(call.shape, terms);
            else
                leave_terms<R>(call.shape, lane_values<R>());
            x.forget();
        }
        if (this->is_present())
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
            this->finish_padding(call, action);
        }
    }
};

/* A weight of an operand, and its terms in the block's cell: those of each row, head by head. */
template <class R> struct cell_weight {
    const float *terms;
    float *sum;
    uint32_t heads, row_step, head_step;

    /* Weight i of the operands. */
    __device__ __forceinline__ cell_weight(const norm_gradient_call &call, uint32_t i)
    {
        const block_shape &shape = call.shape;
        const uint32_t slice = slice_of_block(shape), first_unit = slice * shape.units_of_block;
        uint32_t segment = 0, e = i;
        for (; e >= call.head_dim; e -= call.head_dim)
            segment++;
        const operand_gradient &o = call.of[min(segment, shape.segments - 1u)];
        const uint32_t begin = max(o.first_head, first_unit), end = min(o.after_head, first_unit + shape.units_of_block);
        const uint32_t vector = e / R::PAIRS, of_run = vector & (2 * call.join - 1), which = of_run >= call.join,
                       lane = (vector - of_run) / 2 + of_run - which * call.join;
        heads = o.is_wanted && segment < shape.segments && end > begin ? end - begin : 0;
        head_step = call.head_lanes;
        row_step = shape.units_of_block * head_step;
        terms = shared_terms_of(shape) + (which * R::PAIRS + e % R::PAIRS) * NORM_TERMS + (begin - first_unit) * head_step +
                lane;
        sum = (float *)call.sums.of_runs + (size_t)block_of_rows(shape) * call.sums.width + o.sums_at +
              (slice - o.first_slice) * call.head_dim + e;
    }

    /* (A head that is not there adds 0.) */
    __device__ __forceinline__ void add(uint32_t rows) const
    {
        float sums[CELL_SUMS] = {};
        for (uint32_t row = 0; row < rows; row++) {
            const float *from = terms + row * row_step;
#pragma unroll 2
            for (uint32_t head = 0; head < heads; head += CELL_SUMS) {
#pragma unroll
                for (uint32_t i = 0; i < CELL_SUMS; i++)
                    sums[i] = trope_add(sums[i], head + i < heads ? from[i * head_step] : 0);
                from += CELL_SUMS * head_step;
            }
        }
        if (heads > 0)
            *sum = sum_of_vector<CELL_SUMS>(sums);
    }
};

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
        uint32_t i = thread_of_block();
        cell_weight<R> weight(call, i);
        clear_counters(call.sums);
        __syncthreads();
        for (; weight.add(rows), (i += threads_of_block()) < shape.segments * call.head_dim;)
            weight = cell_weight<R>(call, i);
    }
    if (may_search(R::ROWS))
        check_sequences<R::WIDE>(known_sequences<R::ROWS>(call.plan.plan.sequences), call.plan.plan.status);
}

#endif
