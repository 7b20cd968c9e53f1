#include "bwd/cpu/head_sums.h"

static const trope_head_sum_kernels *const kernels[] = {
    [TROPE_ISA_PORTABLE] = &trope_head_sums_portable,
#if defined(__x86_64__)
    [TROPE_ISA_AVX2] = &trope_head_sums_avx2,
    [TROPE_ISA_AVX512] = &trope_head_sums_avx512,
#elif defined(__aarch64__)
    [TROPE_ISA_NEON] = &trope_head_sums_neon,
#endif
};

const trope_head_sum_kernels *trope_find_head_sums(int32_t isa)
{
    return kernels[isa];
}
