/* f64 has only an element kernel, because sines in double take most of the time. */
#include "fwd/cuda/rotate_kernels.cuh"

const trope_rotation_kernels trope_rotations_f64 = {{}, {}, {}, ELEMENT_KERNEL("f64", TROPE_F64)};
