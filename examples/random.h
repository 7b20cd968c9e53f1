/* Random numbers that are the same on every machine. */
#ifndef EXAMPLE_RANDOM_H
#define EXAMPLE_RANDOM_H

#include <stdint.h>

/* Returns the next 64 bits of a stream (SplitMix64) and advances the state, which may start at any number. */
static inline uint64_t random_bits(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Returns a uniform number in [0, 1). */
static inline double random_uniform(uint64_t *state)
{
    return (double)(random_bits(state) >> 11) * 0x1p-53;
}

/* Returns a number with mean 0 and variance 1 that is close to normal: the sum of twelve uniform numbers. It needs no libm,
 * so every machine gives the same bits. */
static inline double random_normal(uint64_t *state)
{
    double sum = -6;
    for (int i = 0; i < 12; i++)
        sum += random_uniform(state);
    return sum;
}

#endif
