/* The rotation of tokens with one or a few heads, without packed sequences. Threads share nothing. Each computes the
 * coefficients of its item in registers, from phase steps or from freqs, which it loads as vectors. All pairs of an item
 * have the same position. The rotation takes the fast path (rotates_fast in vector_calls.cuh). */
#ifndef TROPE_FWD_CUDA_ROTATE_ALONE_CUH
#define TROPE_FWD_CUDA_ROTATE_ALONE_CUH

#include "fwd/cuda/item_job.cuh"

template <int OF_DTYPE> struct lone_rotation : rotation<OF_DTYPE, true, POSITIONS_GENERIC, ANGLES_GENERIC, false> {
    static constexpr bool ALWAYS_FAST = true;
    static constexpr uint32_t STEPS = FAST_PAIRS;
    typedef phase_steps<STEPS> steps;
};

/* The source of the angles of an item's pairs: phase steps, or angles in radians. */
template <class R> struct lone_angles {
    uint4 raw[R::PAIRS / 2];

    /* Loads phase steps if has_phases, otherwise angles from a row of the table. Loads nothing if is_wanted is false. */
    __device__ __forceinline__ void load(const cuda_plan &p, const typename R::steps &steps, bool has_phases,
                                         bool is_wanted, int64_t batch, int64_t position, uint32_t in_head)
    {
        const trope_table_stride &stride = p.plan.angles.stride;
        const int32_t row = position == NO_POSITION ? 0 : (int32_t)position, at = (int32_t)batch * (int32_t)stride.batch +
                                                                                  row * (int32_t)stride.row +
                                                                                  (int32_t)(in_head * R::PAIRS);
        const uint4 *const from = has_phases ? (const uint4 *)(steps.of + in_head * R::PAIRS)
                                             : (const uint4 *)(p.table[0] + at * (int64_t)sizeof(float));
#pragma unroll
        for (int i = 0; i < R::PAIRS / 2; i++)
            load_16_if(is_wanted && (has_phases || i < R::PAIRS / 4), from + i, &raw[i]);
    }

    __device__ __forceinline__ void settle_all()
    {
#pragma unroll
        for (int i = 0; i < R::PAIRS / 2; i++)
            settle(&raw[i].x);
    }

    __device__ __forceinline__ uint32_t word(int i) const
    {
        const uint4 &v = raw[i / 4];
        return i % 4 == 0 ? v.x : i % 4 == 1 ? v.y : i % 4 == 2 ? v.z : v.w;
    }

    __device__ __forceinline__ float radians(int pair) const
    {
        return trope_float_from_bits(word(pair));
    }

    __device__ __forceinline__ uint64_t step(int pair) const
    {
        return (uint64_t)word(2 * pair + 1) << 32 | word(2 * pair);
    }
};

/* Rotates the item of a thread. */
template <class R>
__device__ __forceinline__ void rotate_alone(const typename R::call &call, int64_t position, const lone_angles<R> &angles,
                                             item_job<R> *job)
{
    typedef typename R::real real;
    const cuda_plan &p = call.plan;
    const bool has_phases = p.plan.angles.source == TROPE_ANGLES_PHASE;
    typename R::data &v = job->v;
    if (p.plan.interleaved_src)
        v.separate();
#pragma unroll
    for (int e = 0; e < R::PAIRS; e += 2) {
        float sine[2], cosine[2];
        real y[2][2];
        if (has_phases) {
#pragma unroll
            for (int i = 0; i < 2; i++)
                sincos_of_phase(position, angles.step(e + i), &sine[i], &cosine[i]);
        } else {
            const float radians[2] = {angles.radians(e), angles.radians(e + 1)};
            sincos_of_angles<2>(radians, sine, cosine);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            couple<R::DTYPE> c = {cosine[i], sine[i]};
            c.template finish<true>(p, is_missing<true>(p.plan, position));
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
__global__ void __launch_bounds__(ALONE_THREADS, 5)
    rotate_alone_kernel(KERNEL_PARAMETER(typename R::call) call, KERNEL_PARAMETER(typename R::steps) steps)
{
    const block_shape &shape = call.shape;
    const cuda_plan &p = call.plan;
    const int32_t first_token = (int32_t)block_of_tokens(shape) * (int32_t)shape.tokens_of_block;
    const uint32_t tokens = (uint32_t)min((int32_t)shape.tokens_of_block, (int32_t)shape.tokens - first_token);
    item_job<R> job(call, first_token, tokens, threadIdx.z);
    const bool rotates = job.item.present && job.segment(call).rotates,
               has_phases = p.plan.angles.source == TROPE_ANGLES_PHASE, is_early = has_phases || p.from_tokens;
    const uint32_t in_head = rotates ? job.item.in_head : 0;
    const block_token<int32_t> at =
        find_token<R::ADDRESSES, int32_t>(shape, first_token + (int32_t)min(job.item.in_block, tokens - 1));
    const int64_t batch = at.batch(shape), token = at.index(shape);
    int64_t position = p.positions.of((uint32_t)token);
    lone_angles<R> angles = {};
    raw_index index = {0, 0};
    const char *of_index = NULL;
    if (p.source.base) /* (a branch is harmless here, before the first load) */
        of_index = found_here(p.source.template address<int32_t>(
            batch, token, trope_pair_plane(&p.plan, (int32_t)(in_head * R::PAIRS)) & p.axis_mask));
    await_previous();
    if (!has_phases) /* the wait for the table comes later */
        admit_next();
    job.load(call);
    load_4_or_8_if(of_index != NULL, of_index, p.source.is_64, &index.low, &index.high);
    angles.load(p, steps, has_phases, is_early, batch, position, in_head);
    admit_next(); /* (a second call has no effect) */
    settle(&index.low);
    settle(&index.high);
    angles.settle_all();
    job.prepare(call);
    if (!p.from_tokens)
        position = position_of_index(p.plan.position_source, p.source, index, token);
    if (!is_early) {
        position = finish_position<true>(p.plan, true, position);
        report_if_missing(p.plan, is_missing<true>(p.plan, position));
        angles.load(p, steps, false, true, batch, position, in_head);
    }
    if (rotates)
        rotate_alone<R>(call, position, angles, &job);
    else if (job.item.present)
        job.finish(call, TROPE_TOKEN_ROTATE, false);
}

#endif
