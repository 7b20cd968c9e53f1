/* Random numbers that are the same on every machine. */
#ifndef EXAMPLE_RANDOM_H
#define EXAMPLE_RANDOM_H

#include <stdint.h>

/* The next 64 bits of a stream (SplitMix64); the state is any number, and moves on. */
static inline uint64_t random_bits(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Uniform in [0, 1). */
static inline double random_uniform(uint64_t *state)
{
    return (double)(random_bits(state) >> 11) * 0x1p-53;
}

/* Mean 0 and variance 1, close enough to normal: the sum of twelve uniforms. No libm, hence no machine's rounding. */
static inline double random_normal(uint64_t *state)
{
    double sum = -6;
    for (int i = 0; i < 12; i++)
        sum += random_uniform(state);
    return sum;
}

#endif
