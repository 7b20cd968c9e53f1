/* All kernels of one dtype that only backward has. */
#ifndef TROPE_BWD_CUDA_BACKWARD_KERNELS_CUH
#define TROPE_BWD_CUDA_BACKWARD_KERNELS_CUH

#include "bwd/cuda/gradient_pass.cuh"
#include "bwd/cuda/head_sums.cuh"
#include "bwd/cuda/kernels.h"
#include "bwd/cuda/norm_gradient_generic.cuh"
#include "bwd/cuda/token_gradient.cuh"

#define SUM_KERNEL(name, DTYPE, form, VECTORS)                                                                             \
    {                                                                                                                      \
        (const void *)sum_heads_kernel<rotation<DTYPE, VECTORS, POSITIONS_GENERIC, ANGLES_GENERIC, !VECTORS>>,             \
            "cuda-" name "-" form "-sums"                                                                                  \
    }
#define GRADIENT_KERNEL(name, DTYPE, form, VECTORS)                                                                        \
    {                                                                                                                      \
        (const void *)angle_gradient_kernel<gradient_pass<DTYPE, VECTORS>>, "cuda-" name "-" form "-gradient"              \
    }
#define GENERIC_NORM_GRADIENT_KERNEL(name, DTYPE)                                                                          \
    {                                                                                                                      \
        (const void *)norm_gradient_generic_kernel<generic_norm_gradient<DTYPE>>, "cuda-" name "-elements-norm-gradient"   \
    }
#define ORDERED_NORM_GRADIENT_KERNEL(name, DTYPE, of, POSITIONS, ANGLES, ORDER)                                            \
    {                                                                                                                      \
        (const void *)norm_gradient_kernel<norm_gradient_pass<DTYPE, POSITIONS, ANGLES, ORDER>>,                           \
            "cuda-" name "-vectors-norm-gradient" of                                                                       \
    }
#define NORM_GRADIENT_KERNEL(name, DTYPE, of, POSITIONS, ANGLES)                                                           \
    ORDERED_NORM_GRADIENT_KERNEL(name, DTYPE, of, POSITIONS, ANGLES, TROPE_NORM_BEFORE)
/* Read positions may be beyond the table and poison a token. Only the generic kernel supports that, so read positions
 * with a table have no fast path. */
#define FAST_NORM_GRADIENT_KERNELS(name, DTYPE)                                                                            \
    {{NORM_GRADIENT_KERNEL(name, DTYPE, "-from-tokens-phase", POSITIONS_FROM_TOKENS, ANGLES_PHASE),                        \
      NORM_GRADIENT_KERNEL(name, DTYPE, "-from-tokens-table", POSITIONS_FROM_TOKENS, ANGLES_TABLE)},                       \
     {NORM_GRADIENT_KERNEL(name, DTYPE, "-read-phase", POSITIONS_READ, ANGLES_PHASE)},                                     \
     {NORM_GRADIENT_KERNEL(name, DTYPE, "-searched-phase", POSITIONS_SEARCHED, ANGLES_PHASE),                              \
      NORM_GRADIENT_KERNEL(name, DTYPE, "-searched-table", POSITIONS_SEARCHED, ANGLES_TABLE)},                             \
     {NORM_GRADIENT_KERNEL(name, DTYPE, "-searched-generic-phase", POSITIONS_SEARCHED_GENERIC, ANGLES_PHASE)}},            \
        {},                                                                                                                \
    {                                                                                                                      \
        ORDERED_NORM_GRADIENT_KERNEL(name, DTYPE, "-after-from-tokens-phase", POSITIONS_FROM_TOKENS, ANGLES_PHASE,         \
                                     TROPE_NORM_AFTER)                                                                     \
    }
#define FEW_NORM_GRADIENT_KERNELS(name, DTYPE)                                                                             \
    {{NORM_GRADIENT_KERNEL(name, DTYPE, "-from-tokens-phase", POSITIONS_FROM_TOKENS, ANGLES_PHASE)}}, {},                  \
    {                                                                                                                      \
    }
#define WALK_KERNELS(name, DTYPE)                                                                                          \
    {                                                                                                                      \
        {(const void *)norm_gradient_walk_kernel<norm_gradient_walk<DTYPE>>,                                               \
         "cuda-" name "-vectors-norm-gradient-of-heads"},                                                                  \
            {(const void *)token_gradient_kernel<token_gradient<DTYPE>>, "cuda-" name "-vectors-norm-gradient-of-tokens"}, \
    }
#define NO_FAST_NORM_GRADIENT_KERNELS(name, DTYPE)                                                                         \
    {}, {},                                                                                                                \
    {                                                                                                                      \
    }
#define NO_KERNELS(name, DTYPE)                                                                                            \
    {                                                                                                                      \
    }
/* FAST is the list of fast paths for norms, WALKS the list of kernels for heads that have their own weights. */
#define BACKWARD_KERNELS(name, DTYPE, FAST, WALKS)                                                                         \
    {                                                                                                                      \
        {SUM_KERNEL(name, DTYPE, "elements", false), SUM_KERNEL(name, DTYPE, "vectors", true)},                            \
            {GRADIENT_KERNEL(name, DTYPE, "elements", false), GRADIENT_KERNEL(name, DTYPE, "vectors", true)},              \
            {FAST(name, DTYPE), ORDERED_NORM_GRADIENT_KERNEL(name, DTYPE, "", POSITIONS_GENERIC, ANGLES_GENERIC, 0),       \
             GENERIC_NORM_GRADIENT_KERNEL(name, DTYPE)},                                                                   \
            WALKS(name, DTYPE)                                                                                             \
    }

#endif
