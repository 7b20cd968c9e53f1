/* Calls with norms on CUDA. */
#ifndef TROPE_FWD_CUDA_NORM_H
#define TROPE_FWD_CUDA_NORM_H

#include "core/cuda/kernel.h"
#include "core/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The kernel that trope_cuda_norm picks. */
const trope_cuda_kernel *trope_cuda_find_norm(const trope_plan *plan);

/* Normalises and rotates a forward call. */
trope_status trope_cuda_norm(const char *function, const trope_plan *plan);

#ifdef __cplusplus
}
#endif
#endif
