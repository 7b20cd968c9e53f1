/* The gradient of the angles, CPU. */
#ifndef TROPE_BWD_CPU_ANGLE_GRADIENT_H
#define TROPE_BWD_CPU_ANGLE_GRADIENT_H

#include "core/plan.h"
#include "fwd/cpu/rows.h"

/* Bytes of workspace that trope_angle_gradient needs for a plan: 0 if it asks for no gradient. */
uint64_t trope_angle_gradient_workspace(const trope_plan *plan);

/* Fills d_freqs or d_inv_freq of a backward plan. */
void trope_angle_gradient(const trope_plan *plan, const trope_row_kernels *kernels);

#endif
