/* cu_seqlens searched on the device: the threads of a warp look for the sequence of one token together, a boundary each, so
 * that each round of loads leaves a thirtieth of the range or less. All that a block does waits for it, so it is in 32 bits,
 * and a call in which those are too few goes by trope_find_span. */
#ifndef TROPE_VARLEN_CUDA_SEARCH_CUH
#define TROPE_VARLEN_CUDA_SEARCH_CUH

#include "core/cuda/early_launch.cuh"
#include "varlen/position.h"

/* Boundaries that two loads a thread have all of. */
#define FEW_BOUNDARIES 63

/* The boundaries that a warp looks at first, two a thread: all of them; or if they are more, every so manieth, and those
 * that would be around the token if sequences were of the same length. */
struct search_shape {
    int32_t is_wide; /* 32 bits are too few, or there are no sequences */
    int32_t few;     /* all */
    int32_t step;    /* of every so manieth; 1 if few */
    float per_token; /* sequences */
};

static inline search_shape plan_search(const trope_sequences &s)
{
    search_shape p;
    p.is_wide = s.count == 0 || s.count >= INT32_MAX || s.tokens >= INT32_MAX / s.cp_size;
    p.few = s.count < FEW_BOUNDARIES;
    p.step = p.few || p.is_wide ? 1 : (int32_t)((s.count + 32) / 32);
    p.per_token = (float)s.count / (float)(s.tokens > 0 ? s.tokens : 1);
    return p;
}

/* An index as it is in memory. What is made of it waits for the load, and so comes later. */
struct raw_index {
    uint32_t low, high; /* high: of int64 */

    __device__ __forceinline__ void load(const char *from, int32_t is_64)
    {
        load_4_or_8(from, is_64, &low, &high);
    }

    __device__ __forceinline__ int64_t value(int32_t is_64) const
    {
        return is_64 ? (int64_t)((uint64_t)high << 32 | low) : (int64_t)(int32_t)low;
    }

    /* As 32 bits: what these cannot hold becomes INT32_MIN, which is as wrong. */
    __device__ __forceinline__ int32_t narrow(int32_t is_64) const
    {
        return is_64 && high != (uint32_t)((int32_t)low >> 31) ? INT32_MIN : (int32_t)low;
    }
};

/* A run of 32 boundaries, one a thread. */
struct boundary_run {
    int32_t base, step; /* the first, and from one to the next */
    int32_t boundary, real;

    __device__ __forceinline__ int32_t index() const
    {
        return base + (int32_t)thread_of_warp() * step;
    }
};

/* It as it is asked for. */
struct raw_run {
    raw_index boundary, real;

    __device__ __forceinline__ void load(const trope_sequences &s, int32_t index)
    {
        const int64_t at = min(index, (int32_t)s.count) * (int64_t)(s.boundaries_64 ? 8 : 4);
        boundary.load((const char *)s.boundaries + at, s.boundaries_64);
        real.load((const char *)s.real + at, s.boundaries_64); /* (the same again where there are no others) */
    }

    __device__ __forceinline__ boundary_run finish(const trope_sequences &s, int32_t base, int32_t step) const
    {
        boundary_run run = {base, step, boundary.narrow(s.boundaries_64), 0};
        if (run.index() > (int32_t)s.count)
            run.boundary = INT32_MAX;
        run.real = real.narrow(s.boundaries_64);
        return run;
    }
};

/* How many boundaries, from the first thread's on, are before `after`. */
__device__ __forceinline__ int32_t count_before(int32_t boundary, int32_t after)
{
    const uint32_t later = __ballot_sync(UINT32_MAX, boundary >= after);
    return later ? __ffs((int)later) - 1 : 32;
}

struct found_sequence {
    trope_narrow_bounds bounds; /* global; begin and end of a gap are those around it */
    int32_t number;             /* -1 for a gap */
};

struct span_search {
    raw_run runs[2];

    /* Asks for the first boundaries, before anything else that the thread loads. */
    __device__ __forceinline__ void request(const trope_sequences &s, const search_shape &shape, int32_t token)
    {
        const int32_t lane = (int32_t)thread_of_warp();
        runs[0].load(s, lane * shape.step);
        runs[1].load(s, second_base(s, shape, token) + lane);
    }

    __device__ __forceinline__ void await_all(uint32_t *condition) const
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            await(runs[i].boundary.low, condition);
            await(runs[i].real.low, condition);
        }
    }

    /* The sequence that a token is in which has boundary `after` after it. */
    __device__ __forceinline__ found_sequence finish(const trope_sequences &s, const search_shape &shape, int32_t token,
                                                     int32_t after) const
    {
        boundary_run run = runs[0].finish(s, 0, shape.step);
        const boundary_run second = runs[1].finish(s, second_base(s, shape, token), 1);
        int32_t before = count_before(run.boundary, after);
        const int32_t in_second = count_before(second.boundary, after);
        if (shape.few ? before == 32 : in_second > 0 && in_second < 32) {
            run = second;
            before = in_second;
        }
#pragma unroll 1
        while (run.step > 1 && before > 0) {
            const int32_t base = run.base + (before - 1) * run.step,
                          step = (min(run.step, (int32_t)s.count + 1 - base) + 30) / 31;
            raw_run next;
            next.load(s, base + (int32_t)thread_of_warp() * step);
            settle(&next.boundary.low);
            settle(&next.real.low);
            run = next.finish(s, base, step);
            before = count_before(run.boundary, after);
        }
        return between(s, run, before);
    }

  private:
    static __device__ __forceinline__ int32_t second_base(const trope_sequences &s, const search_shape &shape,
                                                          int32_t token)
    {
        const int32_t guess = (int32_t)((float)token * shape.per_token) - 15;
        return shape.few ? 31 : max(min(guess, (int32_t)s.count - 31), 0);
    }

    static __device__ __forceinline__ found_sequence between(const trope_sequences &s, const boundary_run &run,
                                                             int32_t before)
    {
        const int32_t number = run.base + before - 1;
        found_sequence f;
        f.number = before > 0 && number < (int32_t)s.count ? number : -1;
        f.bounds.begin = f.bounds.real_begin = before > 0 ? __shfl_sync(UINT32_MAX, run.boundary, before - 1) : 0;
        f.bounds.end = f.bounds.real_end = __shfl_sync(UINT32_MAX, run.boundary, before);
        if (s.real != s.boundaries) {
            f.bounds.real_begin = __shfl_sync(UINT32_MAX, run.real, before - 1);
            f.bounds.real_end = __shfl_sync(UINT32_MAX, run.real, before);
        }
        return f;
    }
};

/* The status bits of sequences first, first + step, ... : in 32 bits. */
__device__ __forceinline__ int32_t find_fault(const trope_sequences &s, int32_t first, int64_t step)
{
    int32_t fault = 0;
#pragma unroll 1
    for (int64_t i = first; i < s.count; i += step) {
        raw_run begin, end;
        begin.load(s, (int32_t)i);
        end.load(s, (int32_t)i + 1);
        const boundary_run from = begin.finish(s, 0, 0), to = end.finish(s, 0, 0);
        fault |= trope_narrow_fault_of_bounds(&s, {from.boundary, to.boundary, from.real, to.real});
    }
    return fault;
}

/* Any of them. Not inline: few calls are such, and few of their threads have a sequence to look at. */
static __device__ __noinline__ int32_t find_any_fault(const trope_sequences &s, int64_t first, int64_t step)
{
    int32_t fault = 0;
    for (int64_t i = first; i < s.count; i += step)
        fault |= trope_sequence_fault(&s, i);
    return s.count ? fault : trope_boundary_fault(&s);
}

/* Every sequence is looked at once by some thread of the grid, also those that hold no token. NARROW: 32 bits are enough,
 * and there are sequences. */
template <bool NARROW> __device__ __forceinline__ void check_sequences(const trope_sequences &s, int32_t *status)
{
    const uint32_t threads = blockDim.x * blockDim.y, thread = threadIdx.y * blockDim.x + threadIdx.x;
    const int64_t first = ((int64_t)blockIdx.y * gridDim.x + blockIdx.x) * threads + thread;
    if (!s.boundaries || !status || first > (s.count ? s.count - 1 : 0))
        return;
    const int64_t step = (int64_t)gridDim.x * gridDim.y * threads;
    const int32_t fault = NARROW ? find_fault(s, (int32_t)first, step) : find_any_fault(s, first, step);
    if (fault)
        atomicOr(status, fault);
}

#endif
