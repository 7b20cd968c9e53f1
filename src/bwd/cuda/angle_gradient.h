/* The gradient of the angles, CUDA. */
#ifndef TROPE_BWD_CUDA_ANGLE_GRADIENT_H
#define TROPE_BWD_CUDA_ANGLE_GRADIENT_H

#include "core/plan.h"

/* None of these needs a device: whether all that is counted in 32 bits fits; whether tensors are moved by vectors; and bytes
 * of workspace that trope_cuda_run_gradient needs for a plan that fits, 0 if it asks for no gradient. */
int trope_cuda_gradient_fits(const trope_plan *plan);
int trope_cuda_gradient_has_tiles(const trope_plan *plan);
uint64_t trope_cuda_gradient_workspace(const trope_plan *plan);

/* Queues all of a backward call whose plan asks for d_freqs or d_inv_freq, and fits: these, and dx where there is a dst. */
trope_status trope_cuda_run_gradient(const char *function, const trope_plan *plan);

#endif
