#include "bwd/cuda/backward_kernels.cuh"

const trope_backward_kernels trope_backward_f32 = BACKWARD_KERNELS("f32", TROPE_F32, FEW_NORM_GRADIENT_KERNELS, NO_KERNELS);
