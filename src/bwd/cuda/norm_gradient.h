/* The backward of norms, CUDA. */
#ifndef TROPE_BWD_CUDA_NORM_GRADIENT_H
#define TROPE_BWD_CUDA_NORM_GRADIENT_H

#include "core/cuda/kernel.h"
#include "core/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether all that is counted in 32 bits fits, and bytes of workspace that trope_cuda_run_norm_gradient needs. Neither needs a
 * device. */
int trope_cuda_norm_gradient_fits(const trope_plan *plan);
uint64_t trope_cuda_norm_gradient_workspace(const trope_plan *plan);

/* Queues all of a backward call that has norms. */
trope_status trope_cuda_run_norm_gradient(const char *function, const trope_plan *plan);

/* The kernel that reads dy and x of heads with a norm. */
const trope_cuda_kernel *trope_cuda_find_norm_gradient(const trope_plan *plan);

#ifdef __cplusplus
}
#endif
#endif
