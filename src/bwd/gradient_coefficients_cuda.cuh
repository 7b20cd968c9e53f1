/* The gradient of the angles on CUDA: a block's shared memory, and how the cos and sin of its units come into it: first as
 * their rows are loaded, pair after pair, then as the threads of a head read them. */
#ifndef TROPE_BWD_GRADIENT_COEFFICIENTS_CUDA_CUH
#define TROPE_BWD_GRADIENT_COEFFICIENTS_CUDA_CUH

#include "bwd/gradient_places_cuda.cuh"

/* cos and sin of the angles that one element of a pair is turned by, as the plan's direction has them. */
template <typename REAL> struct alignas(2 * sizeof(REAL)) gradient_turn {
    REAL c, s;
};

/* Where a thread finds the coefficients of its pairs, one after another. Per-element angles have a second run. */
template <typename REAL> struct gradient_turns {
    const gradient_turn<REAL> *rotate;
    const gradient_turn<double> *gradient;
    uint32_t rotate_run, gradient_run; /* from the first run to the second */
};

/* Coefficients lie thread by thread, with a gap after each: 16-byte accesses of threads next to each other are then at odd
 * multiples of 16 bytes, which shared memory serves at once. */
template <typename TURN, int WIDTH> struct turn_layout {
    enum { PER_THREAD = WIDTH == 1 ? 1 : WIDTH + (sizeof(TURN) == 16 ? 1 : 2) };
};

template <typename REAL> struct gradient_space {
    trope_row *rows;
    gradient_turn<double> *gradient; /* [units, 1 or 2, threads of a head] in the order of turn_layout */
    gradient_turn<REAL> *rotate;
    REAL *coefficients; /* as fill_coefficients leaves them; then */
    double *slots;      /* [units, slots, 2, pairs], in the same place */
    uint32_t gradient_run, rotate_run;
};

template <typename REAL, int WIDTH>
__device__ __forceinline__ gradient_space<REAL> divide_space(const gradient_call &g, char *shared)
{
    const uint32_t runs = g.units_per_block * gradient_runs(g);
    gradient_space<REAL> s;
    s.gradient_run = g.head_threads.divisor * turn_layout<gradient_turn<double>, WIDTH>::PER_THREAD;
    s.rotate_run = g.head_threads.divisor * turn_layout<gradient_turn<REAL>, WIDTH>::PER_THREAD;
    s.rows = (trope_row *)shared;
    s.gradient = (gradient_turn<double> *)(s.rows + g.units_per_block);
    s.rotate = (gradient_turn<REAL> *)(s.gradient + (gradient_shares_turns(g) ? 0 : runs * s.gradient_run));
    s.slots = (double *)(s.rotate + runs * s.rotate_run);
    s.coefficients = (REAL *)s.slots;
    return s;
}

/* Finds the block's rows. */
__device__ __forceinline__ void find_rows(const trope_plan &plan, int64_t first_row, uint32_t count, trope_row *rows)
{
    if (threadIdx.x / 32 * 32 >= count)
        return;
    const uint32_t number = threadIdx.x < count ? threadIdx.x : count - 1;
    trope_row row;
    trope_locate_row(&plan, first_row + number, &row);
    find_row(plan, &row);
    if (threadIdx.x < count)
        rows[number] = row;
}

/* Coefficients of the block's rows, in shared memory: for each row c1[pairs], s1[pairs] and, where a pair's elements have
 * their own angles, c2[pairs], s2[pairs]. A thread keeps its pair and goes from row to row. */
template <typename REAL>
__device__ __forceinline__ void fill_coefficients(const gradient_call &g, const trope_row *rows, uint32_t count,
                                                  REAL *space)
{
    const uint32_t pairs = (uint32_t)g.plan.plan.pairs, lanes = g.pair_lanes.divisor,
                   per_row = 2 * gradient_runs(g) * pairs;
    const uint32_t first_row = g.pair_lanes.divide(threadIdx.x), row_step = g.pair_row_step;
    if (first_row >= row_step)
        return;
    for (uint32_t pair = threadIdx.x - first_row * lanes; pair < pairs; pair += lanes) {
        for (uint32_t r = first_row; r < count; r += row_step) {
            REAL *to = space + r * per_row + pair;
            if (rows[r].action != TROPE_ROW_ROTATE)
                continue;
            const steps_of<ANGLES_ANY, 1> steps(g.plan, (int)pair);
            turns_of<REAL, 1> t;
            const angles_of<REAL, 1> angles = load_angles<ANGLES_ANY, false, REAL, 1>(g.plan, rows[r], (int)pair, steps);
            find_turns<ANGLES_ANY, REAL, 1>(g.plan, rows[r], (int)pair, angles, &t);
            to[0] = t.c1[0];
            to[pairs] = t.s1[0];
            if (g.plan.own_angles) {
                to[2 * pairs] = t.c2[0];
                to[3 * pairs] = t.s2[0];
            }
        }
    }
}

/* Coefficients of the units in the order in which the threads of a head read them. */
template <int WIDTH, typename REAL>
__device__ __forceinline__ void order_turns(const gradient_call &g, const gradient_space<REAL> &space, uint32_t units)
{
    const trope_plan &plan = g.plan.plan;
    const uint32_t pairs = (uint32_t)plan.pairs, runs = gradient_runs(g), lanes = g.pair_lanes.divisor;
    const uint32_t first_run = g.pair_lanes.divide(threadIdx.x), run_step = g.pair_row_step;
    if (first_run >= run_step)
        return;
    for (uint32_t q = threadIdx.x - first_run * lanes; q < pairs; q += lanes) {
        const uint32_t j = q / WIDTH, e = q % WIDTH, pair = pair_of<WIDTH>(g, j, e);
        const uint32_t to_gradient = j * turn_layout<gradient_turn<double>, WIDTH>::PER_THREAD + e;
        const uint32_t to_rotate = j * turn_layout<gradient_turn<REAL>, WIDTH>::PER_THREAD + e;
        const int axis = trope_pair_axis(&plan, (int)pair);
        for (uint32_t i = first_run; i < units * runs; i += run_step) {
            const trope_row &row = space.rows[runs == 2 ? i / 2 : i];
            if (row.action != TROPE_ROW_ROTATE)
                continue;
            const REAL c = space.coefficients[2 * i * pairs + pair], s = space.coefficients[(2 * i + 1) * pairs + pair];
            const double factor = g.mode == GRADIENT_FREQUENCIES ? (double)row.position[axis] : 1;
            space.gradient[i * space.gradient_run + to_gradient] = {c * factor, s * factor};
            space.rotate[i * space.rotate_run + to_rotate] = {g.native ? round_native(plan, c) : c,
                                                              g.native ? round_native(plan, s) : s};
        }
    }
}

#endif
