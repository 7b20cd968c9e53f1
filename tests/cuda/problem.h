/* Calls that the tests of graphs and streams make: one for each kind of kernel, up to four operands, on the device and
 * again on the host. Shapes stay, data is drawn anew. */
#ifndef TESTS_CUDA_PROBLEM_H
#define TESTS_CUDA_PROBLEM_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#include "support/call.h"
#include "support/random.h"

enum {
    PROBLEM_OPERANDS = 4,
    PROBLEM_TOKENS = 700,
    PROBLEM_SEQUENCES = 9,
    PROBLEM_DIM = 64,
    PROBLEM_ROTARY = 48,
    PROBLEM_ROWS = 900
};

typedef enum problem_kind {
    PROBLEM_INV_FREQ,        /* cu_seqlens and start positions */
    PROBLEM_IDS,             /* cu_seqlens, position ids and freqs */
    PROBLEM_BACKWARD,        /* the same, backward */
    PROBLEM_GRADIENT,        /* the same with d_freqs */
    PROBLEM_PLAIN,           /* inv_freq, positions follow from the tokens */
    PROBLEM_HELD,            /* the same of few tokens with many heads, turned whole: in registers */
    PROBLEM_PACKED,          /* cu_seqlens and inv_freq */
    PROBLEM_PACKED_GRADIENT, /* cu_seqlens and freqs, backward with d_freqs */
    PROBLEM_KINDS
} problem_kind;

/* Everything that a call reads or writes, at the same offsets on host and device. */
typedef struct problem_memory {
    uint16_t src[PROBLEM_OPERANDS][PROBLEM_TOKENS * 4 * PROBLEM_DIM],
        dst[PROBLEM_OPERANDS][PROBLEM_TOKENS * 4 * PROBLEM_DIM];
    uint16_t forward_src[PROBLEM_OPERANDS][PROBLEM_TOKENS * 4 * PROBLEM_DIM];
    float freqs[PROBLEM_ROWS * PROBLEM_ROTARY / 2], d_freqs[PROBLEM_ROWS * PROBLEM_ROTARY / 2];
    int64_t ids[PROBLEM_TOKENS];
    int32_t cu_seqlens[PROBLEM_SEQUENCES + 1], starts[PROBLEM_SEQUENCES];
    int32_t status;
} problem_memory;

typedef struct problem {
    problem_kind kind;
    int operands;
    problem_memory *host, *device;
    problem_memory *found; /* what came back */
    void *host_workspace, *device_workspace;
    double inv_freq[PROBLEM_DIM / 2];
    call on_host, on_device;
} problem;

/* Allocates, draws and uploads. */
problem *problem_new(problem_kind kind, int operands, uint64_t seed);
void problem_free(problem *p);

/* New data of all kinds behind the same pointers, the results 0xff. That of gradients is such that their sums are exact in
 * double, in any order. */
void problem_draw(problem *p, uint64_t seed, cudaStream_t stream);

int problem_has_gradient(const problem *p);

/* Queues the call on a stream. */
trope_status problem_queue(problem *p, cudaStream_t stream);

/* Waits for the stream, runs the call on the host and compares all bytes of memory. Returns whether they agree. */
int problem_holds(problem *p, cudaStream_t stream);

#endif
