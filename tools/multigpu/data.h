/* Numbers from a seed and a place: whoever holds the element of that place, on whatever rank, gets the same one without
 * drawing those before it. */
#ifndef TESTS_MULTIGPU_DATA_H
#define TESTS_MULTIGPU_DATA_H

#include "random_bits.h"

/* A seed of its own for each of several streams of one seed. */
static inline uint64_t data_seed(uint64_t seed, uint64_t stream)
{
    return random_bits(seed ^ 0x6a09e667f3bcc909u, stream);
}

/* A number in [-scale, scale). */
static inline double data_real(uint64_t seed, uint64_t place, double scale)
{
    return scale * ((double)(int64_t)(random_bits(seed, place) >> 11) * 0x1p-52 - 1.0);
}

/* An integer in [low, high]. */
static inline int64_t data_between(uint64_t seed, uint64_t place, int64_t low, int64_t high)
{
    return low + (int64_t)(random_bits(seed, place) % (uint64_t)(high - low + 1));
}

#endif
