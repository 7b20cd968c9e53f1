/* One rank of a run: its number, its device and its memory. */
#ifndef TESTS_MULTIGPU_RANK_H
#define TESTS_MULTIGPU_RANK_H

#include <stddef.h>
#include <stdint.h>

#include "communicator.h"
#include "device.h"
#include "problem.h"

enum { ARENA_BLOCKS = 64 };

/* Device memory that is allocated once and reused. Freeing memory would wait for devices, and a device may wait for a rank
 * that is waiting to free memory. */
typedef struct arena {
    void *block[ARENA_BLOCKS];
    size_t size[ARENA_BLOCKS];
    int blocks, current;
    size_t used; /* in the current block */
} arena;

typedef struct arena_mark {
    int current;
    size_t used;
} arena_mark;

typedef struct rank_context {
    int32_t rank, size;
    watch *watch;
    communicator *host; /* for host memory */
    communicator *data; /* for device memory; the same as `host` on the CPU */
    const tool_device *device;
    int32_t threads;
    arena arena;
    double copy_speed; /* bytes per second of one device that copies alone */
} rank_context;

/* Takes device memory, aligned to 256 bytes. It stays valid until the arena goes back to the mark. Returns NULL after
 * watch_fail. */
void *rank_take(rank_context *r, size_t bytes);
arena_mark rank_mark(const rank_context *r);
void rank_give_back(rank_context *r, arena_mark mark);
void rank_release(rank_context *r);

/* Both return nonzero after watch_fail. */
int rank_upload(rank_context *r, void *device, const void *host, size_t bytes);
int rank_download(rank_context *r, void *host, const void *device, size_t bytes);

/* Allocates host memory. Returns NULL after watch_fail. */
void *rank_malloc(rank_context *r, size_t bytes);

#endif
