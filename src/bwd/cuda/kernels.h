/* The kernels that only backward has, as data: one translation unit for each dtype has them (backward_f32.cu and so on). */
#ifndef TROPE_BWD_CUDA_KERNELS_H
#define TROPE_BWD_CUDA_KERNELS_H

#include "core/plan.h"

typedef struct trope_backward_kernels {
    const void *sums[2]; /* of heads: by elements, by vectors */
} trope_backward_kernels;

extern const trope_backward_kernels trope_backward_f32, trope_backward_f16, trope_backward_bf16, trope_backward_f64;

#endif
