#include "bwd/cuda/backward_kernels.cuh"

const trope_backward_kernels trope_backward_bf16 =
    BACKWARD_KERNELS("bf16", TROPE_BF16, FAST_NORM_GRADIENT_KERNELS, WALK_KERNELS);
