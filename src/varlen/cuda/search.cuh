/* cu_seqlens searched on the device: the threads of a warp look for the sequence of one token together, a boundary each. As
 * trope_find_span, and as many rounds of loads as that has looks, by 32 to the round. */
#ifndef TROPE_VARLEN_CUDA_SEARCH_CUH
#define TROPE_VARLEN_CUDA_SEARCH_CUH

#include "core/cuda/early_launch.cuh"
#include "varlen/position.h"

struct found_span {
    trope_span span;
    bool faulty; /* that sequence cannot be right */
};

/* As trope_load_index; the load stays where it is, before others that are issued later. */
__device__ __forceinline__ int64_t load_index_at_once(const void *array, int32_t is_64, int64_t i)
{
    return is_64 ? load_at_once((const int64_t *)array + i) : (int64_t)load_at_once((const int32_t *)array + i);
}

/* How many threads, from the first one on, have a boundary that is before `after`. */
__device__ __forceinline__ int count_before(int64_t boundary, int64_t after)
{
    const uint32_t later = __ballot_sync(UINT32_MAX, boundary >= after);
    return later ? __ffs((int)later) - 1 : 32;
}

/* Boundaries that two loads a thread have all of. */
#define FEW_BOUNDARIES 64

/* The boundaries that a warp looks at first, two a thread: all of them; or if they are more, some from all over the call,
 * and those that would be around the token if sequences were of the same length. If these are, no more looks are needed. */
struct span_search {
    int64_t boundary[2];

    /* Asks for them, before anything else that the thread loads. */
    __device__ __forceinline__ void request(const trope_sequences &s, int64_t token)
    {
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const int64_t i = index(s, token, k);
            boundary[k] = i <= s.count ? load_index_at_once(s.boundaries, s.boundaries_64, i) : INT64_MAX;
        }
    }

    /* The span of the token. */
    __device__ __forceinline__ found_span finish(const trope_sequences &s, int64_t token) const
    {
        const int64_t after = trope_first_after(&s, token);
        const int first = count_before(boundary[0], after), second = count_before(boundary[1], after);
        if (s.count < FEW_BOUNDARIES)
            return between(s, first < 32 ? first : 32 + second, 0);
        if (second > 0 && second < 32)
            return between(s, near(s, token) + second, near(s, token) - 32);
        return narrow(s, after, first);
    }

  private:
    static __device__ __forceinline__ int64_t step_of_all(const trope_sequences &s)
    {
        return (s.count + 32) / 32;
    }

    /* The first of 32 boundaries around where the token should be. */
    static __device__ __forceinline__ int64_t near(const trope_sequences &s, int64_t token)
    {
        const int64_t guess = (int64_t)__fdividef((float)token * (float)s.count, (float)s.tokens) - 15;
        return max(min(guess, s.count - 31), (int64_t)0);
    }

    static __device__ __forceinline__ int64_t index(const trope_sequences &s, int64_t token, int k)
    {
        const int64_t lane = threadIdx.x % 32;
        if (s.count < FEW_BOUNDARIES)
            return lane + 32 * k;
        return k == 0 ? lane * step_of_all(s) : near(s, token) + lane;
    }

    /* The span that `low` boundaries are before, two of which are at hand: boundary[0] has those from `first` on. */
    __device__ __forceinline__ found_span between(const trope_sequences &s, int64_t low, int64_t first) const
    {
        if (low == 0 || low > s.count)
            return {trope_gap_after(&s, low), false};
        const int at = (int)(low - first);
        const int64_t begin = __shfl_sync(UINT32_MAX, at - 1 < 32 ? boundary[0] : boundary[1], (at - 1) % 32);
        const int64_t end = __shfl_sync(UINT32_MAX, at < 32 ? boundary[0] : boundary[1], at % 32);
        return of_bounds(s, low - 1, trope_add_real_bounds(&s, low - 1, begin, end));
    }

    static __device__ __forceinline__ found_span of_bounds(const trope_sequences &s, int64_t sequence, trope_bounds b)
    {
        return {trope_span_of_bounds(&s, sequence, b), trope_fault_of_bounds(&s, b) != 0};
    }

    /* From `first` of the boundaries all over the call, by as many looks as it takes. */
    __device__ __forceinline__ found_span narrow(const trope_sequences &s, int64_t after, int first) const
    {
        int64_t step = step_of_all(s), low = 0, high = s.count + 1;
        while (true) {
            const int64_t at_first = low + first * step;
            high = first < 32 && at_first < high ? at_first : high;
            low = first ? low + (first - 1) * step + 1 : low;
            if (low >= high)
                break;
            step = (high - low + 31) / 32;
            const int64_t i = low + threadIdx.x % 32 * step;
            first = count_before(i < high ? load_index_at_once(s.boundaries, s.boundaries_64, i) : INT64_MAX, after);
        }
        if (low == 0 || low > s.count)
            return {trope_gap_after(&s, low), false};
        return of_bounds(s, low - 1, trope_load_bounds(&s, low - 1));
    }
};

/* Every sequence is looked at once by some thread of the grid, also those that hold no token. */
__device__ __forceinline__ void check_sequences(const trope_sequences &s, int32_t *status)
{
    const int64_t threads = (int64_t)gridDim.x * blockDim.x, first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int32_t fault = 0;
    if (!s.boundaries || !status)
        return;
#pragma unroll 1
    for (int64_t i = first; i < s.count; i += threads)
        fault |= trope_sequence_fault(&s, i);
    if (s.count == 0 && first == 0)
        fault = trope_boundary_fault(&s);
    if (fault)
        atomicOr(status, fault);
}

#endif
