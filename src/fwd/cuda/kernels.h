/* The lists of kernels. One translation unit for each dtype defines them (rotate_f32.cu and so on). */
#ifndef TROPE_FWD_CUDA_KERNELS_H
#define TROPE_FWD_CUDA_KERNELS_H

#include "core/cuda/kernel.h"

#define FAST_POSITION_KINDS 4 /* all except POSITIONS_GENERIC */

typedef struct trope_rotation_kernels {
    trope_cuda_kernel fast[FAST_POSITION_KINDS][2]; /* by POSITIONS_..., and phase steps or tables */
    trope_cuda_kernel vectors;                      /* the generic path for vectors */
    trope_cuda_kernel alone;                        /* one or a few heads, without packed sequences */
    trope_cuda_kernel elements;                     /* heads that do not consist of vectors */
} trope_rotation_kernels;

typedef struct trope_norm_kernels {
    trope_cuda_kernel fast[FAST_POSITION_KINDS][2];   /* the norm before the rotation; some kinds only */
    trope_cuda_kernel tokens[FAST_POSITION_KINDS][2]; /* the same for norms over tokens; often the kernel of `fast` */
    trope_cuda_kernel after[2]; /* the norm after the rotation: positions from tokens with phase steps; generic */
    trope_cuda_kernel vectors;  /* the generic path for vectors */
    trope_cuda_kernel elements; /* heads that do not consist of vectors */
} trope_norm_kernels;

extern const trope_norm_kernels trope_norms_f32, trope_norms_f16, trope_norms_bf16, trope_norms_f64;

extern const trope_rotation_kernels trope_rotations_f32, trope_rotations_f16, trope_rotations_bf16, trope_rotations_f64;

#endif
