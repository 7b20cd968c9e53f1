/* The gradient of the angles on CUDA, first part: one pass over dy and x stores dx and leaves the sums of units. It is a
 * register block (fwd/cuda/register_block.cuh) with a loop over heads. */
#ifndef TROPE_BWD_CUDA_GRADIENT_PASS_CUH
#define TROPE_BWD_CUDA_GRADIENT_PASS_CUH

#include "bwd/angle_term.h"
#include "bwd/cuda/gradient_call.cuh"
#include "fwd/cuda/norm_generic.cuh"

/* ---- a place in the call ---- */

/* A thread's place in a block: a unit, a slot of the unit, and an item of its heads. */
struct unit_thread {
    uint32_t unit, slot, in_head;
    block_token<int32_t> token; /* the token in the unit's first batch entry */
    uint32_t heads;             /* heads of the unit; 0 if the thread has no unit */

    __device__ __forceinline__ unit_thread(const gradient_call &call, int32_t first_unit, uint32_t units)
    {
        unit = trope_divide(&call.unit_threads, threadIdx.x);
        const uint32_t in_unit = threadIdx.x - unit * call.unit_threads.divisor;
        slot = in_unit >> call.item_bits;
        in_head = in_unit & ((1u << call.item_bits) - 1);
        token = find_token<ADDRESSES_GENERIC, int32_t>(call.shape, first_unit + (int32_t)min(unit, units - 1));
        token.outer *= (int32_t)call.entries;
        heads = unit < units ? min(call.entries, call.batch - (uint32_t)token.outer) * call.heads_of_entry.divisor : 0;
    }
};

/* The thread's item of one head in the unit's list. */
template <class CALL> struct listed_item {
    typedef typename CALL::stride stride;

    const CALL &call;
    block_token<int32_t> token;
    uint32_t window, head, in_head;
    bool present;

    __device__ __forceinline__ listed_item(const CALL &of, const unit_thread &thread, uint32_t number)
        : call(of), token(thread.token), window(0), head(number), in_head(thread.in_head), present(number < thread.heads)
    {
        if (call.entries > 1) {
            const uint32_t entry = trope_divide(&call.heads_of_entry, number);
            token.outer += (int32_t)entry;
            head -= entry * call.heads_of_entry.divisor;
        }
        while (window + 1 < call.windows && head >= segment().heads)
            head -= call.segment[window++].heads;
    }

    __device__ __forceinline__ const block_segment<stride> &segment() const
    {
        return call.segment[window];
    }

    /* Whether the head has this piece. A piece is two vectors, or one pair. */
    __device__ __forceinline__ bool has(uint32_t piece) const
    {
        return present && piece < segment().working;
    }

    /* Returns the end of a range of heads, from `number` on, that have equal distances in memory. */
    __device__ __forceinline__ uint32_t end(uint32_t number) const
    {
        return !present ? UINT32_MAX : segment().is_intricate ? number + 1 : number + segment().heads - head;
    }

    __device__ __forceinline__ char *head_of(const block_tensor<stride> &t) const
    {
        return find_address<ADDRESSES_GENERIC>(call.shape, segment(), t, token, head, 0);
    }

    /* Returns the offset of a piece in its head. */
    __device__ __forceinline__ int64_t offset(const block_tensor<stride> &t, uint32_t piece) const
    {
        const int64_t of_piece = (int64_t)(int32_t)piece * t.item;
        return segment().is_intricate
                   ? of_piece + part_of_pair((int32_t)segment().part_items, (int32_t)piece) * (int64_t)t.part
                   : of_piece;
    }
};

/* ---- an item ---- */

/* The pairs of an item: two vectors, or the same number of pairs whose elements may be anywhere. */
template <int DTYPE, bool VECTORS> struct gradient_item {
    typedef item_pairs<DTYPE, VECTORS> piece;
    typedef typename elements<DTYPE>::real real;
    static constexpr int PAIRS = 16 / sizeof(typename elements<DTYPE>::type), OF_PIECE = piece::WIDTH,
                         PIECES = PAIRS / OF_PIECE;

    piece of[PIECES];

    /* Idle threads load a dummy address, as in item_job. */
    template <class PLACE>
    static __device__ __forceinline__ const char *find(const PLACE &at, const block_tensor<typename PLACE::stride> &t,
                                                       const char *head, uint32_t piece)
    {
        return at.has(piece) ? head + at.offset(t, piece) : t.base;
    }

    template <class PLACE>
    __device__ __forceinline__ void load(const PLACE &at, const block_tensor<typename PLACE::stride> &t)
    {
        const char *const head = at.head_of(t);
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            const char *const from = find(at, t, head, at.in_head * PIECES + i);
            of[i].load(from, from + t.second);
        }
    }

    template <class PLACE>
    __device__ __forceinline__ void store(const PLACE &at, const block_tensor<typename PLACE::stride> &t) const
    {
        char *const head = at.head_of(t);
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            const uint32_t number = at.in_head * PIECES + i;
            char *const to = head + at.offset(t, number);
            if (VECTORS || at.has(number))
                of[i].store(to, to + t.second);
        }
    }

    template <bool> __device__ __forceinline__ real of_pair(int e, int which) const
    {
        return of[e / OF_PIECE].template of_pair<false>(e % OF_PIECE, which);
    }

    /* Sets two neighbouring pairs. The first one is even. */
    __device__ __forceinline__ void set_two(int e, const real y[2][2])
    {
        if constexpr (PIECES == 1) {
            of[0].template set_pairs<2, false>(e, y);
        } else {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const real pair[2][1] = {{y[0][i]}, {y[1][i]}};
                of[e + i].template set_pairs<1, false>(0, pair);
            }
        }
    }

    template <typename CHANGE> __device__ __forceinline__ void each(CHANGE change)
    {
#pragma unroll
        for (int i = 0; i < PIECES; i++)
            change(of[i]);
    }
};

/* Returns the position of a unit on an axis. */
__device__ __forceinline__ int64_t position_of_unit(const block_tokens<int64_t> &tokens, uint32_t unit, uint32_t axis)
{
    return tokens.position[tokens.axis_bits ? (unit << tokens.axis_bits) + axis : unit];
}

/* Whether a unit contributes to the pairs of an axis. */
__device__ __forceinline__ bool counts_for_axis(const trope_plan &plan, const block_tokens<int64_t> &tokens, uint32_t unit,
                                                uint32_t axis)
{
    const bool is_nan = is_missing<true>(plan, position_of_unit(tokens, unit, axis)),
               has_actions = plan.position_source.boundaries;
    return !is_nan && (!has_actions || tokens.action[unit] == TROPE_TOKEN_ROTATE) && plan.used_axes >> axis & 1;
}

/* The template parameters of a kernel, and the constants and types that find_coefficients requires. */
template <int OF_DTYPE, bool OF_VECTORS> struct gradient_pass {
    static constexpr int DTYPE = OF_DTYPE, POSITIONS = POSITIONS_GENERIC, ANGLES = ANGLES_GENERIC;
    static constexpr bool VECTORS = OF_VECTORS, ALWAYS_FAST = false;
    static constexpr int ADDRESSES = ADDRESSES_GENERIC;
    typedef typename elements<OF_DTYPE>::real real;
    typedef gradient_item<OF_DTYPE, OF_VECTORS> data;
    static constexpr bool WIDE = !OF_VECTORS;
    typedef int32_t index;
    typedef std::conditional_t<OF_VECTORS, narrow_gradient, wide_gradient> call;
    typedef typename call::stride stride;
    static constexpr uint32_t STEPS = OF_VECTORS ? FAST_PAIRS : TROPE_MAX_PAIRS;
    typedef phase_steps<STEPS> steps;
    /* In the vector kernel, each pair has one angle, so both elements of a pair add to one sum, and dx is rounded once. */
    static constexpr int SUMS = OF_VECTORS ? 1 : 2;
    static constexpr int PAIRS = data::PAIRS;
    /* Maximum number of threads of a block, and minimum number of blocks that a multiprocessor holds. (Loading two heads
     * at a time in each thread is slower, and so are fewer blocks.) */
    static constexpr int THREADS = OF_VECTORS ? GRADIENT_THREADS : 2 * GRADIENT_THREADS, BLOCKS = OF_VECTORS ? 6 : 2;
};

/* ---- a head ---- */

/* The address of the thread's item in the current head, for the vector kernel. */
struct stepping_item {
    char *at;
    int32_t second, head; /* bytes to the second vector, and to the next head */

    /* An item that does not exist stays at a dummy address. */
    template <class PLACE>
    __device__ __forceinline__ void find(const PLACE &place, const block_tensor<typename PLACE::stride> &t)
    {
        const bool is_there = place.has(place.in_head);
        at = found_here(is_there ? place.head_of(t) + place.offset(t, place.in_head) : t.base);
        second = t.second;
        head = is_there ? t.head : 0;
    }

    __device__ __forceinline__ void go(uint32_t heads)
    {
        at += (int32_t)heads * (int64_t)head;
    }
};

/* Returns the first (0) or second (1) element of a pair of x, normalised. Not inline, because it is rarely needed. */
template <class R>
static __device__ __noinline__ typename R::real normalise_x(const wide_gradient &call, uint32_t window, int64_t token,
                                                            uint32_t head, int32_t pair, int32_t which, typename R::real x)
{
    const trope_plan &plan = call.plan.plan;
    const trope_plan_norm &n = call.norm[window];
    const block_segment<int64_t> &s = call.segment[window];
    const int32_t pairs = (int32_t)(s.working * R::data::OF_PIECE), interleaved = plan.interleaved_forward_src;
    const int32_t e = which ? trope_second_of_pair(interleaved, plan.parts, pairs, pair)
                            : trope_first_of_pair(interleaved, plan.parts, pairs, pair);
    const typename R::real rstd = ((const typename R::real *)n.rstd)[n.is_token ? token : token * s.heads + head];
    return normalised<R::DTYPE>(n, x, rstd, head, call.window_at[window] + e);
}

/* Returns du, which replaces dy, for a pair whose head is normalised after its rotation. The pair has coefficients i of
 * c. Not inline, because it is rarely needed. */
template <class R>
static __device__ __noinline__ typename pair_types<R::DTYPE>::pair
find_du(const wide_gradient &call, uint32_t window, int64_t token, uint32_t head, int32_t pair,
        const typename pair_types<R::DTYPE>::pair &x, const typename pair_types<R::DTYPE>::pair &dy,
        const item_coefficients<R> &c, int i)
{
    typedef typename R::real real;
    const trope_plan &plan = call.plan.plan;
    const trope_plan_norm &n = call.norm[window];
    const block_segment<int64_t> &s = call.segment[window];
    const int32_t pairs = (int32_t)(s.working * R::data::OF_PIECE), at = call.window_at[window];
    const int64_t index = n.is_token ? token : token * s.heads + head;
    const real rstd = ((const real *)n.rstd)[index], slope = ((const real *)n.slope)[index];
    uint32_t start;
    memcpy(&start, &slope, sizeof start);
    if (start == POISONED_SLOPE && isnan(slope))
        return {0, 0};
    const auto u = c.rotate_forward(call.rounding, x, i);
    const auto element = [&](int32_t e, real of_u, real of_dy) {
        return gradient_of_norm(of_u, multiplied(load_weight<real>(n, head, at + e), of_dy), slope, rstd);
    };
    return {element(trope_first_of_pair(plan.interleaved_src, plan.parts, pairs, pair), u.first, dy.first),
            element(trope_second_of_pair(plan.interleaved_src, plan.parts, pairs, pair), u.second, dy.second)};
}

/* The thread's item of a head of its slot, as it is loaded. */
template <class R> struct head_job {
    typedef listed_item<typename R::call> place;

    uint32_t number; /* the head's number in the unit's list */
    bool present;
    typename R::data dy, x;
    uint32_t first_couple; /* where the coefficients of the item begin */
    /* For the vector kernel only: */
    uint32_t end;
    stepping_item at_dy, at_x, at_dst;
    bool is_stored;

    /* Finds the addresses for load(). This has branches, so it comes before all loads. */
    __device__ __forceinline__ void find(const typename R::call &call, const unit_thread &thread, uint32_t of_number)
    {
        const place at(call, thread, of_number);
        number = of_number;
        present = at.has(at.in_head * R::data::PIECES);
        if constexpr (R::VECTORS) {
            end = at.end(number);
            at_dy.find(at, at.segment().src);
            at_x.find(at, call.x[at.window]);
        }
    }

    /* Finds the address to which run() stores. */
    __device__ __forceinline__ void find_dst(const typename R::call &call, const unit_thread &thread, int32_t action)
    {
        const place at(call, thread, number);
        const auto &s = at.segment();
        is_stored = s.dst.base && !(action == TROPE_TOKEN_COPY && s.in_place);
        if constexpr (R::VECTORS)
            at_dst.find(at, action == TROPE_TOKEN_ROTATE ? s.dst : unrotated_dst(s));
    }

    /* Moves on to the next head of the slot. */
    __device__ __forceinline__ void go(const typename R::call &call, const unit_thread &thread, int32_t action)
    {
        if (R::VECTORS && number + call.slots < end) {
            number += call.slots;
            at_dy.go(call.slots);
            at_x.go(call.slots);
            at_dst.go(call.slots);
        } else {
            find(call, thread, number + call.slots);
            find_dst(call, thread, action);
        }
    }

    __device__ __forceinline__ void load(const typename R::call &call, const unit_thread &thread)
    {
        if constexpr (R::VECTORS) {
            dy.of[0].load(at_dy.at, at_dy.at + at_dy.second);
            x.of[0].load(at_x.at, at_x.at + at_x.second);
        } else {
            const place at(call, thread, number);
            dy.load(at, at.segment().src);
            x.load(at, call.x[at.window]);
        }
    }

    __device__ __forceinline__ void run(const typename R::call &call, const unit_thread &thread, int32_t action,
                                        double sum[R::SUMS][R::PAIRS])
    {
        const place at(call, thread, number);
        if (action == TROPE_TOKEN_ROTATE)
            rotate(at, sum);
        else if (is_filled(action, true))
            dy.each([=](auto &p) { p.fill(filling_of<R::DTYPE>(action)); });
        if (!is_stored)
            return;
        if constexpr (R::VECTORS)
            dy.of[0].store(at_dst.at, at_dst.at + at_dst.second);
        else
            dy.store(at, action == TROPE_TOKEN_ROTATE ? at.segment().dst : unrotated_dst(at.segment()));
    }

  private:
    /* Rotates dy into dx, and adds the head's terms of the gradient of the angles. */
    __device__ __forceinline__ void rotate(const place &at, double sum[R::SUMS][R::PAIRS])
    {
        const trope_plan &plan = at.call.plan.plan;
        if (plan.interleaved_src)
            dy.each([](auto &p) { p.separate(); });
        if (plan.interleaved_forward_src)
            x.each([](auto &p) { p.separate(); });
#pragma unroll
        for (int e = 0; e < R::PAIRS; e += 2)
            rotate_two(at, e, sum);
        if (plan.interleaved_dst)
            dy.each([](auto &p) { p.join(); });
    }

    __device__ __forceinline__ void rotate_two(const place &at, int e, double sum[R::SUMS][R::PAIRS])
    {
        const int32_t rounding = R::VECTORS ? (int32_t)TROPE_ROUND_ONCE : at.call.rounding;
        item_coefficients<R> c;
        typename R::real dx[2][2];
        c.load_from(at.call.shape, first_couple + (uint32_t)e * at.call.shape.window_items.divisor,
                    R::SUMS > 1 && at.call.plan.plan.angles.per_element);
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (R::VECTORS || at.has(at.in_head * R::PAIRS + e + i))
                add(at, c, i, e + i, sum);
        c.round(rounding);
        c.template rotate<false>(rounding, dy, e, dx);
        dy.set_two(e, dx);
    }

    /* Returns an element of a pair of x, normalised if the norm comes before the rotation. */
    __device__ __forceinline__ double find_x(const place &at, int e, int which) const
    {
        const typename R::real value = x.template of_pair<false>(e, which);
        if constexpr (!R::VECTORS) {
            if (at.call.norm[at.window].is_given && !at.call.norm[at.window].is_after)
                return normalise_x<R>(at.call, at.window,
                                      (int64_t)at.token.outer * at.call.plan.plan.tokens + at.token.inner, at.head,
                                      (int32_t)at.in_head * R::PAIRS + e, which, value);
        }
        return value;
    }

    /* Adds the terms of pair e, which has coefficients i of c. */
    __device__ __forceinline__ void add(const place &at, const item_coefficients<R> &c, int i, int e,
                                        double sum[R::SUMS][R::PAIRS]) const
    {
        const trope_plan &plan = at.call.plan.plan;
        const couple<R::DTYPE> &c1 = c.first.of[i], &c2 = c.second.of[i];
        const bool is_one = R::SUMS == 1 || !plan.angles.per_element;
        typename pair_types<R::DTYPE>::pair of_y = {dy.template of_pair<false>(e, 0), dy.template of_pair<false>(e, 1)};
        if constexpr (!R::VECTORS) {
            if (at.call.norm[at.window].is_after)
                of_y = find_du<R>(at.call, at.window, (int64_t)at.token.outer * plan.tokens + at.token.inner, at.head,
                                  (int32_t)at.in_head * R::PAIRS + e,
                                  {x.template of_pair<false>(e, 0), x.template of_pair<false>(e, 1)}, of_y, c, i);
        }
        trope_add_angle_terms({find_x(at, e, 0), find_x(at, e, 1)}, {(double)of_y.first, (double)of_y.second},
                              {(double)c1.cosine, (double)c1.sine, (double)c2.cosine, (double)c2.sine}, &sum[0][e],
                              is_one ? &sum[0][e] : &sum[R::SUMS - 1][e]);
        if (is_one)
            sum[R::SUMS - 1][e] = sum[0][e];
    }
};

/* ---- the sums of a unit ---- */

/* Adds the slots of a warp. In each step, two threads whose slots differ in one bit exchange halves. Each thread sends
 * half of its sums to the other, and receives the other thread's sums for the half that it keeps. If only one sum is
 * left, both threads add it. Finally each thread stores its sums in the share of its warp, from `column` on. */
template <int PAIRS>
__device__ __forceinline__ void leave_sums(const gradient_call &call, const unit_thread &thread, uint32_t column,
                                           double sum[PAIRS])
{
    const uint32_t pairs = (uint32_t)call.plan.plan.pairs, last = call.slots_of_warp << call.item_bits;
    uint32_t distance = 1u << call.item_bits, first = thread.in_head * PAIRS, left = PAIRS;
#pragma unroll
    for (int half = PAIRS / 2; half > 0; half /= 2) {
        if (distance >= last)
            break;
        const bool upper = threadIdx.x & distance;
#pragma unroll
        for (int i = 0; i < half; i++) {
            const double other = __shfl_xor_sync(UINT32_MAX, upper ? sum[i] : sum[i + half], (int)distance);
            sum[i] = (upper ? sum[i + half] : sum[i]) + other;
        }
        first += upper ? half : 0;
        left = half;
        distance *= 2;
    }
    for (; distance < last; distance *= 2)
        sum[0] += __shfl_xor_sync(UINT32_MAX, sum[0], (int)distance);
    const uint32_t share = thread.slot / call.slots_of_warp, in_warp = thread.slot - share * call.slots_of_warp;
    double *const to =
        (double *)(shared_memory + call.left_at) + (thread.unit * call.shares + share) * call.columns.divisor + column;
#pragma unroll
    for (int i = 0; i < PAIRS; i++)
        if ((uint32_t)i < left && in_warp * left < PAIRS && first + i < pairs && thread.heads)
            to[first + i] = sum[i];
}

/* Goes through the thread's heads, stores dx, and leaves the sums in shared memory. */
template <class R>
__device__ __forceinline__ void rotate_heads(const typename R::call &call, const unit_thread &thread, head_job<R> *job)
{
    double sum[R::SUMS][R::PAIRS] = {};
    const int32_t action = action_of_token<R>(call, thread.heads ? thread.unit : 0);
    job->find_dst(call, thread, action);
#pragma unroll 1
    for (uint32_t left = call.rounds; left > 0; left--) {
        if (call.rearranges)
            __syncthreads();
        if (job->present)
            job->run(call, thread, action, sum);
        if (left > 1) {
            job->go(call, thread, action);
            job->load(call, thread);
        }
    }
    leave_sums<R::PAIRS>(call, thread, 0, sum[0]);
    if (R::SUMS > 1 && call.plan.plan.angles.per_element)
        leave_sums<R::PAIRS>(call, thread, (uint32_t)call.plan.plan.pairs, sum[R::SUMS - 1]);
}

/* ---- what passes through ---- */

/* Copies a segment of the heads of a block's units, or fills it in padding. */
template <class R>
__device__ __forceinline__ void copy_segment(const typename R::call &call, const block_segment<typename R::call::stride> &s,
                                             int32_t first_unit, uint32_t units)
{
    for (uint32_t unit = 0; unit < units; unit++) {
        const int32_t action = action_of_token<R>(call, unit);
        block_token<int32_t> token = find_token<ADDRESSES_GENERIC, int32_t>(call.shape, first_unit + (int32_t)unit);
        token.outer *= (int32_t)call.entries;
        const int32_t end = (int32_t)min((uint32_t)token.outer + call.entries, call.batch);
        for (; token.outer < end && (is_filled(action, false) || !s.in_place); token.outer++) {
            for (uint32_t i = threadIdx.x; i < s.heads * s.working; i += blockDim.x) {
                const uint32_t head = trope_divide(&s.head_items, i), in_head = i - head * s.working;
                const char *const from = find_address<ADDRESSES_GENERIC>(call.shape, s, s.src, token, head, in_head);
                char *const to = find_address<ADDRESSES_GENERIC>(call.shape, s, s.dst, token, head, in_head);
                item_pairs<R::DTYPE, R::VECTORS> v;
                v.load(from, from + s.src.second);
                if (is_filled(action, false))
                    v.fill(filling_of<R::DTYPE>(action));
                v.store(to, to + s.dst.second);
            }
        }
    }
}

/* ---- where sums go ---- */

/* Returns the sum of a column of a unit: its shares, added in order. */
__device__ __forceinline__ double sum_of_unit(const gradient_call &call, uint32_t unit, uint32_t column)
{
    const double *const left =
        (const double *)(shared_memory + call.left_at) + unit * call.shares * call.columns.divisor + column;
    double sum = left[0];
    for (uint32_t share = 1; share < call.shares; share++)
        sum += left[share * call.columns.divisor];
    return sum;
}

/* Stores the sums of each unit separately. SEQUENCES also reads the sums of units that contribute nothing, so they are
 * set to 0. In each iteration, the block takes as many units as it has threads for, and a thread takes one column. */
__device__ __forceinline__ void emit_units(const gradient_call &call, const block_tokens<int64_t> &tokens,
                                           int32_t first_unit, uint32_t units)
{
    const trope_plan &plan = call.plan.plan;
    const uint32_t columns = call.columns.divisor, first = trope_divide(&call.columns, threadIdx.x),
                   together = max(trope_divide(&call.columns, blockDim.x), 1u);
    for (uint32_t column = threadIdx.x - first * columns; column < columns; column += blockDim.x) {
        const uint32_t axis = axis_of_column(plan, column);
        const angle_column angle(plan, column);
        for (uint32_t unit = first; first < together && unit < units; unit += together) {
            if (call.mode == GRADIENT_DIRECT) {
                angle.store(find_token<ADDRESSES_GENERIC, int32_t>(call.shape, first_unit + (int32_t)unit).outer,
                            position_of_unit(tokens, unit, axis), sum_of_unit(call, unit, column));
                continue;
            }
            const bool counts = counts_for_axis(plan, tokens, unit, axis);
            if (counts || call.mode == GRADIENT_SEQUENCES)
                __stcs(call.sums + ((int64_t)first_unit + unit) * columns + column,
                       counts ? sum_of_unit(call, unit, column) : 0);
        }
    }
}

/* Adds the units of a block. For d_inv_freq, each unit is multiplied by its position. */
__device__ __forceinline__ void emit_total(const gradient_call &call, const block_tokens<int64_t> &tokens, uint32_t units)
{
    const trope_plan &plan = call.plan.plan;
    for (uint32_t column = threadIdx.x; column < call.columns.divisor; column += blockDim.x) {
        const uint32_t axis = axis_of_column(plan, column);
        double sum = 0;
        for (uint32_t unit = 0; unit < units; unit++)
            if (counts_for_axis(plan, tokens, unit, axis))
                sum = fma(plan.d_inv_freq ? (double)position_of_unit(tokens, unit, axis) : 1,
                          sum_of_unit(call, unit, column), sum);
        call.sums[(int64_t)column * gridDim.x + blockIdx.x] = sum; /* not streaming: L2 combines neighbours */
    }
}

/* Stores the row of d_freqs of each unit on each axis as its key. Units without a row get the largest key. */
__device__ __forceinline__ void emit_keys(const gradient_call &call, const block_tokens<int64_t> &tokens,
                                          int32_t first_unit, uint32_t units)
{
    const trope_plan &plan = call.plan.plan;
    const uint32_t axes = (uint32_t)plan.pair_axes;
    for (uint32_t i = threadIdx.x; i < units * axes; i += blockDim.x) {
        const uint32_t unit = i / axes, axis = i - unit * axes;
        const int64_t batch = plan.d_freqs_stride.batch
                                  ? find_token<ADDRESSES_GENERIC, int32_t>(call.shape, first_unit + (int32_t)unit).outer
                                  : 0;
        const int64_t bucket =
            batch * rows_of_gradient(plan) + (plan.d_freqs_stride.row ? position_of_unit(tokens, unit, axis) : 0);
        const int64_t at = axis * call.shape.tokens + first_unit + unit;
        call.keys[at] =
            counts_for_axis(plan, tokens, unit, axis) ? axis * call.buckets + (uint32_t)bucket : axes * call.buckets;
        call.values[at] = (uint32_t)first_unit + unit;
    }
}

/* ---- the kernel ---- */

template <class R>
__global__ void __launch_bounds__(R::THREADS, R::BLOCKS)
    angle_gradient_kernel(KERNEL_PARAMETER(typename R::call) call, KERNEL_PARAMETER(typename R::steps) steps)
{
    const int32_t first_unit = (int32_t)(blockIdx.x * call.shape.tokens_of_block);
    const uint32_t units = min(call.shape.tokens_of_block, (uint32_t)call.shape.tokens - (uint32_t)first_unit);
    const unit_thread thread(call, first_unit, units);
    head_job<R> job;
    job.first_couple = (uint32_t)found_here((int32_t)place_of_couple<R>(call.shape, thread.unit, thread.in_head, 0));
    job.find(call, thread, thread.slot);
    find_coefficients<R>(
        call, steps, first_unit, units, [&]() { job.load(call, thread); }, []() {}, []() {});
    rotate_heads<R>(call, thread, &job);
    for (uint32_t i = call.windows; i < call.segments; i++)
        copy_segment<R>(call, call.segment[i], first_unit, units);
    __syncthreads();
    const block_tokens<int64_t> tokens = tokens_of_block<R>(call);
    if (call.mode == GRADIENT_TOTAL)
        emit_total(call, tokens, units);
    else
        emit_units(call, tokens, first_unit, units);
    if (call.mode == GRADIENT_SORTED)
        emit_keys(call, tokens, first_unit, units);
    check_sequences<R::WIDE>(call.plan.plan.position_source, call.plan.plan.status);
}

#endif
