/* What turns a row, on CUDA: the cos and sin of some of its pairs, in registers. A thread does all of it for itself: the
 * threads that share a row have the same loads, which the cache serves, and nobody waits. */
#ifndef TROPE_FWD_CUDA_ANGLES_CUH
#define TROPE_FWD_CUDA_ANGLES_CUH

#include "core/cuda/elements.cuh"
#include "varlen/cuda/sequences.cuh"
#include "core/sincos.h"

/* The plan, and what follows from it that threads should not have to work out. */
struct cuda_plan {
    float cosine_scale, sine_scale;
    int32_t scaled;        /* they are not both 1 */
    int32_t rows_once;     /* a row of angles is not needed again after much else */
    int32_t own_angles;    /* a pair's elements have an angle each */
    int32_t part_pairs;    /* of a row of angles */
    int32_t table_vectors; /* the angles of neighbouring pairs can be loaded as vectors */
    trope_plan plan;       /* what it points to on the host is not for kernels */
};

/* ---- tables ---- */

/* Rows of a table that stay in L2 and are not needed again leave less room there for what is on its way to memory. */
__device__ __forceinline__ uint64_t table_policy(const cuda_plan &p)
{
    return p.rows_once ? evict_first() : evict_normal();
}

/* COUNT values that are neighbours, by loads as wide as COUNT allows. */
template <typename REAL, int COUNT> __device__ __forceinline__ void load_run(const cuda_plan &p, const REAL *from, REAL *to)
{
    constexpr int BYTES = COUNT * (int)sizeof(REAL);
    typedef std::conditional_t<BYTES % 16 == 0, uint4, std::conditional_t<BYTES % 8 == 0, uint2, uint32_t>> chunk;
    union {
        chunk chunks[BYTES / sizeof(chunk)];
        REAL values[COUNT];
    } u;
#pragma unroll
    for (int i = 0; i < BYTES / (int)sizeof(chunk); i++)
        load_at_once((const chunk *)from + i, table_policy(p), &u.chunks[i]);
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

/* Where a row's columns begin in a table with one position axis, in elements. */
__device__ __forceinline__ int64_t offset_of_row(const cuda_plan &p, const trope_row &row)
{
    return row.batch * p.plan.angles.stride.batch + row.position[0] * p.plan.angles.stride.row;
}

/* Where the angle of a pair is, of freqs with a column per pair. */
__device__ __forceinline__ const float *address_of_freqs(const cuda_plan &p, const trope_row &row, int pair)
{
    return (const float *)p.plan.angles.freqs + offset_of_row(p, row) + pair;
}

/* How many pairs the windows before that of a pair have, which are two at most: without a division in every thread. */
__device__ __forceinline__ int pairs_before(int part_pairs, int pair)
{
    return (pair >= part_pairs ? part_pairs : 0) + (pair >= 2 * part_pairs ? part_pairs : 0);
}

/* The column of a pair's first element (0) or second one (1), as trope_first_of_pair. */
__device__ __forceinline__ int column_of(const cuda_plan &p, int pair, int which)
{
    if (!p.own_angles)
        return pair;
    if (p.plan.interleaved_columns)
        return 2 * pair + which;
    return pair + pairs_before(p.part_pairs, pair) + which * p.part_pairs;
}

/* What a kernel is compiled for: any angles, or only the usual ones in fp32 and with rounding once, of which tables can be
 * loaded as vectors and have one position axis; those of cos and sin, of any dtype and with a column per pair or per
 * element. docs/cuda-log.md has what this buys. */
enum cuda_angles { ANGLES_ANY, ANGLES_PHASE, ANGLES_FREQS, ANGLES_OWN_FREQS, ANGLES_TABLES };

template <int ANGLES> __device__ __forceinline__ bool has_own_angles(const cuda_plan &p)
{
    return ANGLES == ANGLES_ANY || ANGLES == ANGLES_TABLES ? p.own_angles : ANGLES == ANGLES_OWN_FREQS;
}

template <int ANGLES> __device__ __forceinline__ bool has_tables(const cuda_plan &p)
{
    return ANGLES == ANGLES_ANY ? p.plan.angles.source == TROPE_ANGLES_TABLE : ANGLES == ANGLES_TABLES;
}

/* Whether positions are rows of a table. (Of any angles the plan says it; they have no kernels for packed rows.) */
template <int ANGLES> constexpr bool HAS_TABLE = ANGLES != ANGLES_PHASE;

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
    table += offset_of_row(p, row);
    if (own && p.plan.interleaved_columns) {
        float both[2 * N];
        load_run<float, 2 * N>(p, table + 2 * pair, both);
#pragma unroll
        for (int e = 0; e < N; e++) {
            values->first[e] = both[2 * e];
            values->second[e] = both[2 * e + 1];
        }
        return;
    }
    const float *const first = table + (own ? column_of(p, pair, 0) : pair), *const second = table + column_of(p, pair, 1);
    load_run<float, N>(p, first, values->first);
    if (own)
        load_run<float, N>(p, second, values->second);
}

template <typename REAL, int N>
__device__ __forceinline__ void load_entries(const cuda_plan &p, const trope_row &row, const void *table, int pair,
                                             bool own, of_pairs<REAL, N> *values)
{
    const trope_plan_angles &a = p.plan.angles;
#pragma unroll
    for (int e = 0; e < N; e++) {
        const int64_t entry = row.batch * a.stride.batch + position_of_pair(p, row, pair + e) * a.stride.row;
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

/* The entries of N pairs as a table has them: those of first elements and then those of second ones, or pair by pair where
 * its columns are interleaved; of fp32, or two of 16 bits in a word. They are taken apart when they are used, so that
 * nothing waits for them before. */
template <int N> struct stored_entries {
    uint32_t words[2 * N];

    __device__ __forceinline__ void load(const cuda_plan &p, const trope_row &row, const void *table, int pair)
    {
        const trope_plan_angles &a = p.plan.angles;
        const int64_t entry = offset_of_row(p, row);
        if (a.dtype == TROPE_F32)
            load_columns(p, (const uint32_t *)table + entry, pair);
        else
            load_columns(p, (const uint16_t *)table + entry, pair);
    }

    template <typename STORED> __device__ __forceinline__ void load_columns(const cuda_plan &p, const STORED *row, int pair)
    {
        enum { WORDS = N * sizeof(STORED) / 4 };
        if (p.own_angles && p.plan.interleaved_columns) {
            load_run<uint32_t, 2 * WORDS>(p, (const uint32_t *)(row + 2 * pair), words);
            return;
        }
        load_run<uint32_t, WORDS>(p, (const uint32_t *)(row + column_of(p, pair, 0)), words);
        if (p.own_angles)
            load_run<uint32_t, WORDS>(p, (const uint32_t *)(row + column_of(p, pair, 1)), words + WORDS);
    }

    /* As floats; without own angles only those of first elements. */
    __device__ __forceinline__ void unpack(const cuda_plan &p, float *first, float *second) const
    {
        float values[2 * N];
        if (p.plan.angles.dtype == TROPE_F32) {
#pragma unroll
            for (int i = 0; i < 2 * N; i++)
                values[i] = __uint_as_float(words[i]);
        } else {
#pragma unroll
            for (int i = 0; i < 2 * N; i++) {
                const uint16_t half = (uint16_t)(i % 2 ? words[i / 2] >> 16 : words[i / 2]);
                values[i] = p.plan.angles.dtype == TROPE_BF16 ? trope_bf16_to_f32(half) : trope_f16_to_f32(half);
            }
        }
        const bool together = p.own_angles && p.plan.interleaved_columns;
#pragma unroll
        for (int e = 0; e < N; e++) {
            first[e] = together ? values[2 * e] : values[e];
            second[e] = together ? values[2 * e + 1] : values[N + e];
        }
    }
};

/* ---- angles ---- */

/* Pairs that kernels for the usual angles have room for, as parameters: every kilobyte of them costs the host. */
#define USUAL_PAIRS 128

/* The plan's steps, as a parameter: where they begin in the middle of 64 bytes, small calls take 0.13 us longer. */
template <int ANGLES> struct alignas(64) cuda_steps {
    uint64_t of[ANGLES == ANGLES_ANY ? TROPE_MAX_PAIRS : ANGLES == ANGLES_PHASE ? USUAL_PAIRS : 1];
};

/* The turns per position of N pairs. They are kernel parameters: at hand before anything that comes through the cache, but
 * threads that ask for different ones are served one after another, so it is done once, or by a block for all its warps. */
template <int ANGLES, int N> struct steps_of {
    steps_of() = default;
    __device__ __forceinline__ steps_of(const uint64_t *, int)
    {
    }
};

template <int N> struct steps_of<ANGLES_PHASE, N> {
    uint64_t step[N];

    steps_of() = default;
    __device__ __forceinline__ steps_of(const uint64_t *steps, int pair)
    {
#pragma unroll
        for (int e = 0; e < N; e++) {
            step[e] = found_here(steps[pair + e]); /* or the compiler would load them again in every row */
        }
    }
};

template <int N> struct steps_of<ANGLES_ANY, N> {
    const uint64_t *step;

    steps_of() = default;
    __device__ __forceinline__ steps_of(const uint64_t *steps, int pair) : step(steps + pair)
    {
    }
};

/* The angles of N pairs before their sine: phases (32 bits of a turn, 64 for f64), or radians; or a table's cos and sin. */
template <typename REAL, int N> union angles_of {
    of_pairs<std::conditional_t<sizeof(REAL) == 8, uint64_t, uint32_t>, N> phases;
    of_pairs<REAL, N> radians;
    struct {
        stored_entries<N> cos, sin;
    } tables;
};

/* Loads them; of any angles, a table's cos and sin when they are used. USUAL_ROWS: positions have one axis and are below
 * 2^32. */
template <int ANGLES, bool USUAL_ROWS, typename REAL, int N>
__device__ __forceinline__ angles_of<REAL, N> load_angles(const cuda_plan &p, const trope_row &row, int pair,
                                                          const steps_of<ANGLES, N> &steps)
{
    const trope_plan_angles &a = p.plan.angles;
    angles_of<REAL, N> angles;
    if constexpr (ANGLES == ANGLES_FREQS || ANGLES == ANGLES_OWN_FREQS) {
        load_table<ANGLES, REAL, N>(p, row, a.freqs, pair, &angles.radians);
    } else if constexpr (ANGLES == ANGLES_TABLES) {
        angles.tables.cos.load(p, row, a.cos, pair);
        angles.tables.sin.load(p, row, a.sin, pair);
    } else if (has_phases<ANGLES>(p)) {
#pragma unroll
        for (int e = 0; e < N; e++) {
            const int64_t position = USUAL_ROWS ? row.position[0] : position_of_pair(p, row, pair + e);
            if constexpr (sizeof(REAL) == 8)
                angles.phases.first[e] = (uint64_t)position * steps.step[e];
            else if constexpr (USUAL_ROWS)
                angles.phases.first[e] = trope_phase_near((uint32_t)position, steps.step[e]);
            else
                angles.phases.first[e] = trope_phase(position, steps.step[e]);
        }
    } else if (a.source == TROPE_ANGLES_FREQS) {
        load_table<ANGLES, REAL, N>(p, row, a.freqs, pair, &angles.radians);
    }
    return angles;
}

/* Not inline: it is rarely needed, and there would be one for each pair. */
static __device__ __noinline__ trope_quarter_turns reduce_large_angle(float angle)
{
    return trope_reduce_phase(trope_phase_of_large_angle(angle));
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
                turns[e] = reduce_large_angle(radians[e]);
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

/* Whether the position of a pair is out of range. The usual tables have one axis, and so have USUAL_ROWS. */
template <int ANGLES, bool USUAL_ROWS>
__device__ __forceinline__ bool is_poisoned(const cuda_plan &p, const trope_row &row, int pair)
{
    constexpr bool ONE_AXIS = USUAL_ROWS || (ANGLES != ANGLES_ANY && ANGLES != ANGLES_PHASE);
    return row.poisoned >> (ONE_AXIS ? 0 : trope_pair_axis(&p.plan, pair)) & 1;
}

/* cos and sin as they are rotated by: scaled, and NaN where the position is out of range. */
template <int ANGLES, bool USUAL_ROWS, typename REAL, int N>
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
            if (is_poisoned<ANGLES, USUAL_ROWS>(p, row, pair + e))
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

/* What N pairs are rotated by. */
template <typename REAL, int N> struct turns_of {
    REAL c1[N], s1[N], c2[N], s2[N];
};

/* Whether the elements of a pair may have an angle each. If not, c2 and s2 of turns_of are not set, and c1 and s1 hold for
 * both. */
template <int ANGLES> constexpr bool MAY_OWN_ANGLES = !(ANGLES == ANGLES_PHASE || ANGLES == ANGLES_FREQS);

template <int N, typename BITS> __device__ __forceinline__ bool differ(const BITS *a, const BITS *b)
{
    bool differ = false;
#pragma unroll
    for (int e = 0; e < N; e++)
        differ = differ || a[e] != b[e];
    return differ;
}

template <int N> __device__ __forceinline__ bool differ(const float *a, const float *b)
{
    bool differ = false; /* in any bit */
#pragma unroll
    for (int e = 0; e < N; e++)
        differ = differ || __float_as_uint(a[e]) != __float_as_uint(b[e]);
    return differ;
}

/* Whether the elements of any pair have different angles; of a table, entries, which are in t. A table with a column per
 * element usually has the same ones twice. (Of any angles, a table's cos and sin are not compared.) */
template <int ANGLES, typename REAL, int N>
__device__ __forceinline__ bool have_different_angles(const cuda_plan &p, const angles_of<REAL, N> &angles,
                                                      const turns_of<REAL, N> &t)
{
    if (!has_own_angles<ANGLES>(p))
        return false;
    if constexpr (ANGLES == ANGLES_TABLES)
        return differ<N>(t.c1, t.c2) || differ<N>(t.s1, t.s2);
    return has_tables<ANGLES>(p) || differ<N>(angles.phases.first, angles.phases.second);
}

/* cos and sin of the angles of first elements; a table's also those of second ones. */
template <int ANGLES, typename REAL, int N>
__device__ __forceinline__ void find_sines(const cuda_plan &p, const trope_row &row, int pair,
                                           const angles_of<REAL, N> &angles, turns_of<REAL, N> *t)
{
    if constexpr (ANGLES == ANGLES_TABLES) {
        angles.tables.cos.unpack(p, t->c1, t->c2);
        angles.tables.sin.unpack(p, t->s1, t->s2);
    } else if (has_tables<ANGLES>(p)) {
        of_pairs<REAL, N> cosines, sines;
        load_table<ANGLES, REAL, N>(p, row, p.plan.angles.cos, pair, &cosines);
        load_table<ANGLES, REAL, N>(p, row, p.plan.angles.sin, pair, &sines);
#pragma unroll
        for (int e = 0; e < N; e++) {
            t->c1[e] = cosines.first[e];
            t->s1[e] = sines.first[e];
            t->c2[e] = cosines.second[e];
            t->s2[e] = sines.second[e];
        }
    } else {
        sincos_of<N>(has_phases<ANGLES>(p), angles.phases.first, angles.radians.first, t->s1, t->c1);
    }
}

/* The second elements' coefficients. Where the angles of all pairs are the same, half of the sines are enough. */
template <int ANGLES, bool USUAL_ROWS, typename REAL, int N>
__device__ __forceinline__ void find_second_turns(const cuda_plan &p, const trope_row &row, int pair,
                                                  const angles_of<REAL, N> &angles, bool own, turns_of<REAL, N> *t)
{
    if (own) {
        if (!has_tables<ANGLES>(p))
            sincos_of<N>(has_phases<ANGLES>(p), angles.phases.second, angles.radians.second, t->s2, t->c2);
        finish_coefficients<ANGLES, USUAL_ROWS, REAL, N>(p, row, pair, t->c2, t->s2);
    }
#pragma unroll
    for (int e = 0; e < N; e++) {
        t->c2[e] = own ? t->c2[e] : t->c1[e];
        t->s2[e] = own ? t->s2[e] : t->s1[e];
    }
    if (own && p.plan.swap_sines) {
#pragma unroll
        for (int e = 0; e < N; e++) {
            const REAL swap = t->s1[e];
            t->s1[e] = t->s2[e];
            t->s2[e] = swap;
        }
    }
}

/* Returns whether the elements of a pair have different ones. */
template <int ANGLES, bool USUAL_ROWS, typename REAL, int N>
__device__ __forceinline__ bool find_turns(const cuda_plan &p, const trope_row &row, int pair,
                                           const angles_of<REAL, N> &angles, turns_of<REAL, N> *t)
{
    find_sines<ANGLES>(p, row, pair, angles, t);
    const bool own = have_different_angles<ANGLES>(p, angles, *t);
    finish_coefficients<ANGLES, USUAL_ROWS, REAL, N>(p, row, pair, t->c1, t->s1);
    if constexpr (MAY_OWN_ANGLES<ANGLES>)
        find_second_turns<ANGLES, USUAL_ROWS>(p, row, pair, angles, own, t);
    return own;
}

#endif
