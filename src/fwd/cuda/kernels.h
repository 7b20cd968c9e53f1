/* The kernels of the rotation, as data: one translation unit for each dtype has them (rotate_f32.cu and so on). */
#ifndef TROPE_FWD_CUDA_KERNELS_H
#define TROPE_FWD_CUDA_KERNELS_H

#include "core/cuda/kernel.h"

#define FAST_ROW_KINDS 4 /* all but ROWS_ANY */

typedef struct trope_rotation_kernels {
    trope_cuda_kernel fast[FAST_ROW_KINDS][2]; /* by vectors; by kind of rows (ROWS_...), and with phase steps or tables */
    trope_cuda_kernel vectors;                 /* what no other kernel by vectors can do */
    trope_cuda_kernel alone;                   /* rows of one head, or few, without sequences */
    trope_cuda_kernel elements;                /* what is not made of vectors */
} trope_rotation_kernels;

typedef struct trope_norm_kernels {
    trope_cuda_kernel fast[FAST_ROW_KINDS][2]; /* some of those of the rotation, which come after the norm */
    trope_cuda_kernel after[2];                /* the rotation: of rows from tokens with phase steps, and of any rows */
    trope_cuda_kernel vectors;                 /* what no other kernel by vectors can do */
    trope_cuda_kernel elements;                /* what is not made of vectors */
} trope_norm_kernels;

extern const trope_norm_kernels trope_norms_f32, trope_norms_f16, trope_norms_bf16, trope_norms_f64;

extern const trope_rotation_kernels trope_rotations_f32, trope_rotations_f16, trope_rotations_bf16, trope_rotations_f64;

#endif
