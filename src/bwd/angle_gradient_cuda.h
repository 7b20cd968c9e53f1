/* The gradient of the angles, CUDA. */
#ifndef TROPE_BWD_ANGLE_GRADIENT_CUDA_H
#define TROPE_BWD_ANGLE_GRADIENT_CUDA_H

#include "core/plan.h"

/* Bytes of workspace that trope_cuda_run_gradient needs for a plan: 0 if it asks for no gradient. Needs no device. */
uint64_t trope_cuda_gradient_workspace(const trope_plan *plan);

/* Queues all of a backward call whose plan asks for d_freqs or d_inv_freq: these, and dx where there is a dst. */
trope_status trope_cuda_run_gradient(const char *function, const trope_plan *plan);

#endif
