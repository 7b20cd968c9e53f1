/* Loops over arrays with the inline functions of src/core, compiled once for each instruction set that the tests
 * compare. */
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

/* Without FMA (unless the default compiler flags enable it), and with FMA. */
extern const numerics_kernels numerics_portable, numerics_hardware;

/* Returns the second build of the functions, or NULL if there is none or this CPU cannot run it. */
static inline const numerics_kernels *numerics_second_build(void)
{
#ifdef NUMERICS_HARDWARE
    if (__builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2"))
        return &numerics_hardware;
#endif
    return NULL;
}

#endif
