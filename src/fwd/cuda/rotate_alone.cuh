/* The rotation of rows with one head, or few: nothing is shared, each thread makes the coefficients of its lane in registers,
 * and nobody waits. */
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

    __device__ __forceinline__ found_row of_axis(uint32_t axis) const
    {
        static_assert(TROPE_MAX_AXES == 4, "of_axis"); /* by conditions: an array that is indexed would be in memory */
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

/* Where the angles of a thread's pairs come from: their steps, or freqs as vectors (see has_freq_vectors). */
template <class R> struct lone_angles {
    static constexpr bool HAS_FREQS = R::ANGLES == ANGLES_TABLE;

    uint64_t step[HAS_FREQS ? 1 : R::PAIRS];
    uint4 freqs[HAS_FREQS ? R::PAIRS / 4 : 1];
    uint32_t axes; /* two bits a pair */

    /* `batch`, `token`: of a row that is. */
    __device__ __forceinline__ void request(const typename R::call &call, const typename R::steps &steps, uint32_t lane,
                                            int64_t batch, int64_t token)
    {
        const cuda_plan &p = call.plan;
        const trope_table_stride &stride = p.plan.angles.stride;
        const int32_t position = (int32_t)p.rows.positions.of((uint32_t)token),
                      at = (int32_t)batch * (int32_t)stride.batch + position * (int32_t)stride.row +
                           (int32_t)(lane * R::PAIRS);
        if (HAS_FREQS) {
#pragma unroll
            for (int e = 0; e < R::PAIRS; e += 4)
                load_16((const uint4 *)(p.table[0] + (at + e) * (int64_t)sizeof(float)), &freqs[e / 4]);
        } else {
#pragma unroll
            for (int e = 0; e < R::PAIRS; e += 2)
                load_two_parameters(steps.of + lane * R::PAIRS + e, &step[e], &step[e + 1]);
        }
        if (R::ROWS != ROWS_FROM_TOKENS)
            axes = p.plan.axes == 1 ? 0 : p.plan.axis_bits[lane * R::PAIRS / 16] >> lane * R::PAIRS % 16 * 2;
    }

    __device__ __forceinline__ couple<R::DTYPE> find(const cuda_plan &p, const lone_rows<R> &rows, int e) const
    {
        const found_row row = rows.of_axis(R::ROWS == ROWS_FROM_TOKENS ? 0 : axes >> 2 * e & 3);
        couple<R::DTYPE> c;
        if constexpr (HAS_FREQS) {
            const uint4 &v = freqs[e / 4];
            const uint32_t bits = e % 4 == 0 ? v.x : e % 4 == 1 ? v.y : e % 4 == 2 ? v.z : v.w;
            sincos_of_angle(trope_float_from_bits(bits), &c.sine, &c.cosine);
        } else {
            sincos_of_phase(row.position, step[e], &c.sine, &c.cosine);
        }
        c.finish(p, row.poisoned);
        return c;
    }
};

/* The lane of a row, rotated by what its thread finds. */
template <class R>
__device__ __forceinline__ void rotate_alone(const typename R::call &call, const lone_rows<R> &rows,
                                             const lone_angles<R> &angles, lane_job<R> *job)
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
            const couple<R::DTYPE> c = angles.find(p, rows, e + i);
            const auto rotated = rotate_pair<R::DTYPE>(TROPE_ROUND_ONCE, {(real)v.get(0, e + i), (real)v.get(1, e + i)},
                                                       {c.cosine, c.sine, c.cosine, c.sine});
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
    const int32_t first_row = (int32_t)block_of_rows(shape) * (int32_t)shape.rows_of_block;
    const uint32_t rows = (uint32_t)min((int32_t)shape.rows_of_block, (int32_t)shape.rows - first_row);
    lane_job<R> job(call, first_row, rows);
    const bool rotates = job.segment(call).rotates;
    const int64_t batch = job.row.batch(shape), token = job.item.row < rows ? job.row.token(shape) : 0;
    lone_angles<R> angles;
    lone_rows<R> found;
    await_previous();
    found.request(call.plan, batch, token);
    angles.request(call, steps, rotates ? job.item.lane : 0, batch, token);
    job.load(call);
    admit_next();
    found.finish(call.plan, token);
    if (job.item.present && found.action == TROPE_ROW_ROTATE && rotates)
        rotate_alone<R>(call, found, angles, &job);
    else if (job.item.present)
        job.move(call, found.action);
    if (R::ROWS == ROWS_SEARCHED && is_filled(found.action) && job.item.row < rows)
        job.fill_rest(call, found.action);
    if (R::ROWS == ROWS_SEARCHED)
        check_sequences<true>(call.plan.plan.sequences, call.plan.plan.status);
}

#endif
