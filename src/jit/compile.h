/* Compiles a program with NVRTC and the device code that the library contains. */
#ifndef TROPE_JIT_COMPILE_H
#define TROPE_JIT_COMPILE_H

#include <stddef.h>
#include <stdint.h>

#include "jit/nvrtc.h"

/* Machine code, in memory of malloc. */
typedef struct trope_cubin {
    char *code;
    size_t bytes;
    int32_t nvrtc_version; /* of its compiler */
} trope_cubin;

/* Compiles for one architecture (90 for sm_90). The program is text that may include the headers listed in
 * jit/sources.cmake. Returns 0 if this fails, and then says why. */
int trope_compile(const trope_nvrtc *nvrtc, const char *program, int32_t architecture, trope_cubin *cubin, char *why,
                  size_t why_size);

/* Returns a hash of everything that decides a cubin, except for the program, the architecture and the compiler. */
uint64_t trope_hash_of_sources(void);

#endif
