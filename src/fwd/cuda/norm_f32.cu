#include "fwd/cuda/norm_kernels.cuh"

const trope_norm_kernels trope_norms_f32 = FEW_NORM_KERNELS("f32", TROPE_F32);
