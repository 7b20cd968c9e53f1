/* The gradient of the angles on CUDA, first part: the one pass over dy, x and dx.
 *
 * A unit is a token, with as many batch entries as share its angles and are taken together. The heads of a unit, of all
 * operands and batch entries, are dealt out to a fixed number of slots: slot s walks heads s, s + slots, ... with as many
 * threads as a head has vectors, each of which keeps its pairs, adds their terms in double and stores dx on the way. The
 * slots are then added in their order. So the order of a sum depends on the shapes alone: the scalar kernel, for strides
 * that vectors cannot have, deals heads to the same slots and gives the same bits. */
#ifndef TROPE_BWD_ANGLE_GRADIENT_CUDA_CUH
#define TROPE_BWD_ANGLE_GRADIENT_CUDA_CUH

#include "bwd/gradient_heads_cuda.cuh"
#include "bwd/gradient_passing_cuda.cuh"
#include "bwd/gradient_results_cuda.cuh"

/* Thread j of those that walk slot `slot` of unit `unit`, of the block's. */
struct gradient_thread {
    uint32_t j, slot, unit;
    bool works;
};

/* `done` slots of the block have been walked. */
__device__ __forceinline__ gradient_thread find_thread(const gradient_call &g, uint32_t units, uint32_t done)
{
    const uint32_t quotient = g.head_threads.divide(threadIdx.x), slot = done + quotient;
    gradient_thread t;
    t.j = threadIdx.x - quotient * g.head_threads.divisor;
    t.unit = g.slots.divide(slot);
    t.slot = slot - t.unit * g.slots.divisor;
    t.works = t.unit < units && quotient < g.head_threads.divide(blockDim.x);
    return t;
}

/* `row` is the unit's, of which batch and token are enough. */
__device__ __forceinline__ gradient_head head_of_step(const gradient_call &g, const gradient_thread &thread,
                                                      const trope_row &row, uint32_t step)
{
    const gradient_head none = {NULL, NULL, NULL, 0, 0};
    if (!thread.works || step >= g.steps)
        return none;
    return find_gradient_head(g, row.batch, row.token, thread.slot + step * g.slots.divisor);
}

/* The place in the head of the next step, from that of the step before: mostly a step away. */
template <class HEAD>
__device__ __forceinline__ typename HEAD::place next_place(const gradient_call &g, const gradient_thread &thread,
                                                           const trope_row &row, uint32_t step, typename HEAD::place p)
{
    if (p.left <= g.slots.divisor)
        return HEAD::locate(g, head_of_step(g, thread, row, step), thread.j);
    const gradient_heads &o = g.operands[p.operand];
    p.left -= g.slots.divisor;
    p.src += o.src_step;
    p.input += o.input_step;
    p.dst += o.dst_step;
    return p;
}

/* Turns a head and adds its terms to the thread's sums. */
template <class HEAD>
__device__ __forceinline__ void add_head(const gradient_call &g, const typename HEAD::place &p,
                                         const gradient_turns<typename HEAD::real> &turns, HEAD *head, double *sums)
{
    const bool own = g.plan.own_angles;
    if (g.native)
        own ? head->template add<true, true>(g, p, turns, sums) : head->template add<true, false>(g, p, turns, sums);
    else
        own ? head->template add<false, true>(g, p, turns, sums) : head->template add<false, false>(g, p, turns, sums);
}

/* The coefficients of a thread's pairs. */
template <class HEAD>
__device__ __forceinline__ gradient_turns<typename HEAD::real>
find_turns(const gradient_call &g, const gradient_space<typename HEAD::real> &space, uint32_t unit, uint32_t j)
{
    const uint32_t runs = unit * gradient_runs(g);
    gradient_turns<typename HEAD::real> t;
    t.rotate = space.rotate + runs * space.rotate_run +
               j * turn_layout<gradient_turn<typename HEAD::real>, HEAD::WIDTH>::PER_THREAD;
    t.gradient =
        space.gradient + runs * space.gradient_run + j * turn_layout<gradient_turn<double>, HEAD::WIDTH>::PER_THREAD;
    t.rotate_run = space.rotate_run;
    t.gradient_run = space.gradient_run;
    return t;
}

/* All heads of a slot. `head` is the first, whose loads are under way from place `p`. */
template <class HEAD>
__device__ __forceinline__ void walk_slot(const gradient_call &g, const gradient_space<typename HEAD::real> &space,
                                          const gradient_thread &thread, typename HEAD::place p, HEAD head)
{
    const uint32_t unit = thread.works ? thread.unit : 0;
    const gradient_turns<typename HEAD::real> turns = find_turns<HEAD>(g, space, unit, thread.j);
    /* A poisoned row has NaN for its dx and no place in a sum over rows; in one of its own nobody looks for it. */
    const trope_row &row = space.rows[unit];
    const bool passes = row.action != TROPE_ROW_ROTATE || (row.poisoned && g.mode == GRADIENT_FREQUENCIES);
    double sums[2 * HEAD::WIDTH] = {0};
    for (uint32_t step = 0; step < g.steps; step++) {
        const typename HEAD::place next = next_place<HEAD>(g, thread, row, step + 1, p);
        HEAD next_head;
        next_head.load(g, next);
        if (g.rearranges)
            __syncthreads();
        if (p.flags && passes)
            head.pass(g, head_of_step(g, thread, row, step), thread.j, row);
        else if (p.flags)
            add_head(g, p, turns, &head, sums);
        head = next_head;
        p = next;
    }
    if (!thread.works)
        return;
    double *to =
        space.slots + (size_t)(thread.unit * g.slots.divisor + thread.slot) * 2 * (uint32_t)g.plan.plan.pairs + thread.j;
#pragma unroll
    for (int e = 0; e < 2 * HEAD::WIDTH; e++)
        to[e * g.head_threads.divisor] = sums[e];
}

template <int DTYPE, template <int> class HEAD, int BLOCKS>
__global__ void __launch_bounds__(HEAD<DTYPE>::THREADS, BLOCKS) gradient_kernel(const __grid_constant__ gradient_call g)
{
    typedef typename elements<DTYPE>::real real;
    enum { WIDTH = HEAD<DTYPE>::WIDTH };
    extern __shared__ __align__(16) char shared[];
    const gradient_space<real> space = divide_space<real, WIDTH>(g, shared);
    const int64_t first_unit = (int64_t)blockIdx.x * g.units_per_block, left = g.units - first_unit;
    const uint32_t units = left < g.units_per_block ? (uint32_t)left : g.units_per_block;

    const uint32_t slots_at_once = g.head_threads.divide(blockDim.x);
    gradient_thread thread = find_thread(g, units, 0);
    trope_row row;
    trope_locate_row(&g.plan.plan, first_unit + (thread.works ? thread.unit : 0), &row);
    typename HEAD<DTYPE>::place place = HEAD<DTYPE>::locate(g, head_of_step(g, thread, row, 0), thread.j);
    HEAD<DTYPE> head;
    head.load(g, place);

    find_rows(g.plan.plan, first_unit, units, space.rows);
    if (g.plan.plan.sequences.boundaries)
        check_sequences(g.plan.plan);
    __syncthreads();
    fill_coefficients(g, space.rows, units, space.coefficients);
    __syncthreads();
    order_turns<WIDTH>(g, space, units);
    __syncthreads();

    walk_slot(g, space, thread, place, head);
    for (uint32_t done = slots_at_once; WIDTH == 1 && done < units * g.slots.divisor; done += slots_at_once) {
        thread = find_thread(g, units, done);
        place = HEAD<DTYPE>::locate(g, head_of_step(g, thread, space.rows[thread.works ? thread.unit : 0], 0), thread.j);
        head.load(g, place);
        walk_slot(g, space, thread, place, head);
    }
    if (g.row_passing)
        copy_passing<DTYPE, WIDTH>(g, space.rows, units);
    __syncthreads();
    emit_sums<WIDTH>(g, space, units);
    if (g.mode == GRADIENT_SORTED)
        emit_keys(g, space.rows, units);
}

#endif
