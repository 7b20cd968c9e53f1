/* The search of cu_seqlens by a warp, for a few tokens that follow each other. Two dependent rounds of 32 loads find them among
 * up to 700 sequences. The rules that make a position of the result are in position.h. */
#ifndef TROPE_VARLEN_CUDA_SEARCH_CUH
#define TROPE_VARLEN_CUDA_SEARCH_CUH

#include "core/cuda/early_launch.cuh"
#include "varlen/position.h"

/* Whether offsets and sequences may need more than 32 bits. Such calls, which are rare, bisect as the CPU does. */
TROPE_HD bool is_wide_search(const trope_sequences &s)
{
    return s.count == 0 || s.count >= INT32_MAX || s.tokens >= INT32_MAX / s.cp.size;
}

/* An index as loaded. Any use of it waits for the load, so it stays raw until then. */
struct raw_index {
    uint32_t low, high; /* high: of int64 */

    /* Index i of an array of int32 or int64. */
    __device__ __forceinline__ void load(const void *array, int32_t is_64, int64_t i)
    {
        load_4_or_8((const char *)array + i * (is_64 ? 8 : 4), is_64, &low, &high);
    }

    __device__ __forceinline__ int64_t value(int32_t is_64) const
    {
        return is_64 ? (int64_t)((uint64_t)high << 32 | low) : (int64_t)(int32_t)low;
    }
};

/* Index i of an array, as position.h loads it. */
__device__ __forceinline__ int64_t load_index(const void *array, int32_t is_64, int64_t i)
{
    raw_index raw;
    raw.load(array, is_64, i);
    return raw.value(is_64);
}

/* The same, or 0 where there is no array. */
__device__ __forceinline__ int64_t load_index_if(const void *array, int32_t is_64, int64_t i)
{
    raw_index raw = {0, 0};
    load_4_or_8_if(array != NULL, (const char *)array + i * (is_64 ? 8 : 4), is_64, &raw.low, &raw.high);
    return raw.value(is_64);
}

/* A boundary in 32 bits. A boundary beyond them is invalid, and becomes INT32_MIN, which is invalid too. */
__device__ __forceinline__ int32_t narrow(const trope_sequences &s, const raw_index &boundary)
{
    return s.boundaries_64 && boundary.high != (uint32_t)((int32_t)boundary.low >> 31) ? INT32_MIN : (int32_t)boundary.low;
}

/* Boundary i of an array of them. */
__device__ __forceinline__ int32_t load_boundary(const trope_sequences &s, const void *array, int32_t i)
{
    raw_index raw;
    raw.load(array, s.boundaries_64, i);
    return narrow(s, raw);
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

/* The number of threads, from the first of the warp on, whose boundary is before `after`. */
__device__ __forceinline__ int32_t threads_before(int32_t boundary, int32_t after)
{
    const uint32_t later = __ballot_sync(UINT32_MAX, boundary >= after);
    return later ? __ffs((int)later) - 1 : 32;
}

/* The result for a token: the number of boundaries at or before it, and the boundaries around it. */
struct found_bounds {
    int32_t before;
    narrow_bounds bounds;
};

/* One round of a search: each thread of the warp has one of the boundaries low, low + step, ... */
struct boundary_round {
    int32_t low, step;
    raw_index boundary, unpadded;

    /* The first round covers all boundaries. It is issued before the data is loaded, and loads nothing unless `is_wanted`. */
    __device__ __forceinline__ void begin(const trope_sequences &s, bool is_wanted)
    {
        low = 0;
        step = step_of((int32_t)s.count + 1);
        boundary = unpadded = {0, 0};
        load(s, is_wanted);
    }

    __device__ __forceinline__ void await_all(uint32_t *condition) const
    {
        await(boundary.low, condition);
        await(boundary.high, condition);
        await(unpadded.low, condition);
        await(unpadded.high, condition);
    }

    /* A finer round, from the boundary of thread before - 1 on. */
    __device__ __forceinline__ void refine(const trope_sequences &s, int32_t before)
    {
        low += max(before - 1, 0) * step;
        step = step_of(min(step, (int32_t)s.count + 1 - low));
        load(s, true);
        await_all((uint32_t *)&step);
    }

    /* The same round, so many boundaries later. */
    __device__ __forceinline__ void advance(const trope_sequences &s, int32_t boundaries)
    {
        low += boundaries;
        load(s, true);
        await_all((uint32_t *)&low);
    }

    /* The thread's boundary, or INT32_MAX behind the last one. */
    __device__ __forceinline__ int32_t value(const trope_sequences &s) const
    {
        return index() <= (int32_t)s.count ? narrow(s, boundary) : INT32_MAX;
    }

    __device__ __forceinline__ int32_t unpadded_value(const trope_sequences &s) const
    {
        return narrow(s, unpadded);
    }

  private:
    /* Steps of 1 cover 32 boundaries. That begins at 24, so that the round mostly has those of the next tokens as well. */
    static __device__ __forceinline__ int32_t step_of(int32_t left)
    {
        return left > 24 ? (left + 31) / 32 : 1;
    }

    __device__ __forceinline__ int32_t index() const
    {
        return low + (int32_t)thread_of_warp() * step;
    }

    /* (Loads are predicated, not behind a branch: there the compiler would wait for all loads, and so for the data.) */
    __device__ __forceinline__ void load(const trope_sequences &s, bool is_wanted)
    {
        const int64_t at = min(index(), (int32_t)s.count) * (int64_t)(s.boundaries_64 ? 8 : 4);
        const char *const first = (const char *)s.boundaries, *const second = (const char *)s.unpadded;
        load_4_or_8_if(is_wanted, first + at, s.boundaries_64, &boundary.low, &boundary.high);
        load_4_or_8_if(is_wanted && second != first, second + at, s.boundaries_64, &unpadded.low, &unpadded.high);
    }
};

/* All threads of the warp call this. Each searches for token first + which, of `tokens` tokens. */
__device__ __forceinline__ found_bounds search_boundaries(const trope_sequences &s, boundary_round round, int32_t first,
                                                          int32_t tokens, int32_t which)
{
    const bool has_unpadded = s.unpadded != s.boundaries;
    int32_t after = narrow_cp_after(&s.cp, first);
#pragma unroll 1
    while (round.step > 1)
        round.refine(s, threads_before(round.value(s), after));
    found_bounds found;
    int32_t boundary = round.value(s), unpadded = round.unpadded_value(s);
#pragma unroll 1
    for (int32_t i = 0; i < tokens;) {
        const int32_t before = threads_before(boundary, after);
        if (before == 32) { /* all boundaries of the round are before the token */
            round.advance(s, 31);
            boundary = round.value(s);
            unpadded = round.unpadded_value(s);
            continue;
        }
        narrow_bounds b = {__shfl_sync(UINT32_MAX, boundary, before - 1), __shfl_sync(UINT32_MAX, boundary, before), 0, 0};
        b.unpadded_begin = has_unpadded ? __shfl_sync(UINT32_MAX, unpadded, before - 1) : b.begin;
        b.unpadded_end = has_unpadded ? __shfl_sync(UINT32_MAX, unpadded, before) : b.end;
        if (which == i)
            found = {round.low + before, b};
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

/* Some thread of the grid checks each sequence, also those that hold no token, and reports in `status`. */
template <bool WIDE> __device__ __forceinline__ void check_sequences(const trope_sequences &s, int32_t *status)
{
    if (!s.boundaries || !status)
        return;
    const uint32_t threads = threads_of_block();
    const int64_t end = max(s.count, (int64_t)1), step = (int64_t)gridDim.x * gridDim.y * threads;
    int32_t bits = 0;
#pragma unroll 1
    for (int64_t i = block_of_grid() * threads + thread_of_block(); i < end; i += step)
        bits |= status_of_sequence<WIDE>(s, i);
    if (bits)
        atomicOr(status, bits);
}

#endif
