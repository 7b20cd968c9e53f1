/* The gradient of the angles, CUDA. */
#ifndef TROPE_BWD_CUDA_ANGLE_GRADIENT_H
#define TROPE_BWD_CUDA_ANGLE_GRADIENT_H

#include "core/cuda/kernel.h"
#include "core/plan.h"

/* Whether all that is counted in 32 bits fits, and bytes of workspace that trope_cuda_run_gradient needs for a plan that
 * fits, 0 if it asks for no gradient. Neither needs a device. */
int trope_cuda_gradient_fits(const trope_plan *plan);
uint64_t trope_cuda_gradient_workspace(const trope_plan *plan);

/* Queues all of a backward call whose plan asks for d_freqs or d_inv_freq, and fits: these, and dx where there is a dst. */
trope_status trope_cuda_run_gradient(const char *function, const trope_plan *plan);

/* The kernel that reads dy and x. */
const trope_cuda_kernel *trope_cuda_find_gradient(const trope_plan *plan);

#endif
