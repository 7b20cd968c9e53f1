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

/* The terms of d_weight of a block, in shared memory: for one element of a lane after another, and one lane after another, those of all
 * heads. */
__device__ __forceinline__ float *shared_terms_of(const block_shape &shape)
{
    return (float *)(shared + shape.terms_at);
}

template <class R> __device__ __forceinline__ void leave_terms(const norm_gradient_call &call, const lane_values<R> &terms)
{
    float *const to =
        shared_terms_of(call.shape) + threadIdx.x * call.terms_of_lane + threadIdx.z * blockDim.y + threadIdx.y;
#pragma unroll
    for (int i = 0; i < 2 * R::PAIRS; i++)
        to[i * NORM_TERMS] = terms.of[i / R::PAIRS][i % R::PAIRS];
}

__device__ __forceinline__ void clear_counters(const left_sums &s)
{
    if (blockIdx.x + blockIdx.y == 0)
        for (uint32_t i = thread_of_block(); i < s.counters; i += threads_of_block())
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
                leave_terms<R>(call, terms);
            else
                leave_terms<R>(call, lane_values<R>());
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

/* CELL_SUMS terms that follow each other. */
struct alignas(CELL_SUMS * sizeof(float)) term_group {
    float of[CELL_SUMS];
};

/* A weight of an operand, and its terms in the block's cell: those of each row, head by head. */
template <class R> struct cell_weight {
    const term_group *terms;
    float *sum;
    uint32_t begin, end; /* heads of the slice */

    /* Weight i of the operands. */
    __device__ __forceinline__ cell_weight(const norm_gradient_call &call, uint32_t i)
    {
        const block_shape &shape = call.shape;
        const uint32_t slice = slice_of_block(shape), first_unit = slice * shape.units_of_block;
        uint32_t segment = 0, e = i;
        for (; e >= call.head_dim; e -= call.head_dim)
            segment++;
        const operand_gradient &o = call.of[segment];
        const uint32_t vector = e / R::PAIRS, of_run = vector & (2 * call.join - 1), which = of_run >= call.join,
                       lane = (vector - of_run) / 2 + of_run - which * call.join;
        begin = max(o.first_head, first_unit) - first_unit;
        end = o.is_wanted ? min(o.after_head, first_unit + shape.units_of_block) : 0;
        end = max(end, first_unit) - first_unit;
        terms = (const term_group *)(shared_terms_of(shape) + (which * R::PAIRS + e % R::PAIRS) * NORM_TERMS +
                                     lane * call.terms_of_lane);
        sum = (float *)call.sums.of_runs + (size_t)block_of_rows(shape) * call.sums.width + o.sums_at +
              (slice - o.first_slice) * call.head_dim + e;
    }

    __device__ __forceinline__ void add(uint32_t rows, uint32_t heads_of_row) const
    {
        float sums[CELL_SUMS] = {};
#pragma unroll 1
        for (uint32_t row = 0; row < rows && begin < end; row++) {
            const uint32_t first = row * heads_of_row + begin, after = row * heads_of_row + end;
            uint32_t at = first / CELL_SUMS * CELL_SUMS;
            if (at < first)
                add_some(first, after, at, sums), at += CELL_SUMS;
#pragma unroll 4
            for (; at + CELL_SUMS <= after; at += CELL_SUMS) {
                const term_group group = terms[at / CELL_SUMS];
#pragma unroll
                for (uint32_t i = 0; i < CELL_SUMS; i++)
                    sums[i] = trope_add(sums[i], group.of[i]);
            }
            if (at < after)
                add_some(first, after, at, sums);
        }
        if (begin < end)
            *sum = sum_of_vector<CELL_SUMS>(sums);
    }

  private:
    /* A group of which only some terms are there. */
    __device__ __forceinline__ void add_some(uint32_t first, uint32_t after, uint32_t at, float *sums) const
    {
        const term_group group = terms[at / CELL_SUMS];
#pragma unroll
        for (uint32_t i = 0; i < CELL_SUMS; i++)
            sums[i] = trope_add(sums[i], at + i >= first && at + i < after ? group.of[i] : 0);
    }
};

template <class R>
__global__ void __launch_bounds__(R::LIMIT.threads, R::LIMIT.blocks)
    norm_gradient_kernel(KERNEL_PARAMETER(norm_gradient_call) call, KERNEL_PARAMETER(typename R::steps) steps)
{
    const block_shape &shape = call.shape;
    const typename R::index first_row = first_row_of_block<typename R::index>(shape);
    const uint32_t rows = count_rows(shape, first_row);
    norm_gradient_job<R> job(call, first_row, rows);
    const bool own = find_coefficients<R>(
        call, steps, first_row, rows, [&]() { job.load_both(call); }, []() {}, [&]() { job.prepare_norm(call, &job.x); });
    const int32_t action = action_of_row<R>(call, job.item.row < rows ? job.item.row : 0);
    job.finish_gradient(call, action, own);
    if (call.sums.of_runs) {
        clear_counters(call.sums);
        __syncthreads();
        for (uint32_t i = thread_of_block(); i < shape.segments * call.head_dim; i += threads_of_block())
            cell_weight<R>(call, i).add(rows, shape.units_of_block);
    }
    if (may_search(R::ROWS))
        check_sequences<R::WIDE>(known_sequences<R::ROWS>(call.plan.plan.sequences), call.plan.plan.status);
}

#endif
