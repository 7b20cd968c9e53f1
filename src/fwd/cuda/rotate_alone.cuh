/* The rotation of rows with one head, which share their coefficients with nobody: each thread makes those of its lane in
 * registers, and nobody waits. */
#ifndef TROPE_FWD_CUDA_ROTATE_ALONE_CUH
#define TROPE_FWD_CUDA_ROTATE_ALONE_CUH

#include "fwd/cuda/rotate.cuh"

template <int OF_DTYPE, int OF_ROWS, int OF_ANGLES>
struct lone_rotation : rotation<OF_DTYPE, true, OF_ROWS, OF_ANGLES, false> {
    static constexpr int HELD = 1;
};

/* The rows of a thread's token on all axes. */
template <class R> struct lone_rows {
    typedef row_lookup<R::ROWS, R::ANGLES != ANGLES_PHASE, false> lookup_type;

    int64_t position[TROPE_MAX_AXES];
    int32_t action;
    uint32_t poisoned; /* bit a: on axis a */
    raw_index read[TROPE_MAX_AXES];
    span_search search; /* of the warp's first token, which mostly is in the same sequence */

    __device__ __forceinline__ void request(const cuda_plan &p, int64_t batch, int64_t token)
    {
        const row_source &from = p.rows.source;
#pragma unroll
        for (int axis = 0; axis < TROPE_MAX_AXES; axis++)
            if (R::ROWS != ROWS_FROM_TOKENS && axis < p.plan.axes)
                from.load(axis, batch, token, &read[axis]);
        if (R::ROWS == ROWS_SEARCHED)
            search.request(p.plan.sequences, p.rows.search, first_token((int32_t)token));
    }

    __device__ __forceinline__ void finish(const cuda_plan &p, int64_t token)
    {
        found_place place = {0, 0, false, false};
        if (R::ROWS == ROWS_SEARCHED)
            place = find_place(p, (int32_t)token);
        action = place.is_padding ? action_of_padding(p.plan) : TROPE_ROW_ROTATE;
        poisoned = 0;
#pragma unroll
        for (int axis = 0; axis < TROPE_MAX_AXES; axis++) {
            if (axis > 0 && (R::ROWS == ROWS_FROM_TOKENS || axis >= p.plan.axes))
                break;
            const found_row row =
                lookup_type::finish_place(p.plan, p.rows, read[axis], place, token, (uint32_t)axis, action);
            position[axis] = row.position;
            poisoned |= (uint32_t)(row.poisoned != 0) << axis;
        }
    }

    __device__ __forceinline__ found_row of_pair(const trope_plan &plan, int pair) const
    {
        const int axis = R::ROWS == ROWS_FROM_TOKENS || plan.axes == 1 ? 0 : trope_pair_axis(&plan, pair);
        static_assert(TROPE_MAX_AXES == 4, "of_pair"); /* by conditions: an array that is indexed would be in memory */
        const int64_t low = axis & 1 ? position[1] : position[0], high = axis & 1 ? position[3] : position[2];
        return {axis & 2 ? high : low, action, (int32_t)(poisoned >> axis & 1)};
    }

  private:
    static __device__ __forceinline__ int32_t first_token(int32_t token)
    {
        return __shfl_sync(UINT32_MAX, token, 0);
    }

    /* The place of each thread's token. */
    __device__ __forceinline__ found_place find_place(const cuda_plan &p, int32_t token) const
    {
        const trope_sequences &s = p.plan.sequences;
        found_place place = {0, 0, false, false};
        bool wants = true;
        int32_t wanted = first_token(token);
        span_search of_wanted = search;
        while (true) {
            const int32_t after = trope_narrow_first_after(&s, wanted);
            const found_sequence found = of_wanted.finish(s, p.rows.search, wanted, after);
            const int32_t own = trope_narrow_first_after(&s, token) - 1;
            if (wants && (token == wanted || (own >= found.bounds.begin && own < found.bounds.end && found.number >= 0))) {
                place = place_of_sequence(s, found, token);
                wants = false;
            }
            const uint32_t left = __ballot_sync(UINT32_MAX, wants);
            if (!left)
                return place;
            wanted = __shfl_sync(UINT32_MAX, token, __ffs((int)left) - 1);
            of_wanted.request(s, p.rows.search, wanted);
        }
    }
};

/* The lane of a row, rotated by what its thread finds. */
template <class R>
__device__ __forceinline__ void rotate_alone(const typename R::call &call, const lone_rows<R> &rows,
                                             const angle_source *angles, lane_job<R> *job)
{
    typedef typename R::real real;
    const cuda_plan &p = call.plan;
    typename R::lane &v = job->v[0];
    if (p.plan.interleaved_src)
        v.separate();
#pragma unroll
    for (int e = 0; e < R::PAIRS; e += 2) {
        real y[2][2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int pair = (int)job->item.lane * R::PAIRS + e + i;
            pair_couples<R::DTYPE> c = find_couples<R::DTYPE, R::ANGLES>(p, rows.of_pair(p.plan, pair), angles[e + i]);
            if (!c.differ)
                c.second = c.first;
            const auto rotated = rotate_pair<R::DTYPE>(TROPE_ROUND_ONCE, {(real)v.get(0, e + i), (real)v.get(1, e + i)},
                                                       {c.first.cosine, c.first.sine, c.second.cosine, c.second.sine});
            y[0][i] = rotated.first;
            y[1][i] = rotated.second;
        }
        v.template set<2>(0, e, y[0]);
        v.template set<2>(1, e, y[1]);
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
    const int32_t first_row = (int32_t)blockIdx.x * (int32_t)shape.rows_of_block;
    const uint32_t rows = (uint32_t)min((int32_t)shape.rows_of_block, (int32_t)shape.rows - first_row);
    lane_job<R> job(call, first_row, rows);
    const bool rotates = job.segment(call).rotates;
    angle_source angles[R::PAIRS];
#pragma unroll
    for (int e = 0; e < R::PAIRS && R::ANGLES == ANGLES_PHASE; e += 2)
        if (rotates)
            load_two_parameters(steps.of + job.item.lane * R::PAIRS + e, &angles[e].step, &angles[e + 1].step);
    const int64_t batch = job.row.batch(shape), token = job.item.row < rows ? job.row.token(shape) : 0;
    lone_rows<R> found;
    await_previous();
    found.request(call.plan, batch, token);
#pragma unroll
    for (int e = 0; e < R::PAIRS && R::ANGLES == ANGLES_TABLE; e++)
        if (rotates)
            angles[e].entries.template request<R::DTYPE>(call.plan, batch, call.plan.rows.positions.of((uint32_t)token),
                                                         (int)job.item.lane * R::PAIRS + e);
    job.load(call);
    admit_next();
    found.finish(call.plan, token);
    if (job.item.present && found.action == TROPE_ROW_ROTATE && rotates)
        rotate_alone<R>(call, found, angles, &job);
    else if (job.item.present)
        job.finish(call, found.action, false);
    if (R::ROWS == ROWS_SEARCHED)
        check_sequences<true>(call.plan.plan.sequences, call.plan.plan.status);
}

#endif
