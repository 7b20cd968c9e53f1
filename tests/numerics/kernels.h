/* The inline functions of src/core as loops over arrays, compiled once for each instruction set that the tests compare. */
#ifndef TESTS_NUMERICS_KERNELS_H
#define TESTS_NUMERICS_KERNELS_H

#include <stddef.h>
#include <stdint.h>

typedef struct numerics_kernels {
    const char *name;
    void (*sincos)(int count, const float *angle, float *sine, float *cosine);
    void (*sincos_phase)(int count, const uint32_t *phase, float *sine, float *cosine);
    void (*fma)(int count, const float (*operands)[3], float *result);
} numerics_kernels;

/* Without FMA (as far as the compiler's flags say), and with it. */
extern const numerics_kernels numerics_portable, numerics_hardware;

/* The second build of the functions, or NULL where there is none or this CPU cannot run it. */
static inline const numerics_kernels *numerics_second_build(void)
{
#ifdef NUMERICS_HARDWARE
    if (__builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2"))
        return &numerics_hardware;
#endif
    return NULL;
}

#endif
