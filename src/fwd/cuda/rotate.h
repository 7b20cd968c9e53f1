/* The rotation, CUDA. */
#ifndef TROPE_FWD_CUDA_ROTATE_H
#define TROPE_FWD_CUDA_ROTATE_H

#include "core/cuda/kernel.h"
#include "core/plan.h"

/* Queues a plan without sums that moves something. */
trope_status trope_cuda_rotate(const char *function, const trope_plan *plan);

/* The kernel of such a plan. */
const trope_cuda_kernel *trope_cuda_find_rotation(const trope_plan *plan);

#endif
