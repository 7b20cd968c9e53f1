/* Runs the call of a config on the GPU: uploads the config's buffers, makes the call, and downloads the buffers. So the
 * rest of a test is the same as on the CPU.
 *
 * Guard zones surround every buffer and the workspace. They must not change. With `separate`, each buffer is a separate
 * allocation of its exact size, so that compute-sanitizer detects accesses outside of it. */
#ifndef TESTS_CUDA_DEVICE_CALL_H
#define TESTS_CUDA_DEVICE_CALL_H

#include <cuda_runtime_api.h>

#include "support/config.h"

/* If there is no device, prints one line and exits with status 77. */
void device_require(void);

/* If a call of the CUDA runtime failed, prints one line and exits with status 1. */
#define CUDA_MUST(call) device_must(call, #call, __FILE__, __LINE__)
void device_must(cudaError_t error, const char *what, const char *file, int line);

/* Returns the numeric value of the option `name`, or `otherwise` if the option is missing. */
long device_option(int argc, char **argv, const char *name, long otherwise);

typedef struct device_arena {
    cudaStream_t stream;
    int separate;
    int align; /* 1: operands and weights start at multiples of 16 bytes, even if they do not on the host */
    size_t room;
    unsigned char *device;
    unsigned char *up, *down;              /* pinned host memory */
    char kernel[64];                       /* the kernel's name in the last call */
    size_t offset[CONFIG_MAX_BUFFERS + 1]; /* where each buffer of the last call is, then its workspace */
    unsigned char *base[CONFIG_MAX_BUFFERS + 1];
} device_arena;

/* Creates a stream that does not wait for the default stream. */
device_arena *device_arena_new(int separate);
void device_arena_free(device_arena *arena);

/* Runs a call whose pointers point into c's buffers. The buffers then contain the device's results, except for scratch
 * buffers. The program ends if a guard zone was written. */
trope_status device_run(device_arena *arena, config *c, const call *k, int backward);

#endif
