/* The kernels that only backward has, as data. Each dtype has a translation unit for its kernels (backward_f32.cu and so
 * on), and one more unit has the kernels that do not depend on the dtype of operands. */
#ifndef TROPE_BWD_CUDA_KERNELS_H
#define TROPE_BWD_CUDA_KERNELS_H

#include "core/cuda/kernel.h"
#include "core/plan.h"
#include "fwd/cuda/kernels.h"

typedef struct trope_backward_kernels {
    trope_cuda_kernel sums[2];     /* sums over heads: by elements, by vectors */
    trope_cuda_kernel gradient[2]; /* the pass of the gradient of the angles: by elements, by vectors */
    trope_norm_kernels norm;       /* backward of norms */
    trope_cuda_kernel walk[2];     /* backward of norms by vectors, if each head has its own weights: generic; tokens */
} trope_backward_kernels;

extern const trope_backward_kernels trope_backward_f32, trope_backward_f16, trope_backward_bf16, trope_backward_f64;

static inline const trope_backward_kernels *trope_backward_kernels_of(int32_t dtype)
{
    return dtype == TROPE_F32    ? &trope_backward_f32
           : dtype == TROPE_F16  ? &trope_backward_f16
           : dtype == TROPE_BF16 ? &trope_backward_bf16
                                 : &trope_backward_f64;
}

/* The adders of the gradient of the angles: angle_sums.cu. */
typedef struct trope_angle_kernels {
    const void *add_rows, *add_sequences;
    const void *count_digits, *scan_counts, *move_items, *join_runs, *sum_rows; /* for sorted units */
} trope_angle_kernels;

extern const trope_angle_kernels trope_angle_sums;

#endif
