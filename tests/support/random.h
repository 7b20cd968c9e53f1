/* Seeded random numbers (SplitMix64: Steele, Lea, Flood, OOPSLA 2014), the same on every machine. */
#ifndef TESTS_SUPPORT_RANDOM_H
#define TESTS_SUPPORT_RANDOM_H

#include <stdint.h>

typedef struct random_state {
    uint64_t state;
} random_state;

static inline uint64_t random_bits(random_state *r)
{
    uint64_t z = (r->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* An integer in [low, high]. */
static inline int64_t random_between(random_state *r, int64_t low, int64_t high)
{
    return low + (int64_t)(random_bits(r) % (uint64_t)(high - low + 1));
}

/* A number in [-1, 1), a multiple of 2^-52. */
static inline double random_real(random_state *r)
{
    return (double)(int64_t)(random_bits(r) >> 11) * 0x1p-52 - 1.0;
}

#endif
