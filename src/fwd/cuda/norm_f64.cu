/* f64 has only an element kernel. */
#include "fwd/cuda/norm_kernels.cuh"

const trope_norm_kernels trope_norms_f64 = {{}, {}, {}, {}, GENERIC_NORM_KERNEL("f64", TROPE_F64)};
