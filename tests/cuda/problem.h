/* Runs a call_case on the device and on the host, each in its own block of memory. Afterwards the blocks must be equal byte
 * for byte, including gaps and inputs. */
#ifndef TESTS_CUDA_PROBLEM_H
#define TESTS_CUDA_PROBLEM_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/call_case.h"

typedef struct problem {
    call_case k;
    case_map map;
    unsigned char *host, *found, *device; /* `found` is a copy of the device's block */
    void *host_workspace, *device_workspace;
    call on_host, on_device;
} problem;

/* Allocates, draws and uploads. */
problem *problem_new(const call_case *k, uint64_t seed);
void problem_free(problem *p);

/* Draws new data at the same addresses and uploads it. Memory that the call does not read is 0xff. */
void problem_draw(problem *p, uint64_t seed, cudaStream_t stream);

/* Returns the address of a region in the host's block. */
void *problem_region(const problem *p, int region);

/* Uploads the host's block after a test has changed it, and waits for the end of the upload. */
void problem_upload(problem *p, cudaStream_t stream);

/* Queues the call on a stream. */
trope_status problem_queue(problem *p, cudaStream_t stream);

/* Waits for the stream and copies the device's block to `found`. */
void problem_bring(problem *p, cudaStream_t stream);

/* Runs the call on the host. */
trope_status problem_run_on_host(problem *p);

/* Calls problem_bring, runs the call on the host and returns whether the blocks are equal. */
int problem_holds(problem *p, cudaStream_t stream);

/* Returns how many bytes of `found` differ from the uploaded block. It ignores the regions that the call writes. */
size_t problem_stray_bytes(const problem *p);

/* One call for each kind of kernel. The tests of graphs and streams make them with up to CASE_OPERANDS operands. */
enum { PROBLEM_KINDS = 8, PROBLEM_GRADIENT_KIND = 3 };
extern const call_case problem_kinds[PROBLEM_KINDS];
problem *problem_of_kind(int kind, int operands, uint64_t seed);

#endif
