#include "fwd/cpu/tokens.h"

#include "core/cpu_features.h"

/* The best instruction set comes first. */
static const trope_token_kernels *const kernels[] = {
#if defined(__x86_64__)
    &trope_tokens_avx512,
    &trope_tokens_avx2,
#elif defined(__aarch64__)
    &trope_tokens_neon,
#endif
    &trope_tokens_portable,
};

const trope_token_kernels *trope_find_token_kernels(int32_t isa)
{
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++)
        if ((isa == TROPE_ISA_AUTO || isa == kernels[i]->isa) && trope_cpu_has(kernels[i]->isa))
            return kernels[i];
    return NULL;
}
