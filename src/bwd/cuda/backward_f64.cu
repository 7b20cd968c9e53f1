/* As in forward, f64 has only element kernels. */
#include "bwd/cuda/backward_kernels.cuh"

const trope_backward_kernels trope_backward_f64 = {
    {SUM_KERNEL("f64", TROPE_F64, "elements", false), {NULL, NULL}},
    {GRADIENT_KERNEL("f64", TROPE_F64, "elements", false), {NULL, NULL}},
    {{}, {}, {}, {}, GENERIC_NORM_GRADIENT_KERNEL("f64", TROPE_F64)},
};
