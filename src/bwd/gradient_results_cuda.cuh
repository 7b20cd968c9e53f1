/* The gradient of the angles on CUDA: what the sums of a block's units become: elements of d_freqs, or rows of `sums` and
 * the keys to sort them by. */
#ifndef TROPE_BWD_GRADIENT_RESULTS_CUDA_CUH
#define TROPE_BWD_GRADIENT_RESULTS_CUDA_CUH

#include "bwd/gradient_coefficients_cuda.cuh"

__device__ __forceinline__ void store_angle(const trope_plan &plan, int64_t offset, double value)
{
    if (plan.dtype == TROPE_F64)
        ((double *)plan.d_freqs)[offset] = value;
    else
        ((float *)plan.d_freqs)[offset] = (float)value;
}

/* For inverse the angle that is turned by is -a. (0 - x, so that an angle that nothing uses gets 0 and not -0.) */
__device__ __forceinline__ double turn_sum(const trope_plan &plan, double sum)
{
    return plan.inverse ? 0 - sum : sum;
}

/* The offset in d_freqs of the first (0) or second (1) element's angle of a pair at an angle row. */
__device__ __forceinline__ int64_t offset_of_angle(const trope_plan &plan, int64_t batch, int64_t row, uint32_t pair,
                                                   int which)
{
    const int64_t base = batch * plan.angles.batch_stride + row * plan.angles.row_stride;
    if (!plan.angles.per_element)
        return base + pair;
    return base + (which ? trope_second_of_pair(plan.interleaved_columns, plan.windows, plan.pairs, (int)pair)
                         : trope_first_of_pair(plan.interleaved_columns, plan.windows, plan.pairs, (int)pair));
}

/* A slot has a sum for each pair: the threads' first ones, the threads' second ones, and so on. */
template <int WIDTH> __device__ __forceinline__ uint32_t pair_of_slot(const gradient_call &g, uint32_t i)
{
    if constexpr (WIDTH == 1)
        return i;
    const uint32_t e = g.head_threads.divide(i);
    return pair_of<WIDTH>(g, i - e * g.head_threads.divisor, e);
}

/* The slots of a unit, or of all units of the block, added in their order. */
__device__ __forceinline__ double add_slots(const double *slots, uint32_t count, uint32_t pairs)
{
    double sum = 0;
#pragma unroll 8
    for (uint32_t i = 0; i < count; i++)
        sum += slots[(size_t)2 * i * pairs];
    return sum;
}

/* The sum of a unit for the first (0) or second (1) element's angle of a pair, or for both. */
__device__ __forceinline__ void emit_sum(const gradient_call &g, const trope_row &row, uint32_t pair, int which, double sum)
{
    const trope_plan &plan = g.plan.plan;
    if (g.mode == GRADIENT_DIRECT) {
        const int64_t position = row.position[trope_pair_axis(&plan, (int)pair)];
        store_angle(plan, offset_of_angle(plan, row.batch, position, pair, which), turn_sum(plan, sum));
    } else {
        const int64_t unit = row.batch * plan.tokens + row.token;
        g.sums[(plan.angles.per_element ? 2 * unit + which : unit) * plan.pairs + pair] = sum;
    }
}

template <int WIDTH, typename REAL>
__device__ __forceinline__ void emit_sums(const gradient_call &g, const gradient_space<REAL> &space, uint32_t units)
{
    const uint32_t pairs = (uint32_t)g.plan.plan.pairs, slots = g.slots.divisor;
    if (g.mode == GRADIENT_FREQUENCIES) {
        for (uint32_t i = threadIdx.x; i < pairs; i += blockDim.x) {
            const double first = add_slots(space.slots + i, units * slots, pairs);
            const double second = add_slots(space.slots + pairs + i, units * slots, pairs);
            g.sums[blockIdx.x * (int64_t)pairs + pair_of_slot<WIDTH>(g, i)] = first + second;
        }
        return;
    }
    for (uint32_t i = threadIdx.x; i < units * pairs; i += blockDim.x) {
        const uint32_t unit = i / pairs, at = i - unit * pairs;
        const double *of_unit = space.slots + (size_t)unit * slots * 2 * pairs + at;
        const double first = add_slots(of_unit, slots, pairs), second = add_slots(of_unit + pairs, slots, pairs);
        const trope_row &row = space.rows[unit];
        const uint32_t pair = pair_of_slot<WIDTH>(g, at);
        emit_sum(g, row, pair, 0, g.plan.plan.angles.per_element ? first : first + second);
        if (g.plan.plan.angles.per_element)
            emit_sum(g, row, pair, 1, second);
    }
}

/* The angle row of each unit on each axis that has positions of its own; units without one go last. */
__device__ __forceinline__ void emit_keys(const gradient_call &g, const trope_row *rows, uint32_t units)
{
    const trope_plan &plan = g.plan.plan;
    for (uint32_t i = threadIdx.x; i < units * g.key_axes; i += blockDim.x) {
        const uint32_t axis = i / units;
        const trope_row &row = rows[i - axis * units];
        const uint32_t unit = (uint32_t)(row.batch * plan.tokens + row.token);
        const bool counts = row.action == TROPE_ROW_ROTATE && (plan.used_axes >> axis & 1) && !(row.poisoned >> axis & 1);
        const int64_t angle_row =
            counts ? (plan.angles.batch_stride ? row.batch * plan.angles.rows : 0) + row.position[axis] : 0;
        g.keys[axis * g.units + unit] = counts ? axis * g.angle_rows + (uint32_t)angle_row : g.key_axes * g.angle_rows;
        g.values[axis * g.units + unit] = unit;
    }
}

#endif
