/* The gradient of the angles on the CPU. */
#ifndef TROPE_BWD_CPU_ANGLE_GRADIENT_H
#define TROPE_BWD_CPU_ANGLE_GRADIENT_H

#include "core/plan.h"
#include "fwd/cpu/tokens.h"

/* Returns the bytes of workspace that trope_angle_gradient needs for a plan. It is 0 if the plan has no gradient of
 * angles. */
uint64_t trope_angle_gradient_workspace(const trope_plan *plan);

/* Fills d_freqs or d_inv_freq of a backward plan. */
void trope_angle_gradient(const trope_plan *plan, const trope_token_kernels *kernels);

#endif
