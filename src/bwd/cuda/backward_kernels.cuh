/* All kernels for one dtype that only backward has. */
#ifndef TROPE_BWD_CUDA_BACKWARD_KERNELS_CUH
#define TROPE_BWD_CUDA_BACKWARD_KERNELS_CUH

#include "bwd/cuda/gradient_pass.cuh"
#include "bwd/cuda/head_sums.cuh"
#include "bwd/cuda/kernels.h"

#define SUM_KERNEL(DTYPE, VECTORS) (const void *)sum_heads_kernel<rotation<DTYPE, VECTORS, ROWS_SEARCHED, ANGLES_ANY, true>>

#define GRADIENT_KERNEL(DTYPE, VECTORS) (const void *)angle_gradient_kernel<gradient_pass<DTYPE, VECTORS>>
#define BACKWARD_KERNELS(DTYPE)                                                                                            \
    {                                                                                                                      \
        {SUM_KERNEL(DTYPE, false), SUM_KERNEL(DTYPE, true)},                                                               \
        {                                                                                                                  \
            GRADIENT_KERNEL(DTYPE, false), GRADIENT_KERNEL(DTYPE, true)                                                    \
        }                                                                                                                  \
    }

#endif
