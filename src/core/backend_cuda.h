/* The CUDA backend, as C. */
#ifndef TROPE_CORE_BACKEND_CUDA_H
#define TROPE_CORE_BACKEND_CUDA_H

#include <stddef.h>

#include "core/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* CUDA devices that can be used, 0 without a driver. */
int trope_cuda_device_count(void);

/* Queues the call on the plan's stream. */
trope_status trope_cuda_run(const char *function, const trope_plan *plan);

/* The name of the kernel that trope_cuda_run picks. */
const char *trope_cuda_kernel_name(const trope_plan *plan);

/* A line on each device. */
void trope_cuda_describe(char *text, size_t size);

#ifdef __cplusplus
}
#endif
#endif
