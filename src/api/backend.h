/* What the library needs of a backend. */
#ifndef TROPE_API_BACKEND_H
#define TROPE_API_BACKEND_H

#include <stddef.h>

#include "core/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct trope_backend {
    /* Whether it can run the plan at all on this machine. */
    trope_status (*check)(const char *function, const trope_plan *plan);
    /* Bytes of workspace that `run` needs. */
    uint64_t (*workspace)(const trope_plan *plan);
    trope_status (*run)(const char *function, const trope_plan *plan);
    /* Writes the name of the kernel that `run` would pick. */
    void (*kernel_name)(const trope_plan *plan, char *name, size_t size);
} trope_backend;

extern const trope_backend trope_backend_cpu;

#ifdef TROPE_CUDA
extern const trope_backend trope_backend_cuda;

/* CUDA devices that can be used, 0 without a driver. */
int trope_cuda_device_count(void);

/* The names of all compiled kernels that kernel_name can give. For tests. */
const char *const *trope_cuda_list_kernels(int *count);

/* Their names and sizes, on one line. */
void trope_cuda_describe(char *text, size_t size);
#endif

/* "f32", "f16", ... */
const char *trope_dtype_name(int32_t dtype);

/* "half", "interleaved", "half-to-interleaved" or "interleaved-to-half", in the direction of the plan. */
const char *trope_pairing_name(const trope_plan *plan);

#ifdef __cplusplus
}
#endif
#endif
