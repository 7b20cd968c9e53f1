/* What ranks need of each other. Every function is called by all ranks, in the same order, and returns nonzero when the run
 * is being ended; the watch has been told why. Memory is host memory, but NCCL's, which is the GPU's. */
#ifndef TESTS_MULTIGPU_COMMUNICATOR_H
#define TESTS_MULTIGPU_COMMUNICATOR_H

#include <stddef.h>
#include <stdint.h>

#include "watch.h"

typedef struct communicator communicator;

/* `bytes` from each rank to all: those of rank r at all + r * bytes. */
typedef int (*gather_function)(communicator *c, const void *mine, void *all, size_t bytes);
/* The sum over the ranks in place of the values, TROPE_F32 or TROPE_F64, the same bits in every run. */
typedef int (*sum_function)(communicator *c, void *values, int64_t count, int32_t dtype);

/* A step of a ring: `bytes` go to rank `to` while as many come from rank `from`. */
typedef struct ring_step {
    const void *send;
    void *receive;
    size_t bytes;
    int32_t to, from;
} ring_step;
typedef int (*ring_function)(communicator *c, const ring_step *step);

struct communicator {
    char kind[96]; /* what it is, for the header */
    int32_t rank, size;
    int is_thread; /* the ranks are threads of one process */
    watch *watch;
    gather_function all_gather;
    /* The same in the order of a GPU's stream, without waiting for the GPU; NULL for host memory. */
    int (*queue_gather)(communicator *c, const void *mine, void *all, size_t bytes, void *stream);
    sum_function sum;
    ring_function ring;
    void (*close)(communicator *c);
};

/* Sums and rings for communicators that can only gather. In host memory; ranks are added in order. */
int communicator_sum_by_gather(communicator *c, void *values, int64_t count, int32_t dtype);
int communicator_ring_by_gather(communicator *c, const ring_step *step);

/* Returns when all ranks have called it. In host memory. */
int communicator_barrier(communicator *c);

/* Threads of this process: an array of `size`, for thread r its element. communicator_close on one of them frees all. */
communicator **communicator_threads(watch *w, int32_t size);
void communicator_threads_free(communicator **all);

/* Processes over TCP, through rank 0. NULL after watch_fail. */
communicator *communicator_tcp(watch *w, int32_t rank, int32_t size, const socket_address *hub);

#ifdef TROPE_MULTIGPU_HAS_MPI
/* MPI_COMM_WORLD. begin and end are MPI_Init and MPI_Finalize. */
int communicator_mpi_begin(int *argc, char ***argv, int32_t *rank, int32_t *size);
int communicator_mpi_share_address(socket_address *address);
communicator *communicator_mpi(watch *w);
void communicator_mpi_end(void);
#endif

#ifdef TROPE_MULTIGPU_HAS_NCCL
/* GPUs, for the calling thread's current device; the ranks find each other through `host`. NULL after watch_fail. */
communicator *communicator_nccl(communicator *host);
#endif

#endif
