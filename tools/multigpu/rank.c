#include "rank.h"

#include <stdlib.h>

#define ALIGNMENT   ((size_t)256)
#define FIRST_BLOCK ((size_t)64 << 20)

static int add_block(rank_context *r, size_t bytes)
{
    arena *a = &r->arena;
    size_t size = a->blocks ? 2 * a->size[a->blocks - 1] : FIRST_BLOCK;
    size = size > bytes ? size : bytes;
    void *memory = a->blocks < ARENA_BLOCKS ? r->device->allocate(size, r->threads) : NULL;
    if (!memory)
        return watch_fail(r->watch, WATCH_CAUSE, "rank %d is out of device memory (%zu bytes)", r->rank, size);
    a->block[a->blocks] = memory;
    a->size[a->blocks++] = size;
    return 0;
}

void *rank_take(rank_context *r, size_t bytes)
{
    arena *a = &r->arena;
    const size_t size = (bytes + ALIGNMENT) / ALIGNMENT * ALIGNMENT;
    while (a->current >= a->blocks || a->used + size > a->size[a->current]) {
        if (a->current < a->blocks) {
            a->current++;
            a->used = 0;
        }
        if (a->current >= a->blocks && add_block(r, size))
            return NULL;
    }
    a->used += size;
    return (char *)a->block[a->current] + a->used - size;
}

arena_mark rank_mark(const rank_context *r)
{
    return (arena_mark){r->arena.current, r->arena.used};
}

void rank_give_back(rank_context *r, arena_mark mark)
{
    r->arena.current = mark.current;
    r->arena.used = mark.used;
}

void rank_release(rank_context *r)
{
    for (int i = 0; i < r->arena.blocks; i++)
        r->device->release(r->arena.block[i], r->arena.size[i]);
    r->arena = (arena){.blocks = 0};
}

int rank_upload(rank_context *r, void *device, const void *host, size_t bytes)
{
    if (bytes && r->device->upload(device, host, bytes))
        return watch_fail(r->watch, WATCH_CAUSE, "rank %d: data cannot be copied to its device", r->rank);
    return 0;
}

int rank_download(rank_context *r, void *host, const void *device, size_t bytes)
{
    if (bytes && r->device->download(host, device, bytes))
        return watch_fail(r->watch, WATCH_CAUSE, "rank %d: data cannot be copied from its device", r->rank);
    return 0;
}

void *rank_malloc(rank_context *r, size_t bytes)
{
    void *memory = malloc(bytes ? bytes : 1);
    if (!memory)
        (void)watch_fail(r->watch, WATCH_CAUSE, "rank %d is out of memory (%zu bytes)", r->rank, bytes);
    return memory;
}
