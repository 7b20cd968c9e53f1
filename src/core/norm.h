/* The formulas of a norm: the only place where they stand, for C and CUDA and for both types of the arithmetic. A mean is a sum over a
 * head by its number of elements. Division and root are those of IEEE 754, and nothing is fused. */
#ifndef TROPE_CORE_NORM_H
#define TROPE_CORE_NORM_H

#include <math.h>

#include "core/scalar.h"

/* rstd, of the mean of a head's squares. */
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

/* What dx loses of x, of the mean of g x. */
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
