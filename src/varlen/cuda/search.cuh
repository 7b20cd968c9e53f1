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

/* One that 32 bits cannot hold is wrong, and as wrong as the nearest number that they can hold. */
__device__ __forceinline__ int32_t narrow_boundary(int64_t boundary)
{
    return boundary > INT32_MAX ? INT32_MAX : boundary < INT32_MIN ? INT32_MIN : (int32_t)boundary;
}

/* COUNT elements of cu_seqlens, which are waited for before any branch: see settle in core/cuda/ptx.cuh. */
template <int COUNT>
__device__ __forceinline__ void load_boundaries(const trope_sequences &s, const void *array, const int32_t *i, int32_t *to)
{
    uint32_t low[COUNT], high[COUNT];
    if (!s.boundaries_64) {
#pragma unroll
        for (int j = 0; j < COUNT; j++)
            load_4((const int32_t *)array + i[j], &low[j]);
#pragma unroll
        for (int j = 0; j < COUNT; j++)
            settle(&low[j]);
#pragma unroll
        for (int j = 0; j < COUNT; j++)
            to[j] = (int32_t)low[j];
        return;
    }
#pragma unroll
    for (int j = 0; j < COUNT; j++)
        load_8((const int64_t *)array + i[j], &low[j], &high[j]);
#pragma unroll
    for (int j = 0; j < COUNT; j++)
        settle(&low[j]);
#pragma unroll
    for (int j = 0; j < COUNT; j++)
        to[j] = narrow_boundary((int64_t)((uint64_t)high[j] << 32 | low[j]));
}

#define INTEGER            int32_t
#define FN(name)           narrow_##name
#define DIVIDE(divisor, n) trope_divide(divisor, (uint32_t)(n))
#include "varlen/sequence_template.h"

/* As trope_load_bounds. */
__device__ __forceinline__ narrow_bounds narrow_load_bounds(const trope_sequences &s, int32_t before)
{
    const int32_t i[2] = {max(before - 1, 0), min(before, (int32_t)s.count)};
    int32_t stored[2], unpadded[2];
    load_boundaries<2>(s, s.boundaries, i, stored);
    unpadded[0] = stored[0];
    unpadded[1] = stored[1];
    if (s.unpadded != s.boundaries)
        load_boundaries<2>(s, s.unpadded, i, unpadded);
    return {stored[0], stored[1], unpadded[0], unpadded[1]};
}

/* Boundary i, or INT32_MAX from `end` on. All threads load one and use it at once: behind a branch the compiler would make them
 * wait for all loads, and so for the data. */
__device__ __forceinline__ int32_t boundary_before(const trope_sequences &s, int32_t i, int32_t end)
{
    const int32_t at = min(i, end - 1);
    int32_t boundary;
    load_boundaries<1>(s, s.boundaries, &at, &boundary);
    return i < end ? boundary : INT32_MAX;
}

/* How many threads of the warp, from the first on, have a boundary before `after`. */
__device__ __forceinline__ int32_t threads_before(int32_t boundary, int32_t after)
{
    const uint32_t later = __ballot_sync(UINT32_MAX, boundary >= after);
    return later ? __ffs((int)later) - 1 : 32;
}

/* How many boundaries are at or before each of some tokens that follow each other: thread i of the warp gets the number for token
 * first + i. */
__device__ __forceinline__ int32_t search_boundaries(const trope_sequences &s, int32_t first, int32_t tokens)
{
    enum { FEW = 24 }; /* so that the last 32 boundaries are mostly enough for the tokens after the first, too */
    const int32_t thread = (int32_t)thread_of_warp(), count = (int32_t)s.count + 1;
    int32_t after = narrow_cp_after(&s.cp, first);
    int32_t low = 0, left = count; /* the first boundary after the token is in low + 1 .. low + left, or 0 */
#pragma unroll 1
    while (left > FEW) {
        const int32_t step = (left + 31) / 32;
        const int32_t before = threads_before(boundary_before(s, low + thread * step, low + left), after);
        low += max(before - 1, 0) * step;
        left = min(step, count - low);
    }
    int32_t boundary = boundary_before(s, low + thread, count), found = 0;
#pragma unroll 1
    for (int32_t i = 0; i < tokens;) {
        const int32_t before = threads_before(boundary, after);
        if (before == 32) { /* and perhaps more */
            low += 31;
            boundary = boundary_before(s, low + thread, count);
            continue;
        }
        if (thread == i)
            found = low + before;
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
