#include "fwd/cuda/rotate_kernels.cuh"

const trope_rotation_kernels trope_rotations_f32 = ROTATION_KERNELS("f32", TROPE_F32);
