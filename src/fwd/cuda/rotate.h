/* The rotation on CUDA. */
#ifndef TROPE_FWD_CUDA_ROTATE_H
#define TROPE_FWD_CUDA_ROTATE_H

#include "core/cuda/kernel.h"
#include "core/plan.h"

/* Queues the launch of a plan that moves elements and has no sums of heads. */
trope_status trope_cuda_rotate(const char *function, const trope_plan *plan);

/* Returns the kernel that trope_cuda_rotate picks. */
const trope_cuda_kernel *trope_cuda_find_rotation(const trope_plan *plan);

#endif
