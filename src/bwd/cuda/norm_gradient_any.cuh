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

    /* Adds the term of an element of x for d_weight. */
    __device__ __forceinline__ void add_term(real u, real rstd, int32_t e, real *sum) const
    {
        *sum = fused(multiplied(this->load(this->find(x), x, e), u), rstd, *sum);
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

/* The heads of a block's cell, and room for as many in each of its units. */
template <class R> struct cell_of_heads {
    const norm_gradient_any_call &call;
    int64_t first_row;
    uint32_t rows, first_unit, units;

    __device__ __forceinline__ explicit cell_of_heads(const norm_gradient_any_call &of)
        : call(of), first_row((int64_t)blockIdx.x * of.shape.rows_of_block),
          rows((uint32_t)min((int64_t)of.shape.rows_of_block, of.shape.rows - first_row)),
          first_unit(blockIdx.y * of.cells.slice_units), units(min(of.cells.slice_units, of.cells.units - first_unit))
    {
    }

    __device__ __forceinline__ uint32_t places() const
    {
        return rows * units * NORM_HEADS;
    }

    /* Calls use(head, place), if there is a head: row by row, and in those unit by unit. */
    template <class USE> __device__ __forceinline__ void visit(uint32_t place, USE use) const
    {
        const uint32_t row = place / (units * NORM_HEADS), unit = first_unit + place / NORM_HEADS % units;
        uint32_t operand = 0;
        while (unit >= call.gradient[operand].after_unit)
            operand++;
        const uint32_t head = (unit - call.gradient[operand].first_unit) * NORM_HEADS + place % NORM_HEADS;
        if (head < call.of[operand].heads)
            use(gradient_head<R>(call, first_row, row, operand, head), place);
    }

    __device__ __forceinline__ typename R::real *rstd(uint32_t place) const
    {
        return (typename R::real *)(shared + call.rstd_at) + place;
    }
};

/* Adds the terms of an operand's weights: of units [begin, end), counted in the cell, or of one head of each (one_head >= 0), and the two
 * elements of a pair, or one that passes through, which are at[] of the head. */
template <class R>
__device__ __forceinline__ void add_terms(const cell_of_heads<R> &cell, uint32_t begin, uint32_t end, int32_t one_head,
                                          int32_t number, bool own, typename R::real sum[2], int32_t at[2])
{
    const trope_plan &plan = cell.call.plan.plan;
    typename R::real sums[2][CELL_SUMS] = {};
    for (uint32_t row = 0; row < cell.rows; row++) {
        for (uint32_t unit = begin; unit < end; unit++) {
            typename R::real of_unit[2] = {};
            uint32_t in_turn = 0;
            for (uint32_t i = 0; i < NORM_HEADS; i++) {
                if (one_head >= 0 && i != (uint32_t)one_head)
                    continue;
                cell.visit((row * cell.units + unit) * NORM_HEADS + i, [&](const gradient_head<R> &h, uint32_t place) {
                    const int32_t pairs = h.o.rotary_dim / 2, beside = number - pairs;
                    in_turn =
                        (h.gradient.places_at + unit + row * (h.gradient.after_unit - h.gradient.first_unit)) % CELL_SUMS;
                    at[0] = at[1] = beside < h.o.rotary_offset ? beside : beside + h.o.rotary_dim;
                    if (number < pairs) {
                        at[0] = h.o.rotary_offset + trope_first_of_pair(plan.interleaved_dst, plan.parts, pairs, number);
                        at[1] = h.o.rotary_offset + trope_second_of_pair(plan.interleaved_dst, plan.parts, pairs, number);
                    }
                    if (!h.adds_weights())
                        return;
                    if (number < pairs) {
                        const auto u = h.find_pair(number, own);
                        h.add_term(u.first, *cell.rstd(place), at[0], &of_unit[0]);
                        h.add_term(u.second, *cell.rstd(place), at[1], &of_unit[1]);
                    } else {
                        h.add_term(h.load(h.find(h.o.src), h.o.src, at[0]), *cell.rstd(place), at[0], &of_unit[0]);
                    }
                });
            }
            for (int i = 0; i < 2; i++)
                sums[i][in_turn] = added(sums[i][in_turn], of_unit[i]);
        }
    }
    for (int i = 0; i < 2; i++)
        sum[i] = added(added(sums[i][0], sums[i][1]), added(sums[i][2], sums[i][3]));
}

/* Leaves the sums of some weights of an operand, which begin with `weight`: of the heads that add_terms adds. */
template <class R>
__device__ __forceinline__ void leave_sums(const cell_of_heads<R> &cell, uint32_t operand, uint32_t begin, uint32_t end,
                                           int32_t one_head, uint32_t weight, bool own)
{
    typedef typename R::real real;
    const norm_gradient_any_call &call = cell.call;
    const head_operand &o = call.of[operand];
    const operand_gradient &g = call.gradient[operand];
    const uint32_t row = o.norm.weight_of_head ? 0 : blockIdx.y - g.first_slice;
    for (int32_t number = (int32_t)thread_of_block(); number < o.head_dim - o.rotary_dim / 2; number += 32 * NORM_WARPS) {
        real sum[2];
        int32_t at[2];
        add_terms<R>(cell, begin, end, one_head, number, own, sum, at);
        *call.sums.template sum<real>(g, row, blockIdx.x, weight + (uint32_t)at[0]) = sum[0];
        if (at[1] != at[0])
            *call.sums.template sum<real>(g, row, blockIdx.x, weight + (uint32_t)at[1]) = sum[1];
    }
}

/* Leaves the sums of a block's cell. */
template <class R> __device__ __forceinline__ void add_cell(const cell_of_heads<R> &cell, bool own)
{
    const norm_gradient_any_call &call = cell.call;
    for (uint32_t i = 0; i < call.operands; i++) {
        const head_operand &o = call.of[i];
        const operand_gradient &g = call.gradient[i];
        const uint32_t first = max(g.first_unit, cell.first_unit), after = min(g.after_unit, cell.first_unit + cell.units);
        if (!g.is_wanted || first >= after)
            continue;
        if (!o.norm.weight_of_head) {
            leave_sums<R>(cell, i, first - cell.first_unit, after - cell.first_unit, -1, 0, own);
            continue;
        }
        const uint32_t heads = min((after - g.first_unit) * NORM_HEADS, o.heads);
        for (uint32_t head = (first - g.first_unit) * NORM_HEADS; head < heads; head++) {
            const uint32_t unit = g.first_unit + head / NORM_HEADS - cell.first_unit;
            leave_sums<R>(cell, i, unit, unit + 1, (int32_t)(head % NORM_HEADS), head * (uint32_t)o.head_dim, own);
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
    for (uint32_t i = warp; i < cell.places(); i += NORM_WARPS)
        cell.visit(i, [&](const gradient_head<R> &h, uint32_t place) {
            *cell.rstd(place) = h.action == TROPE_ROW_ROTATE ? h.find_rstd(h.find(h.x), h.x) : 0;
        });
    __syncthreads();
    if (call.sums.of_columns)
        add_cell<R>(cell, own);
    __syncthreads();
    for (uint32_t i = warp; i < cell.places(); i += NORM_WARPS)
        cell.visit(i, [&](const gradient_head<R> &h, uint32_t place) {
            if (h.o.dst.base)
                h.finish(*cell.rstd(place), own);
        });
    check_sequences<R::WIDE>(call.plan.plan.sequences, call.plan.plan.status);
}

#endif
