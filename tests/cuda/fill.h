/* Data that is made on the device, with cuRAND. */
#ifndef TESTS_CUDA_FILL_H
#define TESTS_CUDA_FILL_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Fills `bytes`, a multiple of 16, with bf16 numbers of magnitude 1/8 to 2 and both signs. */
cudaError_t fill_bf16(void *memory, size_t bytes, uint64_t seed, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
