#include "bwd/cuda/backward_kernels.cuh"

const trope_backward_kernels trope_backward_f16 =
    BACKWARD_KERNELS("f16", TROPE_F16, NO_FAST_NORM_GRADIENT_KERNELS, NO_KERNELS);
