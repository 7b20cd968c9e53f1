/* By elements alone, as forward. */
#include "bwd/cuda/backward_kernels.cuh"

const trope_backward_kernels trope_backward_f64 = {{SUM_KERNEL(TROPE_F64, false), NULL},
                                                   {GRADIENT_KERNEL(TROPE_F64, false), NULL}};
