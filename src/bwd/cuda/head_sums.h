/* Sums over heads on CUDA. */
#ifndef TROPE_BWD_CUDA_HEAD_SUMS_H
#define TROPE_BWD_CUDA_HEAD_SUMS_H

#include "core/cuda/kernel.h"
#include "core/plan.h"

/* Whether the plan adds heads. Backward has special kernels for that. */
int trope_cuda_has_sums(const trope_plan *plan);

/* Queues one launch for a plan in which some operands are sums. */
trope_status trope_cuda_sum_heads(const char *function, const trope_plan *plan);

/* Returns the kernel of a plan that has sums. */
const trope_cuda_kernel *trope_cuda_find_sums(const trope_plan *plan);

#endif
