/* The two numbers of a norm, rstd and k, for C and CUDA. A mean is a sum over D elements divided by D (trope.h, trope_norm).
 * Here each operation is rounded as IEEE 754 requires, and none is fused. The kernels fuse g - x k. */
#ifndef TROPE_CORE_NORM_H
#define TROPE_CORE_NORM_H

#include <math.h>

#include "core/scalar.h"

/* Returns rstd. `mean` is the mean of the squares. */
TROPE_HD float trope_reciprocal_root(float mean, float eps)
{
#if defined(__CUDA_ARCH__)
    return __frcp_rn(__fsqrt_rn(__fadd_rn(mean, eps)));
#else
    return trope_canonical(1.0f / sqrtf(mean + eps));
#endif
}

TROPE_HD double trope_reciprocal_root_f64(double mean, double eps)
{
#if defined(__CUDA_ARCH__)
    return __drcp_rn(__dsqrt_rn(__dadd_rn(mean, eps)));
#else
    return 1.0 / sqrt(mean + eps);
#endif
}

/* Returns k in dx = rstd * fma(-x, k, g). `mean` is the mean of g x. */
TROPE_HD float trope_norm_slope(float mean, float rstd)
{
#if defined(__CUDA_ARCH__)
    return __fmul_rn(__fmul_rn(mean, rstd), rstd);
#else
    return mean * rstd * rstd;
#endif
}

TROPE_HD double trope_norm_slope_f64(double mean, double rstd)
{
#if defined(__CUDA_ARCH__)
    return __dmul_rn(__dmul_rn(mean, rstd), rstd);
#else
    return mean * rstd * rstd;
#endif
}

#endif
