/* The row of a token on CUDA: which sequence it is in, its position there, and what becomes of it. The threads of a warp
 * look for sequences together. */
#ifndef TROPE_VARLEN_CUDA_SEQUENCES_CUH
#define TROPE_VARLEN_CUDA_SEQUENCES_CUH

#include <cuda_runtime.h>

#include "core/cuda/early_launch.cuh"
#include "core/cuda/limits.cuh"
#include "core/plan.h"
#include "varlen/row.h"

struct found_span {
    trope_span span;
    bool faulty; /* that sequence cannot be right */
};

/* The span of a token, which all threads of the warp have in common: as trope_find_span, with a boundary for each thread
 * where that one has its middle. */
__device__ __forceinline__ found_span find_span(const trope_sequences &s, int64_t token)
{
    const int64_t after = trope_first_after(&s, token);
    int64_t low = 0, high = s.count + 1, step, probe;
    int first;
    do {
        step = (high - low + 31) / 32;
        const int64_t i = low + threadIdx.x % 32 * step;
        probe = i <= high && i <= s.count ? trope_load_index(s.boundaries, s.boundaries_64, i) : INT64_MAX;
        const uint32_t later = __ballot_sync(UINT32_MAX, probe >= after);
        first = later ? __ffs((int)later) - 1 : 32; /* of the threads whose boundary is after the token */
        const int64_t at_first = low + first * step;
        high = first < 32 && at_first < high ? at_first : high;
        low = first ? low + (first - 1) * step + 1 : low;
    } while (low < high);
    if (low == 0 || low > s.count)
        return {trope_gap_after(&s, low), false};
    const bool at_hand = step == 1 && first > 0 && first < 32; /* the two boundaries around the token */
    const int64_t begin = __shfl_sync(UINT32_MAX, probe, first - 1), end = __shfl_sync(UINT32_MAX, probe, first);
    const trope_bounds b = at_hand ? trope_add_real_bounds(&s, low - 1, begin, end) : trope_load_bounds(&s, low - 1);
    return {trope_span_of_bounds(&s, low - 1, b), trope_fault_of_bounds(&s, b) != 0};
}

/* The span of each thread's token. The threads of a warp mostly have the same one, and search for it together. */
__device__ __forceinline__ found_span find_spans(const trope_sequences &s, int64_t token)
{
    found_span found = {{0, 0, 0, 0, 0}, false};
    bool wants = true;
    while (const uint32_t left = __ballot_sync(UINT32_MAX, wants)) {
        const int64_t wanted = __shfl_sync(UINT32_MAX, token, __ffs((int)left) - 1);
        const found_span candidate = find_span(s, wanted);
        if (wants && (token == wanted || (token >= candidate.span.begin && token < candidate.span.end))) {
            found = candidate;
            wants = false;
        }
    }
    return found;
}

/* Whether positions are indices in sequences that are stored whole: the usual packed call, for which 32 bits and a quarter
 * of the work are enough. */
static inline bool is_packed(const trope_plan &plan)
{
    const trope_sequences &s = plan.sequences;
    return s.boundaries && s.real == s.boundaries && !s.boundaries_64 && !s.starts && !s.ids && !s.stream &&
           s.cp_size == 1 && plan.axes == 1 && plan.parts == 1 && s.count > 0 && s.count < INT32_MAX &&
           s.tokens < INT32_MAX && plan.angles.rows < INT32_MAX;
}

/* A sequence of such a call, or a gap between sequences. */
struct packed_span {
    int32_t begin, end;
    bool is_gap;
};

/* Sequences among which one may not be found by two looks at as many boundaries as a warp has threads: the second has both
 * ends of what the first leaves. */
#define MANY_SEQUENCES (31 * 32)

/* The boundaries that a warp looks at first, one a thread: some from all over the call, which can be asked for before
 * anything else; and of many those that would be around a token if sequences were of the same length. If these are around
 * it, no more looks are needed. */
struct packed_probes {
    const int32_t *place; /* where of_all is: a thread that is after the last boundary has that one */
    int32_t of_all, near;

    /* Before the kernel before this one has ended. */
    __device__ __forceinline__ void locate(const trope_sequences &s)
    {
        place = found_here((const int32_t *)s.boundaries + min(number_of_all(s), (uint32_t)s.count));
    }

    /* Brings what ask_all reads into L2, which is no read: it may be done before that as well. One warp of the call does
     * it. If all did, they would stand in line for these few addresses. */
    __device__ __forceinline__ void bring_all() const
    {
        if (blockIdx.x == 0 && threadIdx.x < 32)
            prefetch(place);
    }

    __device__ __forceinline__ void ask_all()
    {
        of_all = load_at_once(place);
    }

    __device__ __forceinline__ void ask_near(const trope_sequences &s, uint32_t token)
    {
        if ((uint32_t)s.count < MANY_SEQUENCES)
            return;
        const int32_t guess = (int32_t)__fdividef((float)token * (float)s.count, (float)s.tokens);
        const uint32_t i = (uint32_t)max(min(guess - 15, (int32_t)s.count - 31), 0) + threadIdx.x % 32;
        near = INT32_MAX;
        if (i <= (uint32_t)s.count)
            near = load_at_once((const int32_t *)s.boundaries + i);
    }

    /* of_all, INT32_MAX after the last boundary. */
    __device__ __forceinline__ int32_t boundary_of_all(const trope_sequences &s) const
    {
        return number_of_all(s) <= (uint32_t)s.count ? of_all : INT32_MAX;
    }

  private:
    static __device__ __forceinline__ uint32_t number_of_all(const trope_sequences &s)
    {
        return threadIdx.x % 32 * (((uint32_t)s.count + 32) / 32);
    }
};

/* How many threads, from the first one on, have a boundary that is not after the token. */
__device__ __forceinline__ uint32_t count_until(int32_t boundary, int32_t token)
{
    const uint32_t later = __ballot_sync(UINT32_MAX, boundary > token);
    return later ? __ffs((int)later) - 1 : 32;
}

/* The span of a token, which all threads of the warp have in common, from the boundaries all over the call. Each look but
 * the first begins at a boundary that is not after the token and goes to one that is, so that the last has both ends. */
__device__ __forceinline__ packed_span search_packed_span(const trope_sequences &s, int32_t probe, int32_t token)
{
    const uint32_t count = (uint32_t)s.count;
    uint32_t low = 0, step = (count + 32) / 32, first;
    while (true) {
        first = count_until(probe, token);
        if (step == 1 || first == 0)
            break;
        low += (first - 1) * step;
        step = (min(step, count + 1 - low) + 30) / 31;
        const uint32_t i = low + threadIdx.x % 32 * step;
        probe = i <= count ? load_at_once((const int32_t *)s.boundaries + i) : INT32_MAX;
    }
    const int32_t begin = __shfl_sync(UINT32_MAX, probe, first - 1), end = __shfl_sync(UINT32_MAX, probe, first);
    return {first > 0 ? begin : 0, first < 32 ? end : INT32_MAX, first == 0 || low + first > count};
}

/* The same, of many from the boundaries around it if these are at hand. Gaps are always searched for. */
__device__ __forceinline__ packed_span find_packed_span(const trope_sequences &s, const packed_probes &probes,
                                                        int32_t token)
{
    if ((uint32_t)s.count >= MANY_SEQUENCES) {
        const uint32_t first = count_until(probes.near, token);
        if (first > 0 && first < 32)
            return {__shfl_sync(UINT32_MAX, probes.near, first - 1), __shfl_sync(UINT32_MAX, probes.near, first), false};
    }
    return search_packed_span(s, probes.boundary_of_all(s), token);
}

/* The span of each thread's token: see find_spans. */
__device__ __forceinline__ packed_span find_packed_spans(const trope_sequences &s, const packed_probes &probes,
                                                         int32_t token)
{
    packed_span found = {0, 0, false};
    bool wants = true;
    while (const uint32_t left = __ballot_sync(UINT32_MAX, wants)) {
        const packed_span span = find_packed_span(s, probes, __shfl_sync(UINT32_MAX, token, __ffs((int)left) - 1));
        if (wants && token >= span.begin && token < span.end) {
            found = span;
            wants = false;
        }
    }
    return found;
}

/* Reports a position that has no angle, and poisons the rows of a sequence that cannot be right. */
__device__ __forceinline__ void finish_row(const trope_plan &plan, bool faulty, trope_row *row)
{
    if (row->action == TROPE_ROW_ROTATE && row->poisoned && plan.status)
        atomicOr(plan.status, TROPE_STATUS_POSITION);
    if (faulty)
        row->poisoned = (1u << MAX_CUDA_AXES) - 1;
}

/* Fills a row whose batch and token are set, for all threads of a warp. */
__device__ __forceinline__ void find_row(const trope_plan &plan, trope_row *row)
{
    found_span found = {{0, 0, 0, 0, 0}, false};
    if (plan.sequences.boundaries)
        found = find_spans(plan.sequences, row->token);
    trope_find_row(&plan, &found.span, row);
    finish_row(plan, found.faulty, row);
}

/* A row whose position is known, and its token no longer needed. Positions are below 2^31 here, and it saves the compiler
 * instructions to see that. */
__device__ __forceinline__ trope_row row_of_plain(int64_t batch, uint32_t position)
{
    trope_row row;
    row.batch = batch;
    row.token = row.position[0] = position;
    row.action = TROPE_ROW_ROTATE;
    row.poisoned = 0;
    return row;
}

/* A row of a packed call, as much of it as others cannot know. */
struct packed_row {
    uint32_t position;
    uint16_t action, poisoned;
};

/* All of it. */
__device__ __forceinline__ trope_row row_of_packed(int64_t batch, uint32_t token, const packed_row &found)
{
    trope_row row;
    row.batch = batch;
    row.token = token;
    row.position[0] = found.position;
    row.action = (trope_row_action)found.action;
    row.poisoned = found.poisoned;
    return row;
}

/* The row of a token in a packed call. HAS_TABLE: positions are rows of a table, which has an end. */
template <bool HAS_TABLE>
__device__ __forceinline__ packed_row row_of_span(const trope_plan &plan, const packed_span &span, int32_t token)
{
    packed_row row = {(uint32_t)token - (uint32_t)span.begin, TROPE_ROW_ROTATE, 0};
    if (span.is_gap && plan.sequences.padding != TROPE_PADDING_ROTATE) {
        row.action = plan.sequences.padding == TROPE_PADDING_ZERO ? TROPE_ROW_ZERO : TROPE_ROW_COPY;
    } else if (HAS_TABLE && row.position >= (uint32_t)plan.angles.rows) {
        row.position = (uint32_t)plan.angles.rows - 1;
        row.poisoned = plan.angles.out_of_range == TROPE_RANGE_POISON;
        if (row.poisoned && plan.status)
            atomicOr(plan.status, TROPE_STATUS_POSITION);
    }
    if (!span.is_gap && (span.begin < 0 || span.end > (int32_t)plan.sequences.tokens))
        row.poisoned = 1;
    return row;
}

/* That of a token which all threads of the warp have in common. */
template <bool HAS_TABLE>
__device__ __forceinline__ packed_row find_packed_row(const trope_plan &plan, const packed_probes &probes, int32_t token)
{
    return row_of_span<HAS_TABLE>(plan, find_packed_span(plan.sequences, probes, token), token);
}

/* Every sequence is looked at once by some thread of the grid, also those that hold no token. */
__device__ __forceinline__ void check_sequences(const trope_plan &plan)
{
    const trope_sequences &s = plan.sequences;
    const int64_t blocks = (int64_t)gridDim.x * gridDim.y, block = (int64_t)blockIdx.y * gridDim.x + blockIdx.x;
    int32_t fault = 0;
#pragma unroll 1
    for (int64_t i = block * blockDim.x + threadIdx.x; i < s.count; i += blocks * blockDim.x)
        fault |= trope_sequence_fault(&s, i);
    if (s.count == 0 && block == 0 && threadIdx.x == 0)
        fault = trope_boundary_fault(&s);
    if (fault && plan.status)
        atomicOr(plan.status, fault);
}

/* The same in a packed call. Each thread may ask for the first of its sequences some time before it looks at it. */
struct packed_check {
    uint32_t has_some;
    int32_t begin, end; /* of the one that is looked at */

    /* Before the kernel before this one has ended. */
    __device__ __forceinline__ void prepare(const trope_sequences &s)
    {
        has_some = found_here((uint32_t)(first() < s.count));
    }

    __device__ __forceinline__ void ask(const trope_sequences &s)
    {
        if (has_some)
            load(s, first());
    }

    __device__ __forceinline__ void finish(const trope_plan &plan)
    {
        const trope_sequences &s = plan.sequences;
        if (!has_some)
            return;
        bool faulty = is_faulty(s);
#pragma unroll 1
        for (int64_t i = first() + threads(); i < s.count; i += threads()) {
            load(s, i);
            faulty = faulty || is_faulty(s);
        }
        if (faulty && plan.status)
            atomicOr(plan.status, TROPE_STATUS_CU_SEQLENS);
    }

  private:
    static __device__ __forceinline__ int64_t first()
    {
        return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    }

    static __device__ __forceinline__ int64_t threads()
    {
        return (int64_t)gridDim.x * blockDim.x;
    }

    __device__ __forceinline__ void load(const trope_sequences &s, int64_t i)
    {
        begin = load_at_once((const int32_t *)s.boundaries + i);
        end = load_at_once((const int32_t *)s.boundaries + i + 1);
    }

    __device__ __forceinline__ bool is_faulty(const trope_sequences &s) const
    {
        return begin < 0 || end < begin || end > (int32_t)s.tokens;
    }
};

/* Without an array that is indexed, which would be in memory. */
__device__ __forceinline__ int64_t position_of_axis(const trope_row &row, int axis)
{
    static_assert(MAX_CUDA_AXES == 3, "position_of_axis");
    return axis == 0 ? row.position[0] : axis == 1 ? row.position[1] : row.position[2];
}

#endif
