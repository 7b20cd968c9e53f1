/* The rotation of rows with one head, or few: nothing is shared but positions, and each thread makes the coefficients of its lane in
 * registers. The kernel takes any kind of rows, phase steps, and freqs that a thread can load as vectors; it rotates plainly. */
#ifndef TROPE_FWD_CUDA_ROTATE_ALONE_CUH
#define TROPE_FWD_CUDA_ROTATE_ALONE_CUH

#include "fwd/cuda/rotate.cuh"

template <int OF_DTYPE> struct lone_rotation : rotation<OF_DTYPE, true, ROWS_ANY, ANGLES_ANY, false> {
    static constexpr bool PLAIN = true;
    static constexpr uint32_t STEPS = USUAL_PAIRS;
    typedef phase_steps<STEPS> steps;
};

/* The angles of a lane's pairs: steps and positions, or radians. */
template <class R> struct lone_angles {
    uint64_t step[R::PAIRS];
    float radians[R::PAIRS];

    /* Loads radians of a row of the table. */
    __device__ __forceinline__ void load(const cuda_plan &p, int64_t batch, int64_t position, uint32_t lane)
    {
        const trope_table_stride &stride = p.plan.angles.stride;
        const int32_t row = position == NO_POSITION ? 0 : (int32_t)position,
                      at = (int32_t)batch * (int32_t)stride.batch + row * (int32_t)stride.row + (int32_t)(lane * R::PAIRS);
        uint4 of_four[R::PAIRS / 4];
#pragma unroll
        for (int e = 0; e < R::PAIRS; e += 4)
            load_16((const uint4 *)(p.table[0] + (at + e) * (int64_t)sizeof(float)), &of_four[e / 4]);
#pragma unroll
        for (int e = 0; e < R::PAIRS; e++) {
            const uint4 &v = of_four[e / 4];
            radians[e] = trope_float_from_bits(e % 4 == 0 ? v.x : e % 4 == 1 ? v.y : e % 4 == 2 ? v.z : v.w);
        }
    }

    __device__ __forceinline__ void load(const typename R::steps &steps, uint32_t lane)
    {
#pragma unroll
        for (int e = 0; e < R::PAIRS; e += 2)
            load_two_parameters(steps.of + lane * R::PAIRS + e, &step[e], &step[e + 1]);
    }
};

/* Rotates the lane of a row. */
template <class R>
__device__ __forceinline__ void rotate_alone(const typename R::call &call, const row_position<R> &row, int64_t first_position,
                                             const lone_angles<R> &angles, lane_job<R> *job)
{
    typedef typename R::real real;
    const cuda_plan &p = call.plan;
    const bool has_phases = p.plan.angles.source == TROPE_ANGLES_PHASE;
    typename R::lane &v = job->v;
    if (p.plan.interleaved_src)
        v.separate();
#pragma unroll
    for (int e = 0; e < R::PAIRS; e += 2) {
        float sine[2], cosine[2];
        real y[2][2];
        if (has_phases) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t pair = job->item.lane * R::PAIRS + e + i;
                const int64_t position = p.axis_mask ? row.of_pair(p, pair) : first_position;
                sincos_of_phase(position, angles.step[e + i], &sine[i], &cosine[i]);
            }
        } else {
            sincos_of_angles<2>(angles.radians + e, sine, cosine);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            couple<R::DTYPE> c = {cosine[i], sine[i]};
            c.template finish<true>(p, !has_phases && first_position == NO_POSITION);
            const auto rotated = rotate_pair<R::DTYPE>(
                TROPE_ROUND_ONCE, {(real)v.template of_pair<false>(e + i, 0), (real)v.template of_pair<false>(e + i, 1)},
                {c.cosine, c.sine, c.cosine, c.sine});
            y[0][i] = rotated.first;
            y[1][i] = rotated.second;
        }
        v.template set_pairs<2, false>(e, y);
    }
    if (p.plan.interleaved_dst)
        v.join();
    job->store(call);
}

template <class R>
__global__ void __launch_bounds__(256, 4)
    rotate_alone_kernel(KERNEL_PARAMETER(typename R::call) call, KERNEL_PARAMETER(typename R::steps) steps)
{
    const block_shape &shape = call.shape;
    const cuda_plan &p = call.plan;
    const int32_t first_row = (int32_t)block_of_rows(shape) * (int32_t)shape.rows_of_block;
    const uint32_t rows = (uint32_t)min((int32_t)shape.rows_of_block, (int32_t)shape.rows - first_row);
    lane_job<R> job(call, first_row, rows);
    const bool rotates = job.item.present && job.segment(call).rotates, has_phases = p.plan.angles.source == TROPE_ANGLES_PHASE;
    const uint32_t lane = rotates ? job.item.lane : 0, number = min(job.item.row, rows - 1);
    lone_angles<R> angles;
    await_previous();
    int64_t position = p.positions.of((uint32_t)job.row.token(shape));
    if (has_phases)
        angles.load(steps, lane);
    else if (p.from_tokens)
        angles.load(p, job.row.batch(shape), rotates ? position : 0, lane);
    job.load(call);
    if (!p.from_tokens)
        find_rows<R>(call, first_row, rows);
    admit_next();
    const row_position<R> row(call, first_row + (int32_t)number, number);
    int32_t action = TROPE_ROW_ROTATE;
    if (!p.from_tokens) {
        __syncthreads();
        action = action_of_row<R>(call, number);
        position = *row.of_axis;
        if (!has_phases)
            angles.load(p, row.batch, position, lane);
    }
    if (rotates && action == TROPE_ROW_ROTATE)
        rotate_alone<R>(call, row, position, angles, &job);
    else if (job.item.present)
        job.finish(call, action, false);
    if (is_filled(action, false) && job.item.row < rows)
        job.fill_rest(call, action);
    check_sequences<false>(p.plan.sequences, p.plan.status);
}

#endif
