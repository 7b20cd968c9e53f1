/* A call of a table (call_case.h) on the device and again on the host, in blocks of memory that must then be the same, byte
 * for byte, gaps and inputs included. */
#ifndef TESTS_CUDA_PROBLEM_H
#define TESTS_CUDA_PROBLEM_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/call_case.h"

typedef struct problem {
    call_case k;
    case_map map;
    unsigned char *host, *found, *device; /* `found` is what came back from the device */
    void *host_workspace, *device_workspace;
    call on_host, on_device;
} problem;

/* Allocates, draws and uploads. */
problem *problem_new(const call_case *k, uint64_t seed);
void problem_free(problem *p);

/* Draws new data behind the same pointers and uploads it. What the call does not read is 0xff. */
void problem_draw(problem *p, uint64_t seed, cudaStream_t stream);

/* Where a region lies in the host's block. */
void *problem_region(const problem *p, int region);

/* Uploads the host's block, after a test has changed it. Waits. */
void problem_upload(problem *p, cudaStream_t stream);

/* Queues the call on a stream. */
trope_status problem_queue(problem *p, cudaStream_t stream);

/* Waits for the stream and brings the device's block back. */
void problem_bring(problem *p, cudaStream_t stream);

/* Runs the call on the host. */
trope_status problem_run_on_host(problem *p);

/* Brings the device's block back, runs the call on the host and compares. Returns whether the blocks agree. */
int problem_holds(problem *p, cudaStream_t stream);

/* How many bytes of `found`, from the block's begin to its end, are not those that were uploaded, outside of what the call
 * writes. */
size_t problem_stray_bytes(const problem *p);

/* One call of each kind of kernel, which the tests of graphs and streams make with up to CASE_OPERANDS operands. */
enum { PROBLEM_KINDS = 8, PROBLEM_GRADIENT_KIND = 3 };
extern const call_case problem_kinds[PROBLEM_KINDS];
problem *problem_of_kind(int kind, int operands, uint64_t seed);

#endif
