/* A GPU as a device of the tool. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

#include "command.h"
#include "copy_cuda.h"
#include "device.h"
#include "seconds.h"
#include "trope/trope.h"

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define HAS_RANGES
#endif

/* A replay must take much longer than its start, and must not have too many nodes to launch quickly. */
#define BYTES_PER_REPLAY 4e9
#define NODES_PER_REPLAY 1024
/* Between two uses of a set, this many times the size of the cache is touched. */
#define CACHES_BETWEEN 4
/* Number of launches that are queued before the host waits for them: few enough that the stream does not block the host. */
#define CALLS_IN_FLIGHT 100

static int fails(cudaError_t error, const char *what)
{
    return error ? complain("%s: %s", what, cudaGetErrorString(error)) : 0;
}

static void describe(char *text, size_t size)
{
    struct cudaDeviceProp p;
    int device = 0, driver = 0, runtime = 0;
    (void)cudaGetDevice(&device);
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    if (cudaGetDeviceProperties(&p, device)) {
        snprintf(text, size, "unknown");
        return;
    }
    snprintf(text, size, "%s, sm_%d%d, %d multiprocessors, L2 %.0f MB, CUDA driver %d.%d, runtime %d.%d", p.name, p.major,
             p.minor, p.multiProcessorCount, p.l2CacheSize * 1e-6, driver / 1000, driver % 1000 / 10, runtime / 1000,
             runtime % 1000 / 10);
}

static int32_t threads(int32_t given)
{
    (void)given;
    return 1;
}

static void *allocate(size_t bytes, int32_t count)
{
    void *memory = NULL;
    (void)count;
    return cudaMalloc(&memory, bytes ? bytes : 1) ? NULL : memory;
}

static void release(void *memory, size_t bytes)
{
    (void)bytes;
    (void)cudaFree(memory);
}

static int upload(void *to, const void *from, size_t bytes)
{
    return fails(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "copy to the device");
}

static int download(void *to, const void *from, size_t bytes)
{
    return fails(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "copy from the device");
}

/* The stream does not wait for the default stream, where uploads from pageable memory may still be running. */
static int run(const device_work *work)
{
    cudaStream_t stream = NULL;
    int failed = fails(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    failed = failed || fails(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    failed = failed || work->run(work->context, 0, stream) || fails(cudaStreamSynchronize(stream), "call");
    if (stream)
        (void)cudaStreamDestroy(stream);
    return failed;
}

static int copy(int way, void *to, const void *from, size_t bytes, int32_t count, void *stream)
{
    (void)count;
    if (way == 0)
        return fails(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream), "cudaMemcpyAsync");
    return fails(copy_cuda_launch(way - 1, to, from, bytes, stream), "copy kernel");
}

static int move(int way, void *tensor, const device_runs *runs, void *stream)
{
    return fails(move_cuda_launch(way, tensor, runs, stream), "move kernel");
}

static int sets(double bytes)
{
    int device = 0, cache = 0;
    (void)cudaGetDevice(&device);
    (void)cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, device);
    const double count = CACHES_BETWEEN * (double)cache / bytes;
    return count < NODES_PER_REPLAY - 2 ? 2 + (int)count : NODES_PER_REPLAY;
}

/* ---- time on the device ---- */

/* Returns the number of runs of a work in one replay. All sets run equally often. */
static int runs_per_replay(const device_timing *t)
{
    const double wanted = BYTES_PER_REPLAY / t->bytes;
    const int runs = wanted < NODES_PER_REPLAY ? (int)wanted : NODES_PER_REPLAY;
    return runs > t->sets ? runs / t->sets * t->sets : t->sets;
}

static int queue_runs(const device_work *work, int runs, int set_count, cudaStream_t stream)
{
    for (int i = 0; i < runs; i++)
        if (work->run(work->context, i % set_count, stream))
            return 1;
    return 0;
}

static int capture(const device_work *work, const device_timing *t, cudaStream_t stream, cudaGraphExec_t *replay)
{
    cudaGraph_t graph = NULL;
    if (fails(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture"))
        return 1;
    int failed = queue_runs(work, runs_per_replay(t), t->sets, stream);
    failed |= fails(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    failed = failed || fails(cudaGraphInstantiate(replay, graph, 0), "cudaGraphInstantiate");
    if (graph)
        (void)cudaGraphDestroy(graph);
    return failed;
}

/* Queues all rounds before waiting for any, so that the device never waits for the host. */
static int replay_rounds(const device_timing *t, cudaGraphExec_t *replays, cudaEvent_t *events, cudaStream_t stream)
{
    cudaError_t error = cudaSuccess;
    for (int round = -1; round < t->repeat; round++)
        for (int w = 0; w < t->count && !error; w++) {
            cudaEvent_t *pair = round < 0 ? NULL : &events[2 * (w * t->repeat + round)];
            error = pair ? cudaEventRecord(pair[0], stream) : cudaSuccess;
            error = error ? error : cudaGraphLaunch(replays[w], stream);
            error = error || !pair ? error : cudaEventRecord(pair[1], stream);
        }
    return fails(error, "cudaGraphLaunch") || fails(cudaStreamSynchronize(stream), "replays");
}

static int read_events(const device_timing *t, const cudaEvent_t *events)
{
    for (int i = 0; i < t->count * t->repeat; i++) {
        float milliseconds;
        if (fails(cudaEventElapsedTime(&milliseconds, events[2 * i], events[2 * i + 1]), "cudaEventElapsedTime"))
            return 1;
        t->seconds[i] = milliseconds * 1e-3 / runs_per_replay(t);
    }
    return 0;
}

static int measure(const device_timing *t)
{
    const int event_count = 2 * t->count * t->repeat;
    cudaGraphExec_t *replays = calloc((size_t)t->count, sizeof *replays);
    cudaEvent_t *events = calloc((size_t)event_count, sizeof *events);
    cudaStream_t stream = NULL;
    int failed = !replays || !events ? complain("out of memory") : 0;
    failed = failed || fails(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    for (int i = 0; i < event_count && !failed; i++)
        failed = fails(cudaEventCreate(&events[i]), "cudaEventCreate");
    for (int w = 0; w < t->count && !failed; w++)
        failed = capture(&t->works[w], t, stream, &replays[w]);
    failed = failed || fails(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    failed = failed || replay_rounds(t, replays, events, stream) || read_events(t, events);
    for (int i = 0; events && i < event_count && events[i]; i++)
        (void)cudaEventDestroy(events[i]);
    for (int w = 0; replays && w < t->count && replays[w]; w++)
        (void)cudaGraphExecDestroy(replays[w]);
    if (stream)
        (void)cudaStreamDestroy(stream);
    free(events);
    free(replays);
    return failed;
}

/* ---- time on the host ---- */

/* Times a run and an empty kernel, one after the other. */
static int time_launches(const device_work *work, int set, cudaStream_t stream, double *seconds, double *empty_seconds)
{
    const double begin = seconds_now();
    const int failed = work->run(work->context, set, stream);
    const double middle = seconds_now();
    const cudaError_t error = empty_cuda_launch(stream);
    *empty_seconds = seconds_now() - middle;
    *seconds = middle - begin;
    return failed || fails(error, "empty kernel");
}

static int measure_host(const device_work *work, int set_count, int count, double *seconds, double *empty_seconds)
{
    cudaStream_t stream = NULL;
    int failed = fails(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    failed = failed || time_launches(work, 0, stream, seconds, empty_seconds); /* warm-up */
    for (int i = 0; i < count && !failed; i++) {
        if (i % (CALLS_IN_FLIGHT / 2) == 0)
            failed = fails(cudaStreamSynchronize(stream), "calls");
        failed = failed || time_launches(work, (i + 1) % set_count, stream, &seconds[i], &empty_seconds[i]);
    }
    failed = failed || fails(cudaStreamSynchronize(stream), "calls");
    if (stream)
        (void)cudaStreamDestroy(stream);
    return failed;
}

#ifdef HAS_RANGES
static void begin_range(const char *name)
{
    nvtxRangePushA(name);
}

static void end_range(void)
{
    nvtxRangePop();
}
#endif

const tool_device device_cuda = {
    .name = "cuda",
    .id = TROPE_DEVICE_CUDA,
    .has_goals = 1,
    .describe = describe,
    .threads = threads,
    .allocate = allocate,
    .release = release,
    .upload = upload,
    .download = download,
    .run = run,
    .copies = 1 + COPY_KERNELS,
    .is_steady = 1,
    .copy_names = {"memcpy", COPY_KERNEL_NAMES},
    .copy = copy,
    .moves = MOVE_KERNELS,
    .move_names = {MOVE_KERNEL_NAMES},
    .move = move,
    .sets = sets,
    .measure = measure,
    .measure_host = measure_host,
#ifdef HAS_RANGES
    .begin_range = begin_range,
    .end_range = end_range,
#endif
};
