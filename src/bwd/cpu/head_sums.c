#include "bwd/cpu/head_sums.h"

#include <stddef.h>

#include "core/cpu_features.h"

/* Best first. */
static const trope_head_sum_kernels *const kernels[] = {
#if defined(__x86_64__)
    &trope_head_sums_avx512,
    &trope_head_sums_avx2,
#endif
    &trope_head_sums_portable,
};

const trope_head_sum_kernels *trope_find_head_sums(int32_t isa)
{
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++)
        if ((isa == TROPE_ISA_AUTO || isa == kernels[i]->isa) && trope_cpu_has(kernels[i]->isa))
            return kernels[i];
    return NULL;
}
