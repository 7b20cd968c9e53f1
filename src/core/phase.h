/* The exact phase. An angle is a fixed-point fraction of a turn, in units of 2^-64 turn, so the overflow of an unsigned
 * integer reduces it modulo 2 pi. Two kinds of angles need this: position * inv_freq, and angles that are too large for
 * floating-point reduction (M. Payne and R. Hanek, "Radian reduction for trigonometric functions", ACM SIGNUM Newsletter
 * 18(1), 1983). */
#ifndef TROPE_CORE_PHASE_H
#define TROPE_CORE_PHASE_H

#include <stdint.h>

#include "core/host_device.h"
#include "core/scalar.h"

/* The bits of 1 / (2 pi) after the binary point. */
#define TROPE_TURN_WORDS                                                                                                   \
    0x28be60db9391054au, 0x7f09d5f47d4d3770u, 0x36d8a5664f10e410u, 0x7f9458eaf7aef158u, 0x6dc91b8e909374b8u

/* Returns 64 bits of two words, from bit `shift` of the first word on. */
TROPE_HD uint64_t trope_bits_of_words(uint64_t first, uint64_t second, int shift)
{
    return first << shift | second >> 1 >> (63 - shift);
}

/* Returns bits first .. first + 63 of 1 / (2 pi). Bit 1 is the first one after the binary point. `first` is in [-63, 128],
 * which is enough for fp32 angles. The code selects the words by comparisons, because a GPU would keep a table in memory
 * and wait for it. */
TROPE_HD uint64_t trope_turn_bits(int first)
{
    const uint64_t words[] = {TROPE_TURN_WORDS};
    const uint64_t high = first < 1 ? 0 : first < 65 ? words[0] : words[1];
    const uint64_t low = first < 1 ? words[0] : first < 65 ? words[1] : words[2];
    return trope_bits_of_words(high, low, (first - 1) & 63);
}

/* Returns the top 32 bits of the phase at a position. `step` is trope_phase_step(inv_freq). */
TROPE_HD uint32_t trope_phase(int64_t position, uint64_t step)
{
    return (uint32_t)(((uint64_t)position * step) >> 32);
}

/* Returns the top 32 bits of the phase of a finite angle of at least 2^20 radians in magnitude. angle = mantissa *
 * 2^exponent, and only the bits of 2^exponent / (2 pi) after the binary point matter. */
TROPE_HD uint32_t trope_phase_of_large_angle(float angle)
{
    const uint32_t bits = trope_float_bits(angle);
    const int exponent = (int)(bits >> 23 & 0xff) - 150;
    const uint64_t mantissa = (bits & 0x7fffffu) | 0x800000u;
    const uint64_t phase = mantissa * trope_turn_bits(exponent + 1);
    return (uint32_t)((bits >> 31 ? 0 - phase : phase) >> 32);
}

#ifndef __CUDACC__
/* Like trope_turn_bits, for `first` in [-191, 192]. */
static inline uint64_t trope_any_turn_bits(int first)
{
    static const uint64_t words[] = {0, 0, 0, TROPE_TURN_WORDS};
    const int bit = first + 191, word = bit >> 6;
    return trope_bits_of_words(words[word], words[word + 1], bit & 63);
}

/* Returns round(2^64 * inv_freq / (2 pi)) modulo 2^64, for |inv_freq| < TROPE_MAX_FREQUENCY. Host only. */
#define TROPE_MAX_FREQUENCY 0x1p64
static inline uint64_t trope_phase_step(double inv_freq)
{
    __extension__ typedef unsigned __int128 uint128;
    uint64_t bits;
    memcpy(&bits, &inv_freq, sizeof bits);
    /* |inv_freq| * 2^64 = mantissa * 2^shift, unless inv_freq is subnormal. This code runs for every pair of a call with
     * inv_freq, so it avoids ldexp. */
    const uint64_t mantissa = (bits & (((uint64_t)1 << 52) - 1)) | (uint64_t)1 << 52;
    const int shift = (int)(bits >> 52 & 0x7ff) - 1075 + 64;
    if (shift < -63 - 53) /* less than 2^-64 turn per position: the step rounds to 0 */
        return 0;
    /* The 64 integer bits and the first 128 fraction bits of 2^shift / (2 pi). */
    const uint64_t whole = trope_any_turn_bits(shift - 63), fraction = trope_any_turn_bits(shift + 1),
                   tail = trope_any_turn_bits(shift + 65);
    const uint128 low = (uint128)mantissa * fraction + (uint64_t)((uint128)mantissa * tail >> 64);
    const uint64_t step = mantissa * whole + (uint64_t)(low >> 64) + ((uint64_t)low >> 63);
    return inv_freq < 0 ? 0 - step : step;
}
#endif

#endif
