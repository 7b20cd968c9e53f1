#include <stdio.h>
#include <string.h>

#include "api/backend.h"
#include "core/threads.h"
#include "fwd/cpu/tokens.h"
#ifdef TROPE_CUDA
#include "jit/jit.h"
#endif
#include "trope/trope.h"

#define STRING_(x) #x
#define STRING(x)  STRING_(x)

const char *trope_version(void)
{
    return STRING(TROPE_VERSION_MAJOR) "." STRING(TROPE_VERSION_MINOR) "." STRING(TROPE_VERSION_PATCH);
}

static const char backends[] = "cpu"
#ifdef TROPE_CUDA
                               " cuda"
#endif
    ;

/* The architectures that the build compiled for (cmake/options.cmake). */
#ifndef TROPE_CUDA_CODE
#define TROPE_CUDA_CODE "unknown"
#endif

static void describe_devices(char *text, size_t size)
{
    text[0] = 0;
#ifdef TROPE_CUDA
    trope_cuda_describe(text, size);
#endif
    if (!text[0])
        snprintf(text, size, "none");
}

/* Adds the lines about CUDA, if this build has it. */
static void add_cuda(char *text, size_t size)
{
#ifdef TROPE_CUDA
    char driver[160], compiler[3000];
    const size_t used = strlen(text);
    trope_cuda_describe_driver(driver, sizeof driver);
    trope_jit_describe(compiler, sizeof compiler);
    snprintf(text + used, size - used, "cuda code: %s\ncuda driver: %s\n%s", TROPE_CUDA_CODE, driver, compiler);
#else
    (void)text, (void)size;
#endif
}

const char *trope_info(void)
{
    static _Thread_local char text[4096];
    char devices[512], sets[64] = "";
    for (int32_t isa = TROPE_ISA_NEON; isa >= TROPE_ISA_PORTABLE; isa--) {
        const trope_token_kernels *kernels = trope_find_token_kernels(isa);
        if (kernels)
            snprintf(sets + strlen(sets), sizeof sets - strlen(sets), " %s", kernels->name);
    }
    describe_devices(devices, sizeof devices);
    snprintf(text, sizeof text, "version: %s\nbackends: %s\ninstruction sets:%s\nthreads: %d\ndevices: %s\n",
             trope_version(), backends, sets, trope_default_threads(), devices);
    add_cuda(text, sizeof text);
    return text;
}
