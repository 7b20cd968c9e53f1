#include <stdio.h>
#include <string.h>

#include "api/backend.h"
#include "core/threads.h"
#include "fwd/cpu/tokens.h"
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

static void describe_devices(char *text, size_t size)
{
    text[0] = 0;
#ifdef TROPE_CUDA
    trope_cuda_describe(text, size);
#endif
    if (!text[0])
        snprintf(text, size, "none");
}

const char *trope_info(void)
{
    static _Thread_local char text[1024];
    char devices[512], sets[64] = "";
    for (int32_t isa = TROPE_ISA_NEON; isa >= TROPE_ISA_PORTABLE; isa--) {
        const trope_token_kernels *kernels = trope_find_token_kernels(isa);
        if (kernels)
            snprintf(sets + strlen(sets), sizeof sets - strlen(sets), " %s", kernels->name);
    }
    describe_devices(devices, sizeof devices);
    snprintf(text, sizeof text, "version: %s\nbackends: %s\ninstruction sets:%s\nthreads: %d\ndevices: %s\n",
             trope_version(), backends, sets, trope_default_threads(), devices);
    return text;
}
