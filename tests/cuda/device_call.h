/* Calls on the GPU whose memory is a config's: what the config's buffers hold goes up, the call runs there, and all of it
 * comes back, so that the rest of a test is what it is on the CPU.
 *
 * Every buffer and the workspace have guard zones around them, and what the call may not touch must come back as it went.
 * With `separate` each buffer is an allocation of its own, to the byte, for compute-sanitizer to watch. */
#ifndef TESTS_CUDA_DEVICE_CALL_H
#define TESTS_CUDA_DEVICE_CALL_H

#include <cuda_runtime_api.h>

#include "support/config.h"

/* Ends the program with status 77 and one line where there is no device. */
void device_require(void);

/* Ends the program with status 1 and one line when a call of the CUDA runtime has failed. */
#define CUDA_MUST(call) device_must(call, #call, __FILE__, __LINE__)
void device_must(cudaError_t error, const char *what, const char *file, int line);

/* The value of "--name" as a number, or `otherwise`. */
long device_option(int argc, char **argv, const char *name, long otherwise);

typedef struct device_arena {
    cudaStream_t stream;
    int separate;
    int align; /* 1: operands start at multiples of 16 bytes whatever their place in the host's buffer */
    size_t room;
    unsigned char *device;
    unsigned char *up, *down;              /* pinned memory of the host */
    char kernel[64];                       /* of the last call */
    size_t offset[CONFIG_MAX_BUFFERS + 1]; /* of each buffer of the last call, then of the workspace */
    unsigned char *base[CONFIG_MAX_BUFFERS + 1];
} device_arena;

/* The stream is a new one that does not wait for the default stream. */
device_arena *device_arena_new(int separate);
void device_arena_free(device_arena *arena);

/* Runs a call whose pointers point into c's buffers, which then hold what the device has made of them, the scratch
 * excepted. A guard zone that was written ends the program. */
trope_status device_run(device_arena *arena, config *c, const call *k, int backward);

#endif
