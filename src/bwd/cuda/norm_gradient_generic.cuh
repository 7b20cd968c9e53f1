/* The backward of norms on CUDA, element kernel, for heads that the vector kernels do not support. A block processes one
 * cell (norm_gradient_call.cuh). Each of its warps takes one head at a time, element by element. */
#ifndef TROPE_BWD_CUDA_NORM_GRADIENT_GENERIC_CUH
#define TROPE_BWD_CUDA_NORM_GRADIENT_GENERIC_CUH

#include "bwd/cuda/gradient_call.cuh"
#include "bwd/cuda/norm_gradient.cuh"
#include "fwd/cuda/norm_generic.cuh"

template <int OF_DTYPE> struct generic_norm_gradient : generic_norm<OF_DTYPE> {
    typedef norm_gradient_generic_call call;
};

__device__ __forceinline__ float norm_slope(float mean, float rstd)
{
    return trope_norm_slope(mean, rstd);
}

__device__ __forceinline__ double norm_slope(double mean, double rstd)
{
    return trope_norm_slope_f64(mean, rstd);
}

/* A head of a cell. Its src is dy, and its dst is dx. If the norm comes before the rotation, dy is rotated; otherwise x
 * is rotated. */
template <class R> struct gradient_head : generic_head<R> {
    typedef typename R::element element;
    typedef typename R::real real;
    typedef typename pair_types<R::DTYPE>::pair pair_of_reals;

    const norm_gradient_generic_call &call;
    const head_tensor &x;
    const operand_gradient &gradient;
    uint32_t token_in_block;
    int32_t action;
    bool is_after;

    __device__ __forceinline__ gradient_head(const norm_gradient_generic_call &of_call, int64_t first_token,
                                             uint32_t in_block, uint32_t operand, uint32_t of_head)
        : generic_head<R>(of_call, of_call.of[operand],
                          find_token<ADDRESSES_GENERIC, int64_t>(of_call.shape, first_token + in_block), of_head),
          call(of_call), x(of_call.x[operand]), gradient(of_call.gradient[operand]), token_in_block(in_block),
          action(action_of_token<R>(of_call, in_block)), is_after(this->o.norm.is_after)
    {
    }

    __device__ __forceinline__ bool adds_weights() const
    {
        return action == TROPE_TOKEN_ROTATE && has_positions<R>(call, this->o.axes, token_in_block);
    }

    /* Returns the pairing of the weights: the pairing of x, or of y if the norm comes after the rotation. */
    __device__ __forceinline__ int32_t interleaved_weights() const
    {
        return is_after ? call.plan.plan.interleaved_src : call.plan.plan.interleaved_dst;
    }

    /* unrotated() returns an element of the tensor that is rotated (dy or x). other() returns an element of the other
     * tensor. */
    __device__ __forceinline__ real unrotated(int32_t e) const
    {
        return is_after ? this->load(this->find(x), x, e) : this->load(this->find(this->o.src), this->o.src, e);
    }

    __device__ __forceinline__ real other(int32_t e) const
    {
        return is_after ? this->load(this->find(this->o.src), this->o.src, e) : this->load(this->find(x), x, e);
    }

    /* Returns a pair of the window: of M' dy, or of M x with the rounding of forward. */
    __device__ __forceinline__ pair_of_reals rotated_pair(int32_t pair, bool own) const
    {
        const trope_plan &plan = call.plan.plan;
        const int32_t pairs = this->o.rotary_dim / 2, interleaved = is_after ? plan.interleaved_dst : plan.interleaved_src,
                      offset = this->o.rotary_offset;
        const pair_of_reals in = {unrotated(offset + trope_first_of_pair(interleaved, plan.parts, pairs, pair)),
                                  unrotated(offset + trope_second_of_pair(interleaved, plan.parts, pairs, pair))};
        const item_coefficients<R> c = this->load_coefficients(token_in_block, pair, own);
        return is_after ? c.rotate_forward(call.rounding, in, 0) : c.rotate_one(TROPE_ROUND_ONCE, in, 0);
    }

    /* Stores the rotated pairs of the window in shared memory, in the pairing of the weights. */
    __device__ __forceinline__ void rotate_window(bool own) const
    {
        this->fill_window(interleaved_weights(), [&](int32_t pair) { return rotated_pair(pair, own); });
    }

    /* Returns an element of the rotated head. Call rotate_window first. */
    __device__ __forceinline__ real rotated(int32_t e) const
    {
        return this->is_window(e) ? this->window()[e - this->o.rotary_offset] : unrotated(e);
    }

    /* Returns an element of the normalised tensor. If the norm comes after the rotation, call rotate_window first. */
    __device__ __forceinline__ real normalised(int32_t e) const
    {
        return is_after ? rotated(e) : other(e);
    }

    /* Returns the sum of squares of the elements that are normalised. */
    __device__ __forceinline__ real find_squares(bool own) const
    {
        if (is_after)
            rotate_window(own);
        return generic_head<R>::find_squares([&](int32_t e) { return normalised(e); });
    }

    __device__ __forceinline__ real find_rstd(bool own) const
    {
        return this->reads_rstd() ? *this->rstd_place() : this->rstd_of(find_squares(own));
    }

    /* Returns an element of the gradient of the norm's result, times its weight. Call rotate_window first. */
    __device__ __forceinline__ real weighted(int32_t e) const
    {
        return multiplied(load_weight<real>(this->o.norm, this->head, e), is_after ? other(e) : rotated(e));
    }

    /* Returns the sum of g x over the head (norm after the rotation: of g u). */
    __device__ __forceinline__ real find_products(bool own) const
    {
        rotate_window(own);
        return this->find_sum([&](int32_t e) { return multiplied(weighted(e), normalised(e)); });
    }

    __device__ __forceinline__ real *slope_place() const
    {
        return (real *)this->o.norm.slope + this->index();
    }

    /* Returns the slope for the sum of products of a head or a token. */
    __device__ __forceinline__ real slope_of(real products, real rstd) const
    {
        return norm_slope(products / (real)this->o.norm.elements, rstd);
    }

    /* Stores the slope for later launches, including the gradient of the angles. */
    __device__ __forceinline__ void leave_slope(real slope) const
    {
        const uint32_t poisoned = POISONED_SLOPE;
        if (this->lane)
            return;
        *slope_place() = adds_weights() ? slope : (real)NAN;
        if (!adds_weights())
            memcpy(slope_place(), &poisoned, sizeof poisoned);
    }

    /* Finds the elements with the given number, which a thread handles together for d_weight: the two elements of a
     * pair, or twice one element that passes through. */
    __device__ __forceinline__ void find_places(int32_t number, int32_t at[2]) const
    {
        const int32_t pairs = this->o.rotary_dim / 2, beside = number - pairs, parts = call.plan.plan.parts,
                      offset = this->o.rotary_offset;
        at[0] = at[1] = beside < offset ? beside : beside + this->o.rotary_dim;
        if (number < pairs) {
            at[0] = offset + trope_first_of_pair(interleaved_weights(), parts, pairs, number);
            at[1] = offset + trope_second_of_pair(interleaved_weights(), parts, pairs, number);
        }
    }

    /* Adds the terms of these elements. */
    __device__ __forceinline__ void add_terms(int32_t number, real rstd, bool own, real sum[2]) const
    {
        int32_t at[2];
        if (!adds_weights())
            return;
        find_places(number, at);
        if (number >= this->o.rotary_dim / 2)
            return add_term(unrotated(at[0]), rstd, at[0], &sum[0]);
        const auto u = rotated_pair(number, own);
        add_term(u.first, rstd, at[0], &sum[0]);
        add_term(u.second, rstd, at[1], &sum[1]);
    }

    __device__ __forceinline__ void store(char *to, int32_t e, real value) const
    {
        element *const at = (element *)(to + e * this->o.dst.element);
        if (this->o.accumulate)
            value = accumulated<R>(call.rounding, to_real<R::DTYPE>(*at), value);
        *at = from_real<R::DTYPE>(value);
    }

    /* Stores dx of padding. */
    __device__ __forceinline__ void finish_padding() const
    {
        if (!this->o.dst.base || (this->o.accumulate && action == TROPE_TOKEN_ZERO))
            return;
        if (!this->o.accumulate || is_filled(action, true))
            return this->pass(action);
        for (int32_t e = (int32_t)this->lane; e < this->o.head_dim; e += 32)
            store_term(e);
    }

    /* Computes and stores dx. All threads of the warp must call this. */
    __device__ __forceinline__ void finish(real rstd, bool own) const
    {
        if (action != TROPE_TOKEN_ROTATE)
            return finish_padding();
        const real products = find_products(own), slope = this->o.norm.is_token ? *slope_place() : slope_of(products, rstd);
        if (this->o.norm.slope && !this->o.norm.is_token)
            leave_slope(slope);
        if (!this->o.dst.base)
            return;
        char *const to = this->find(this->o.dst);
        const auto result = [&](int32_t e) { return gradient_of_norm(normalised(e), weighted(e), slope, rstd); };
        if (is_after)
            rotate_back(to, own, result);
        for (int32_t e = (int32_t)this->lane; e < this->o.head_dim; e += 32)
            if (!is_after || !this->is_window(e))
                store(to, e, result(e));
    }

  private:
    __device__ __forceinline__ void add_term(real value, real rstd, int32_t e, real *sum) const
    {
        *sum = fused(multiplied(other(e), value), rstd, *sum);
    }

    /* Stores M' du of the window. */
    template <class RESULT> __device__ __forceinline__ void rotate_back(char *to, bool own, RESULT du) const
    {
        const trope_plan &plan = call.plan.plan;
        const int32_t pairs = this->o.rotary_dim / 2, offset = this->o.rotary_offset;
        real *const window = this->window();
        for (int32_t i = (int32_t)this->lane; i < this->o.rotary_dim; i += 32)
            window[i] = du(offset + i);
        __syncwarp();
        for (int32_t pair = (int32_t)this->lane; pair < pairs; pair += 32) {
            const pair_of_reals dx =
                this->load_coefficients(token_in_block, pair, own)
                    .rotate_one(TROPE_ROUND_ONCE,
                                {window[trope_first_of_pair(plan.interleaved_src, plan.parts, pairs, pair)],
                                 window[trope_second_of_pair(plan.interleaved_src, plan.parts, pairs, pair)]},
                                0);
            store(to, offset + trope_first_of_pair(plan.interleaved_dst, plan.parts, pairs, pair), dx.first);
            store(to, offset + trope_second_of_pair(plan.interleaved_dst, plan.parts, pairs, pair), dx.second);
        }
    }

    __device__ __forceinline__ void store_term(int32_t e) const
    {
        store(this->find(this->o.dst), e, term_of(this->load(this->find(this->o.src), this->o.src, e)));
    }
};

/* The heads of a block's cell. Each unit has NORM_HEADS places, even if it has fewer heads. */
template <class R> struct cell_of_heads {
    const norm_gradient_generic_call &call;
    int64_t first_token;
    uint32_t tokens, first_unit, units;

    __device__ __forceinline__ explicit cell_of_heads(const norm_gradient_generic_call &of)
        : call(of), first_token((int64_t)blockIdx.x * of.shape.tokens_of_block),
          tokens((uint32_t)min((int64_t)of.shape.tokens_of_block, of.shape.tokens - first_token)),
          first_unit(blockIdx.y * of.cells.slice_units), units(min(of.cells.slice_units, of.cells.units - first_unit))
    {
    }

    __device__ __forceinline__ uint32_t places() const
    {
        return tokens * units * NORM_HEADS;
    }

    /* Calls use(head, place) if the place has a head. Places are ordered by token, then by unit. */
    template <class USE> __device__ __forceinline__ void visit(uint32_t place, USE use) const
    {
        const uint32_t in_block = place / (units * NORM_HEADS), unit = first_unit + place / NORM_HEADS % units;
        uint32_t operand = 0;
        while (unit >= call.gradient[operand].after_unit)
            operand++;
        const uint32_t head = (unit - call.gradient[operand].first_unit) * NORM_HEADS + place % NORM_HEADS;
        if (head < call.of[operand].heads)
            use(gradient_head<R>(call, first_token, in_block, operand, head), place);
    }

    __device__ __forceinline__ typename R::real *rstd(uint32_t place) const
    {
        return (typename R::real *)(shared_memory + call.rstd_at) + place;
    }
};

/* Adds the terms of weights that all heads of an operand share, over units [begin, end), counted in the cell. The terms
 * belong to the elements of find_places: two elements of a pair, or one element that passes through. */
template <class R>
__device__ __forceinline__ void add_terms_of_shared_weights(const cell_of_heads<R> &cell, uint32_t begin, uint32_t end,
                                                            int32_t number, bool own, typename R::real sum[2])
{
    typename R::real sums[2][CELL_SUMS] = {};
    for (uint32_t in_block = 0; in_block < cell.tokens; in_block++) {
        for (uint32_t unit = begin; unit < end; unit++) {
            typename R::real of_unit[2] = {};
            uint32_t in_turn = 0;
            for (uint32_t i = 0; i < NORM_HEADS; i++)
                cell.visit((in_block * cell.units + unit) * NORM_HEADS + i, [&](const gradient_head<R> &h, uint32_t place) {
                    in_turn = (h.gradient.places_at + unit + in_block * (h.gradient.after_unit - h.gradient.first_unit)) %
                              CELL_SUMS;
                    h.add_terms(number, *cell.rstd(place), own, of_unit);
                });
            for (int i = 0; i < 2; i++)
                sums[i][in_turn] = added(sums[i][in_turn], of_unit[i]);
        }
    }
    for (int i = 0; i < 2; i++)
        sum[i] = added(added(sums[i][0], sums[i][1]), added(sums[i][2], sums[i][3]));
}

/* Does the same for the weights of one head. `place` is the head's place in the cell's first token. */
template <class R>
__device__ __forceinline__ void add_terms_of_head(const cell_of_heads<R> &cell, uint32_t place, int32_t number, bool own,
                                                  typename R::real sum[2])
{
    sum[0] = sum[1] = 0;
    for (uint32_t in_block = 0; in_block < cell.tokens; in_block++)
        cell.visit(place + in_block * cell.units * NORM_HEADS,
                   [&](const gradient_head<R> &h, uint32_t at) { h.add_terms(number, *cell.rstd(at), own, sum); });
}

/* Stores sums of an operand, beginning at sum number `weight`. add(number, sum) computes them. */
template <class R, class ADD>
__device__ __forceinline__ void leave_sums(const cell_of_heads<R> &cell, uint32_t operand, uint32_t weight, ADD add)
{
    typedef typename R::real real;
    const norm_gradient_generic_call &call = cell.call;
    const gradient_head<R> h(call, cell.first_token, 0, operand, 0);
    const uint32_t row = h.o.norm.weight_of_head ? 0 : blockIdx.y - h.gradient.first_slice;
    for (int32_t number = (int32_t)thread_of_block(); number < h.o.head_dim - h.o.rotary_dim / 2;
         number += 32 * NORM_WARPS) {
        real sum[2];
        int32_t at[2];
        h.find_places(number, at);
        add(number, sum);
        *call.sums.template sum<real>(h.gradient, row, blockIdx.x, weight + (uint32_t)at[0]) = sum[0];
        if (at[1] != at[0])
            *call.sums.template sum<real>(h.gradient, row, blockIdx.x, weight + (uint32_t)at[1]) = sum[1];
    }
}

/* Computes and stores the sums of a block's cell. */
template <class R> __device__ __forceinline__ void add_cell(const cell_of_heads<R> &cell, bool own)
{
    typedef typename R::real real;
    const norm_gradient_generic_call &call = cell.call;
    for (uint32_t i = 0; i < call.operands; i++) {
        const head_operand &o = call.of[i];
        const operand_gradient &g = call.gradient[i];
        const uint32_t first = max(g.first_unit, cell.first_unit), after = min(g.after_unit, cell.first_unit + cell.units);
        if (!g.is_wanted || first >= after)
            continue;
        if (!o.norm.weight_of_head) {
            leave_sums<R>(cell, i, 0, [&](int32_t number, real *sum) {
                add_terms_of_shared_weights<R>(cell, first - cell.first_unit, after - cell.first_unit, number, own, sum);
            });
            continue;
        }
        const uint32_t heads = min((after - g.first_unit) * NORM_HEADS, o.heads);
        for (uint32_t head = (first - g.first_unit) * NORM_HEADS; head < heads; head++)
            leave_sums<R>(cell, i, head * (uint32_t)o.head_dim, [&](int32_t number, real *sum) {
                add_terms_of_head<R>(cell, head + (g.first_unit - cell.first_unit) * NORM_HEADS, number, own, sum);
            });
    }
}

/* Finds rstd and slope of norms over the block's token, for the launches that follow. A call may also need only the sums
 * of the heads (token_sums). */
template <class R>
__device__ __forceinline__ void find_tokens(const norm_gradient_generic_call &call, int64_t token, bool own)
{
    typedef typename R::real real;
    for (uint32_t i = 0; i < call.operands; i++) {
        const gradient_head<R> first(call, token, 0, i, 0);
        const bool rotates = first.action == TROPE_TOKEN_ROTATE;
        const auto head = [&](uint32_t of) { return gradient_head<R>(call, token, 0, i, of); };
        const real rstd = first.reads_rstd() ? *first.rstd_place() : first.rstd_of(first.add_heads([&](uint32_t of) {
            return rotates ? head(of).find_squares(own) : 0;
        })),
                   products = first.add_heads([&](uint32_t of) { return rotates ? head(of).find_products(own) : 0; });
        first.share_rstd(rstd);
        if (first.o.norm.slope)
            first.leave_slope(first.slope_of(products, rstd));
    }
}

template <class R>
__global__ void __launch_bounds__(32 * NORM_WARPS)
    norm_gradient_generic_kernel(KERNEL_PARAMETER(norm_gradient_generic_call) call,
                                 KERNEL_PARAMETER(typename R::steps) steps)
{
    const cell_of_heads<R> cell(call);
    const uint32_t warp = thread_of_block() / 32;
    const bool own = find_coefficients<R>(
        call, steps, cell.first_token, cell.tokens, []() {}, []() {}, []() {});
    if (call.finds_tokens) {
        find_tokens<R>(call, cell.first_token, own);
        return check_sequences<R::WIDE>(call.plan.plan.position_source, call.plan.plan.status);
    }
    for (uint32_t i = warp; i < cell.places(); i += NORM_WARPS)
        cell.visit(i, [&](const gradient_head<R> &h, uint32_t place) {
            const typename R::real rstd = h.action == TROPE_TOKEN_ROTATE ? h.find_rstd(own) : 0;
            *cell.rstd(place) = rstd;
            h.share_rstd(rstd);
        });
    __syncthreads();
    if (call.sums.of_columns)
        add_cell<R>(cell, own);
    __syncthreads();
    for (uint32_t i = warp; i < cell.places(); i += NORM_WARPS)
        cell.visit(i, [&](const gradient_head<R> &h, uint32_t place) {
            if (h.o.dst.base || h.o.norm.slope)
                h.finish(*cell.rstd(place), own);
        });
    check_sequences<R::WIDE>(call.plan.plan.position_source, call.plan.plan.status);
}

#endif
