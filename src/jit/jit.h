/* Kernels that are compiled for one kind of calls. A caller describes the constants of the kind (a key) and makes the text
 * of a program with them. trope_jit_find returns the kernel: from memory, from a file of an earlier process (cache.h), or
 * compiled by NVRTC (compile.h). If this is impossible, the caller runs its generic kernel instead. */
#ifndef TROPE_JIT_JIT_H
#define TROPE_JIT_JIT_H

#include <stddef.h>
#include <stdint.h>

#include "trope/trope.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct trope_jit_request {
    const void *key; /* the constants: plain data, in which padding is zero; equal keys have equal programs and entries */
    size_t key_bytes;
    const char *entry;                      /* the name of the kernel, which is extern "C" */
    char *(*make_program)(const void *key); /* returns the text in memory of malloc; NULL: there is no memory */
} trope_jit_request;

typedef struct trope_jit_kernel {
    const void *function;  /* a cudaKernel_t, which launches take as a function; NULL: use the generic kernel */
    int32_t nvrtc_version; /* of the compiler: 13000 is 13.0 */
    int32_t is_tested;     /* this version of NVRTC is on the list of those that were tested */
    const char *why;       /* function is NULL: the reason, for a reader */
} trope_jit_kernel;

/* The variable TROPE_JIT. It is read once. */
typedef enum trope_jit_mode {
    TROPE_JIT_OFF = 1, /* 0: all calls use the generic kernel */
    TROPE_JIT_ON,      /* 1, or not set */
    TROPE_JIT_REQUIRE, /* require: a call whose kernel cannot be compiled is an error */
    TROPE_JIT_ALL,     /* all: as with require, also for calls for which kernels made ahead of time are faster */
    TROPE_JIT_INVALID  /* any other value: trope_jit_find refuses it */
} trope_jit_mode;

trope_jit_mode trope_jit_get_mode(void);

/* Refuses a call if TROPE_JIT is not valid. */
trope_status trope_jit_check(const char *function);

/* Finds the kernel of a request for a device. *kernel stays valid. The first call may compile, which takes up to a second
 * with each compiler that is tried. Later calls take about 50 ns and no lock. Any thread may call this, also during stream capture. `function` is the
 * name of the public function, for the message of an error. */
trope_status trope_jit_find(const char *function, const trope_jit_request *request, int device,
                            const trope_jit_kernel **kernel);

/* Compiles a request for an architecture (90 for sm_90), without a GPU, and writes it to the cache unless it is there. */
trope_status trope_jit_prepare(const char *function, const trope_jit_request *request, int32_t architecture);

/* Writes lines about the compiler and the cache, for trope_info. It opens the compiler. */
void trope_jit_describe(char *text, size_t size);

/* For tests: how many programs this process has compiled, and how many cubins it has read from files. */
void trope_jit_get_counts(uint64_t *compiled, uint64_t *read);

#ifdef __cplusplus
}
#endif
#endif
