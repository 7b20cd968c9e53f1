/* Division by a number that is known in advance: a multiplication and a shift replace it, because GPUs divide slowly (T.
 * Granlund and P. Montgomery, "Division by invariant integers using multiplication", PLDI 1994). */
#ifndef TROPE_CORE_DIVIDE_H
#define TROPE_CORE_DIVIDE_H

#include <stdint.h>

#include "core/host_device.h"

typedef struct trope_divisor {
    uint32_t divisor, multiplier, shift;
} trope_divisor;

#ifndef __CUDACC_RTC__
/* Requires a divisor from 1 to 2^31 - 1. Host only. */
static inline trope_divisor trope_make_divisor(uint32_t divisor)
{
    trope_divisor d;
    d.divisor = divisor;
    d.shift = divisor > 1 ? 32 - (uint32_t)__builtin_clz(divisor - 1) : 0;
    d.multiplier = (uint32_t)((((uint64_t)1 << 32) * (((uint64_t)1 << d.shift) - divisor)) / divisor + 1);
    return d;
}
#endif

/* Returns n / divisor, for n below 2^31. */
TROPE_HD uint32_t trope_divide(const trope_divisor *d, uint32_t n)
{
#ifdef __CUDA_ARCH__
    const uint32_t high = __umulhi(n, d->multiplier);
#else
    const uint32_t high = (uint32_t)((uint64_t)n * d->multiplier >> 32);
#endif
    return (high + n) >> d->shift;
}

/* Returns n / divisor, for any n. */
TROPE_HD int64_t trope_divide_wide(const trope_divisor *d, int64_t n)
{
    return n >= 0 && n <= INT32_MAX ? (int64_t)trope_divide(d, (uint32_t)n) : n / (int64_t)d->divisor;
}

#endif
