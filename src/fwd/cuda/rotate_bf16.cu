#include "fwd/cuda/rotate_kernels.cuh"

const trope_rotation_kernels trope_rotations_bf16 = ROTATION_KERNELS("bf16", TROPE_BF16);
