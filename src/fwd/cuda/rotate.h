/* The rotation on CUDA, by tiles of vectors or by pairs. */
#ifndef TROPE_FWD_CUDA_ROTATE_H
#define TROPE_FWD_CUDA_ROTATE_H

#include "core/plan.h"

/* Whether a plan can be run by tiles: all heads are made of whole vectors, and what is counted in 32 bits fits. */
int trope_cuda_has_tiles(const trope_plan *plan);

/* Queue a call that moves something, in one launch. */
trope_status trope_cuda_rotate_tiles(const char *function, const trope_plan *plan);
trope_status trope_cuda_rotate_pairs(const char *function, const trope_plan *plan);

#endif
