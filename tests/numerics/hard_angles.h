/* The floats nearest to multiples of pi/2, where the reduction of an angle loses the most bits. For each exponent e they
 * are m * 2^e, where m is a denominator of the continued fraction of 2^e / (pi/2) that fits in the 24 bits of a float. */
#ifndef TESTS_NUMERICS_HARD_ANGLES_H
#define TESTS_NUMERICS_HARD_ANGLES_H

#include <math.h>
#include <stdint.h>

#define HARD_ANGLES_MAX 65536

/* 2^e modulo pi/2, as a fraction of pi/2, times 2^64. */
static uint64_t hard_fraction(int e)
{
    const long double turn = atan2l(sinl(ldexpl(1.0L, e)), cosl(ldexpl(1.0L, e))) / acosl(-1.0L) * 2.0L;
    const long double fraction = turn - floorl(turn);
    return (uint64_t)(fraction * 0x1p63L) << 1; /* not 2^64, because fraction can round to 1 */
}

/* Adds an angle, its negative, and the nearest neighbours of both. */
static int hard_add(float *angle, int count, float x)
{
    const float neighbours[3] = {nextafterf(x, 0.0f), x, nextafterf(x, INFINITY)};
    for (int i = 0; i < 3; i++) {
        angle[count++] = neighbours[i];
        angle[count++] = -neighbours[i];
    }
    return count;
}

/* Adds m * 2^e for every denominator m < 2^24 of the continued fraction of fraction / 2^64, by Euclid's algorithm. */
static int hard_add_denominators(float *angle, int count, uint64_t fraction, int e)
{
    __extension__ typedef unsigned __int128 uint128;
    uint128 a = (uint128)1 << 64, b = fraction, m = 1, previous = 0;

    while (b) {
        const uint128 next = a / b * m + previous, rest = a % b;
        if (next >> 24)
            break;
        previous = m;
        m = next;
        a = b;
        b = rest;
        count = hard_add(angle, count, ldexpf((float)m, e));
    }
    return count;
}

/* Fills angle[HARD_ANGLES_MAX]. Returns the number of angles. */
static int hard_angles(float *angle)
{
    int count = 0;
    for (int e = -23; e <= 103; e++)
        count = hard_add_denominators(angle, count, hard_fraction(e), e);
    for (int k = 1; k <= 4096; k++)
        count = hard_add(angle, count, (float)(k * 1.57079632679489661923));
    return count;
}

#endif
