/* A launch may start before the kernels queued before it have ended (CUDA calls this programmatic dependent launch; it
 * exists from compute capability 9.0 on). As soon as all blocks of the previous kernel are running, blocks of the new
 * kernel take the places of finished ones and start with the work that needs no memory. This hides a part of the gap
 * between two kernels. Nothing else changes: in every kernel of the backend, each thread calls await_previous() before it
 * reads or writes global memory, and admit_next() only after that. So the next kernel in the stream waits for the end of
 * this kernel and of all kernels before it. No load is ld.global.nc, which requires that nobody writes the memory while the
 * kernel runs.
 *
 * A kernel that always follows another kernel of the same call may read memory before its wait, if the other kernel does
 * not write that memory. When the other kernel called admit_next(), it had already waited for all kernels before it. CUDA's
 * documents promise only that a kernel sees the earlier writes after its own wait. On real devices, an admitted kernel sees
 * them as well.
 *
 * Code for older devices does not wait. Newer devices run such code only if a build contains it as PTX, so those builds
 * launch nothing early (cmake/options.cmake). */
#ifndef TROPE_CORE_CUDA_EARLY_LAUNCH_CUH
#define TROPE_CORE_CUDA_EARLY_LAUNCH_CUH

#include "core/cuda/ptx.cuh"

#ifndef TROPE_EARLY_LAUNCHES
#define TROPE_EARLY_LAUNCHES 1
#endif

/* Calls both functions, for kernels that load nothing between the two calls. */
__device__ __forceinline__ void take_turn()
{
    await_previous();
    admit_next();
}

#ifndef __CUDACC_RTC__ /* the rest is for the host */
/* The properties of the current device that a launch needs. Each is 0 if the query fails. */
struct device_facts {
    int major, multiprocessors; /* the major compute capability, and the number of multiprocessors */
};

/* The properties never change, but each query costs a launch some time. So a thread keeps them for as long as it stays
 * on one device. Only the index of the current device is queried every time. */
static inline device_facts facts_of_device(void)
{
    static thread_local int known = -1;
    static thread_local device_facts facts;
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess)
        return {0, 0};
    if (device != known) {
        facts = {0, 0};
        (void)cudaDeviceGetAttribute(&facts.major, cudaDevAttrComputeCapabilityMajor, device);
        (void)cudaDeviceGetAttribute(&facts.multiprocessors, cudaDevAttrMultiProcessorCount, device);
        known = device;
    }
    return facts;
}

/* The dynamic shared memory that a block may have on any device: without a request, and after a request for more. Both
 * values leave some room for static shared memory. */
#define UNASKED_SHARED_MEMORY (47u << 10)
#define ASKED_SHARED_MEMORY   (95u << 10)

static inline cudaError_t launch_early(const device_facts &device, const void *kernel, dim3 blocks, dim3 threads,
                                       size_t shared_memory_bytes, void *stream, void **arguments)
{
    if (shared_memory_bytes > UNASKED_SHARED_MEMORY) {
        /* All requests are for the same size, because another thread may change the size for the same kernel before the
         * launch. */
        const cudaError_t error =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)ASKED_SHARED_MEMORY);
        if (error != cudaSuccess)
            return error;
    }
    cudaLaunchAttribute early;
    cudaLaunchConfig_t config;
    config.gridDim = blocks;
    config.blockDim = threads;
    config.dynamicSmemBytes = shared_memory_bytes;
    config.stream = (cudaStream_t)stream;
    config.attrs = &early;
    config.numAttrs = 0;
    if (TROPE_EARLY_LAUNCHES && device.major >= 9) {
        config.numAttrs = 1;
        early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        early.val.programmaticStreamSerializationAllowed = 1;
    }
    return cudaLaunchKernelExC(&config, kernel, arguments);
}
#endif

#endif
