/* A warp searches cu_seqlens for a few consecutive tokens. Two dependent rounds of 32 loads suffice for up to 700
 * sequences. position.h has the rules that convert the result to a position. */
#ifndef TROPE_VARLEN_CUDA_SEARCH_CUH
#define TROPE_VARLEN_CUDA_SEARCH_CUH

#include "core/cuda/early_launch.cuh"
#include "varlen/position.h"

/* Whether a search must use 64 bits: offsets or numbers of sequences may need them, or there are no sequences. Such
 * calls are rare. They bisect cu_seqlens as the CPU does. */
TROPE_HD bool is_wide_search(const trope_position_source &s)
{
    return s.count == 0 || s.count >= INT32_MAX || s.tokens >= INT32_MAX / s.cp.size;
}

/* An index as it was loaded. Any use of the value waits for the load, so the index stays raw until it is needed. */
struct raw_index {
    uint32_t low, high; /* high: only for int64 */

    /* Loads index i of an array of int32 or int64. */
    __device__ __forceinline__ void load(const void *array, int32_t is_64, int64_t i)
    {
        load_4_or_8((const char *)array + i * (is_64 ? 8 : 4), is_64, &low, &high);
    }

    __device__ __forceinline__ void load_if(bool is_there, const void *array, int32_t is_64, int64_t i)
    {
        load_4_or_8_if(is_there, (const char *)array + i * (is_64 ? 8 : 4), is_64, &low, &high);
    }

    __device__ __forceinline__ int64_t value(int32_t is_64) const
    {
        return is_64 ? (int64_t)((uint64_t)high << 32 | low) : (int64_t)(int32_t)low;
    }
};

/* Returns index i of an array. position.h calls this. */
__device__ __forceinline__ int64_t load_index(const void *array, int32_t is_64, int64_t i)
{
    raw_index raw;
    raw.load(array, is_64, i);
    return raw.value(is_64);
}

/* Converts a boundary to 32 bits. A boundary that needs more bits is invalid, and becomes INT32_MIN, which is invalid
 * too. */
__device__ __forceinline__ int32_t narrow(const trope_position_source &s, const raw_index &boundary)
{
    return s.boundaries_64 && boundary.high != (uint32_t)((int32_t)boundary.low >> 31) ? INT32_MIN : (int32_t)boundary.low;
}

/* Returns boundary i of an array in 32 bits. */
__device__ __forceinline__ int32_t load_boundary(const trope_position_source &s, const void *array, int32_t i)
{
    raw_index raw;
    raw.load(array, s.boundaries_64, i);
    return narrow(s, raw);
}

#define INTEGER            int32_t
#define FN(name)           narrow_##name
#define DIVIDE(divisor, n) trope_divide(divisor, (uint32_t)(n))
#include "varlen/sequence_template.h"

/* Does what trope_load_bounds does, in 32 bits. */
__device__ __forceinline__ narrow_bounds narrow_load_bounds(const trope_position_source &s, int32_t before)
{
    const int32_t first = max(before - 1, 0), second = min(before, (int32_t)s.count);
    return {load_boundary(s, s.boundaries, first), load_boundary(s, s.boundaries, second),
            load_boundary(s, s.unpadded, first), load_boundary(s, s.unpadded, second)};
}

/* The result for a token: the number of boundaries at or before it, the boundaries around it, and the sequence's start
 * position. */
struct found_bounds {
    int32_t before;
    narrow_bounds bounds;
    int64_t start; /* 0 without start positions */
};

/* One round of a search. Each thread of the warp has one of the boundaries low, low + step, ..., and the element of a
 * second array with the same index. The second array is cu_seqlens if `boundaries` is cu_seqlens_padded, otherwise the
 * start positions. */
struct boundary_round {
    int32_t low, step;
    raw_index boundary, other;

    /* Begins the first round, which covers all boundaries. Its loads are issued before the loads of the data. Loads nothing
     * unless `is_wanted`. */
    __device__ __forceinline__ void begin(const trope_position_source &s, bool is_wanted)
    {
        low = 0;
        step = step_of((int32_t)s.count + 1);
        boundary = other = {0, 0};
        load(s, is_wanted);
    }

    __device__ __forceinline__ void await_all(uint32_t *condition) const
    {
        await(boundary.low, condition);
        await(boundary.high, condition);
        await(other.low, condition);
        await(other.high, condition);
    }

    /* Begins a finer round at the boundary of thread before - 1. */
    __device__ __forceinline__ void refine(const trope_position_source &s, int32_t before)
    {
        low += max(before - 1, 0) * step;
        step = step_of(min(step, (int32_t)s.count + 1 - low));
        load(s, true);
        await_all((uint32_t *)&step);
        narrow_all(s);
    }

    /* Moves the round forward by a number of boundaries, with the same step. */
    __device__ __forceinline__ void advance(const trope_position_source &s, int32_t boundaries)
    {
        low += boundaries;
        load(s, true);
        await_all((uint32_t *)&low);
        narrow_all(s);
    }

    /* Converts the boundaries to 32 bits, after the wait for them. Places after the last boundary get INT32_MAX. */
    __device__ __forceinline__ void narrow_all(const trope_position_source &s)
    {
        boundary.low = (uint32_t)(index() <= (int32_t)s.count ? narrow(s, boundary) : INT32_MAX);
        if (has_unpadded(s))
            other.low = (uint32_t)narrow(s, other);
    }

    /* Returns how many threads, counted from the first of the warp, have a boundary before `after`. */
    __device__ __forceinline__ int32_t threads_before(int32_t after) const
    {
        const uint32_t later = __ballot_sync(UINT32_MAX, (int32_t)boundary.low >= after);
        return later ? __ffs((int)later) - 1 : 32;
    }

    /* Returns the result for a token. Thread `before` has the first boundary after the token. */
    __device__ __forceinline__ found_bounds found_at(const trope_position_source &s, int32_t before) const
    {
        found_bounds found;
        narrow_bounds &b = found.bounds;
        found.before = low + before;
        b.begin = __shfl_sync(UINT32_MAX, (int32_t)boundary.low, before - 1);
        b.end = __shfl_sync(UINT32_MAX, (int32_t)boundary.low, before);
        b.unpadded_begin = b.begin;
        b.unpadded_end = b.end;
        raw_index start = {0, 0};
        if (has_unpadded(s)) {
            b.unpadded_begin = __shfl_sync(UINT32_MAX, (int32_t)other.low, before - 1);
            b.unpadded_end = __shfl_sync(UINT32_MAX, (int32_t)other.low, before);
            if (s.starts) { /* rare */
                start.load_if(true, s.starts, s.starts_64, min(max(found.before - 1, 0), (int32_t)s.count - 1));
                await(start.low, (uint32_t *)&found.before);
                await(start.high, (uint32_t *)&found.before);
            }
        } else if (s.starts) {
            start = {__shfl_sync(UINT32_MAX, other.low, before - 1), __shfl_sync(UINT32_MAX, other.high, before - 1)};
        }
        found.start = start.value(s.starts_64);
        return found;
    }

  private:
    static __device__ __forceinline__ bool has_unpadded(const trope_position_source &s)
    {
        return s.unpadded != s.boundaries;
    }

    /* With a step of 1, a round covers 32 boundaries. The step is 1 if at most 24 boundaries are left, so that the round
     * usually covers the following tokens as well. */
    static __device__ __forceinline__ int32_t step_of(int32_t left)
    {
        return left > 24 ? (left + 31) / 32 : 1;
    }

    __device__ __forceinline__ int32_t index() const
    {
        return low + (int32_t)thread_of_warp() * step;
    }

    /* The loads are predicated instead of branching: after a branch, the compiler would wait for all loads, including
     * the loads of the data. */
    __device__ __forceinline__ void load(const trope_position_source &s, bool is_wanted)
    {
        const void *const second = has_unpadded(s) ? s.unpadded : s.starts;
        const int32_t second_64 = has_unpadded(s) ? s.boundaries_64 : s.starts_64,
                      last = (int32_t)s.count - (has_unpadded(s) ? 0 : 1);
        boundary.load_if(is_wanted, s.boundaries, s.boundaries_64, min(index(), (int32_t)s.count));
        other.load_if(is_wanted && second, second, second_64, min(index(), last));
    }
};

/* Searches for `tokens` tokens, from token `first` on. All threads of the warp call this. A thread calls take() with the
 * result for token first + which, if which < tokens. (A return value would occupy registers throughout the loop.) */
template <class TAKE>
__device__ __forceinline__ void search_boundaries(const trope_position_source &s, boundary_round round, int32_t first,
                                                  int32_t tokens, int32_t which, TAKE take)
{
    int32_t after = narrow_cp_after(&s.cp, first);
    round.narrow_all(s);
#pragma unroll 1
    while (round.step > 1)
        round.refine(s, round.threads_before(after));
    int32_t i = 0;
#pragma unroll 1
    for (;;) {
        int32_t own = 32; /* the thread that has the first boundary after the token; 32: no thread has it in this round */
#pragma unroll 1
        while (i < tokens) {
            const int32_t before = round.threads_before(after);
            if (before == 32)
                break;
            own = which == i ? before : own;
            after += (int32_t)s.cp.split.divisor;
            i++;
        }
        const found_bounds found = round.found_at(s, own);
        if (own < 32)
            take(found);
        if (i == tokens)
            return;
        round.advance(s, 31);
    }
}

/* Returns the status bits of a sequence, or of the only boundary if there are no sequences. */
template <bool WIDE> __device__ __forceinline__ int32_t status_of_sequence(const trope_position_source &s, int64_t sequence)
{
    return trope_status_of_fault(WIDE ? trope_check_sequence(&s, sequence)
                                      : narrow_check_bounds(&s, narrow_load_bounds(s, (int32_t)sequence + 1)));
}

/* Checks all sequences, including those without tokens, and reports errors in `status`. The threads of the grid share
 * the work. */
template <bool WIDE> __device__ __forceinline__ void check_sequences(const trope_position_source &s, int32_t *status)
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
