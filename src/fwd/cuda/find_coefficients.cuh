/* The coefficients of a block's rows, each once for all heads: all threads make them while the data is on its way, and leave
 * them in shared memory. R is what a kernel is compiled for: rotation (rotate.cuh), gradient_pass
 * (bwd/cuda/gradient_pass.cuh). */
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

template <class R> __device__ __forceinline__ block_rows rows_of_block(const typename R::call &call)
{
    return block_rows(shared + call.shape.rows_at, call.shape.rows_of_block, R::IS_SIMPLE ? 1 : call.plan.plan.axes);
}

/* Leaves the rows of a block in shared memory. */
template <class R>
__device__ __forceinline__ void find_rows(const typename R::call &call, typename R::index first_row, uint32_t count)
{
    const trope_plan &plan = call.plan.plan;
    const block_rows rows = rows_of_block<R>(call);
    if (have_actions<R::ROWS>(plan) && thread_of_block() < 32)
        search_rows<R::ROWS>(plan, first_row, count, rows);
    if (R::ROWS != ROWS_FROM_TOKENS && R::ROWS != ROWS_SEARCHED && (!have_actions<R::ROWS>(plan) || plan.sequences.ids))
        read_rows(plan, count, rows, thread_of_block(), threads_of_block(), [&](uint32_t row, int64_t *batch, int64_t *token) {
            const block_row<typename R::index> at = find_row<R::IS_SIMPLE, typename R::index>(call.shape, first_row + (typename R::index)row);
            *batch = at.batch(call.shape);
            *token = at.token(call.shape);
        });
}

/* Makes the coefficients of a pair of a row. Returns whether its elements have different ones. */
template <class R>
__device__ __forceinline__ bool make_coefficients(const typename R::call &call, const uint64_t *step,
                                                  typename R::index first_row, const block_rows &rows, uint32_t row,
                                                  uint32_t pair)
{
    typedef couple<R::DTYPE> couple_type;
    const trope_plan &plan = call.plan.plan;
    const block_row<typename R::index> at = find_row<R::IS_SIMPLE, typename R::index>(call.shape, first_row + (typename R::index)row);
    int64_t position;
    bool poisoned = false;
    if (have_actions<R::ROWS>(plan)) {
        if (!is_rotated(rows.action[row]))
            return false;
        poisoned = rows.action[row] == TROPE_ROW_INVALID;
    }
    if (R::ROWS == ROWS_FROM_TOKENS)
        position = call.plan.positions.of((uint32_t)at.token(call.shape));
    else
        position = R::IS_SIMPLE ? rows.position[row]
                                : rows.position[(row << rows.axis_bits) + (uint32_t)trope_pair_axis(&plan, (int32_t)pair)];
    pair_couples<R::DTYPE> of = find_couples<R::DTYPE, R::ANGLES, R::IS_SIMPLE, typename R::stride>(
        call.plan, step, at.batch(call.shape), position, poisoned, (int32_t)pair);
    if (!R::IS_SIMPLE && plan.rounding == TROPE_ROUND_NATIVE) {
        of.first.round();
        of.second.round();
    }
    couple_type *const to =
        (couple_type *)shared + row * call.shape.couples_of_row + place_of_couple<R>(call.shape, pair);
    *to = of.first;
    if (!R::IS_SIMPLE && R::ANGLES != ANGLES_PHASE && plan.angles.per_element)
        to[call.shape.second_at] = of.differ ? of.second : of.first;
    return of.differ;
}

/* Issues the thread's loads of data and then finds the coefficients of all rows of the block, up to the barrier after which all
 * threads may read them. Returns whether elements of any pair of the block have different ones. */
template <class R, class ISSUE_LOADS>
__device__ __forceinline__ bool find_coefficients(const typename R::call &call, const typename R::steps &steps,
                                                  typename R::index first_row, uint32_t count, ISSUE_LOADS issue_loads)
{
    const uint32_t thread = thread_of_block(), pairs = call.plan.pairs.divisor;
    await_previous();
    issue_loads();
    find_rows<R>(call, first_row, count);
    admit_next();
    if (R::ROWS != ROWS_FROM_TOKENS)
        __syncthreads();
    const block_rows rows = rows_of_block<R>(call);
    const bool only_copies = slice_of_block(call.shape) >= call.shape.rotating_slices;
    const uint32_t end = only_copies ? 0 : count * pairs;
    bool differ = false;
#pragma unroll 1
    for (uint32_t i = thread; i < end; i += threads_of_block()) {
        const uint32_t row = trope_divide(&call.plan.pairs, i), pair = i - row * pairs;
        differ = make_coefficients<R>(call, steps.of + pair, first_row, rows, row, pair) || differ;
    }
    if (!R::IS_SIMPLE && R::ANGLES != ANGLES_PHASE && call.plan.plan.angles.per_element)
        return __syncthreads_or(differ);
    __syncthreads();
    return false;
}

template <class R> __device__ __forceinline__ int32_t action_of_row(const typename R::call &call, uint32_t row)
{
    return have_actions<R::ROWS>(call.plan.plan) ? rows_of_block<R>(call).action[row] : (int32_t)TROPE_ROW_ROTATE;
}

#endif
