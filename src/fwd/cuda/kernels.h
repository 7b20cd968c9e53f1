/* The kernels of the rotation, as data: one translation unit for each dtype has them (rotate_f32.cu and so on). */
#ifndef TROPE_FWD_CUDA_KERNELS_H
#define TROPE_FWD_CUDA_KERNELS_H

#include "core/cuda/kernel.h"

#define ROW_KINDS 4

/* By kind of rows (ROWS_...), and with phase steps or tables. */
typedef struct trope_rotation_kernels {
    trope_cuda_kernel vectors[ROW_KINDS][2]; /* of usual calls */
    trope_cuda_kernel alone[2];              /* of those from tokens, for rows of one head, or few */
    trope_cuda_kernel any[2];                /* of any calls, by elements; of more pairs than usual, by vectors */
} trope_rotation_kernels;

extern const trope_rotation_kernels trope_rotations_f32, trope_rotations_f16, trope_rotations_bf16, trope_rotations_f64;

#endif
