/* The search of cu_seqlens on the device. The threads of a warp search for a few tokens that follow each other: two dependent
 * rounds of 32 loads find them among up to 700 sequences. What follows from the place that is found is position.h's. */
#ifndef TROPE_VARLEN_CUDA_SEARCH_CUH
#define TROPE_VARLEN_CUDA_SEARCH_CUH

#include "core/cuda/early_launch.cuh"
#include "varlen/position.h"

/* Whether offsets and sequences may need more than 32 bits. Such calls, which are rare, bisect as the CPU does. */
TROPE_HD bool is_wide_search(const trope_sequences &s)
{
    return s.count == 0 || s.count >= INT32_MAX || s.tokens >= INT32_MAX / s.cp.size;
}

/* Boundary i of an array of them. One that 32 bits cannot hold is wrong, and INT32_MIN is as wrong. */
__device__ __forceinline__ int32_t load_boundary(const trope_sequences &s, const void *array, int32_t i)
{
    uint32_t low, high;
    load_4_or_8((const char *)array + (int64_t)i * (s.boundaries_64 ? 8 : 4), s.boundaries_64, &low, &high);
    return s.boundaries_64 && high != (uint32_t)((int32_t)low >> 31) ? INT32_MIN : (int32_t)low;
}

#define INTEGER            int32_t
#define FN(name)           narrow_##name
#define DIVIDE(divisor, n) trope_divide(divisor, (uint32_t)(n))
#include "varlen/sequence_template.h"

/* As trope_load_bounds. */
__device__ __forceinline__ narrow_bounds narrow_load_bounds(const trope_sequences &s, int32_t before)
{
    const int32_t first = max(before - 1, 0), second = min(before, (int32_t)s.count);
    return {load_boundary(s, s.boundaries, first), load_boundary(s, s.boundaries, second),
            load_boundary(s, s.unpadded, first), load_boundary(s, s.unpadded, second)};
}

/* Boundary i, or INT32_MAX from `end` on. All threads load one and use it at once: behind a branch the compiler would make them
 * wait for all loads, and so for the data. */
__device__ __forceinline__ int32_t boundary_before(const trope_sequences &s, int32_t i, int32_t end)
{
    const int32_t boundary = load_boundary(s, s.boundaries, min(i, end - 1));
    return i < end ? boundary : INT32_MAX;
}

/* How many threads of the warp, from the first on, have a boundary before `after`. */
__device__ __forceinline__ int32_t threads_before(int32_t boundary, int32_t after)
{
    const uint32_t later = __ballot_sync(UINT32_MAX, boundary >= after);
    return later ? __ffs((int)later) - 1 : 32;
}

/* What is found for a token: the number of boundaries at or before it, and the boundaries around it. */
struct found_bounds {
    int32_t before;
    narrow_bounds bounds;
};

/* For all threads of a warp: each searches for a token, number `which` of those that follow each other from `first` on. */
__device__ __forceinline__ found_bounds search_boundaries(const trope_sequences &s, int32_t first, int32_t tokens,
                                                          int32_t which)
{
    enum { FEW = 24 }; /* so that the last 32 boundaries are mostly enough for the tokens after the first, too */
    const int32_t thread = (int32_t)thread_of_warp(), count = (int32_t)s.count + 1;
    const bool has_unpadded = s.unpadded != s.boundaries;
    int32_t after = narrow_cp_after(&s.cp, first);
    int32_t low = 0, left = count; /* the first boundary after the token is in low + 1 .. low + left, or 0 */
#pragma unroll 1
    while (left > FEW) {
        const int32_t step = (left + 31) / 32;
        const int32_t before = threads_before(boundary_before(s, low + thread * step, low + left), after);
        low += max(before - 1, 0) * step;
        left = min(step, count - low);
    }
    found_bounds found;
    int32_t boundary = boundary_before(s, low + thread, count), unpadded = 0;
    if (has_unpadded)
        unpadded = load_boundary(s, s.unpadded, min(low + thread, count - 1));
#pragma unroll 1
    for (int32_t i = 0; i < tokens;) {
        const int32_t before = threads_before(boundary, after);
        if (before == 32) { /* and perhaps more */
            low += 31;
            boundary = boundary_before(s, low + thread, count);
            if (has_unpadded)
                unpadded = load_boundary(s, s.unpadded, min(low + thread, count - 1));
            continue;
        }
        narrow_bounds b = {__shfl_sync(UINT32_MAX, boundary, before - 1), __shfl_sync(UINT32_MAX, boundary, before), 0, 0};
        b.unpadded_begin = has_unpadded ? __shfl_sync(UINT32_MAX, unpadded, before - 1) : b.begin;
        b.unpadded_end = has_unpadded ? __shfl_sync(UINT32_MAX, unpadded, before) : b.end;
        if (which == i)
            found = {low + before, b};
        after += (int32_t)s.cp.split.divisor;
        i++;
    }
    return found;
}

/* The status bits of a sequence, or of the one boundary that there is without any. */
template <bool WIDE> __device__ __forceinline__ int32_t status_of_sequence(const trope_sequences &s, int64_t sequence)
{
    return trope_status_of_fault(WIDE ? trope_check_sequence(&s, sequence)
                                      : narrow_check_bounds(&s, narrow_load_bounds(s, (int32_t)sequence + 1)));
}

/* Each sequence is looked at once, by some thread of the grid: also those that hold no token. */
template <bool WIDE> __device__ __forceinline__ void check_sequences(const trope_sequences &s, int32_t *status)
{
    if (!s.boundaries || !status)
        return;
    const uint32_t threads = threads_of_block();
    const int64_t end = max(s.count, (int64_t)1), step = (int64_t)gridDim.x * gridDim.y * threads;
#pragma unroll 1
    for (int64_t i = block_of_grid() * threads + thread_of_block(); i < end; i += step) {
        const int32_t bits = status_of_sequence<WIDE>(s, i);
        if (bits)
            atomicOr(status, bits);
    }
}

#endif
