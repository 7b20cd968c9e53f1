/* Launches that do not wait for the end of what was queued before them (CUDA calls it programmatic dependent launch; from
 * compute capability 9.0 on): as soon as all blocks of that run, blocks of the kernel may take the places of those that are
 * done, and begin with what needs no memory. It saves a part of the gap between two kernels. Nothing else changes: every
 * kernel of the backend calls await_previous() before it reads or writes global memory, in every thread, and admit_next()
 * not before that; so what follows it in the stream waits for its end and for that of all before it. Loads are not
 * ld.global.nc, which is for what nobody writes while a kernel runs. (A kernel that always follows another one of the same call may
 * before its wait read what that one does not write: it has waited for all before it when it admits. CUDA's documents
 * promise what is written to those that wait; that those they admit see it as well is what devices do.)
 *
 * Code for older devices does not wait. Newer ones run it only if a build has it as PTX, so such builds have no early
 * launches (cmake/options.cmake). */
#ifndef TROPE_CORE_CUDA_EARLY_LAUNCH_CUH
#define TROPE_CORE_CUDA_EARLY_LAUNCH_CUH

#include "core/cuda/ptx.cuh"

#ifndef TROPE_EARLY_LAUNCHES
#define TROPE_EARLY_LAUNCHES 1
#endif

/* Both, where nothing is to be asked for in between. */
__device__ __forceinline__ void take_turn()
{
    await_previous();
    admit_next();
}

/* What a launch needs to know of the current device, each 0 if it cannot be asked for. */
struct device_facts {
    int major, multiprocessors; /* of compute capability */
};

/* They never change, and each question costs a launch some time: a thread asks once as long as it stays on one device.
 * Which one that is must be asked for every time, so a call comes here once. */
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

/* Dynamic shared memory that a block may have on any device without asking, and if it asks: all but some kilobytes, which
 * are not dynamic. */
#define UNASKED_SHARED_BYTES (47u << 10)
#define ASKED_SHARED_BYTES   (95u << 10)

static inline cudaError_t launch_early(const device_facts &device, const void *kernel, dim3 blocks, dim3 threads,
                                       size_t shared_bytes, void *stream, void **arguments)
{
    if (shared_bytes > UNASKED_SHARED_BYTES) {
        /* Always for the same: another thread may ask for the same kernel between this and the launch. */
        const cudaError_t error =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)ASKED_SHARED_BYTES);
        if (error != cudaSuccess)
            return error;
    }
    cudaLaunchAttribute early;
    cudaLaunchConfig_t config;
    config.gridDim = blocks;
    config.blockDim = threads;
    config.dynamicSmemBytes = shared_bytes;
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
