/* All kernels with norms for one dtype that has vector kernels. */
#ifndef TROPE_FWD_CUDA_NORM_KERNELS_CUH
#define TROPE_FWD_CUDA_NORM_KERNELS_CUH

#include "fwd/cuda/kernels.h"
#include "fwd/cuda/norm.cuh"
#include "fwd/cuda/norm_generic.cuh"

#define ORDERED_NORM_KERNEL(name, DTYPE, of, POSITIONS, ANGLES, ORDER)                                                     \
    {                                                                                                                      \
        (const void *)norm_kernel<norm_rotation<DTYPE, POSITIONS, ANGLES, ORDER>>, "cuda-" name "-vectors-norm" of         \
    }
#define NORM_KERNEL(name, DTYPE, positions, POSITIONS, angles, ANGLES)                                                     \
    ORDERED_NORM_KERNEL(name, DTYPE, "-" positions "-" angles, POSITIONS, ANGLES, TROPE_NORM_BEFORE)
#define NORM_KERNELS_OF_POSITIONS(name, DTYPE, positions, POSITIONS)                                                       \
    {                                                                                                                      \
        NORM_KERNEL(name, DTYPE, positions, POSITIONS, "phase", ANGLES_PHASE),                                             \
            NORM_KERNEL(name, DTYPE, positions, POSITIONS, "table", ANGLES_TABLE)                                          \
    }
#define TOKEN_NORM_KERNEL(name, DTYPE, positions, POSITIONS, angles, ANGLES)                                               \
    {                                                                                                                      \
        (const void *)norm_kernel<token_norm_rotation<DTYPE, POSITIONS, ANGLES>>,                                          \
            "cuda-" name "-vectors-norm-of-tokens-" positions "-" angles                                                   \
    }
#define GENERIC_NORM_KERNEL(name, DTYPE)                                                                                   \
    {                                                                                                                      \
        (const void *)norm_generic_kernel<generic_norm<DTYPE>>, "cuda-" name "-elements-norm"                              \
    }
#define OTHER_NORM_KERNELS(name, DTYPE, ORDER)                                                                             \
    ORDERED_NORM_KERNEL(name, DTYPE, "", POSITIONS_GENERIC, ANGLES_GENERIC, ORDER), GENERIC_NORM_KERNEL(name, DTYPE)

/* NORM_KERNELS has all kernels. It is for bf16, which almost all training with norms uses. */
#define NORM_KERNELS(name, DTYPE)                                                                                          \
    {                                                                                                                      \
        {NORM_KERNELS_OF_POSITIONS(name, DTYPE, "from-tokens", POSITIONS_FROM_TOKENS),                                     \
         NORM_KERNELS_OF_POSITIONS(name, DTYPE, "read", POSITIONS_READ),                                                   \
         NORM_KERNELS_OF_POSITIONS(name, DTYPE, "searched", POSITIONS_SEARCHED),                                           \
         {NORM_KERNEL(name, DTYPE, "searched-generic", POSITIONS_SEARCHED_GENERIC, "phase", ANGLES_PHASE)}},               \
            {NORM_KERNELS_OF_POSITIONS(name, DTYPE, "from-tokens", POSITIONS_FROM_TOKENS),                                 \
             {TOKEN_NORM_KERNEL(name, DTYPE, "read", POSITIONS_READ, "phase", ANGLES_PHASE),                               \
              NORM_KERNEL(name, DTYPE, "read", POSITIONS_READ, "table", ANGLES_TABLE)},                                    \
             {TOKEN_NORM_KERNEL(name, DTYPE, "searched", POSITIONS_SEARCHED, "phase", ANGLES_PHASE),                       \
              TOKEN_NORM_KERNEL(name, DTYPE, "searched", POSITIONS_SEARCHED, "table", ANGLES_TABLE)}},                     \
            {ORDERED_NORM_KERNEL(name, DTYPE, "-after-from-tokens-phase", POSITIONS_FROM_TOKENS, ANGLES_PHASE,             \
                                 TROPE_NORM_AFTER),                                                                        \
             ORDERED_NORM_KERNEL(name, DTYPE, "-after", POSITIONS_GENERIC, ANGLES_GENERIC, TROPE_NORM_AFTER)},             \
            OTHER_NORM_KERNELS(name, DTYPE, TROPE_NORM_BEFORE)                                                             \
    }
/* FEW_NORM_KERNELS is for f32, and NO_FAST_NORM_KERNELS is for f16. */
#define FEW_NORM_KERNELS(name, DTYPE)                                                                                      \
    {                                                                                                                      \
        {{NORM_KERNEL(name, DTYPE, "from-tokens", POSITIONS_FROM_TOKENS, "phase", ANGLES_PHASE)}},                         \
            {{NORM_KERNEL(name, DTYPE, "from-tokens", POSITIONS_FROM_TOKENS, "phase", ANGLES_PHASE)}}, {},                 \
            OTHER_NORM_KERNELS(name, DTYPE, 0)                                                                             \
    }
#define NO_FAST_NORM_KERNELS(name, DTYPE)                                                                                  \
    {                                                                                                                      \
        {}, {}, {}, OTHER_NORM_KERNELS(name, DTYPE, 0)                                                                     \
    }

#endif
