/* The interface between the library and its backends. */
#ifndef TROPE_API_BACKEND_H
#define TROPE_API_BACKEND_H

#include <stddef.h>

#include "core/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct trope_backend {
    /* Fails if the backend cannot run the plan on this machine. */
    trope_status (*check)(const char *function, const trope_plan *plan);
    /* Returns the number of bytes of workspace that `run` needs. */
    uint64_t (*workspace)(const trope_plan *plan);
    trope_status (*run)(const char *function, const trope_plan *plan);
    /* Writes the name of the kernel that `run` would pick. */
    void (*kernel_name)(const trope_plan *plan, char *name, size_t size);
} trope_backend;

extern const trope_backend trope_backend_cpu;

#ifdef TROPE_CUDA
extern const trope_backend trope_backend_cuda;

/* Returns the number of usable CUDA devices, 0 without a driver. */
int trope_cuda_device_count(void);

/* Lists the names of all compiled kernels that kernel_name can return. Only tests use this function. */
const char *const *trope_cuda_list_kernels(int *count);

/* Writes one line with the name, the architecture and the number of multiprocessors of each device. */
void trope_cuda_describe(char *text, size_t size);

/* Writes the CUDA version that the driver supports, and why there is no device if there is none. */
void trope_cuda_describe_driver(char *text, size_t size);
#endif

/* Returns "f32", "f16", ... */
const char *trope_dtype_name(int32_t dtype);

/* Returns "half", "interleaved", "half-to-interleaved" or "interleaved-to-half": the pairing from src to dst. */
const char *trope_pairing_name(const trope_plan *plan);

#ifdef __cplusplus
}
#endif
#endif
