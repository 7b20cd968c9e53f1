/* Slow, simple references for the phase, which share no code with src/: the phase step of a frequency, by long
 * multiplication of integers, and the sine and cosine of the exact product of two doubles. references.c checks them with
 * MPFR. */
#ifndef TESTS_NUMERICS_EXACT_H
#define TESTS_NUMERICS_EXACT_H

#include <math.h>
#include <stdint.h>

/* The first 384 bits of 1 / (2 pi) after the binary point. */
static const uint32_t exact_inverse_two_pi[12] = {
    0x28be60db, 0x9391054a, 0x7f09d5f4, 0x7d4d3770, 0x36d8a566, 0x4f10e410,
    0x7f9458ea, 0xf7aef158, 0x6dc91b8e, 0x909374b8, 0x01924bba, 0x82746487,
};

/* The bit with the value 2^place in mantissa / (2 pi) * 2^exponent is exact_bit(p, place - exponent). */
typedef struct exact_product {
    uint32_t word[14]; /* mantissa / (2 pi), least significant first; the binary point is just below word[12] */
} exact_product;

static inline exact_product exact_turns(uint64_t mantissa)
{
    exact_product p = {{0}};
    for (int half = 0; half < 2; half++) {
        const uint64_t factor = (uint32_t)(mantissa >> 32 * half);
        uint64_t carry = 0;
        for (int i = 0; i + half < 14; i++) {
            carry += p.word[i + half] + (i < 12 ? factor * exact_inverse_two_pi[11 - i] : 0);
            p.word[i + half] = (uint32_t)carry;
            carry >>= 32;
        }
    }
    return p;
}

static inline int exact_bit(const exact_product *p, int place)
{
    const int bit = place + 12 * 32;
    return bit < 0 || bit >= 14 * 32 ? 0 : (int)(p->word[bit / 32] >> bit % 32 & 1);
}

/* round(2^64 * inv_freq / (2 pi)) modulo 2^64. */
static inline uint64_t exact_step(double inv_freq)
{
    int exponent;
    const double fraction = frexp(fabs(inv_freq), &exponent);
    const exact_product p = exact_turns((uint64_t)ldexp(fraction, 53));
    const int shift = exponent - 53 + 64; /* step = p * 2^shift */
    uint64_t step = 0;

    for (int place = 63; place >= 0; place--)
        step = step << 1 | (uint64_t)exact_bit(&p, place - shift);
    step += (uint64_t)exact_bit(&p, -1 - shift);
    return inv_freq < 0 ? 0 - step : step;
}

/* Sine and cosine of a * b. The product is a sum of two doubles, and the derivative accounts for the small one. */
static inline void exact_sincos(double a, double b, double *sine, double *cosine)
{
    const double high = a * b, low = fma(a, b, -high);
    const double s = sin(high), c = cos(high);
    *sine = s + low * c;
    *cosine = c - low * s;
}

#endif
