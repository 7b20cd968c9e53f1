/* The operations that vector_rotate.h needs, for NEON, which every aarch64 processor has. */
#ifndef TROPE_FWD_CPU_VECTOR_NEON_H
#define TROPE_FWD_CPU_VECTOR_NEON_H

#include <arm_neon.h>

#include "core/scalar.h"

#define VECTOR_WIDTH 4
typedef float32x4_t vector;

static inline vector vector_load_f32(const float *p)
{
    return vld1q_f32(p);
}

static inline vector vector_set(float x)
{
    return vdupq_n_f32(x);
}

static inline vector vector_add(vector a, vector b)
{
    return vaddq_f32(a, b);
}

static inline vector vector_mul(vector a, vector b)
{
    return vmulq_f32(a, b);
}

static inline vector vector_fma(vector a, vector b, vector c)
{
    return vfmaq_f32(c, a, b);
}

static inline vector vector_canonical(vector x)
{
    return vbslq_f32(vceqq_f32(x, x), x, vreinterpretq_f32_u32(vdupq_n_u32(TROPE_NAN_F32)));
}

/* Returns rounded bf16 values in the upper half of each element. The lower half has arbitrary bits. */
static inline uint32x4_t vector_round_bf16(vector x)
{
    const uint32x4_t bits = vreinterpretq_u32_f32(x);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
    return vbslq_u32(vceqq_f32(x, x), rounded, vdupq_n_u32(TROPE_NAN_F32));
}

/* Loads and stores go through bytes, because p may be unaligned. */
static inline vector vector_load(int dtype, const char *p)
{
    const uint8_t *bytes = (const uint8_t *)p;
    if (dtype == TROPE_F32)
        return vreinterpretq_f32_u8(vld1q_u8(bytes));
    if (dtype == TROPE_F16)
        return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(bytes)));
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(bytes)), 16));
}

static inline void vector_store(int dtype, char *p, vector x)
{
    uint8_t *bytes = (uint8_t *)p;
    if (dtype == TROPE_F32)
        vst1q_u8(bytes, vreinterpretq_u8_f32(vector_canonical(x)));
    else if (dtype == TROPE_F16)
        vst1_u8(bytes, vreinterpret_u8_f16(vcvt_f16_f32(vector_canonical(x))));
    else
        vst1_u8(bytes, vreinterpret_u8_u16(vshrn_n_u32(vector_round_bf16(x), 16)));
}

/* Returns the even and the odd elements of two consecutive vectors. */
static inline void vector_deinterleave(vector low, vector high, vector *even, vector *odd)
{
    *even = vuzp1q_f32(low, high);
    *odd = vuzp2q_f32(low, high);
}

static inline void vector_interleave(vector even, vector odd, vector *low, vector *high)
{
    *low = vzip1q_f32(even, odd);
    *high = vzip2q_f32(even, odd);
}

/* Splits pairs of neighbouring bf16, which are read as 32-bit words. */
static inline void vector_split_bf16(const char *p, vector *even, vector *odd)
{
    const uint32x4_t words = vreinterpretq_u32_u8(vld1q_u8((const uint8_t *)p));
    *even = vreinterpretq_f32_u32(vshlq_n_u32(words, 16));
    *odd = vreinterpretq_f32_u32(vandq_u32(words, vdupq_n_u32(0xffff0000u)));
}

static inline void vector_join_bf16(char *p, vector even, vector odd)
{
    /* The upper half of each element of `even` replaces the lower half of the same element of `odd`. */
    const uint32x4_t words = vsriq_n_u32(vector_round_bf16(odd), vector_round_bf16(even), 16);
    vst1q_u8((uint8_t *)p, vreinterpretq_u8_u32(words));
}

#endif
