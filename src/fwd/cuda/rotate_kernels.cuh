/* All kernels of the rotation for one dtype that vectors can hold. */
#ifndef TROPE_FWD_CUDA_ROTATE_KERNELS_CUH
#define TROPE_FWD_CUDA_ROTATE_KERNELS_CUH

#include "fwd/cuda/kernels.h"
#include "fwd/cuda/rotate_alone.cuh"

#define USUAL_KERNEL(DTYPE, ROWS, ANGLES)                                                                                  \
    (const void *)rotate_kernel<rotation<DTYPE, true, ROWS_##ROWS, ANGLES_##ANGLES, false>>
#define USUAL_KERNELS(DTYPE, ROWS)                                                                                         \
    {                                                                                                                      \
        USUAL_KERNEL(DTYPE, ROWS, PHASE), USUAL_KERNEL(DTYPE, ROWS, TABLE)                                                 \
    }
#define ALONE_KERNEL(DTYPE, ROWS, ANGLES)                                                                                  \
    (const void *)rotate_alone_kernel<lone_rotation<DTYPE, ROWS_##ROWS, ANGLES_##ANGLES>>
#define GENERAL_KERNEL(DTYPE, VECTORS)                                                                                     \
    (const void *)rotate_kernel<rotation<DTYPE, VECTORS, ROWS_SEARCHED, ANGLES_ANY, true>>
#define ROTATION_KERNELS(DTYPE)                                                                                            \
    {                                                                                                                      \
        {USUAL_KERNELS(DTYPE, FROM_TOKENS), USUAL_KERNELS(DTYPE, READ), USUAL_KERNELS(DTYPE, SEARCHED)},                   \
            {{ALONE_KERNEL(DTYPE, FROM_TOKENS, PHASE), ALONE_KERNEL(DTYPE, FROM_TOKENS, TABLE)},                           \
             {ALONE_KERNEL(DTYPE, READ, PHASE), NULL},                                                                     \
             {ALONE_KERNEL(DTYPE, SEARCHED, PHASE), NULL}},                                                                \
        {                                                                                                                  \
            GENERAL_KERNEL(DTYPE, false), GENERAL_KERNEL(DTYPE, true)                                                      \
        }                                                                                                                  \
    }

#endif
