#include "copy_cuda.h"

#include <stdint.h>

#include "core/cuda/early_launch.cuh"
#include "core/cuda/ptx.cuh"

/* Launches a kernel as the library does: see early_launch.cuh. */
static cudaError_t launch(const void *kernel, size_t blocks, unsigned threads, cudaStream_t stream, void **arguments)
{
    return launch_early(facts_of_device(), kernel, dim3((unsigned)blocks), dim3(threads), 0, stream, arguments);
}

/* Copies a tile, which has LOADS vectors for each thread of the block. All loads are issued before the first store. Loads
 * and stores have the hint that the data is used once. */
template <int LOADS> __device__ void copy_tile(uint4 *to, const uint4 *from, size_t count, size_t tile)
{
    const size_t first = tile * LOADS * blockDim.x + threadIdx.x;
    uint4 v[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; i++)
        if (first + i * blockDim.x < count)
            v[i] = __ldcs(from + first + i * blockDim.x);
#pragma unroll
    for (int i = 0; i < LOADS; i++)
        if (first + i * blockDim.x < count)
            __stcs(to + first + i * blockDim.x, v[i]);
}

/* Copies bytes [begin, bytes), which do not fill a vector. */
__device__ void copy_rest(char *to, const char *from, size_t begin, size_t bytes)
{
    if (blockIdx.x == 0 && begin + threadIdx.x < bytes)
        to[begin + threadIdx.x] = from[begin + threadIdx.x];
}

/* Each block copies one tile or, in a smaller grid, every gridDim.x-th tile. ADMITS: the next kernel may start early. */
template <int LOADS, bool ADMITS> __global__ void copy_kernel(uint4 *to, const uint4 *from, size_t bytes, size_t tiles)
{
    await_previous();
    if (ADMITS)
        admit_next();
    for (size_t tile = blockIdx.x; tile < tiles; tile += gridDim.x)
        copy_tile<LOADS>(to, from, bytes / 16, tile);
    copy_rest((char *)to, (const char *)from, bytes / 16 * 16, bytes);
}

typedef void (*kernel)(uint4 *to, const uint4 *from, size_t bytes, size_t tiles);

static const struct {
    kernel run;
    unsigned loads, threads, resident; /* resident: blocks per multiprocessor, 0 = one block per tile */
} kernels[COPY_KERNELS] = {
    {copy_kernel<4, false>, 4, 256, 0}, {copy_kernel<4, false>, 4, 512, 0}, {copy_kernel<8, false>, 8, 128, 0},
    {copy_kernel<8, false>, 8, 256, 0}, {copy_kernel<4, false>, 4, 512, 4}, {copy_kernel<4, true>, 4, 256, 0},
    {copy_kernel<8, true>, 8, 128, 0},
};

cudaError_t copy_cuda_launch(int way, void *to, const void *from, size_t bytes, cudaStream_t stream)
{
    const size_t per_tile = (size_t)kernels[way].loads * kernels[way].threads * 16;
    const size_t tiles = bytes ? (bytes + per_tile - 1) / per_tile : 1;
    const size_t resident = kernels[way].resident * (size_t)facts_of_device().multiprocessors;
    const size_t blocks = resident && resident < tiles ? resident : tiles;
    void *arguments[] = {&to, &from, &bytes, (void *)&tiles};
    return launch((const void *)kernels[way].run, blocks, kernels[way].threads, stream, arguments);
}

/* ---- policies: what L2 should keep ---- */

/* For data that is used once: it should not displace other data in L2. */
__device__ __forceinline__ uint64_t evict_first()
{
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/* For data that is soon stored with another policy: it stays in L2 until then. */
__device__ __forceinline__ uint64_t evict_last()
{
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ __forceinline__ uint64_t evict_normal()
{
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ __forceinline__ void load_by_policy(const char *from, uint64_t policy, uint4 *to)
{
    asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(to->x), "=r"(to->y), "=r"(to->z), "=r"(to->w)
                 : "l"(from), "l"(policy)
                 : "memory");
}

__device__ __forceinline__ void store_by_policy(char *to, uint64_t policy, const uint4 &from)
{
    asm volatile("st.global.L2::cache_hint.v4.u32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(to), "r"(from.x), "r"(from.y),
                 "r"(from.z), "r"(from.w), "l"(policy)
                 : "memory");
}

/* The same as found_here in ptx.cuh, for uint64_t. */
__device__ __forceinline__ uint64_t found_here(uint64_t value)
{
    asm volatile("" : "+l"(value));
    return value;
}

/* ---- moves ---- */

struct run_vectors {
    char *first;
    uint64_t pitch;
    uint32_t count;   /* vectors of all runs */
    uint32_t per_run; /* vectors of one run */

    __device__ __forceinline__ char *address(uint32_t i) const
    {
        const uint32_t run = i / per_run;
        return first + run * pitch + (i - run * per_run) * 16;
    }
};

/* Each thread moves LOADS vectors. It computes their addresses before it waits for the previous kernel, and admits the next
 * kernel when all loads are issued. STAYS: loaded data stays in L2 until it is stored. */
template <int LOADS, bool STAYS> __global__ void move_kernel(KERNEL_PARAMETER(run_vectors) vectors)
{
    const uint32_t begin = blockIdx.x * LOADS * blockDim.x + threadIdx.x;
    const uint64_t loads = found_here(STAYS ? evict_last() : evict_first()),
                   stores = found_here(STAYS ? evict_normal() : evict_first());
    char *at[LOADS];
    uint4 v[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; i++)
        at[i] = found_here(vectors.address(begin + i * blockDim.x));
    await_previous();
#pragma unroll
    for (int i = 0; i < LOADS; i++)
        if (begin + i * blockDim.x < vectors.count)
            load_by_policy(at[i], loads, &v[i]);
    admit_next();
#pragma unroll
    for (int i = 0; i < LOADS; i++)
        if (begin + i * blockDim.x < vectors.count)
            store_by_policy(at[i], stores, v[i]);
}

static const struct {
    void (*run)(run_vectors vectors);
    unsigned loads, threads;
} movers[MOVE_KERNELS] = {
    {move_kernel<1, true>, 1, 128},  {move_kernel<1, true>, 1, 256}, {move_kernel<1, true>, 1, 512},
    {move_kernel<2, true>, 2, 256},  {move_kernel<4, true>, 4, 128}, {move_kernel<1, false>, 1, 256},
    {move_kernel<2, false>, 2, 256},
};

cudaError_t move_cuda_launch(int way, void *tensor, const device_runs *runs, cudaStream_t stream)
{
    const uint32_t per_run = (uint32_t)(runs->bytes / 16);
    run_vectors vectors = {(char *)tensor + runs->first, (uint64_t)runs->pitch, (uint32_t)(per_run * runs->count), per_run};
    const uint32_t per_block = movers[way].loads * movers[way].threads,
                   blocks = (vectors.count + per_block - 1) / per_block;
    void *arguments[] = {&vectors};
    return launch((const void *)movers[way].run, blocks, movers[way].threads, stream, arguments);
}

/* ---- nothing ---- */

__global__ void empty_kernel()
{
}

cudaError_t empty_cuda_launch(cudaStream_t stream)
{
    return cudaLaunchKernel((const void *)empty_kernel, dim3(1), dim3(32), NULL, 0, stream);
}
