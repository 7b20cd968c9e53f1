/* The kernels of the rotation, as data: one translation unit for each dtype has them (rotate_f32.cu and so on). */
#ifndef TROPE_FWD_CUDA_KERNELS_H
#define TROPE_FWD_CUDA_KERNELS_H

#include "core/plan.h"

#define ROW_KINDS 3

typedef struct trope_rotation_kernels {
    const void *usual[ROW_KINDS][2]; /* of vectors: by rows; with phase steps, with tables */
    const void *alone[ROW_KINDS][2]; /* of those, for rows of one head */
    const void *general[2];          /* by elements, by vectors */
} trope_rotation_kernels;

extern const trope_rotation_kernels trope_rotations_f32, trope_rotations_f16, trope_rotations_bf16, trope_rotations_f64;

#endif
