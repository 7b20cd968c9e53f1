#include "cuda/device_call.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/reference.h"

#define GUARD      256
#define GUARD_BYTE 0xa5

void device_must(cudaError_t error, const char *what, const char *file, int line)
{
    if (error == cudaSuccess)
        return;
    printf("%s:%d: %s: %s\n", file, line, what, cudaGetErrorString(error));
    exit(1);
}

void device_require(void)
{
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess && count > 0)
        return;
    printf("skipped: no CUDA device: %s\n", error == cudaSuccess ? "none was found" : cudaGetErrorString(error));
    exit(77);
}

long device_option(int argc, char **argv, const char *name, long otherwise)
{
    for (int i = 1; i + 1 < argc; i++)
        if (!strcmp(argv[i], name))
            return strtol(argv[i + 1], NULL, 0);
    return otherwise;
}

device_arena *device_arena_new(int separate)
{
    device_arena *arena = calloc(1, sizeof *arena);
    arena->separate = separate;
    CUDA_MUST(cudaStreamCreateWithFlags(&arena->stream, cudaStreamNonBlocking));
    return arena;
}

static void release_memory(device_arena *arena)
{
    CUDA_MUST(cudaFree(arena->device));
    CUDA_MUST(cudaFreeHost(arena->up));
    CUDA_MUST(cudaFreeHost(arena->down));
}

void device_arena_free(device_arena *arena)
{
    release_memory(arena);
    CUDA_MUST(cudaStreamDestroy(arena->stream));
    free(arena);
}

static void make_room(device_arena *arena, size_t bytes)
{
    if (bytes <= arena->room)
        return;
    release_memory(arena);
    arena->room = 2 * bytes;
    arena->device = NULL;
    if (!arena->separate)
        CUDA_MUST(cudaMalloc((void **)&arena->device, arena->room));
    CUDA_MUST(cudaMallocHost((void **)&arena->up, arena->room));
    CUDA_MUST(cudaMallocHost((void **)&arena->down, arena->room));
}

/* ---- the layout of device memory ---- */

/* Returns the shift that aligns the first operand or weight in a buffer to 16 bytes. */
static size_t shift_of(const config *c, const trope_args *args, int buffer)
{
    for (int i = 0; i < args->operand_count; i++) {
        const trope_norm *norm = reference_norm(args, i);
        const void *pointers[] = {args->operands[i].dst, args->operands[i].src, args->operands[i].forward_src,
                                  norm ? norm->weight : NULL};
        for (int j = 0; j < 4; j++)
            if (pointers[j] && config_buffer_of(c, pointers[j]) == buffer)
                return (16 - (size_t)((const unsigned char *)pointers[j] - c->buffers[buffer].bytes) % 16) % 16;
    }
    return 0;
}

static size_t size_of(const config *c, int i, size_t workspace)
{
    return i == c->buffer_count ? workspace : c->buffers[i].size;
}

/* Sets the offsets of the buffers and then of the workspace. Returns the end of the last guard zone. */
static size_t lay_out(device_arena *arena, const config *c, const trope_args *args, size_t workspace)
{
    size_t at = 0;
    for (int i = 0; i <= c->buffer_count; i++) {
        const size_t shift = arena->align && i < c->buffer_count ? shift_of(c, args, i) : 0;
        arena->offset[i] = (at + 2 * GUARD - 1) / GUARD * GUARD + shift;
        at = arena->offset[i] + size_of(c, i, workspace);
    }
    return at + GUARD;
}

static void place(device_arena *arena, const config *c, size_t workspace)
{
    for (int i = 0; i <= c->buffer_count; i++) {
        const size_t shift = arena->offset[i] % 16, size = size_of(c, i, workspace);
        arena->base[i] = arena->device + arena->offset[i];
        if (!arena->separate)
            continue;
        CUDA_MUST(cudaMalloc((void **)&arena->base[i], shift + (size ? size : 1)));
        arena->base[i] += shift;
    }
}

static void take_back(device_arena *arena, const config *c)
{
    for (int i = 0; i <= c->buffer_count && arena->separate; i++)
        CUDA_MUST(cudaFree(arena->base[i] - arena->offset[i] % 16));
}

/* ---- upload and download ---- */

static int is_scratch(const config *c, int i)
{
    return i == c->buffer_count || c->buffers[i].role == CONFIG_SCRATCH;
}

static void upload(device_arena *arena, const config *c, size_t total)
{
    memset(arena->up, GUARD_BYTE, total);
    for (int i = 0; i < c->buffer_count; i++)
        if (!is_scratch(c, i))
            memcpy(arena->up + arena->offset[i], c->buffers[i].bytes, c->buffers[i].size);
    if (!arena->separate)
        CUDA_MUST(cudaMemcpyAsync(arena->device, arena->up, total, cudaMemcpyHostToDevice, arena->stream));
    for (int i = 0; i < c->buffer_count && arena->separate; i++)
        if (!is_scratch(c, i))
            CUDA_MUST(cudaMemcpyAsync(arena->base[i], arena->up + arena->offset[i], c->buffers[i].size,
                                      cudaMemcpyHostToDevice, arena->stream));
}

static void download(device_arena *arena, const config *c, size_t total)
{
    if (!arena->separate)
        CUDA_MUST(cudaMemcpyAsync(arena->down, arena->device, total, cudaMemcpyDeviceToHost, arena->stream));
    for (int i = 0; i < c->buffer_count && arena->separate; i++)
        if (!is_scratch(c, i))
            CUDA_MUST(cudaMemcpyAsync(arena->down + arena->offset[i], arena->base[i], c->buffers[i].size,
                                      cudaMemcpyDeviceToHost, arena->stream));
    CUDA_MUST(cudaStreamSynchronize(arena->stream));
    for (int i = 0; i < c->buffer_count; i++)
        if (!is_scratch(c, i))
            memcpy(c->buffers[i].bytes, arena->down + arena->offset[i], c->buffers[i].size);
}

/* Checks that the memory between the buffers did not change. */
static void check_guards(const device_arena *arena, const config *c, size_t workspace, size_t total)
{
    size_t at = 0;
    for (int i = 0; i <= c->buffer_count + 1; i++) {
        const size_t end = i <= c->buffer_count ? arena->offset[i] : total;
        for (; at < end; at++)
            if (arena->down[at] != GUARD_BYTE) {
                printf("seed 0x%llx: the call wrote to a guard zone, %zu bytes before buffer %d of %d\n",
                       (unsigned long long)c->seed, end - at, i, c->buffer_count);
                exit(1);
            }
        at = i <= c->buffer_count ? end + size_of(c, i, workspace) : end;
    }
}

/* ---- the call ---- */

static trope_status find_workspace(const trope_args *args, int backward, uint64_t *bytes)
{
    *bytes = 0;
    return backward ? trope_workspace_size(args, bytes) : TROPE_OK;
}

static trope_status run(device_arena *arena, const config *c, call *k, int backward)
{
    config_rebase(c, k, arena->base);
    trope_args *a = call_args(k);
    a->stream = arena->stream;
    const trope_status of_size = find_workspace(a, backward, &a->workspace_size);
    if (of_size)
        return of_size;
    a->workspace = a->workspace_size ? arena->base[c->buffer_count] : NULL;
    const trope_status of_name = trope_kernel_name(a, backward, arena->kernel, sizeof arena->kernel);
    return of_name ? of_name : config_run(c, a, backward);
}

trope_status device_run(device_arena *arena, config *c, const call *k, int backward)
{
    call on_device = *k;
    uint64_t workspace;
    on_device.args.device = TROPE_DEVICE_CUDA;
    trope_status status = find_workspace(call_args(&on_device), backward, &workspace);
    if (status)
        return status;
    const size_t total = lay_out(arena, c, &on_device.args, workspace);
    make_room(arena, total);
    place(arena, c, workspace);
    upload(arena, c, total);
    status = run(arena, c, &on_device, backward);
    download(arena, c, total);
    if (!status && !arena->separate)
        check_guards(arena, c, workspace, total);
    take_back(arena, c);
    return status;
}
