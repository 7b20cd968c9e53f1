/* The operations that vector_rotate.h needs, for AVX-512 (F, BW, DQ, VL). */
#ifndef TROPE_FWD_CPU_VECTOR_AVX512_H
#define TROPE_FWD_CPU_VECTOR_AVX512_H

#include <immintrin.h>

#include "core/scalar.h"

#define VECTOR_WIDTH 16
typedef __m512 vector;

static inline vector vector_load_f32(const float *p)
{
    return _mm512_loadu_ps(p);
}

static inline vector vector_set(float x)
{
    return _mm512_set1_ps(x);
}

static inline vector vector_add(vector a, vector b)
{
    return _mm512_add_ps(a, b);
}

static inline vector vector_mul(vector a, vector b)
{
    return _mm512_mul_ps(a, b);
}

static inline vector vector_fma(vector a, vector b, vector c)
{
    return _mm512_fmadd_ps(a, b, c);
}

static inline vector vector_canonical(vector x)
{
    return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q),
                              _mm512_castsi512_ps(_mm512_set1_epi32((int)TROPE_NAN_F32)));
}

/* Returns rounded bf16 values in the upper half of each 32-bit element. The lower half has arbitrary bits. */
static inline __m512i vector_round_bf16(vector x)
{
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    return _mm512_mask_add_epi32(_mm512_set1_epi32((int)TROPE_NAN_F32), _mm512_cmp_ps_mask(x, x, _CMP_ORD_Q),
                                 _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
}

static inline vector vector_load(int dtype, const char *p)
{
    if (dtype == TROPE_F32)
        return _mm512_loadu_ps((const float *)p);
    const __m256i halves = _mm256_loadu_si256((const __m256i *)p);
    if (dtype == TROPE_F16)
        return _mm512_cvtph_ps(halves);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

static inline void vector_store(int dtype, char *p, vector x)
{
    if (dtype == TROPE_F32)
        _mm512_storeu_ps((float *)p, vector_canonical(x));
    else if (dtype == TROPE_F16)
        _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(vector_canonical(x), _MM_FROUND_TO_NEAREST_INT));
    else
        _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(vector_round_bf16(x), 16)));
}

/* Returns the even and the odd elements of two consecutive vectors. */
static inline void vector_deinterleave(vector low, vector high, vector *even, vector *odd)
{
    const __m512i first = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    *even = _mm512_permutex2var_ps(low, first, high);
    *odd = _mm512_permutex2var_ps(low, _mm512_add_epi32(first, _mm512_set1_epi32(1)), high);
}

static inline void vector_interleave(vector even, vector odd, vector *low, vector *high)
{
    const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    *low = _mm512_permutex2var_ps(even, first, odd);
    *high = _mm512_permutex2var_ps(even, _mm512_add_epi32(first, _mm512_set1_epi32(8)), odd);
}

/* Splits pairs of neighbouring bf16, which are read as 32-bit words. */
static inline void vector_split_bf16(const char *p, vector *even, vector *odd)
{
    const __m512i words = _mm512_loadu_si512(p);
    *even = _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
    *odd = _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32((int)0xffff0000u)));
}

static inline void vector_join_bf16(char *p, vector even, vector odd)
{
    const __m512i low = _mm512_srli_epi32(vector_round_bf16(even), 16);
    const __m512i high = _mm512_and_si512(vector_round_bf16(odd), _mm512_set1_epi32((int)0xffff0000u));
    _mm512_storeu_si512(p, _mm512_or_si512(low, high));
}

#endif
