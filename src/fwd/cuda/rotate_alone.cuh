/* The rotation of rows with one head, whose positions follow from the tokens: nothing is shared, each thread makes the coefficients
 * of its lane in registers, and nobody waits. */
#ifndef TROPE_FWD_CUDA_ROTATE_ALONE_CUH
#define TROPE_FWD_CUDA_ROTATE_ALONE_CUH

#include "fwd/cuda/rotate.cuh"

/* The angles of a thread's pairs. */
template <class R> struct lone_angles {
    uint64_t step[R::PAIRS];
    uint32_t position;

    __device__ __forceinline__ void request(const typename R::call &call, const typename R::steps &steps, uint32_t lane,
                                            uint32_t token)
    {
        position = call.plan.positions.of(token);
#pragma unroll
        for (int e = 0; e < R::PAIRS; e += 2)
            load_two_parameters(steps.of + lane * R::PAIRS + e, &step[e], &step[e + 1]);
    }

    __device__ __forceinline__ couple<R::DTYPE> find(const cuda_plan &p, int e) const
    {
        couple<R::DTYPE> c;
        sincos_of_phase(position, step[e], &c.sine, &c.cosine);
        c.template finish<true>(p, false);
        return c;
    }
};

/* The lane of a row, rotated by what its thread finds. */
template <class R>
__device__ __forceinline__ void rotate_alone(const typename R::call &call, const lone_angles<R> &angles, lane_job<R> *job)
{
    typedef typename R::real real;
    const cuda_plan &p = call.plan;
    typename R::lane &v = job->v;
    if (p.plan.interleaved_src)
        v.separate();
#pragma unroll
    for (int e = 0; e < R::PAIRS; e += 2) {
        real y[2][2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const couple<R::DTYPE> c = angles.find(p, e + i);
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
}

template <class R>
__global__ void __launch_bounds__(256, 4)
    rotate_alone_kernel(KERNEL_PARAMETER(typename R::call) call, KERNEL_PARAMETER(typename R::steps) steps)
{
    const block_shape &shape = call.shape;
    const int32_t first_row = (int32_t)block_of_rows(shape) * (int32_t)shape.rows_of_block;
    const uint32_t rows = (uint32_t)min((int32_t)shape.rows_of_block, (int32_t)shape.rows - first_row);
    lane_job<R> job(call, first_row, rows);
    const bool rotates = job.segment(call).rotates;
    lone_angles<R> angles;
    await_previous();
    angles.request(call, steps, rotates ? job.item.lane : 0, job.item.row < rows ? (uint32_t)job.row.token(shape) : 0);
    job.load(call);
    admit_next();
    if (rotates)
        rotate_alone<R>(call, angles, &job);
    if (job.item.present)
        job.store(call);
}

#endif
