#include "fwd/cuda/norm_kernels.cuh"

const trope_norm_kernels trope_norms_bf16 = NORM_KERNELS("bf16", TROPE_BF16);
