/* Rotations by kernels that are compiled for the call. */
#ifndef TROPE_FWD_CUDA_COMPILED_H
#define TROPE_FWD_CUDA_COMPILED_H

#include <stddef.h>

#include "core/plan.h"

/* Runs a rotation. *has_run is 0 if no such kernel exists, and the kernels that are made ahead of time must run it. */
trope_status trope_cuda_rotate_compiled(const char *function, const trope_plan *plan, int *has_run);

/* Writes the name of the kernel that would run a rotation, with its constants. Returns 0 if there is none. */
int trope_cuda_name_compiled(const trope_plan *plan, char *name, size_t size);

#endif
