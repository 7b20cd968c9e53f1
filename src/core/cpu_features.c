#include "core/cpu_features.h"

#include "trope/trope.h"

int trope_cpu_has(int32_t isa)
{
    switch (isa) {
    case TROPE_ISA_PORTABLE:
        return 1;
#if defined(__x86_64__)
    case TROPE_ISA_AVX2:
        /* F16C needs no check: it is older than AVX2 and FMA, and clang's builtin does not know its name. */
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case TROPE_ISA_AVX512:
        return trope_cpu_has(TROPE_ISA_AVX2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#elif defined(__aarch64__)
    case TROPE_ISA_NEON:
        return 1;
#endif
    default:
        return 0;
    }
}
