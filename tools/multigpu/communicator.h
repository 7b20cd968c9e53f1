/* Communication between ranks. All ranks must call the same functions in the same order. A function returns nonzero when
 * the run is being ended; the watch then knows the reason. Memory is host memory, except for NCCL, which uses the GPU's
 * memory. */
#ifndef TESTS_MULTIGPU_COMMUNICATOR_H
#define TESTS_MULTIGPU_COMMUNICATOR_H

#include <stddef.h>
#include <stdint.h>

#include "watch.h"

typedef struct communicator communicator;

/* Each rank sends `bytes` to all ranks. The bytes of rank r arrive at all + r * bytes. */
typedef int (*gather_function)(communicator *c, const void *mine, void *all, size_t bytes);
/* Replaces the values by their sum over the ranks. dtype is TROPE_F32 or TROPE_F64. Every run gives the same bits. */
typedef int (*sum_function)(communicator *c, void *values, int64_t count, int32_t dtype);

/* One step of a ring: sends `bytes` to rank `to` while receiving the same number from rank `from`. */
typedef struct ring_step {
    const void *send;
    void *receive;
    size_t bytes;
    int32_t to, from;
} ring_step;
typedef int (*ring_function)(communicator *c, const ring_step *step);

struct communicator {
    char kind[96]; /* description for the header */
    int32_t rank, size;
    int is_thread; /* the ranks are threads of one process */
    watch *watch;
    gather_function all_gather;
    /* Does the same as all_gather on a GPU stream, without waiting for the GPU. NULL for host memory. */
    int (*queue_gather)(communicator *c, const void *mine, void *all, size_t bytes, void *stream);
    sum_function sum;
    ring_function ring;
    void (*close)(communicator *c);
};

/* Sums and rings for communicators that can only gather. They need host memory and add the ranks in order. */
int communicator_sum_by_gather(communicator *c, void *values, int64_t count, int32_t dtype);
int communicator_ring_by_gather(communicator *c, const ring_step *step);

/* Returns when all ranks have called it. Needs host memory. */
int communicator_barrier(communicator *c);

/* Makes communicators for threads of this process: element r of the array belongs to thread r, and `size` is the number of
 * threads. communicator_close on any of them frees them all. */
communicator **communicator_threads(watch *w, int32_t size);
void communicator_threads_free(communicator **all);

/* Connects processes over TCP, through rank 0. Returns NULL after watch_fail. */
communicator *communicator_tcp(watch *w, int32_t rank, int32_t size, const socket_address *hub);

#ifdef TROPE_MULTIGPU_HAS_MPI
/* Uses MPI_COMM_WORLD. begin and end are MPI_Init and MPI_Finalize. */
int communicator_mpi_begin(int *argc, char ***argv, int32_t *rank, int32_t *size);
int communicator_mpi_share_address(socket_address *address);
communicator *communicator_mpi(watch *w);
void communicator_mpi_end(void);
#endif

#ifdef TROPE_MULTIGPU_HAS_NCCL
/* Connects GPUs, with the calling thread's current device. The ranks exchange NCCL's id through `host`. Returns NULL after
 * watch_fail. */
communicator *communicator_nccl(communicator *host);
#endif

#endif
