/* A chain: calls and copies in one block of memory, of which each needs what the one before it has written, and writes what
 * that has read. The device gets all of it at once, with nothing but the order of a stream in between, then as a graph; the
 * CPU runs it step by step, and both must leave the same bytes. */
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

/* Elements among those that a chain leaves. */
typedef struct chain_result {
    int32_t dtype;
    size_t at, bytes;
} chain_result;

typedef struct chain {
    const char *name;
    int64_t tokens;
    const void *what;
    size_t bytes, compared; /* of memory, and of these the first ones, which must be the same on both devices */
    chain_result result;
    void (*fill)(const void *what, unsigned char *memory); /* what is not filled is NaN */
    void (*run)(const void *what, chain_place at);
} chain;

typedef struct chain_memory {
    size_t room;
    unsigned char *host, *found, *device;
    cudaStream_t stream; /* one that does not wait for the default stream */
} chain_memory;

/* Memory for chains of up to so many bytes. */
chain_memory *chain_memory_new(size_t room);
void chain_memory_free(chain_memory *m);

/* Runs a chain, then goes on from there as a graph that is replayed. Returns whether the device has left the CPU's bytes
 * both times, and prints the first one that differs. */
int chain_holds(chain_memory *m, const chain *c);

/* How many of 1000 elements of the result are finite numbers and not 0: with only others, a chain proves nothing. */
int chain_numbers(const chain_memory *m, const chain_result *r);

/* Checks both. Here, because checks are counted where they are made. */
static inline void chain_check(chain_memory *m, const chain *c)
{
    CHECK_MESSAGE(chain_holds(m, c), "%s, %lld tokens", c->name, (long long)c->tokens);
    const int numbers = chain_numbers(m, &c->result);
    CHECK_MESSAGE(numbers > 900, "%s, %lld tokens: %d of 1000 are numbers", c->name, (long long)c->tokens, numbers);
}

/* Queues the chain so many times, as a graph that is captured once: in chain_graph.c. */
void chain_launch(const chain *c, chain_place at, int times);

/* The steps of a chain. One that is refused ends the program. A copy is of bytes of the block. */
void chain_call(call *c, chain_place at, int backward);
void chain_copy(chain_place at, size_t to, size_t from, size_t bytes);

/* The same by a call of the library: the last bytes first, the reverse of how they are read. All bytes up to a multiple of
 * 256 are copied, and the call writes to `scratch`, of as many bytes as chain_scratch_bytes says, where the devices differ. */
void chain_copy_by_call(chain_place at, size_t to, size_t from, size_t bytes, size_t scratch);
size_t chain_scratch_bytes(size_t bytes);

#endif
