/* A chain is a list of calls and copies in one block of memory. Each step reads memory that the previous step wrote, and
 * overwrites memory that the previous step read. The device receives all steps at once, ordered only by the stream, and
 * then as a graph. The CPU runs them one by one. Both devices must produce the same bytes. */
#ifndef TESTS_CUDA_CHAIN_H
#define TESTS_CUDA_CHAIN_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#include "support/call.h"
#include "support/check.h"

/* Where a chain runs. */
typedef struct chain_place {
    unsigned char *memory;
    int32_t device; /* TROPE_DEVICE_CPU or TROPE_DEVICE_CUDA */
    cudaStream_t stream;
} chain_place;

/* Elements that a chain wrote, as a range of the block. */
typedef struct chain_result {
    int32_t dtype;
    size_t at, bytes;
} chain_result;

typedef struct chain {
    const char *name;
    int64_t tokens;
    const void *what;
    size_t bytes, compared; /* the size of the block, and of the part at its start that must be equal on both devices */
    chain_result result;
    void (*fill)(const void *what, unsigned char *memory); /* the rest of the memory is NaN */
    void (*run)(const void *what, chain_place at);
} chain;

typedef struct chain_memory {
    size_t room;
    unsigned char *host, *found, *device;
    cudaStream_t stream; /* does not wait for the default stream */
} chain_memory;

/* Allocates memory for chains of up to `room` bytes. */
chain_memory *chain_memory_new(size_t room);
void chain_memory_free(chain_memory *m);

/* Runs a chain, then replays it as a graph on the resulting memory. Returns whether the device had the same bytes as the
 * CPU both times, and prints the offset of the first byte that differs. */
int chain_holds(chain_memory *m, const chain *c);

/* Returns how many of 1000 random elements of the result are finite and not 0. A chain without such elements proves
 * nothing. */
int chain_numbers(const chain_memory *m, const chain_result *r);

/* Checks chain_holds and chain_numbers. It is defined here because each source file counts its own checks. */
static inline void chain_check(chain_memory *m, const chain *c)
{
    CHECK_MESSAGE(chain_holds(m, c), "%s, %lld tokens: the device and the CPU differ", c->name, (long long)c->tokens);
    const int numbers = chain_numbers(m, &c->result);
    CHECK_MESSAGE(numbers > 900, "%s, %lld tokens: %d of 1000 elements are finite and not 0", c->name, (long long)c->tokens,
                  numbers);
}

/* Captures the chain in a graph and launches it `times` times. Defined in chain_graph.c. */
void chain_launch(const chain *c, chain_place at, int times);

/* The steps of a chain. A refused call ends the program. Offsets of copies are in bytes from the start of the block. */
void chain_call(call *c, chain_place at, int backward);
void chain_copy(chain_place at, size_t to, size_t from, size_t bytes);

/* Like chain_copy, but a call of the library copies. It copies the last bytes first, because later calls read the first
 * bytes first. The size is rounded up to a multiple of 256 bytes. The call also writes to `scratch`, which has
 * chain_scratch_bytes(bytes) bytes. The contents of `scratch` differ between the devices. */
void chain_copy_by_call(chain_place at, size_t to, size_t from, size_t bytes, size_t scratch);
size_t chain_scratch_bytes(size_t bytes);

#endif
