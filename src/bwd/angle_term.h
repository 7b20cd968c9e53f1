/* The gradient of the angles of one pair. No other file contains the formula. With the rotation of core/rotate.h,
 *
 *     dy1/da1 = -x1 sin a1 - x2 cos a1        dy2/da2 = x1 cos a2 - x2 sin a2
 *
 * and both are multiplied by mscale. The coefficients belong to the transpose, which rotates dy: s1 is -sin a2 and s2 is
 * -sin a1. */
#ifndef TROPE_BWD_ANGLE_TERM_H
#define TROPE_BWD_ANGLE_TERM_H

#include "core/rotate.h"

/* Fuses the two operations on a GPU, where this costs nothing. A CPU that runs this code may lack the instruction. */
TROPE_HD double trope_multiply_add(double a, double b, double c)
{
#ifdef __CUDA_ARCH__
    return fma(a, b, c);
#else
    return a * b + c;
#endif
}

/* Adds dy * dy/da of both elements to the sums of their angles. If the elements share an angle, `first` and `second` may
 * point to the same sum. */
TROPE_HD void trope_add_angle_terms(trope_pair_f64 x, trope_pair_f64 dy, trope_coefficients_f64 t, double *first,
                                    double *second)
{
    *first = trope_multiply_add(dy.first, trope_multiply_add(x.first, t.s2, -(x.second * t.c1)), *first);
    *second = trope_multiply_add(dy.second, trope_multiply_add(x.first, t.c2, x.second * t.s1), *second);
}

#endif
