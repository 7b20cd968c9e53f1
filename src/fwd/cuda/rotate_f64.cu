/* By elements alone: the time of f64 is that of double sines. */
#include "fwd/cuda/rotate_kernels.cuh"

const trope_rotation_kernels trope_rotations_f64 = {{}, {}, {}, ELEMENT_KERNEL("f64", TROPE_F64)};
