/* All kernels of the rotation for one dtype that has vector kernels. */
#ifndef TROPE_FWD_CUDA_ROTATE_KERNELS_CUH
#define TROPE_FWD_CUDA_ROTATE_KERNELS_CUH

#include "fwd/cuda/kernels.h"
#include "fwd/cuda/rotate.cuh"
#include "fwd/cuda/rotate_alone.cuh"

#define VECTOR_KERNEL(name, DTYPE, positions, POSITIONS, angles, ANGLES)                                                   \
    {                                                                                                                      \
        (const void *)rotate_kernel<rotation<DTYPE, true, POSITIONS, ANGLES, false>>,                                      \
            "cuda-" name "-vectors-" positions "-" angles                                                                  \
    }
#define VECTOR_KERNELS(name, DTYPE, positions, POSITIONS)                                                                  \
    {                                                                                                                      \
        VECTOR_KERNEL(name, DTYPE, positions, POSITIONS, "phase", ANGLES_PHASE),                                           \
            VECTOR_KERNEL(name, DTYPE, positions, POSITIONS, "table", ANGLES_TABLE)                                        \
    }
#define ELEMENT_KERNEL(name, DTYPE)                                                                                        \
    {                                                                                                                      \
        (const void *)rotate_kernel<rotation<DTYPE, false, POSITIONS_GENERIC, ANGLES_GENERIC, true>>,                      \
            "cuda-" name "-elements"                                                                                       \
    }
#define ROTATION_KERNELS(name, DTYPE)                                                                                      \
    {                                                                                                                      \
        {VECTOR_KERNELS(name, DTYPE, "from-tokens", POSITIONS_FROM_TOKENS),                                                \
         VECTOR_KERNELS(name, DTYPE, "read", POSITIONS_READ), VECTOR_KERNELS(name, DTYPE, "searched", POSITIONS_SEARCHED), \
         VECTOR_KERNELS(name, DTYPE, "searched-generic", POSITIONS_SEARCHED_GENERIC)},                                     \
            {(const void *)rotate_kernel<rotation<DTYPE, true, POSITIONS_GENERIC, ANGLES_GENERIC, false>>,                 \
             "cuda-" name "-vectors"},                                                                                     \
            {(const void *)rotate_alone_kernel<lone_rotation<DTYPE>>, "cuda-" name "-alone"}, ELEMENT_KERNEL(name, DTYPE)  \
    }

#endif
