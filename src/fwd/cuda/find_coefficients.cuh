/* The coefficients of a block's rows, each once for all heads: found by whole warps while the data is on its way, and left in
 * shared memory. R is what a kernel is compiled for: rotation (rotate.cuh), gradient_pass (bwd/cuda/gradient_pass.cuh). */
#ifndef TROPE_FWD_CUDA_FIND_COEFFICIENTS_CUH
#define TROPE_FWD_CUDA_FIND_COEFFICIENTS_CUH

#include "fwd/cuda/register_block.cuh"

extern __shared__ __align__(16) char shared[];

/* The place of a pair's couple in a row of them: the threads of a head's lanes read neighbouring couples. */
template <class R> __device__ __forceinline__ uint32_t place_of_couple(const block_shape &shape, uint32_t pair)
{
    if constexpr (R::PAIRS > 1) {
        if (shape.splits) { /* as if pairs were in the order in which lanes have them */
            const uint32_t half = R::PAIRS / 2, vector = pair / half, is_second = vector >= shape.lanes_of_row;
            pair = (vector - is_second * shape.lanes_of_row) * R::PAIRS + is_second * half + pair % half;
        }
        return (pair % R::PAIRS / 2 * shape.lanes_of_row + pair / R::PAIRS) * 2 + pair % 2;
    }
    return pair;
}

/* What becomes of a row of the block, in shared memory. */
template <class R> __device__ __forceinline__ int32_t *action_in_block(const typename R::call &call, uint32_t row)
{
    return (int32_t *)(shared + call.shape.rows_at) + row;
}

/* A run: a warp finds a row of the block, each thread on one axis, and the coefficients of some columns of 32 pairs. */
template <class R> struct coefficient_run {
    /* Whether it is known from the start which row of a table, or else which step, is needed. */
    static constexpr bool KNOWS_ENTRIES = R::ROWS == ROWS_FROM_TOKENS && R::ANGLES == ANGLES_TABLE;
    static constexpr bool KNOWS_STEP = !may_search(R::ROWS) && R::ANGLES == ANGLES_PHASE;
    static constexpr bool KNOWS_ANGLES = KNOWS_ENTRIES || KNOWS_STEP;

    uint32_t row, column; /* of the block, and the first of the run */
    angle_source angle;   /* of the thread's pair there */
    block_row<typename R::index> place;
    row_lookup<R::ROWS, R::ANGLES != ANGLES_PHASE, R::WIDE> lookup;

    __device__ __forceinline__ void locate(const typename R::call &call, uint32_t number, typename R::index first_row)
    {
        row = trope_divide(&call.shape.runs_of_row, number);
        column = (number - row * call.shape.runs_of_row.divisor) * call.shape.columns_of_run;
        place = find_row<typename R::index>(call.shape, first_row + (typename R::index)row);
    }

    /* After the kernel before this one has ended. */
    __device__ __forceinline__ void request(const typename R::call &call, const typename R::steps &steps)
    {
        const trope_plan &plan = call.plan.plan;
        const int64_t batch = place.batch(call.shape), token = place.token(call.shape);
        lookup.request(plan, call.plan.rows, batch, token, axis_of_thread(plan));
        if (KNOWS_ANGLES)
            request_angle(call, steps, call.plan.rows.positions.of((uint32_t)token),
                          min(column * 32 + thread_of_warp(), (uint32_t)plan.pairs - 1));
    }

    /* What a branch depends on that comes before all that waits for the loads. */
    __device__ __forceinline__ void await_all(uint32_t *condition) const
    {
        lookup.await_all(condition);
        if (KNOWS_STEP)
            await((uint32_t)angle.step, condition);
        if (KNOWS_ENTRIES)
            angle.entries.await_all(condition);
    }

    /* Leaves them, and the row's action, in shared memory. Returns whether elements of a pair have different ones. */
    __device__ __forceinline__ bool finish(const typename R::call &call, const typename R::steps &steps)
    {
        const trope_plan &plan = call.plan.plan;
        const found_row of_axis = lookup.finish(plan, call.plan.rows, place.token(call.shape), axis_of_thread(plan));
        if (may_search(R::ROWS) && column == 0) {
            *action_in_block<R>(call, row) = of_axis.action;
            R::keep(call, row, of_axis);
        }
        if (may_search(R::ROWS) && of_axis.action != TROPE_ROW_ROTATE)
            return false;
        const uint32_t pair = column * 32 + thread_of_warp();
        bool differ = R::ANGLES != ANGLES_ANY && find_pair(call, steps, of_axis, pair);
        /* Rows that are not searched have a run for each column: a second copy of the code costs more than finding them twice. */
#pragma unroll 1
        for (uint32_t i = R::ANGLES != ANGLES_ANY; may_search(R::ROWS) && i < call.shape.columns_of_run; i++)
            differ = find_pair(call, steps, of_axis, pair + i * 32) || differ;
        return differ;
    }

  private:
    static __device__ __forceinline__ int axis_of_thread(const trope_plan &plan)
    {
        return plan.axes == 1 ? 0 : (int)min(thread_of_warp(), (uint32_t)plan.axes - 1);
    }

    __device__ __forceinline__ void request_angle(const typename R::call &call, const typename R::steps &steps,
                                                  int64_t position, uint32_t pair)
    {
        if (has_phases<R::ANGLES>(call.plan.plan))
            load_parameter(steps.of + pair, &angle.step);
        else
            angle.entries.request<R::DTYPE>(call.plan, (typename R::stride)place.batch(call.shape),
                                            (typename R::stride)position, (int)pair);
    }

    __device__ __forceinline__ bool find_pair(const typename R::call &call, const typename R::steps &steps,
                                              const found_row &of_axis, uint32_t pair)
    {
        typedef couple<R::DTYPE> couple_type;
        const trope_plan &plan = call.plan.plan;
        const uint32_t in_range = min(pair, (uint32_t)plan.pairs - 1);
        const found_row found = R::ROWS == ROWS_FROM_TOKENS || plan.axes == 1
                                    ? of_axis
                                    : of_axis.of_thread(trope_pair_axis(&plan, (int)in_range));
        if (pair != in_range)
            return false;
        if (!KNOWS_ANGLES) {
            request_angle(call, steps, found.position, pair);
            if (has_phases<R::ANGLES>(plan))
                settle(&angle.step);
            else
                angle.entries.settle_all();
        }
        pair_couples<R::DTYPE> of = find_couples<R::DTYPE, R::ANGLES>(call.plan, found, angle);
        if (plan.rounding == TROPE_ROUND_NATIVE) {
            of.first.round();
            of.second.round();
        }
        couple_type *const to =
            (couple_type *)shared + row * call.shape.couples_of_row + place_of_couple<R>(call.shape, pair);
        *to = of.first;
        if (R::ANGLES != ANGLES_PHASE && plan.angles.per_element)
            to[call.shape.second_at] = of.differ ? of.second : of.first;
        return of.differ;
    }
};

/* The coefficients of all rows of a block, up to the barrier after which all threads may read them, with the thread's loads
 * issued in between, and what comes `then`. Returns whether elements of any pair of the block have different ones. */
template <class R, class ISSUE_LOADS, class THEN>
__device__ __forceinline__ bool find_coefficients(const typename R::call &call, const typename R::steps &steps,
                                                  typename R::index first_row, uint32_t rows, ISSUE_LOADS issue_loads,
                                                  THEN then)
{
    const uint32_t warps = threads_of_block() / 32, warp = thread_of_block() / 32;
    const bool only_copies =
        slice_of_block(call.shape) >= call.shape.rotating_slices && !have_actions<R::ROWS>(call.plan.plan);
    /* A warp that is not whole has none. */
    const uint32_t runs = warp < warps && !only_copies ? rows * call.shape.runs_of_row.divisor : 0;
    /* What a warp's first run reads is asked for with the data, and by all warps alike, if they have a run or not: where
     * branches join, the compiler may move what was loaded, and so wait for it. But where entries of a table are takes long to
     * find: on an H100 32 heads with freqs reach 0.93 of a copy for 0.90. (General kernels would be a third larger.) */
    constexpr bool FIRST_IS_APART = R::ANGLES != ANGLES_ANY,
                   ASKS_FIRST = FIRST_IS_APART && !coefficient_run<R>::KNOWS_ENTRIES;
    bool differ = false;
    coefficient_run<R> first;
    uint32_t number = warp;
    if (coefficient_run<R>::KNOWS_ENTRIES && warp < runs) {
        first.locate(call, warp, first_row);
        await_previous();
        first.request(call, steps);
        issue_loads();
        first.await_all(&number);
    } else {
        if (ASKS_FIRST)
            first.locate(call, warp < runs ? warp : 0, first_row);
        await_previous();
        issue_loads();
        if (ASKS_FIRST) {
            first.request(call, steps);
            first.await_all(&number);
        }
    }
    admit_next();
    if (FIRST_IS_APART && number < runs) {
        differ = first.finish(call, steps);
        number += warps;
    }
    then();
#pragma unroll 1
    for (; number < runs; number += warps) {
        coefficient_run<R> run;
        run.locate(call, number, first_row);
        run.request(call, steps);
        differ = run.finish(call, steps) || differ;
    }
    if (R::ANGLES != ANGLES_PHASE && call.plan.plan.angles.per_element)
        return __syncthreads_or(differ);
    __syncthreads();
    return false;
}

template <class R> __device__ __forceinline__ int32_t action_of_row(const typename R::call &call, uint32_t row)
{
    return have_actions<R::ROWS>(call.plan.plan) ? *action_in_block<R>(call, row) : TROPE_ROW_ROTATE;
}

#endif
