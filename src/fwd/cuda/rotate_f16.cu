#include "fwd/cuda/rotate_kernels.cuh"

const trope_rotation_kernels trope_rotations_f16 = ROTATION_KERNELS("f16", TROPE_F16);
