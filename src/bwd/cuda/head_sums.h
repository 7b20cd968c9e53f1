/* Sums of heads, and with what dst holds, CUDA. */
#ifndef TROPE_BWD_CUDA_HEAD_SUMS_H
#define TROPE_BWD_CUDA_HEAD_SUMS_H

#include <stddef.h>

#include "core/plan.h"

/* Queues a plan that has sums: all its operands, by one launch. */
trope_status trope_cuda_sum_heads(const char *function, const trope_plan *plan);

/* Writes which kernel that would be. */
void trope_cuda_sums_name(const trope_plan *plan, char *name, size_t size);

#endif
