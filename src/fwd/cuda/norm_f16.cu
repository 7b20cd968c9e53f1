#include "fwd/cuda/norm_kernels.cuh"

const trope_norm_kernels trope_norms_f16 = NO_FAST_NORM_KERNELS("f16", TROPE_F16);
