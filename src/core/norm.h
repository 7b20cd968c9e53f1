/* The formulas of a norm that divide: the only place where they stand, for C and CUDA and for both types of the arithmetic. Division
 * and root are those of IEEE 754, and nothing is fused. */
#ifndef TROPE_CORE_NORM_H
#define TROPE_CORE_NORM_H

#include <math.h>

#include "core/host_device.h"

/* rstd = 1 / sqrt(sum / D + eps), of the sum of a head's squares. */
TROPE_HD float trope_reciprocal_root(float sum, float count, float eps)
{
#if defined(__CUDA_ARCH__)
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, count), eps)));
#else
    return 1.0f / sqrtf(sum / count + eps);
#endif
}

TROPE_HD double trope_reciprocal_root_f64(double sum, double count, double eps)
{
#if defined(__CUDA_ARCH__)
    return __ddiv_rn(1.0, __dsqrt_rn(__dadd_rn(__ddiv_rn(sum, count), eps)));
#else
    return 1.0 / sqrt(sum / count + eps);
#endif
}

/* What dx loses of x: k = ((p / D) rstd) rstd, with p the sum of g x over the head. */
TROPE_HD float trope_norm_slope(float p, float count, float rstd)
{
#if defined(__CUDA_ARCH__)
    return __fmul_rn(__fmul_rn(__fdiv_rn(p, count), rstd), rstd);
#else
    return p / count * rstd * rstd;
#endif
}

TROPE_HD double trope_norm_slope_f64(double p, double count, double rstd)
{
#if defined(__CUDA_ARCH__)
    return __dmul_rn(__dmul_rn(__ddiv_rn(p, count), rstd), rstd);
#else
    return p / count * rstd * rstd;
#endif
}

#endif
