/* A random number for a seed and a place, without drawing the numbers before it. (SplitMix64's output function of a
 * counter: Steele, Lea, Flood, OOPSLA 2014.) */
#ifndef TOOLS_TROPE_RANDOM_BITS_H
#define TOOLS_TROPE_RANDOM_BITS_H

#include <stdint.h>

static inline uint64_t random_bits(uint64_t seed, uint64_t place)
{
    uint64_t z = seed + (place + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

#endif
