/* All kernels for one dtype that only backward has. */
#ifndef TROPE_BWD_CUDA_BACKWARD_KERNELS_CUH
#define TROPE_BWD_CUDA_BACKWARD_KERNELS_CUH

#include "bwd/cuda/gradient_pass.cuh"
#include "bwd/cuda/head_sums.cuh"
#include "bwd/cuda/kernels.h"

#define SUM_KERNEL(name, DTYPE, form, VECTORS)                                                                             \
    {                                                                                                                      \
        (const void *)sum_heads_kernel<rotation<DTYPE, VECTORS, ROWS_ANY, ANGLES_ANY, !VECTORS>>,                          \
            "cuda-" name "-" form "-sums"                                                                                  \
    }
#define GRADIENT_KERNEL(name, DTYPE, form, VECTORS)                                                                        \
    {                                                                                                                      \
        (const void *)angle_gradient_kernel<gradient_pass<DTYPE, VECTORS>>, "cuda-" name "-" form "-gradient"              \
    }
#define BACKWARD_KERNELS(name, DTYPE)                                                                                      \
    {                                                                                                                      \
        {SUM_KERNEL(name, DTYPE, "elements", false), SUM_KERNEL(name, DTYPE, "vectors", true)},                            \
        {                                                                                                                  \
            GRADIENT_KERNEL(name, DTYPE, "elements", false), GRADIENT_KERNEL(name, DTYPE, "vectors", true)                 \
        }                                                                                                                  \
    }

#endif
