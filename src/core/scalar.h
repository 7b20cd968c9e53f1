/* Scalars: the fp32 operations whose rounding is part of the contract, and the conversions of f16 and bf16. They give the
 * same bits in C, with or without hardware FMA and F16C, and in CUDA. They have no branches and no calls, so loops over
 * them vectorize. */
#ifndef TROPE_CORE_SCALAR_H
#define TROPE_CORE_SCALAR_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "core/host_device.h"

TROPE_HD uint32_t trope_float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

TROPE_HD float trope_float_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

#if !defined(__CUDA_ARCH__) && !defined(__FP_FAST_FMAF)
/* fmaf without the instruction. a * b is exact in double. The sum is rounded to odd in double, where the last bit records
 * that bits were lost. So the conversion to float is the only rounding that counts. S. Boldo and G. Melquiond, "Emulation
 * of FMA and correctly rounded sums: proved algorithms using rounding to odd", IEEE Trans. Computers 57(4), 2008. */
TROPE_HD float trope_fma_by_rounding_to_odd(float a, float b, float c)
{
    const double product = (double)a * (double)b, addend = c;
    const double sum = product + addend;
    const double part = sum - product;
    const double lost = (product - (sum - part)) + (addend - part); /* exact: Knuth's TwoSum */
    int64_t bits, lost_bits;
    memcpy(&bits, &sum, sizeof bits);
    memcpy(&lost_bits, &lost, sizeof lost_bits);
    /* If bits were lost and the last bit is even, the odd neighbour towards the exact sum is one step up or down. An
     * infinite or NaN sum makes `lost` NaN, and comparisons with NaN are false. */
    const int64_t step = (lost_bits ^ bits) < 0 ? -1 : 1;
    const int64_t inexact_and_even = (lost > 0.0 || lost < 0.0) ? (~bits & 1) : 0;
    bits += step * inexact_and_even;
    double odd;
    memcpy(&odd, &bits, sizeof odd);
    return (float)odd;
}
#endif

TROPE_HD float trope_fma(float a, float b, float c)
{
#if defined(__CUDA_ARCH__)
    return __fmaf_rn(a, b, c);
#elif defined(__FP_FAST_FMAF)
    return __builtin_fmaf(a, b, c);
#else
    return trope_fma_by_rounding_to_odd(a, b, c);
#endif
}

/* gcc 12 combines a product and the sums around it into vfmaddsub, even with -ffp-contract=off (gcc bug 106902). */
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__) && __GNUC__ >= 12
#define TROPE_UNCONTRACTED(product) __builtin_assoc_barrier(product)
#else
#define TROPE_UNCONTRACTED(product) (product)
#endif

/* A product and a sum that compilers cannot contract. */
TROPE_HD float trope_mul(float a, float b)
{
#if defined(__CUDA_ARCH__)
    return __fmul_rn(a, b);
#else
    return TROPE_UNCONTRACTED(a * b);
#endif
}

TROPE_HD float trope_add(float a, float b)
{
#if defined(__CUDA_ARCH__)
    return __fadd_rn(a, b);
#else
    return a + b;
#endif
}

TROPE_HD double trope_fma_double(double a, double b, double c)
{
    return fma(a, b, c);
}

TROPE_HD double trope_mul_double(double a, double b)
{
#if defined(__CUDA_ARCH__)
    return __dmul_rn(a, b);
#else
    return TROPE_UNCONTRACTED(a * b);
#endif
}

TROPE_HD double trope_add_double(double a, double b)
{
#if defined(__CUDA_ARCH__)
    return __dadd_rn(a, b);
#else
    return a + b;
#endif
}

/* A NaN that arithmetic produced has these bits in every dtype: all ones, except for the sign. The arithmetic and the
 * conversions of NVIDIA GPUs produce these bits themselves, so only CPUs need code for it. */
#define TROPE_NAN_F32 0x7fffffffu
#define TROPE_NAN_16  0x7fffu /* f16 and bf16 */

TROPE_HD float trope_canonical(float x)
{
#if defined(__CUDA_ARCH__)
    return x;
#else
    return trope_float_from_bits(x != x ? TROPE_NAN_F32 : trope_float_bits(x));
#endif
}

TROPE_HD float trope_bf16_to_f32(uint16_t h)
{
    return trope_float_from_bits((uint32_t)h << 16);
}

/* Rounds to nearest, ties to even. */
TROPE_HD uint16_t trope_f32_to_bf16(float x)
{
#ifdef __CUDA_ARCH__
    uint16_t h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
#else
    const uint32_t bits = trope_float_bits(x);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? TROPE_NAN_16 : rounded);
#endif
}

TROPE_HD float trope_f16_to_f32(uint16_t h)
{
#ifdef __CUDA_ARCH__
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
    return x;
#else
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, magnitude = (uint32_t)(h & 0x7fffu) << 13;
    /* Multiplying by 2^112 changes the exponent's bias from 15 to 127, and normalizes values that are subnormal in f16. */
    const float scaled = trope_mul(trope_float_from_bits(magnitude), 0x1p112f);
    const uint32_t finite = trope_float_bits(scaled), special = magnitude | 0x7f800000u;
    return trope_float_from_bits(sign | (magnitude >= 0x0f800000u ? special : finite));
#endif
}

/* Rounds to nearest, ties to even. */
TROPE_HD uint16_t trope_f32_to_f16(float x)
{
#ifdef __CUDA_ARCH__
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
#else
    const uint32_t bits = trope_float_bits(x), magnitude = bits & 0x7fffffffu;
    const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    /* Below 2^-14, the last bit of f16 is worth 2^-24. Adding 1/2 rounds at that bit, and the low bits of the sum hold the
     * result. */
    const uint32_t subnormal = trope_float_bits(trope_add(trope_float_from_bits(magnitude), 0.5f)) - 0x3f000000u;
    uint32_t h = magnitude < 0x38800000u ? subnormal : normal;
    h = magnitude >= 0x477ff000u ? 0x7c00u : h; /* from 65520 on */
    h |= (bits >> 16) & 0x8000u;
    return (uint16_t)(magnitude > 0x7f800000u ? TROPE_NAN_16 : h);
#endif
}

#endif
