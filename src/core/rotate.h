/* The rotation of one pair. No other file contains the formula:
 *
 *     y1 = x1 c1 - x2 s1        y2 = x2 c2 + x1 s2
 *
 * Backward has the same form, with other numbers in the same places: dx1 = dy1 c1 + dy2 s2 and dx2 = dy2 c2 - dy1 s1. So a
 * direction only changes the sines: the transpose replaces (s1, s2) by (-s2, -s1), and the inverse by (-s1, -s2).
 * bwd/transpose.h expresses this as one sign and one swap. The kernels do not know the direction. */
#ifndef TROPE_CORE_ROTATE_H
#define TROPE_CORE_ROTATE_H

#include "core/host_device.h"
#include "core/scalar.h"

/* A pair of elements, and the coefficients that rotate it, in the type of the arithmetic. */
#define TROPE_DEFINE_PAIR(real, pair, coefficients)                                                                        \
    typedef struct pair {                                                                                                  \
        real first, second;                                                                                                \
    } pair;                                                                                                                \
    typedef struct coefficients {                                                                                          \
        real c1, s1, c2, s2;                                                                                               \
    } coefficients;

/* ONCE: rounds to dtype only at the store. Before that, the second product is rounded, and one fused operation computes the
 * rest. */
#define TROPE_DEFINE_ROTATE_ONCE(name, pair, coefficients, fma_, mul_)                                                     \
    TROPE_HD pair name(pair x, coefficients t)                                                                             \
    {                                                                                                                      \
        pair y;                                                                                                            \
        y.first = fma_(x.first, t.c1, -mul_(x.second, t.s1));                                                              \
        y.second = fma_(x.second, t.c2, mul_(x.first, t.s2));                                                              \
        return y;                                                                                                          \
    }

/* NATIVE: rounds each operation to the operand's dtype, like a framework that runs the operations one by one. (NATIVE_F32
 * rounds each operation to fp32.) */
#define TROPE_DEFINE_ROTATE_NATIVE(name, pair, coefficients, round_, mul_, add_)                                           \
    TROPE_HD pair name(pair x, coefficients t)                                                                             \
    {                                                                                                                      \
        pair y;                                                                                                            \
        y.first = round_(add_(round_(mul_(x.first, t.c1)), -round_(mul_(x.second, t.s1))));                                \
        y.second = round_(add_(round_(mul_(x.second, t.c2)), round_(mul_(x.first, t.s2))));                                \
        return y;                                                                                                          \
    }

TROPE_DEFINE_PAIR(float, trope_pair, trope_coefficients)
TROPE_DEFINE_PAIR(double, trope_pair_f64, trope_coefficients_f64)

#define TROPE_EXACT(x) (x)

TROPE_HD float trope_round_f16(float x)
{
    return trope_f16_to_f32(trope_f32_to_f16(x));
}

TROPE_HD float trope_round_bf16(float x)
{
    return trope_bf16_to_f32(trope_f32_to_bf16(x));
}

TROPE_DEFINE_ROTATE_ONCE(trope_rotate_once, trope_pair, trope_coefficients, trope_fma, trope_mul)
TROPE_DEFINE_ROTATE_ONCE(trope_rotate_once_f64, trope_pair_f64, trope_coefficients_f64, trope_fma_double, trope_mul_double)
TROPE_DEFINE_ROTATE_NATIVE(trope_rotate_native_f32, trope_pair, trope_coefficients, TROPE_EXACT, trope_mul, trope_add)
TROPE_DEFINE_ROTATE_NATIVE(trope_rotate_native_f16, trope_pair, trope_coefficients, trope_round_f16, trope_mul, trope_add)
TROPE_DEFINE_ROTATE_NATIVE(trope_rotate_native_bf16, trope_pair, trope_coefficients, trope_round_bf16, trope_mul, trope_add)
TROPE_DEFINE_ROTATE_NATIVE(trope_rotate_native_f64, trope_pair_f64, trope_coefficients_f64, TROPE_EXACT, trope_mul_double,
                           trope_add_double)

#endif
