/* Numbers from a seed and a place. Every rank that holds the element at a place gets the same number, without drawing the
 * numbers before it. */
#ifndef TESTS_MULTIGPU_DATA_H
#define TESTS_MULTIGPU_DATA_H

#include "random_bits.h"

/* Derives a separate seed for each stream of a problem's seed. */
static inline uint64_t data_seed(uint64_t seed, uint64_t stream)
{
    return random_bits(seed ^ 0x6a09e667f3bcc909u, stream);
}

/* Returns a number in [-scale, scale). */
static inline double data_real(uint64_t seed, uint64_t place, double scale)
{
    return scale * ((double)(int64_t)(random_bits(seed, place) >> 11) * 0x1p-52 - 1.0);
}

/* Returns an integer in [low, high]. */
static inline int64_t data_between(uint64_t seed, uint64_t place, int64_t low, int64_t high)
{
    return low + (int64_t)(random_bits(seed, place) % (uint64_t)(high - low + 1));
}

#endif
