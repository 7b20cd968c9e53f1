/* What one CUDA call takes; api/backend_cuda.cu refuses more. */
#ifndef TROPE_CORE_CUDA_LIMITS_CUH
#define TROPE_CORE_CUDA_LIMITS_CUH

#define MAX_CUDA_OPERANDS 4
#define MAX_CUDA_AXES     3

#endif
