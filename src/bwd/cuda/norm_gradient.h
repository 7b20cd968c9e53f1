/* The backward of norms on CUDA. */
#ifndef TROPE_BWD_CUDA_NORM_GRADIENT_H
#define TROPE_BWD_CUDA_NORM_GRADIENT_H

#include "core/cuda/kernel.h"
#include "core/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* trope_cuda_norm_gradient_fits returns whether all 32-bit counters suffice for a plan. trope_cuda_norm_gradient_workspace
 * returns the bytes of workspace that trope_cuda_run_norm_gradient needs. Neither function needs a device. */
int trope_cuda_norm_gradient_fits(const trope_plan *plan);
uint64_t trope_cuda_norm_gradient_workspace(const trope_plan *plan);

/* Queues all launches of a backward call that has norms. */
trope_status trope_cuda_run_norm_gradient(const char *function, const trope_plan *plan);

/* Returns the kernel that reads dy and x of heads with a norm. */
const trope_cuda_kernel *trope_cuda_find_norm_gradient(const trope_plan *plan);

#ifdef __cplusplus
}
#endif
#endif
