/* The part of src/jit that needs a GPU: driver.c, or a test's own. */
#ifndef TROPE_JIT_DRIVER_H
#define TROPE_JIT_DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef struct trope_jit_driver {
    /* Returns 90 for a device of compute capability 9.0, and 0 if the query fails. */
    int32_t (*architecture)(int device);
    /* Loads a cubin, which may be freed afterwards, and returns its kernel `entry`, a cudaKernel_t. The kernel works on all
     * devices of the architecture and in every context. Loading is allowed during stream capture. Returns NULL if the driver
     * refuses the cubin, and then says why. */
    const void *(*load)(int device, const void *cubin, size_t bytes, const char *entry, char *why, size_t why_size);
} trope_jit_driver;

extern const trope_jit_driver trope_cuda_driver;

#endif
