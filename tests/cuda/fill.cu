#include "cuda/fill.h"

#include <curand_kernel.h>

enum { THREADS = 256, VECTORS = 16 };

/* Sign and significand are random bits, and so are the last two bits of the exponent. */
__global__ void fill_kernel(uint4 *to, size_t count, uint64_t seed)
{
    const size_t thread = (size_t)blockIdx.x * THREADS + threadIdx.x;
    curandStatePhilox4_32_10_t state;
    curand_init(seed, thread, 0, &state);
    for (size_t i = (size_t)blockIdx.x * THREADS * VECTORS + threadIdx.x, n = 0; n < VECTORS && i < count;
         i += THREADS, n++) {
        uint4 v = curand4(&state);
        v.x = (v.x & 0x81ff81ffu) | 0x3e003e00u;
        v.y = (v.y & 0x81ff81ffu) | 0x3e003e00u;
        v.z = (v.z & 0x81ff81ffu) | 0x3e003e00u;
        v.w = (v.w & 0x81ff81ffu) | 0x3e003e00u;
        to[i] = v;
    }
}

cudaError_t fill_bf16(void *memory, size_t bytes, uint64_t seed, cudaStream_t stream)
{
    const size_t count = bytes / 16, blocks = (count + THREADS * VECTORS - 1) / (THREADS * VECTORS);
    fill_kernel<<<(unsigned)blocks, THREADS, 0, stream>>>((uint4 *)memory, count, seed);
    return cudaGetLastError();
}
