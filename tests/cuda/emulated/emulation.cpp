/* Runs CUDA kernels on the host, thread by thread, and replaces the CUDA runtime. So the results of kernels can be tested
 * without a GPU, but not their speed, and not the instructions that only a GPU has.
 *
 * One block runs at a time. Its threads are coroutines. Each runs until it must wait for other threads. Their order changes
 * each time, so that a missing wait usually gives wrong results. Two errors of a kernel end the program: threads that wait
 * forever, and addresses that are not aligned.
 *
 *     TROPE_EMULATED_DEVICE="9 132"   the major compute capability and the number of multiprocessors, for planning */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <vector>

#include "core/cuda/ptx.cuh"

#define STACK_BYTES  ((size_t)64 << 10)
#define SHARED_BYTES ((size_t)227 << 10)
#define WARP         32

dim3 threadIdx, blockIdx, blockDim, gridDim;

/* Dynamic shared memory. */
alignas(128) thread_local char shared_memory[SHARED_BYTES];

static unsigned running; /* the index of the running thread in its block */

static void fail(const char *what)
{
    printf("emulated: %s, in thread %u of block %u\n", what, running, blockIdx.x);
    fflush(stdout);
    abort();
}

void emulated_aligned(const void *address, size_t bytes)
{
    if ((uintptr_t)address % bytes)
        fail("an address is not aligned");
}

/* ---- coroutines ---- */

struct thread {
    jmp_buf at;
    bool started, ended;
};

/* Threads of a warp that wait for each other: those in `mask`. */
struct gathering {
    uint32_t mask, arrived;
    uint64_t times, coming[WARP], all[WARP];
};

struct block_state {
    std::vector<thread> threads;
    std::vector<std::deque<gathering>> gatherings; /* by warp */
    unsigned at_end, ended;                        /* the numbers of threads that wait for the block, and that have ended */
    uint64_t passes;                               /* how often the block passed a barrier */
    bool holds[2];                                 /* for any thread; barriers alternate between the two values */
};

static block_state block;
static std::vector<std::unique_ptr<char[]>> stacks;
static jmp_buf scheduler;
static const void *running_kernel;
static void **running_arguments;
static bool moved; /* whether any thread made progress in this round over all threads */
static uint64_t random_state = 1;

static uint64_t random_bits()
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
}

static thread &current()
{
    return block.threads[running];
}

static void wait_a_while()
{
    if (!_setjmp(current().at))
        _longjmp(scheduler, 1);
}

static void run_thread()
{
    typedef void (*kernel)(void *, void *, void *);
    ((kernel)running_kernel)(running_arguments[0], running_arguments[1], running_arguments[2]);
    thread &t = current();
    t.ended = moved = true;
    block.ended++;
    _longjmp(scheduler, 1);
}

static void resume(unsigned number)
{
    thread &t = block.threads[number];
    running = number;
    threadIdx.x = number % blockDim.x;
    threadIdx.y = number / blockDim.x % blockDim.y;
    threadIdx.z = number / blockDim.x / blockDim.y;
    if (_setjmp(scheduler))
        return;
    if (t.started)
        _longjmp(t.at, 1);
    t.started = true;
    while (stacks.size() <= number)
        stacks.emplace_back(new char[STACK_BYTES]);
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = stacks[number].get();
    context.uc_stack.ss_size = STACK_BYTES;
    context.uc_link = NULL;
    makecontext(&context, run_thread, 0);
    setcontext(&context);
}

/* ---- threads that wait for each other ---- */

static gathering &gathering_of(uint32_t mask)
{
    std::deque<gathering> &of_warp = block.gatherings[running / WARP];
    for (gathering &g : of_warp)
        if (g.mask == mask)
            return g;
    of_warp.push_back({mask, 0, 0, {}, {}});
    return of_warp.back();
}

/* Returns the threads of the warp that have ended or do not exist. Other threads do not wait for them. */
static uint32_t ended_threads()
{
    const unsigned first = running / WARP * WARP;
    uint32_t ended = 0;
    for (unsigned i = 0; i < WARP; i++)
        if (first + i >= block.threads.size() || block.threads[first + i].ended)
            ended |= 1u << i;
    return ended;
}

const uint64_t *emulated_gather(uint32_t mask, uint64_t value)
{
    const unsigned lane = running % WARP;
    gathering &g = gathering_of(mask);
    const uint64_t before = g.times;
    if (!(mask >> lane & 1))
        fail("a thread is not in the mask of threads that it waits for");
    g.coming[lane] = value;
    g.arrived |= 1u << lane;
    while (g.times == before) {
        if (((g.arrived | ended_threads()) & mask) == mask) {
            memcpy(g.all, g.coming, sizeof g.all);
            g.arrived = 0;
            g.times++;
            moved = true;
        } else {
            wait_a_while();
        }
    }
    return g.all;
}

int __syncthreads_or(int holds)
{
    const uint64_t before = block.passes;
    block.at_end++;
    block.holds[before % 2] = block.holds[before % 2] || holds;
    while (block.passes == before) {
        if (block.at_end + block.ended == block.threads.size()) {
            block.at_end = 0;
            block.passes++;
            block.holds[block.passes % 2] = false;
            moved = true;
        } else {
            wait_a_while();
        }
    }
    return block.holds[before % 2];
}

void __syncthreads()
{
    __syncthreads_or(0);
}

/* ---- blocks ---- */

static void run_block(unsigned threads)
{
    block.threads.assign(threads, thread());
    block.gatherings.assign((threads + WARP - 1) / WARP, std::deque<gathering>());
    block.at_end = block.ended = 0;
    block.passes = 0;
    block.holds[0] = block.holds[1] = false;
    std::fill((int32_t *)shared_memory, (int32_t *)(shared_memory + SHARED_BYTES), (int32_t)(random_bits() % 4) - 1);
    while (block.ended < threads) {
        const unsigned first = (unsigned)(random_bits() % threads), step = random_bits() % 2 ? 1 : threads - 1;
        moved = false;
        for (unsigned i = 0; i < threads; i++) {
            const unsigned number = (unsigned)((first + (uint64_t)i * step) % threads);
            if (!block.threads[number].ended)
                resume(number);
        }
        if (!moved)
            fail("all threads wait forever");
    }
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **arguments)
{
    if (config->dynamicSmemBytes > SHARED_BYTES || config->blockDim.x * config->blockDim.y * config->blockDim.z > 1024 ||
        config->blockDim.z > 64 || config->gridDim.x == 0)
        return cudaErrorInvalidValue;
    running_kernel = kernel;
    running_arguments = arguments;
    gridDim = config->gridDim;
    blockDim = config->blockDim;
    for (blockIdx.y = 0; blockIdx.y < gridDim.y; blockIdx.y++)
        for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++)
            run_block(blockDim.x * blockDim.y * blockDim.z);
    return cudaSuccess;
}

/* ---- the runtime ---- */

static int number_of_device(int which, int otherwise)
{
    const char *const text = getenv("TROPE_EMULATED_DEVICE");
    int numbers[2];
    return text && sscanf(text, "%d %d", numbers, numbers + 1) == 2 ? numbers[which] : otherwise;
}

const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaSuccess ? "no error" : "invalid value";
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = 13000;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = 13000;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int)
{
    *value = attribute == cudaDevAttrComputeCapabilityMajor ? number_of_device(0, 9) : number_of_device(1, 132);
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int)
{
    *properties = {"emulated", number_of_device(0, 9), 0, number_of_device(1, 132)};
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *, cudaFuncAttribute, int)
{
    return cudaSuccess;
}

/* Memory has the alignment of device memory. */
cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    *memory = aligned_alloc(256, (bytes + 256) / 256 * 256);
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **memory, size_t bytes)
{
    return cudaMalloc(memory, bytes);
}

cudaError_t cudaFree(void *memory)
{
    free(memory);
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *memory)
{
    return cudaFree(memory);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind)
{
    memcpy(to, from, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t)
{
    return cudaMemcpy(to, from, bytes, kind);
}

cudaError_t cudaMemset(void *memory, int value, size_t bytes)
{
    memset(memory, value, bytes);
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned)
{
    *stream = NULL;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t)
{
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t)
{
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    return cudaSuccess;
}
