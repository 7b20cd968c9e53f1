/* cu_seqlens searched on the device: the threads of a warp look for the sequence of one token together, a boundary each, so
 * that each round of loads cuts the range by 32. All that a block does waits for it, so it is in 32 bits, and a call in which
 * those are too few goes by trope_find_span. */
#ifndef TROPE_VARLEN_CUDA_SEARCH_CUH
#define TROPE_VARLEN_CUDA_SEARCH_CUH

#include "core/cuda/early_launch.cuh"
#include "varlen/position.h"

/* Boundaries that two loads a thread have all of. */
#define FEW_BOUNDARIES 63

/* The boundaries that a warp looks at first, two a thread: all of them; or if they are more, every so manieth, and those
 * that would be around the token if sequences were of the same length. */
struct search_shape {
    int32_t is_wide; /* 32 bits are too few */
    int32_t few;     /* all */
    int32_t step;    /* of every so manieth; 1 if few */
    float per_token; /* sequences */
};

static inline search_shape plan_search(const trope_sequences &s)
{
    search_shape p;
    p.is_wide = s.count >= INT32_MAX || s.tokens >= INT32_MAX / s.cp_size;
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
        if (is_64)
            load_at_once((const uint2 *)from, &low, &high);
        else
            load_at_once((const uint32_t *)from, &low);
    }

    __device__ __forceinline__ int64_t value(int32_t is_64) const
    {
        return is_64 ? (int64_t)((uint64_t)high << 32 | low) : (int64_t)(int32_t)low;
    }

    /* As 32 bits, or what is wrong as well. */
    __device__ __forceinline__ int32_t narrow(int32_t is_64) const
    {
        const bool fits = !is_64 || high == 0;
        return max((int32_t)(fits ? low : high), -1) | (fits ? 0 : (int32_t)high < 0 ? -1 : INT32_MAX);
    }
};

/* A run of 32 boundaries, one a thread. */
struct boundary_run {
    int32_t base, step; /* the first, and from one to the next */
    raw_index boundary, real;

    __device__ __forceinline__ void load(const trope_sequences &s, int32_t from, int32_t by)
    {
        base = from;
        step = by;
        const int32_t i = min(index(), (int32_t)s.count), size = s.boundaries_64 ? 8 : 4;
        boundary.load((const char *)s.boundaries + i * (int64_t)size, s.boundaries_64);
        if (s.real != s.boundaries)
            real.load((const char *)s.real + i * (int64_t)size, s.boundaries_64);
    }

    __device__ __forceinline__ int32_t index() const
    {
        return base + (int32_t)thread_of_warp() * step;
    }

    /* How many, from the first on, are before `after`. */
    __device__ __forceinline__ int32_t count_before(const trope_sequences &s, int32_t after) const
    {
        const bool is_later = index() > (int32_t)s.count || boundary.narrow(s.boundaries_64) >= after;
        const uint32_t later = __ballot_sync(UINT32_MAX, is_later);
        return later ? __ffs((int)later) - 1 : 32;
    }
};

struct found_sequence {
    trope_bounds bounds; /* global; begin and end of a gap are those around it */
    int32_t number;      /* -1 for a gap */
};

struct span_search {
    boundary_run runs[2];

    /* Asks for the first boundaries, before anything else that the thread loads. */
    __device__ __forceinline__ void request(const trope_sequences &s, const search_shape &shape, int32_t token)
    {
        const int32_t guess = (int32_t)((float)token * shape.per_token) - 15;
        runs[0].load(s, 0, shape.step);
        runs[1].load(s, shape.few ? 31 : max(min(guess, (int32_t)s.count - 31), 0), 1);
    }

    /* The sequence that a token is in whose end is before boundary value `after`. */
    __device__ __forceinline__ found_sequence finish(const trope_sequences &s, const search_shape &shape, int32_t after) const
    {
        const int32_t in_first = runs[0].count_before(s, after), in_second = runs[1].count_before(s, after);
        const bool by_second = shape.few ? in_first == 32 : in_second > 0 && in_second < 32;
        boundary_run run = by_second ? runs[1] : runs[0];
        int32_t before = by_second ? in_second : in_first;
#pragma unroll 1
        while (run.step > 1 && before > 0) {
            const int32_t base = run.base + (before - 1) * run.step, left = min(run.step, (int32_t)s.count + 1 - base);
            run.load(s, base, (left + 30) / 31);
            before = run.count_before(s, after);
        }
        return between(s, run, before);
    }

  private:
    /* That of a thread of the run. What is negative becomes the largest, which is as wrong, and saves the compiler a path for
     * it in every quotient. */
    static __device__ __forceinline__ int64_t value_of(const raw_index &index, int32_t is_64, int32_t thread)
    {
        return __shfl_sync(UINT32_MAX, index.narrow(is_64), thread) & INT32_MAX;
    }

    static __device__ __forceinline__ found_sequence between(const trope_sequences &s, const boundary_run &run, int32_t before)
    {
        found_sequence f;
        const int32_t number = run.base + before - 1, is_64 = s.boundaries_64;
        f.number = before > 0 && number < (int32_t)s.count ? number : -1;
        f.bounds.begin = f.bounds.real_begin = before > 0 ? value_of(run.boundary, is_64, before - 1) : 0;
        f.bounds.end = f.bounds.real_end = value_of(run.boundary, is_64, before);
        if (s.real != s.boundaries) {
            f.bounds.real_begin = value_of(run.real, is_64, before - 1);
            f.bounds.real_end = value_of(run.real, is_64, before);
        }
        return f;
    }
};

/* Not inline: few threads of a call have a sequence to look at. */
static __device__ __noinline__ int32_t find_fault(const trope_sequences &s, int64_t first, int64_t step)
{
    int32_t fault = 0;
    for (int64_t i = first; i < s.count; i += step)
        fault |= trope_sequence_fault(&s, i);
    return s.count ? fault : trope_boundary_fault(&s);
}

/* Every sequence is looked at once by some thread of the grid, also those that hold no token. */
__device__ __forceinline__ void check_sequences(const trope_sequences &s, int32_t *status)
{
    const uint32_t threads = blockDim.x * blockDim.y, thread = threadIdx.y * blockDim.x + threadIdx.x;
    const int64_t first = ((int64_t)blockIdx.y * gridDim.x + blockIdx.x) * threads + thread;
    if (!s.boundaries || !status || first > (s.count ? s.count - 1 : 0))
        return;
    const int32_t fault = find_fault(s, first, (int64_t)gridDim.x * gridDim.y * threads);
    if (fault)
        atomicOr(status, fault);
}

#endif
