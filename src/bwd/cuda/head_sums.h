/* Sums of heads, CUDA. */
#ifndef TROPE_BWD_CUDA_HEAD_SUMS_H
#define TROPE_BWD_CUDA_HEAD_SUMS_H

#include "core/cuda/kernel.h"
#include "core/plan.h"

/* Whether heads are added, by the kernels that backward has for them. */
int trope_cuda_has_sums(const trope_plan *plan);

/* Queues a plan some of whose operands are sums, by one launch. */
trope_status trope_cuda_sum_heads(const char *function, const trope_plan *plan);

/* The kernel of the sums of a plan that has some. */
const trope_cuda_kernel *trope_cuda_find_sums(const trope_plan *plan);

#endif
