/* Ranks that have a GPU each. NCCL's calls do not block. Their progress is polled, so that a peer's error or the watch can
 * end the wait. */
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "communicator.h"
#include "trope/trope.h"

typedef struct nccl_communicator {
    communicator base;
    ncclComm_t comm;
    cudaStream_t stream;
} nccl_communicator;

static int fail(nccl_communicator *c, const char *what, const char *error)
{
    return watch_fail(c->base.watch, WATCH_EFFECT, "rank %d: %s: %s", c->base.rank, what, error);
}

/* Waits until NCCL has finished the last operation and then, if a stream is given, until the GPU has finished it too. */
static int finish(nccl_communicator *c, ncclResult_t result, const char *what, cudaStream_t stream)
{
    for (;;) {
        if (watch_stopped(c->base.watch))
            return 1;
        if (result == ncclInProgress || result == ncclSuccess)
            if (ncclCommGetAsyncError(c->comm, &result))
                return fail(c, what, "ncclCommGetAsyncError failed");
        if (result != ncclInProgress && result != ncclSuccess)
            return fail(c, what, ncclGetLastError(c->comm));
        const cudaError_t error = result == ncclSuccess && stream ? cudaStreamQuery(stream) : cudaSuccess;
        if (error != cudaSuccess && error != cudaErrorNotReady)
            return fail(c, what, cudaGetErrorString(error));
        if (result == ncclSuccess && error == cudaSuccess)
            return 0;
        const struct timespec pause = {.tv_nsec = 10000};
        (void)nanosleep(&pause, NULL);
    }
}

/* Waits for the default stream, which runs the library's calls and the copies. */
static int begin(nccl_communicator *c)
{
    const cudaError_t error = cudaStreamSynchronize(NULL);
    return error ? fail(c, "work before a collective", cudaGetErrorString(error)) : 0;
}

static int all_gather(communicator *base, const void *mine, void *all, size_t bytes)
{
    nccl_communicator *c = (nccl_communicator *)base;
    return begin(c) ||
           finish(c, ncclAllGather(mine, all, bytes, ncclUint8, c->comm, c->stream), "ncclAllGather", c->stream);
}

static int queue_gather(communicator *base, const void *mine, void *all, size_t bytes, void *stream)
{
    nccl_communicator *c = (nccl_communicator *)base;
    return finish(c, ncclAllGather(mine, all, bytes, ncclUint8, c->comm, (cudaStream_t)stream), "ncclAllGather", NULL);
}

static int sum(communicator *base, void *values, int64_t count, int32_t dtype)
{
    nccl_communicator *c = (nccl_communicator *)base;
    const ncclDataType_t type = dtype == TROPE_F64 ? ncclFloat64 : ncclFloat32;
    return begin(c) || finish(c, ncclAllReduce(values, values, (size_t)count, type, ncclSum, c->comm, c->stream),
                              "ncclAllReduce", c->stream);
}

static int ring(communicator *base, const ring_step *step)
{
    nccl_communicator *c = (nccl_communicator *)base;
    if (begin(c))
        return 1;
    ncclResult_t result = ncclGroupStart();
    if (result == ncclSuccess)
        result = ncclSend(step->send, step->bytes, ncclUint8, step->to, c->comm, c->stream);
    if (result == ncclSuccess || result == ncclInProgress)
        result = ncclRecv(step->receive, step->bytes, ncclUint8, step->from, c->comm, c->stream);
    const ncclResult_t end = ncclGroupEnd();
    if (result == ncclSuccess || result == ncclInProgress)
        result = end;
    return finish(c, result, "ncclSend and ncclRecv", c->stream);
}

static void close_nccl(communicator *base)
{
    nccl_communicator *c = (nccl_communicator *)base;
    if (watch_stopped(base->watch)) {
        (void)ncclCommAbort(c->comm);
    } else {
        (void)finish(c, ncclCommFinalize(c->comm), "ncclCommFinalize", NULL);
        (void)ncclCommDestroy(c->comm);
        (void)cudaStreamDestroy(c->stream);
    }
    free(c);
}

static int connect_ranks(nccl_communicator *c, communicator *host)
{
    ncclUniqueId mine, *ids = malloc((size_t)host->size * sizeof *ids);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    memset(&mine, 0, sizeof mine);
    if (!ids)
        return watch_fail(host->watch, WATCH_CAUSE, "rank %d is out of memory", host->rank);
    ncclResult_t result = host->rank ? ncclSuccess : ncclGetUniqueId(&mine);
    if (result)
        (void)watch_fail(host->watch, WATCH_CAUSE, "ncclGetUniqueId: %s", ncclGetErrorString(result));
    int failed = host->all_gather(host, &mine, ids, sizeof mine);
    if (!failed)
        result = ncclCommInitRankConfig(&c->comm, host->size, ids[0], host->rank, &config);
    free(ids);
    if (!failed && result != ncclSuccess && result != ncclInProgress)
        failed = watch_fail(host->watch, WATCH_EFFECT, "rank %d: ncclCommInitRankConfig: %s", host->rank,
                            ncclGetErrorString(result));
    return failed || finish(c, result, "ncclCommInitRankConfig", NULL);
}

communicator *communicator_nccl(communicator *host)
{
    int version = 0;
    nccl_communicator *c = calloc(1, sizeof *c);
    if (!c) {
        (void)watch_fail(host->watch, WATCH_CAUSE, "rank %d is out of memory", host->rank);
        return NULL;
    }
    c->base = (communicator){.rank = host->rank, .size = host->size, .watch = host->watch, .all_gather = all_gather};
    c->base.queue_gather = queue_gather;
    c->base.sum = sum;
    c->base.ring = ring;
    c->base.close = close_nccl;
    (void)ncclGetVersion(&version);
    snprintf(c->base.kind, sizeof c->base.kind, "NCCL %d.%d.%d, met over %.40s", version / 10000, version / 100 % 100,
             version % 100, host->kind);
    const cudaError_t error = cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking);
    const int failed = error ? fail(c, "cudaStreamCreateWithFlags", cudaGetErrorString(error)) : connect_ranks(c, host);
    if (!failed)
        return &c->base;
    free(c); /* if setup fails, the NCCL communicator exists until the process ends */
    return NULL;
}
