/* Numbers from a seed and a place: whoever holds the element of that place, on whatever rank, gets the same one without
 * drawing those before it. (SplitMix64's output function of a counter: Steele, Lea, Flood, OOPSLA 2014.) */
#ifndef TESTS_MULTIGPU_DATA_H
#define TESTS_MULTIGPU_DATA_H

#include <stdint.h>

static inline uint64_t data_bits(uint64_t seed, uint64_t place)
{
    uint64_t z = seed + (place + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* A seed of its own for each of several streams of one seed. */
static inline uint64_t data_seed(uint64_t seed, uint64_t stream)
{
    return data_bits(seed ^ 0x6a09e667f3bcc909u, stream);
}

/* A number in [-scale, scale). */
static inline double data_real(uint64_t seed, uint64_t place, double scale)
{
    return scale * ((double)(int64_t)(data_bits(seed, place) >> 11) * 0x1p-52 - 1.0);
}

/* An integer in [low, high]. */
static inline int64_t data_between(uint64_t seed, uint64_t place, int64_t low, int64_t high)
{
    return low + (int64_t)(data_bits(seed, place) % (uint64_t)(high - low + 1));
}

#endif
