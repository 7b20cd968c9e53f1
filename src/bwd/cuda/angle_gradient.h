/* The gradient of the angles on CUDA. */
#ifndef TROPE_BWD_CUDA_ANGLE_GRADIENT_H
#define TROPE_BWD_CUDA_ANGLE_GRADIENT_H

#include "core/cuda/kernel.h"
#include "core/plan.h"

/* trope_cuda_gradient_fits returns whether all 32-bit counters suffice for a plan. trope_cuda_gradient_workspace returns
 * the bytes of workspace that trope_cuda_run_gradient needs for a plan that fits, or 0 if the plan asks for no gradient.
 * Neither function needs a device. */
int trope_cuda_gradient_fits(const trope_plan *plan);
uint64_t trope_cuda_gradient_workspace(const trope_plan *plan);

/* Queues all launches of a backward call whose plan fits and asks for d_freqs or d_inv_freq: the gradient, and dx of
 * operands that have a dst. */
trope_status trope_cuda_run_gradient(const char *function, const trope_plan *plan);

/* Returns the kernel that reads dy and x. */
const trope_cuda_kernel *trope_cuda_find_gradient(const trope_plan *plan);

#endif
