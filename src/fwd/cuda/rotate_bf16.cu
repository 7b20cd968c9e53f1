#include "fwd/cuda/rotate_kernels.cuh"

const trope_rotation_kernels trope_rotations_bf16 = ROTATION_KERNELS(TROPE_BF16);
