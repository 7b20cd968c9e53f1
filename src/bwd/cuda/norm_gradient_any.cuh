/* The backward of norms on CUDA, of any heads, where vectors cannot be: a block has a cell (norm_gradient_call.cuh), and each of its
 * warps one head at a time, element by element. */
#ifndef TROPE_BWD_CUDA_NORM_GRADIENT_ANY_CUH
#define TROPE_BWD_CUDA_NORM_GRADIENT_ANY_CUH

#include "bwd/cuda/norm_gradient.cuh"
#include "fwd/cuda/norm_any.cuh"

template <int OF_DTYPE> struct any_norm_gradient : any_norm<OF_DTYPE> {
    typedef norm_gradient_any_call call;
};

__device__ __forceinline__ float norm_slope(float mean, float rstd)
{
    return trope_norm_slope(mean, rstd);
}

__device__ __forceinline__ double norm_slope(double mean, double rstd)
{
    return trope_norm_slope_f64(mean, rstd);
}

__device__ __forceinline__ float fused(float a, float b, float c)
{
    return trope_fma(a, b, c);
}

__device__ __forceinline__ double fused(double a, double b, double c)
{
    return trope_fma_double(a, b, c);
}

/* A head of a cell: dy is its src, dx its dst. */
template <class R> struct gradient_head : any_head<R> {
    typedef typename R::element element;
    typedef typename R::real real;

    const norm_gradient_any_call &call;
    const head_tensor &x;
    const operand_gradient &gradient;
    uint32_t row_of_block;
    int32_t action;

    __device__ __forceinline__ gradient_head(const norm_gradient_any_call &of_call, int64_t first_row, uint32_t in_block,
                                             uint32_t operand, uint32_t of_head)
        : any_head<R>(of_call, of_call.of[operand], find_row<ADDRESSES_ANY, int64_t>(of_call.shape, first_row + in_block),
                      of_head),
          call(of_call), x(of_call.x[operand]), gradient(of_call.gradient[operand]), row_of_block(in_block),
          action(action_of_row<R>(of_call, in_block))
    {
    }

    __device__ __forceinline__ bool adds_weights() const
    {
        return action == TROPE_ROW_ROTATE && counts_for_weights<R>(call, gradient.axes, row_of_block);
    }

    /* u of the two elements of a pair of the window. */
    __device__ __forceinline__ typename pair_types<R::DTYPE>::pair find_pair(int32_t pair, bool own) const
    {
        const trope_plan &plan = call.plan.plan;
        const int32_t pairs = this->o.rotary_dim / 2;
        const char *const window = this->find(this->o.src) + this->o.rotary_offset * this->o.src.element;
        return this->rotate_values(
            {this->load(window, this->o.src, trope_first_of_pair(plan.interleaved_src, plan.parts, pairs, pair)),
             this->load(window, this->o.src, trope_second_of_pair(plan.interleaved_src, plan.parts, pairs, pair))},
            row_of_block, pair, TROPE_ROUND_ONCE, own);
    }

    /* The term of an element of x for d_weight. */
    __device__ __forceinline__ real term(real u, real rstd, int32_t e) const
    {
        return multiplied(u, multiplied(this->load(this->find(x), x, e), rstd));
    }

    __device__ __forceinline__ void store(char *to, int32_t e, real value) const
    {
        element *const at = (element *)(to + e * this->o.dst.element);
        if (this->o.accumulate)
            value = accumulated<R>(call.rounding, to_real<R::DTYPE>(*at), value);
        *at = from_real<R::DTYPE>(value);
    }

    /* dx of padding. */
    __device__ __forceinline__ void finish_padding() const
    {
        if (this->o.accumulate && action == TROPE_ROW_ZERO)
            return;
        if (!this->o.accumulate || is_filled(action, true))
            return this->pass(action);
        for (int32_t e = (int32_t)this->lane; e < this->o.head_dim; e += 32)
            store_term(e);
    }

    /* dx. For all threads of the warp. */
    __device__ __forceinline__ void finish(real rstd, bool own) const
    {
        const trope_plan &plan = call.plan.plan;
        const int32_t pairs = this->o.rotary_dim / 2;
        const char *const from = this->find(this->o.src), *const from_x = this->find(x);
        char *const to = this->find(this->o.dst);
        if (action != TROPE_ROW_ROTATE)
            return finish_padding();
        __syncwarp();
        for (int32_t pair = (int32_t)this->lane; pair < pairs; pair += 32) {
            const auto u = find_pair(pair, own);
            this->window()[trope_first_of_pair(plan.interleaved_dst, plan.parts, pairs, pair)] = u.first;
            this->window()[trope_second_of_pair(plan.interleaved_dst, plan.parts, pairs, pair)] = u.second;
        }
        __syncwarp();
        const auto find_g = [&](int32_t e) {
            const real u =
                this->is_window(e) ? this->window()[e - this->o.rotary_offset] : this->load(from, this->o.src, e);
            return multiplied(load_weight<real>(this->o.norm, this->head, e), u);
        };
        warp_tree<real> products;
        for (int32_t first = 0; first < this->o.head_dim; first += 32) {
            const int32_t e = first + (int32_t)this->lane;
            products.add(e < this->o.head_dim ? multiplied(find_g(e), this->load(from_x, x, e)) : 0);
        }
        const real slope = norm_slope(products.total() / (real)this->o.head_dim, rstd);
        for (int32_t e = (int32_t)this->lane; e < this->o.head_dim; e += 32)
            store(to, e, multiplied(rstd, fused(-this->load(from_x, x, e), slope, find_g(e))));
    }

  private:
    __device__ __forceinline__ void store_term(int32_t e) const
    {
        store(this->find(this->o.dst), e, term_of(this->load(this->find(this->o.src), this->o.src, e)));
    }
};

/* The heads of a block's cell, of one operand after another. */
template <class R> struct cell_of_heads {
    const norm_gradient_any_call &call;
    int64_t first_row;
    uint32_t rows, first_head, heads;

    __device__ __forceinline__ explicit cell_of_heads(const norm_gradient_any_call &of)
        : call(of), first_row((int64_t)blockIdx.x * of.shape.rows_of_block),
          rows((uint32_t)min((int64_t)of.shape.rows_of_block, of.shape.rows - first_row)),
          first_head(blockIdx.y * of.cells.slice_heads), heads(min(of.cells.slice_heads, of.cells.heads - first_head))
    {
    }

    /* number: row by row. */
    __device__ __forceinline__ gradient_head<R> head(uint32_t number) const
    {
        const uint32_t row = number / heads;
        uint32_t head = first_head + number - row * heads, operand = 0;
        for (; head >= call.of[operand].heads; operand++)
            head -= call.of[operand].heads;
        return gradient_head<R>(call, first_row, row, operand, head);
    }

    __device__ __forceinline__ typename R::real *rstd(uint32_t number) const
    {
        return (typename R::real *)(shared + call.rstd_at) + number;
    }
};

/* Adds the terms of an operand's weights: of heads [begin, end), counted in the cell, and the two elements of a pair, or one that passes
 * through, which are at[] of the head. */
template <class R>
__device__ __forceinline__ void add_terms(const cell_of_heads<R> &cell, uint32_t begin, uint32_t end, int32_t unit,
                                          bool own, typename R::real sum[2], int32_t at[2])
{
    const trope_plan &plan = cell.call.plan.plan;
    typename R::real sums[2][CELL_SUMS] = {};
    for (uint32_t row = 0; row < cell.rows; row++) {
        for (uint32_t i = begin; i < end; i++) {
            const uint32_t number = row * cell.heads + i;
            const gradient_head<R> h = cell.head(number);
            const int32_t pairs = h.o.rotary_dim / 2, beside = unit - pairs;
            at[0] = at[1] = beside < h.o.rotary_offset ? beside : beside + h.o.rotary_dim;
            if (unit < pairs) {
                at[0] = h.o.rotary_offset + trope_first_of_pair(plan.interleaved_dst, plan.parts, pairs, unit);
                at[1] = h.o.rotary_offset + trope_second_of_pair(plan.interleaved_dst, plan.parts, pairs, unit);
            }
            if (!h.adds_weights())
                continue;
            const uint32_t in_turn = (row * cell.call.cells.slice_heads + i) % CELL_SUMS;
            if (unit < pairs) {
                const auto u = h.find_pair(unit, own);
                sums[0][in_turn] = added(sums[0][in_turn], h.term(u.first, *cell.rstd(number), at[0]));
                sums[1][in_turn] = added(sums[1][in_turn], h.term(u.second, *cell.rstd(number), at[1]));
            } else {
                const typename R::real u = h.load(h.find(h.o.src), h.o.src, at[0]);
                sums[0][in_turn] = added(sums[0][in_turn], h.term(u, *cell.rstd(number), at[0]));
            }
        }
    }
    for (int i = 0; i < 2; i++)
        sum[i] = added(added(sums[i][0], sums[i][1]), added(sums[i][2], sums[i][3]));
}

/* Leaves the sums of a block's cell. */
template <class R> __device__ __forceinline__ void add_cell(const cell_of_heads<R> &cell, bool own)
{
    typedef typename R::real real;
    const norm_gradient_any_call &call = cell.call;
    uint32_t before = 0; /* heads of the operands before */
    for (uint32_t i = 0; i < call.operands; before += call.of[i++].heads) {
        const head_operand &o = call.of[i];
        const operand_gradient &g = call.gradient[i];
        const uint32_t begin = max(before, cell.first_head), end = min(before + o.heads, cell.first_head + cell.heads),
                       step = o.norm.weight_of_head ? 1 : end - begin;
        real *const left = (real *)call.sums.of_runs + (size_t)blockIdx.x * call.sums.width + g.sums_at;
        if (!g.is_wanted || begin >= end)
            continue;
        for (uint32_t head = begin; head < end; head += step) {
            real *const to =
                left + (size_t)(o.norm.weight_of_head ? head - before : blockIdx.y - g.first_slice) * o.head_dim;
            for (int32_t unit = (int32_t)thread_of_block(); unit < o.head_dim - o.rotary_dim / 2; unit += 32 * NORM_WARPS) {
                real sum[2];
                int32_t at[2];
                add_terms<R>(cell, head - cell.first_head, head - cell.first_head + step, unit, own, sum, at);
                to[at[0]] = sum[0];
                if (at[1] != at[0])
                    to[at[1]] = sum[1];
            }
        }
    }
}

template <class R>
__global__ void __launch_bounds__(32 * NORM_WARPS)
    norm_gradient_any_kernel(KERNEL_PARAMETER(norm_gradient_any_call) call, KERNEL_PARAMETER(typename R::steps) steps)
{
    const cell_of_heads<R> cell(call);
    const uint32_t warp = thread_of_block() / 32;
    const bool own = find_coefficients<R>(
        call, steps, cell.first_row, cell.rows, []() {}, []() {}, []() {});
    for (uint32_t i = warp; i < cell.rows * cell.heads; i += NORM_WARPS) {
        const gradient_head<R> h = cell.head(i);
        *cell.rstd(i) = h.action == TROPE_ROW_ROTATE ? h.find_rstd(h.find(h.x), h.x) : 0;
    }
    __syncthreads();
    if (call.sums.of_runs) {
        clear_counters(call.sums);
        add_cell<R>(cell, own);
    }
    __syncthreads();
    for (uint32_t i = warp; i < cell.rows * cell.heads; i += NORM_WARPS) {
        const gradient_head<R> h = cell.head(i);
        if (h.o.dst.base)
            h.finish(*cell.rstd(i), own);
    }
    check_sequences<R::WIDE>(call.plan.plan.sequences, call.plan.plan.status);
}

#endif
