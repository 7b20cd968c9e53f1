/* Replaces src/jit: the body of the compiled kernels with the constants of the call in memory. TROPE_JIT=0 leaves the calls
 * to the kernels that are made ahead of time. If TROPE_EMULATED_PROGRAMS names a folder, the program of each kind of calls
 * is written to it, for NVRTC. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fwd/cuda/block.cuh"
#include "jit/jit.h"

template <int DTYPE>
static void rotate_call(const call_values &values, const call_steps<CALL_PAIRS> &steps, const call_constants &constants)
{
    rotate_block(generic_call<DTYPE>{values, constants}, steps.of);
}

trope_jit_mode trope_jit_get_mode(void)
{
    const char *const mode = getenv("TROPE_JIT");
    return mode && !strcmp(mode, "0") ? TROPE_JIT_OFF : TROPE_JIT_ALL;
}

/* Writes the program of a request to a file whose name depends on its text. */
static void write_program(const char *folder, const trope_jit_request *request)
{
    char path[512];
    char *const program = request->make_program(request->key);
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    for (const char *at = program; *at; at++)
        hash = (hash ^ (unsigned char)*at) * 1099511628211u;
    snprintf(path, sizeof path, "%s/%016llx.cu", folder, (unsigned long long)hash);
    FILE *const file = fopen(path, "w");
    if (!file || fputs(program, file) < 0 || fclose(file)) {
        fprintf(stderr, "%s cannot be written\n", path);
        exit(1);
    }
    free(program);
}

/* A host reads vectors at any address, and a GPU does not. */
static void require_whole_vectors(const call_constants &c)
{
    if (c.pairs % (c.dtype == TROPE_F32 ? 4 : 8) == 0)
        return;
    fprintf(stderr, "a program has %d pairs, which are not whole vectors\n", (int)c.pairs);
    exit(1);
}

trope_status trope_jit_find(const char *, const trope_jit_request *request, int, const trope_jit_kernel **kernel)
{
    static const trope_jit_kernel kernels[] = {{(const void *)rotate_call<TROPE_F32>, 13000, 1, NULL},
                                               {(const void *)rotate_call<TROPE_F16>, 13000, 1, NULL},
                                               {(const void *)rotate_call<TROPE_BF16>, 13000, 1, NULL}};
    const int32_t dtype = ((const call_constants *)request->key)->dtype;
    require_whole_vectors(*(const call_constants *)request->key);
    const char *const folder = getenv("TROPE_EMULATED_PROGRAMS");
    if (folder)
        write_program(folder, request);
    *kernel = kernels + (dtype == TROPE_F32 ? 0 : dtype == TROPE_F16 ? 1 : 2);
    return TROPE_OK;
}

void trope_jit_describe(char *text, size_t size)
{
    snprintf(text, size, "jit: emulated\n");
}

trope_status trope_jit_check(const char *)
{
    return TROPE_OK;
}
