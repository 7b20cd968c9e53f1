/* The rotation, CUDA. */
#ifndef TROPE_FWD_CUDA_ROTATE_H
#define TROPE_FWD_CUDA_ROTATE_H

#include <stddef.h>

#include "core/plan.h"

/* Queues a plan without sums that moves something. */
trope_status trope_cuda_rotate(const char *function, const trope_plan *plan);

/* Writes which kernel that would be: its form, rows and angles. */
void trope_cuda_rotation_name(const trope_plan *plan, char *name, size_t size);

#endif
