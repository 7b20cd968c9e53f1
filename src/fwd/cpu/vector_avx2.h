/* The operations that vector_rotate.h needs, for AVX2 with FMA and F16C. */
#ifndef TROPE_FWD_CPU_VECTOR_AVX2_H
#define TROPE_FWD_CPU_VECTOR_AVX2_H

#include <immintrin.h>

#include "core/scalar.h"

#define VECTOR_WIDTH 8
typedef __m256 vector;

static inline vector vector_load_f32(const float *p)
{
    return _mm256_loadu_ps(p);
}

static inline vector vector_set(float x)
{
    return _mm256_set1_ps(x);
}

static inline vector vector_add(vector a, vector b)
{
    return _mm256_add_ps(a, b);
}

static inline vector vector_mul(vector a, vector b)
{
    return _mm256_mul_ps(a, b);
}

static inline vector vector_fma(vector a, vector b, vector c)
{
    return _mm256_fmadd_ps(a, b, c);
}

static inline vector vector_canonical(vector x)
{
    return _mm256_blendv_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32((int)TROPE_NAN_F32)),
                            _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

/* Returns rounded bf16 values in the upper half of each 32-bit element. The lower half has arbitrary bits. */
static inline __m256i vector_round_bf16(vector x)
{
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    return _mm256_castps_si256(
        _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(_mm256_set1_epi32((int)TROPE_NAN_F32)), nan));
}

static inline vector vector_load(int dtype, const char *p)
{
    if (dtype == TROPE_F32)
        return _mm256_loadu_ps((const float *)p);
    const __m128i halves = _mm_loadu_si128((const __m128i *)p);
    if (dtype == TROPE_F16)
        return _mm256_cvtph_ps(halves);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

static inline void vector_store(int dtype, char *p, vector x)
{
    if (dtype == TROPE_F32) {
        _mm256_storeu_ps((float *)p, vector_canonical(x));
    } else if (dtype == TROPE_F16) {
        _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(vector_canonical(x), _MM_FROUND_TO_NEAREST_INT));
    } else {
        const __m256i words = _mm256_srli_epi32(vector_round_bf16(x), 16);
        _mm_storeu_si128((__m128i *)p, _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
    }
}

/* Returns the even and the odd elements of two consecutive vectors. */
static inline void vector_deinterleave(vector low, vector high, vector *even, vector *odd)
{
    const __m256 first = _mm256_shuffle_ps(low, high, 0x88), second = _mm256_shuffle_ps(low, high, 0xdd);
    *even = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(first), 0xd8));
    *odd = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(second), 0xd8));
}

static inline void vector_interleave(vector even, vector odd, vector *low, vector *high)
{
    const __m256 first = _mm256_unpacklo_ps(even, odd), second = _mm256_unpackhi_ps(even, odd);
    *low = _mm256_permute2f128_ps(first, second, 0x20);
    *high = _mm256_permute2f128_ps(first, second, 0x31);
}

/* Splits pairs of neighbouring bf16, which are read as 32-bit words. */
static inline void vector_split_bf16(const char *p, vector *even, vector *odd)
{
    const __m256i words = _mm256_loadu_si256((const __m256i *)p);
    *even = _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
    *odd = _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32((int)0xffff0000u)));
}

static inline void vector_join_bf16(char *p, vector even, vector odd)
{
    const __m256i low = _mm256_srli_epi32(vector_round_bf16(even), 16);
    const __m256i high = _mm256_and_si256(vector_round_bf16(odd), _mm256_set1_epi32((int)0xffff0000u));
    _mm256_storeu_si256((__m256i *)p, _mm256_or_si256(low, high));
}

#endif
