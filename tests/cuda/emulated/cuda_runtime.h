/* The part of CUDA C++ that the library uses, for a C++ compiler of the host. emulation.cpp runs the kernels. */
#ifndef TESTS_CUDA_EMULATED_CUDA_RUNTIME_H
#define TESTS_CUDA_EMULATED_CUDA_RUNTIME_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#include <type_traits>

#include "cuda_runtime_api.h"

#define __host__
#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__    __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
/* Each block has its own shared memory, but only one block runs at a time. */
#define __shared__ thread_local

/* ---- types ---- */

struct int2 {
    int x, y;
};

struct float2 {
    float x, y;
};

struct uint2 {
    unsigned x, y;
};

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

struct dim3 {
    unsigned x, y, z;

    dim3(unsigned of_x = 1, unsigned of_y = 1, unsigned of_z = 1) : x(of_x), y(of_y), z(of_z)
    {
    }
};

/* The values for the thread that runs. */
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

/* Returns the index of the running thread in its warp. */
static inline uint32_t emulated_lane()
{
    return ((threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x) % 32;
}

/* ---- threads that wait for each other ---- */

void __syncthreads();

static inline void __threadfence()
{
}

/* Waits for all threads of the block. Returns whether `holds` is true for any of them. */
int __syncthreads_or(int holds);

/* Waits for the threads of `mask`. Returns the values that they passed, indexed by the thread's index in the warp. */
const uint64_t *emulated_gather(uint32_t mask, uint64_t value);

static inline void __syncwarp(uint32_t mask = UINT32_MAX)
{
    emulated_gather(mask, 0);
}

static inline uint32_t __ballot_sync(uint32_t mask, int holds)
{
    const uint64_t *const all = emulated_gather(mask, holds != 0);
    uint32_t ballot = 0;
    for (int i = 0; i < 32; i++)
        ballot |= (mask >> i & 1 && all[i]) ? 1u << i : 0;
    return ballot;
}

template <typename T> static inline T __shfl_sync(uint32_t mask, T value, int thread)
{
    static_assert(sizeof(T) <= 8, "__shfl_sync");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = emulated_gather(mask, bits)[thread & 31];
    memcpy(&value, &bits, sizeof value);
    return value;
}

template <typename T> static inline T __shfl_xor_sync(uint32_t mask, T value, int distance)
{
    return __shfl_sync(mask, value, (int)emulated_lane() ^ distance);
}

static inline uint32_t __match_any_sync(uint32_t mask, uint32_t value)
{
    const uint64_t *const all = emulated_gather(mask, value);
    uint32_t same = 0;
    for (int i = 0; i < 32; i++)
        same |= (mask >> i & 1 && all[i] == value) ? 1u << i : 0;
    return same;
}

/* ---- arithmetic, memory ---- */

/* Ends the program if an address is not a multiple of `bytes`. */
void emulated_aligned(const void *address, size_t bytes);

static inline uint32_t min(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static inline int32_t min(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static inline int64_t min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline uint32_t max(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static inline int32_t max(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

static inline int64_t max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int __ffs(int bits)
{
    return __builtin_ffs(bits);
}

static inline int __popc(uint32_t bits)
{
    return __builtin_popcount(bits);
}

/* Byte i of the result is the byte of `high` and `low` whose number is the i-th hexadecimal digit. */
static inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t digits)
{
    const uint64_t bytes = (uint64_t)high << 32 | low;
    uint32_t chosen = 0;
    for (int i = 0; i < 4; i++)
        chosen |= (uint32_t)(bytes >> (digits >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return chosen;
}

static inline double __longlong_as_double(long long bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

template <typename T> static inline T __ldcg(const T *from)
{
    return *from;
}

template <typename T> static inline T __ldcs(const T *from)
{
    return *from;
}

template <typename T> static inline void __stcs(T *to, const T &value)
{
    *to = value;
}

template <typename T, typename U> static inline T atomicOr(T *at, U bits)
{
    const T before = *at;
    *at |= (T)bits;
    return before;
}

template <typename T, typename U> static inline T atomicAdd(T *at, U value)
{
    const T before = *at;
    *at += (T)value;
    return before;
}

/* ---- launches ---- */

enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization };

struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    struct {
        int programmaticStreamSerializationAllowed;
    } val;
};

struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **arguments);

#endif
