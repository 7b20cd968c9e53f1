/* What turns a row, on CUDA: its sequence and position, and the cos and sin of some of its pairs, in registers. A thread
 * does all of it for itself: the threads that share a row have the same loads, which the cache serves, and nobody waits. */
#ifndef TROPE_CORE_ANGLES_CUDA_CUH
#define TROPE_CORE_ANGLES_CUDA_CUH

#include <stddef.h>

#include "core/elements_cuda.cuh"
#include "core/plan.h"
#include "core/sincos.h"
#include "varlen/row.h"

/* The plan, and what follows from it that threads should not have to work out. */
struct cuda_plan {
    float cosine_scale, sine_scale;
    int32_t scaled;        /* they are not both 1 */
    int32_t own_angles;    /* a pair's elements have an angle each */
    int32_t window_pairs;  /* of a row of angles */
    int32_t table_vectors; /* the angles of neighbouring pairs can be loaded as vectors */
    alignas(16) trope_plan plan;
};
static_assert(offsetof(trope_plan, step) % 16 == 0, "steps are loaded as vectors");

void trope_fill_cuda_plan(const trope_plan *plan, cuda_plan *p);

/* ---- rows ---- */

#define PROBES 4 /* of a thread */

/* Boundaries low, low + step, ... below high, dealt out to the threads of a warp, PROBES to each. */
struct boundary_probes {
    int64_t low, high, step;
    int64_t value[PROBES];

    __device__ __forceinline__ void load(const trope_sequences &s, int64_t from, int64_t to)
    {
        low = from;
        high = to;
        step = (high - low + 32 * PROBES - 1) / (32 * PROBES);
#pragma unroll
        for (int j = 0; j < PROBES; j++) {
            const int64_t i = low + (int64_t)(threadIdx.x % 32 * PROBES + j) * step;
            value[j] = i < high ? trope_load_index(s.boundaries, s.boundaries_64, i) : INT64_MAX;
        }
    }

    /* The number of the first probe that is after a token, which all threads of the warp have in common. */
    __device__ __forceinline__ int first_after(const trope_sequences &s, int64_t token) const
    {
        int mine = PROBES;
#pragma unroll
        for (int j = PROBES - 1; j >= 0; j--)
            mine = trope_local_boundary(&s, value[j]) > token ? j : mine;
        const uint32_t after = __ballot_sync(UINT32_MAX, mine < PROBES);
        const int thread = after ? __ffs((int)after) - 1 : 0;
        return after ? thread * PROBES + __shfl_sync(UINT32_MAX, mine, thread) : 32 * PROBES;
    }

    __device__ __forceinline__ int64_t of_thread(int number) const
    {
        int64_t mine = value[0];
#pragma unroll
        for (int j = 1; j < PROBES; j++)
            mine = number % PROBES == j ? value[j] : mine;
        return __shfl_sync(UINT32_MAX, mine, number / PROBES);
    }
};

struct found_span {
    trope_span span;
    bool faulty; /* that sequence cannot be right */
};

/* The span of a token, which all threads of the warp have in common. As in trope_find_span, a boundary that is known not to
 * be after the token and one that is come closer and closer. */
__device__ __forceinline__ found_span find_span(const trope_sequences &s, int64_t token)
{
    boundary_probes probes;
    int64_t low = 0, high = s.count + 1;
    int first = 0;
    do {
        probes.load(s, low, high);
        first = probes.first_after(s, token);
        const int64_t at_first = low + first * probes.step;
        high = first < 32 * PROBES && at_first < high ? at_first : high;
        low = first ? low + (first - 1) * probes.step + 1 : low;
    } while (low < high);
    if (low == 0 || low > s.count)
        return {trope_gap_after(&s, low), false};
    const bool at_hand = probes.step == 1 && first > 0 && first < 32 * PROBES && probes.low + first < probes.high;
    const trope_bounds b = at_hand
                               ? trope_add_real_bounds(&s, low - 1, probes.of_thread(first - 1), probes.of_thread(first))
                               : trope_load_bounds(&s, low - 1);
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

/* Fills a row whose batch and token are set, for all threads of a warp. A sequence that cannot be right poisons
 * its rows. */
__device__ __forceinline__ void find_row(const trope_plan &plan, trope_row *row)
{
    found_span found = {{0, 0, 0, 0, 0}, false};
    if (plan.sequences.boundaries)
        found = find_spans(plan.sequences, row->token);
    trope_find_row(&plan, &found.span, row);
    if (row->action == TROPE_ROW_ROTATE && row->poisoned && plan.status)
        atomicOr(plan.status, TROPE_STATUS_POSITION);
    if (found.faulty)
        row->poisoned = (1u << TROPE_MAX_AXES) - 1;
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
    if (fault && plan.status)
        atomicOr(plan.status, fault);
}

/* Without an array that is indexed, which would be in memory. */
__device__ __forceinline__ int64_t position_of_axis(const trope_row &row, int axis)
{
    static_assert(TROPE_MAX_AXES == 3, "position_of_axis");
    return axis == 0 ? row.position[0] : axis == 1 ? row.position[1] : row.position[2];
}

/* ---- tables ---- */

/* COUNT values that are neighbours, by loads as wide as COUNT allows. */
template <typename REAL, int COUNT> __device__ __forceinline__ void load_run(const REAL *from, REAL *to)
{
    constexpr int BYTES = COUNT * (int)sizeof(REAL);
    typedef std::conditional_t<BYTES % 16 == 0, uint4, std::conditional_t<BYTES % 8 == 0, uint2, uint32_t>> chunk;
    union {
        chunk chunks[BYTES / sizeof(chunk)];
        REAL values[COUNT];
    } u;
#pragma unroll
    for (int i = 0; i < BYTES / (int)sizeof(chunk); i++)
        u.chunks[i] = ((const chunk *)from)[i];
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        to[i] = u.values[i];
}

template <typename REAL> __device__ __forceinline__ REAL table_entry(int32_t dtype, const void *table, int64_t offset)
{
    switch (dtype) {
    case TROPE_F64:
        return (REAL)((const double *)table)[offset];
    case TROPE_F16:
        return trope_f16_to_f32(((const uint16_t *)table)[offset]);
    case TROPE_BF16:
        return trope_bf16_to_f32(((const uint16_t *)table)[offset]);
    default:
        return ((const float *)table)[offset];
    }
}

/* The column of a pair's first element (0) or second one (1). As trope_first_of_pair, without a division in every thread.
 */
__device__ __forceinline__ int column_of(const cuda_plan &p, int pair, int which)
{
    if (!p.own_angles)
        return pair;
    if (p.plan.interleaved_columns)
        return 2 * pair + which;
    int column = pair + which * p.window_pairs;
    for (int w = 1; w < p.plan.windows; w++)
        column += pair >= w * p.window_pairs ? p.window_pairs : 0;
    return column;
}

/* What a kernel is compiled for: any angles, or only the usual ones in fp32 and with rounding once, of which tables can be
 * loaded as vectors and have one position axis. docs/cuda.md has what this buys. */
enum cuda_angles { ANGLES_ANY, ANGLES_PHASE, ANGLES_FREQS, ANGLES_OWN_FREQS };

template <int ANGLES> __device__ __forceinline__ bool has_own_angles(const cuda_plan &p)
{
    return ANGLES == ANGLES_ANY ? p.own_angles : ANGLES == ANGLES_OWN_FREQS;
}

template <int ANGLES> __device__ __forceinline__ bool has_phases(const cuda_plan &p)
{
    return ANGLES == ANGLES_ANY ? p.plan.angles.source == TROPE_ANGLES_PHASE : ANGLES == ANGLES_PHASE;
}

template <int ANGLES> __device__ __forceinline__ bool is_native(const cuda_plan &p)
{
    return ANGLES == ANGLES_ANY && p.plan.rounding == TROPE_ROUND_NATIVE;
}

__device__ __forceinline__ int64_t position_of_pair(const cuda_plan &p, const trope_row &row, int pair)
{
    return p.plan.axes == 1 ? row.position[0] : position_of_axis(row, trope_pair_axis(&p.plan, pair));
}

/* The same of two elements of each of N pairs that are neighbours in their window; without own angles only of the first. */
template <typename T, int N> struct of_pairs {
    T first[N], second[N];
};

template <int N>
__device__ __forceinline__ void load_vectors(const cuda_plan &p, const trope_row &row, const float *table, int pair,
                                             bool own, of_pairs<float, N> *values)
{
    const trope_plan_angles &a = p.plan.angles;
    table += row.batch * a.batch_stride + row.position[0] * a.row_stride;
    if (own && p.plan.interleaved_columns) {
        float both[2 * N];
        load_run<float, 2 * N>(table + 2 * pair, both);
#pragma unroll
        for (int e = 0; e < N; e++) {
            values->first[e] = both[2 * e];
            values->second[e] = both[2 * e + 1];
        }
        return;
    }
    load_run<float, N>(table + (own ? column_of(p, pair, 0) : pair), values->first);
    if (own)
        load_run<float, N>(table + column_of(p, pair, 1), values->second);
}

template <typename REAL, int N>
__device__ __forceinline__ void load_entries(const cuda_plan &p, const trope_row &row, const void *table, int pair,
                                             bool own, of_pairs<REAL, N> *values)
{
    const trope_plan_angles &a = p.plan.angles;
#pragma unroll
    for (int e = 0; e < N; e++) {
        const int64_t entry = row.batch * a.batch_stride + position_of_pair(p, row, pair + e) * a.row_stride;
        values->first[e] = table_entry<REAL>(a.dtype, table, entry + column_of(p, pair + e, 0));
        if (own)
            values->second[e] = table_entry<REAL>(a.dtype, table, entry + column_of(p, pair + e, 1));
    }
}

/* Pairs `pair` to `pair + N - 1` of a row of a table. */
template <int ANGLES, typename REAL, int N>
__device__ __forceinline__ void load_table(const cuda_plan &p, const trope_row &row, const void *table, int pair,
                                           of_pairs<REAL, N> *values)
{
    const bool own = has_own_angles<ANGLES>(p);
    if constexpr (ANGLES != ANGLES_ANY) {
        load_vectors<N>(p, row, (const float *)table, pair, own, values);
    } else {
        if constexpr (sizeof(REAL) == sizeof(float)) {
            if (p.table_vectors) {
                load_vectors<N>(p, row, (const float *)table, pair, own, values);
                return;
            }
        }
        load_entries<REAL, N>(p, row, table, pair, own, values);
    }
}

/* ---- angles ---- */

/* The turns per position of N pairs, where a kernel is compiled for phases: loaded once, and as vectors. Neighbouring
 * threads have different pairs, for which constant memory would be asked one thread after another. Its address as ordinary
 * memory goes through the cache instead; the assembly hides from the compiler that it could do otherwise. */
template <int ANGLES, int N> struct steps_of {
    __device__ __forceinline__ steps_of(const cuda_plan &, int)
    {
    }
};

template <int N> struct steps_of<ANGLES_PHASE, N> {
    uint64_t step[N];

    __device__ __forceinline__ steps_of(const cuda_plan &p, int pair)
    {
        const uint64_t *from = p.plan.step;
        asm("" : "+l"(from));
        load_run<uint64_t, N>(from + pair, step);
    }
};

template <int N> struct steps_of<ANGLES_ANY, N> {
    const uint64_t *step;

    __device__ __forceinline__ steps_of(const cuda_plan &p, int pair) : step(p.plan.step + pair)
    {
    }
};

/* The angles of N pairs before their sine: phases (32 bits of a turn, 64 for f64), or radians. */
template <typename REAL, int N> union angles_of {
    of_pairs<std::conditional_t<sizeof(REAL) == 8, uint64_t, uint32_t>, N> phases;
    of_pairs<REAL, N> radians;
};

/* Loads them. A table's cos and sin are loaded when they are used. PLAIN: there is one axis. */
template <int ANGLES, bool PLAIN, typename REAL, int N>
__device__ __forceinline__ angles_of<REAL, N> load_angles(const cuda_plan &p, const trope_row &row, int pair,
                                                          const steps_of<ANGLES, N> &steps)
{
    const trope_plan_angles &a = p.plan.angles;
    angles_of<REAL, N> angles;
    if constexpr (ANGLES == ANGLES_FREQS || ANGLES == ANGLES_OWN_FREQS) {
        load_table<ANGLES, REAL, N>(p, row, a.freqs, pair, &angles.radians);
    } else if (has_phases<ANGLES>(p)) {
#pragma unroll
        for (int e = 0; e < N; e++) {
            const int64_t position = PLAIN ? row.position[0] : position_of_pair(p, row, pair + e);
            if constexpr (sizeof(REAL) == 8)
                angles.phases.first[e] = (uint64_t)position * steps.step[e];
            else
                angles.phases.first[e] = trope_phase(position, steps.step[e]);
        }
    } else if (a.source == TROPE_ANGLES_FREQS) {
        load_table<ANGLES, REAL, N>(p, row, a.freqs, pair, &angles.radians);
    }
    return angles;
}

template <int N>
__device__ __forceinline__ void sincos_of(bool are_phases, const uint32_t *phases, const float *radians, float *sine,
                                          float *cosine)
{
    trope_quarter_turns turns[N];
    bool large = false;
#pragma unroll
    for (int e = 0; e < N; e++) {
        turns[e] = are_phases ? trope_reduce_phase(phases[e]) : trope_reduce_angle(radians[e]);
        large = large || (!are_phases && trope_is_large_angle(radians[e]));
    }
    if (__builtin_expect(large, 0)) {
#pragma unroll
        for (int e = 0; e < N; e++)
            if (trope_is_large_angle(radians[e]))
                turns[e] = trope_reduce_phase(trope_phase_of_large_angle(radians[e]));
    }
#pragma unroll
    for (int e = 0; e < N; e++)
        trope_sincos_quarter(turns[e], &sine[e], &cosine[e]);
}

template <int N>
__device__ __forceinline__ void sincos_of(bool are_phases, const uint64_t *phases, const double *radians, double *sine,
                                          double *cosine)
{
#pragma unroll
    for (int e = 0; e < N; e++) {
        if (are_phases)
            trope_sincos_phase_double(phases[e], &sine[e], &cosine[e]);
        else
            sincos(radians[e], &sine[e], &cosine[e]);
    }
}

/* ---- coefficients ---- */

/* cos and sin as they are rotated by: scaled, and NaN where the position is out of range. */
template <int ANGLES, typename REAL, int N>
__device__ __forceinline__ void finish_coefficients(const cuda_plan &p, const trope_row &row, int pair, REAL *cosine,
                                                    REAL *sine)
{
    const trope_plan &plan = p.plan;
    if (p.scaled) {
#pragma unroll
        for (int e = 0; e < N; e++) {
            cosine[e] *= sizeof(REAL) == 8 ? (REAL)plan.cosine_scale : (REAL)p.cosine_scale;
            sine[e] *= sizeof(REAL) == 8 ? (REAL)plan.sine_scale : (REAL)p.sine_scale;
        }
    }
    if (__builtin_expect(row.poisoned, 0)) {
#pragma unroll
        for (int e = 0; e < N; e++)
            if (row.poisoned >> trope_pair_axis(&plan, pair + e) & 1)
                cosine[e] = sine[e] = (REAL)NAN;
    }
    if (is_native<ANGLES>(p)) {
#pragma unroll
        for (int e = 0; e < N; e++) {
            cosine[e] = round_native(plan, cosine[e]);
            sine[e] = round_native(plan, sine[e]);
        }
    }
}

template <int N, typename BITS> __device__ __forceinline__ bool differ(const BITS *a, const BITS *b)
{
    bool differ = false;
#pragma unroll
    for (int e = 0; e < N; e++)
        differ = differ || a[e] != b[e];
    return differ;
}

/* What N pairs are rotated by. */
template <typename REAL, int N> struct turns_of {
    REAL c1[N], s1[N], c2[N], s2[N];
};

/* Returns whether elements have angles of their own; if not, c2 and s2 are left as they are. A table with a column per
 * element usually has the same angles twice, and then half of the sines are enough. */
template <int ANGLES, typename REAL, int N>
__device__ __forceinline__ bool find_turns(const cuda_plan &p, const trope_row &row, int pair,
                                           const angles_of<REAL, N> &angles, turns_of<REAL, N> *t)
{
    const trope_plan &plan = p.plan;
    const bool phases = has_phases<ANGLES>(p);
    bool own = has_own_angles<ANGLES>(p);
    if (ANGLES == ANGLES_ANY && plan.angles.source == TROPE_ANGLES_TABLE) {
        of_pairs<REAL, N> cosines, sines;
        load_table<ANGLES, REAL, N>(p, row, plan.angles.cos, pair, &cosines);
        load_table<ANGLES, REAL, N>(p, row, plan.angles.sin, pair, &sines);
#pragma unroll
        for (int e = 0; e < N; e++) {
            t->c1[e] = cosines.first[e];
            t->s1[e] = sines.first[e];
            t->c2[e] = cosines.second[e];
            t->s2[e] = sines.second[e];
        }
    } else {
        sincos_of<N>(phases, angles.phases.first, angles.radians.first, t->s1, t->c1);
        own = own && differ<N>(angles.phases.first, angles.phases.second);
        if (own)
            sincos_of<N>(phases, angles.phases.second, angles.radians.second, t->s2, t->c2);
    }
    finish_coefficients<ANGLES, REAL, N>(p, row, pair, t->c1, t->s1);
    if (!own)
        return false;
    finish_coefficients<ANGLES, REAL, N>(p, row, pair, t->c2, t->s2);
    if (plan.swap_sines) {
#pragma unroll
        for (int e = 0; e < N; e++) {
            const REAL swap = t->s1[e];
            t->s1[e] = t->s2[e];
            t->s2[e] = swap;
        }
    }
    return true;
}

#endif
