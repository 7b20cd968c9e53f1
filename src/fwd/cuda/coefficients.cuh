/* The coefficients of one pair of a token: the cos and sin of its angle. */
#ifndef TROPE_FWD_CUDA_COEFFICIENTS_CUH
#define TROPE_FWD_CUDA_COEFFICIENTS_CUH

#include "core/cuda/elements.cuh"
#include "core/sincos.h"
#include "varlen/cuda/tokens.cuh"

/* The source of angles that a kernel is compiled for: inverse frequencies (or phase steps), tables (freqs, or cos and
 * sin), or both. */
enum angle_kind { ANGLES_PHASE, ANGLES_TABLE, ANGLES_GENERIC };

/* Positions that are computed from tokens, for every context parallel rank. The tokens are two runs, with a gap between
 * their positions. */
struct token_positions {
    uint32_t step, first, second_run, gap;

    __device__ __forceinline__ uint32_t of(uint32_t token) const
    {
        const uint32_t position = token * step + first;
        return token < second_run ? position : position + gap;
    }
};

/* The plan, and values derived from it, so that threads need not compute them. */
struct cuda_plan {
    float cosine_scale, sine_scale;
    int32_t part_pairs; /* pairs in each part of the angles */
    int32_t entry_bytes;
    const char *table[2]; /* freqs twice, or cos and sin */
    uint32_t axis_bits;   /* see block_tokens */
    int32_t axis_mask;    /* the plane of a pair, masked with this, is its axis in block_tokens */
    int32_t of_padding;   /* the action for padding, TROPE_TOKEN_... */
    index_source source;  /* of the ids or start positions that are read */
    int32_t from_tokens;  /* positions are computed from the tokens, by this struct: */
    token_positions positions;
    int32_t has_fast_freqs; /* fp32 freqs, a column for each pair, an even number of pairs, one plane for all axes */
    trope_plan plan;        /* kernels must not follow its pointers to host memory */
};

template <int ANGLES> __device__ __forceinline__ bool has_phases(const trope_plan &plan)
{
    return ANGLES == ANGLES_GENERIC ? plan.angles.source == TROPE_ANGLES_PHASE : ANGLES == ANGLES_PHASE;
}

/* Returns the part of a pair. There are at most TROPE_MAX_AXES parts, so comparisons replace the division. */
__device__ __forceinline__ int32_t part_of_pair(int32_t part_pairs, int32_t pair)
{
    static_assert(TROPE_MAX_AXES == 4, "part_of_pair");
    return (pair >= part_pairs) + (pair >= 2 * part_pairs) + (pair >= 3 * part_pairs);
}

/* ---- tables ---- */

/* An entry of a table as it is in memory. It is converted later, because a conversion waits for the load. */
struct raw_entry {
    uint32_t low, high; /* high is used for f64 only */

    template <int DTYPE> __device__ __forceinline__ void load(const char *from, int32_t bytes)
    {
        if (DTYPE == TROPE_F64 && bytes == 8)
            load_4_or_8(from, true, &low, &high);
        else
            load_4_or_2(from, bytes == 2, &low);
    }

    __device__ __forceinline__ bool differs(const raw_entry &other, int32_t dtype) const
    {
        return low != other.low || (dtype == TROPE_F64 && high != other.high);
    }

    /* (A call has f64 tables only if its operands are f64.) */
    template <int DTYPE> __device__ __forceinline__ typename elements<DTYPE>::real value(int32_t dtype) const
    {
        if constexpr (DTYPE == TROPE_F64) {
            if (dtype == TROPE_F64)
                return __longlong_as_double((long long)((uint64_t)high << 32 | low));
        }
        return dtype == TROPE_F32    ? trope_float_from_bits(low)
               : dtype == TROPE_BF16 ? trope_bf16_to_f32((uint16_t)low)
                                     : trope_f16_to_f32((uint16_t)low);
    }
};

/* Returns the column of a pair's first element (0) or second one (1). FAST: a pair has one column. */
template <bool FAST> __device__ __forceinline__ int32_t column_of_pair(const cuda_plan &p, int32_t pair, int which)
{
    return FAST || !p.plan.angles.per_element ? pair
           : p.plan.interleaved_columns       ? 2 * pair + which
                                              : pair + (part_of_pair(p.part_pairs, pair) + which) * p.part_pairs;
}

/* The table entries of an element: an angle, or a cosine and a sine. */
struct raw_couple {
    raw_entry cosine, sine;

    /* (It loads both entries even if they are the same. Without a branch, no load waits for another.) */
    template <int DTYPE> __device__ __forceinline__ void load(const cuda_plan &p, int64_t at)
    {
        cosine.load<DTYPE>(p.table[0] + at, p.entry_bytes);
        sine.load<DTYPE>(p.table[1] + at, p.entry_bytes);
    }

    __device__ __forceinline__ void await_all(uint32_t *condition)
    {
        await(cosine.low, condition);
        await(sine.low, condition);
    }

    __device__ __forceinline__ void settle_all()
    {
        settle(&cosine.low);
        settle(&sine.low);
    }

    __device__ __forceinline__ bool differs(const raw_couple &other, int32_t dtype) const
    {
        return cosine.differs(other.cosine, dtype) || sine.differs(other.sine, dtype);
    }
};

/* ---- sine and cosine ---- */

/* Not inline, because it is rarely needed. */
static __device__ __noinline__ trope_quarter_turns reduce_large_angle(float angle)
{
    return trope_reduce_phase(trope_phase_of_large_angle(angle));
}

/* Computes the sine and cosine of COUNT angles. The first branch comes after all angles have been read, so the thread
 * waits for all angles together. */
template <int COUNT> __device__ __forceinline__ void sincos_of_angles(const float *angle, float *sine, float *cosine)
{
    trope_quarter_turns turns[COUNT];
    bool any_is_large = false;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        turns[i] = trope_reduce_angle(angle[i]);
        any_is_large = any_is_large || trope_is_large_angle(angle[i]);
    }
    if (__builtin_expect(any_is_large, 0)) {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            if (trope_is_large_angle(angle[i]))
                turns[i] = reduce_large_angle(angle[i]);
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        trope_sincos_quarter(turns[i], &sine[i], &cosine[i]);
}

template <int COUNT> __device__ __forceinline__ void sincos_of_angles(const double *angle, double *sine, double *cosine)
{
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        sincos(angle[i], &sine[i], &cosine[i]);
}

__device__ __forceinline__ void sincos_of_phase(int64_t position, uint64_t step, float *sine, float *cosine)
{
    trope_sincos_quarter(trope_reduce_phase(trope_phase(position, step)), sine, cosine);
}

__device__ __forceinline__ void sincos_of_phase(int64_t position, uint64_t step, double *sine, double *cosine)
{
    trope_sincos_phase_double((uint64_t)position * step, sine, cosine);
}

/* ---- coefficients ---- */

/* The cos and sin of one element. */
template <int DTYPE> struct couple {
    typename elements<DTYPE>::real cosine, sine;

    /* Scales and rounds the coefficients. FAST: the call rounds once. */
    template <bool FAST> __device__ __forceinline__ void finish(const cuda_plan &p, bool is_nan)
    {
        typedef typename elements<DTYPE>::real real;
        if constexpr (DTYPE == TROPE_F64) {
            cosine *= p.plan.cosine_scale;
            sine *= p.plan.sine_scale;
        } else {
            cosine = trope_mul(cosine, p.cosine_scale);
            sine = trope_mul(sine, p.sine_scale);
        }
        if (is_nan)
            cosine = sine = (real)NAN;
        if (!FAST && p.plan.rounding == TROPE_ROUND_NATIVE)
            round();
    }

    __device__ __forceinline__ void round()
    {
        cosine = round_to<DTYPE>(cosine);
        sine = round_to<DTYPE>(sine);
    }
};

template <int DTYPE>
__device__ __forceinline__ couple<DTYPE> couple_of_entries(const trope_plan_angles &a, const raw_couple &raw)
{
    const typename elements<DTYPE>::real angle = raw.cosine.value<DTYPE>(a.dtype);
    couple<DTYPE> c = {angle, 0};
    if (a.source == TROPE_ANGLES_FREQS)
        sincos_of_angles<1>(&angle, &c.sine, &c.cosine);
    else
        c.sine = raw.sine.value<DTYPE>(a.dtype);
    return c;
}

#endif
