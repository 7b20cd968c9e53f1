/* Copies and conversions of contiguous elements that use instructions of the current instruction set: stores that bypass
 * the caches, and f16. The compiler vectorizes everything else by itself. */
#ifndef TROPE_FWD_CPU_VECTOR_MEMORY_H
#define TROPE_FWD_CPU_VECTOR_MEMORY_H

#include <stdint.h>
#include <string.h>

#include "core/scalar.h"

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(ISA_NEON)
#include <arm_neon.h>
#endif

/* Copies some tens or hundreds of bytes without a call. The memory must not overlap. */
static inline void trope_copy_short(char *to, const char *from, size_t bytes)
{
    enum { STEP = 32 };
    if (bytes < STEP) {
        if (bytes)
            memcpy(to, from, bytes);
        return;
    }
    for (size_t i = 0; i + STEP <= bytes; i += STEP)
        memcpy(to + i, from + i, STEP);
    memcpy(to + bytes - STEP, from + bytes - STEP, STEP); /* the rest, which overlaps bytes that are already copied */
}

/* Copies to memory that will not be read again soon. Call trope_stream_fence after the last copy. */
static inline void trope_stream_copy(void *to, const void *from, size_t bytes)
{
#if defined(__SSE2__)
    char *out = to;
    const char *in = from;
    size_t head = -(uintptr_t)out & 63;
    head = head < bytes ? head : bytes;
    if (head)
        memcpy(out, in, head);
    for (out += head, in += head, bytes -= head; bytes >= 64; out += 64, in += 64, bytes -= 64) {
#if defined(__AVX512F__)
        _mm512_stream_si512((void *)out, _mm512_loadu_si512(in));
#elif defined(__AVX__)
        for (int i = 0; i < 64; i += 32)
            _mm256_stream_si256((__m256i *)(out + i), _mm256_loadu_si256((const __m256i *)(in + i)));
#else
        for (int i = 0; i < 64; i += 16)
            _mm_stream_si128((__m128i *)(out + i), _mm_loadu_si128((const __m128i *)(in + i)));
#endif
    }
    if (bytes)
        memcpy(out, in, bytes);
#else
    memcpy(to, from, bytes);
#endif
}

static inline void trope_stream_fence(void)
{
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

static inline void trope_load_f16(float *restrict to, const uint16_t *restrict from, int count)
{
    int i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= count; i += 16)
        _mm512_storeu_ps(to + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(from + i))));
#endif
#if defined(__F16C__)
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + i))));
#elif defined(ISA_NEON)
    for (; i + 4 <= count; i += 4)
        vst1q_f32(to + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from + i))));
#endif
    for (; i < count; i++)
        to[i] = trope_f16_to_f32(from[i]);
}

/* The NaNs in `from` must be canonical. Hardware keeps the top bits of their payload, which gives TROPE_NAN_16. */
static inline void trope_store_f16(uint16_t *restrict to, const float *restrict from, int count)
{
    int i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= count; i += 16)
        _mm256_storeu_si256((__m256i *)(to + i), _mm512_cvtps_ph(_mm512_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
#endif
#if defined(__F16C__)
    for (; i + 8 <= count; i += 8)
        _mm_storeu_si128((__m128i *)(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
#elif defined(ISA_NEON)
    for (; i + 4 <= count; i += 4)
        vst1_u16(to + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(from + i))));
#endif
    for (; i < count; i++)
        to[i] = trope_f32_to_f16(from[i]);
}

#endif
