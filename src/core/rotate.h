/* The rotation of one pair: the only place where the formula stands,
 *
 *     y1 = x1 c1 - x2 s1        y2 = x2 c2 + x1 s2
 *
 * Read backward it is the same with other numbers in the same places, dx1 = dy1 c1 + dy2 s2 and dx2 = dy2 c2 - dy1 s1, so
 * that a direction is only a change of the sines: the transpose takes (s1, s2) to (-s2, -s1), the inverse to (-s1, -s2).
 * plan.c makes this one sign and one swap; nothing below knows a direction. */
#ifndef TROPE_CORE_ROTATE_H
#define TROPE_CORE_ROTATE_H

#include "core/host_device.h"
#include "core/scalar.h"

/* A pair of elements, and the numbers that it is rotated by, in the type of the arithmetic. */
#define TROPE_DEFINE_PAIR(real, pair, coefficients)                                                                        \
    typedef struct pair {                                                                                                  \
        real first, second;                                                                                                \
    } pair;                                                                                                                \
    typedef struct coefficients {                                                                                          \
        real c1, s1, c2, s2;                                                                                               \
    } coefficients;

/* Rounded once, at the store: the second product is rounded, the rest is one fused operation. */
#define TROPE_DEFINE_ROTATE_ONCE(name, pair, coefficients, fma_, mul_)                                                     \
    TROPE_HD pair name(pair x, coefficients t)                                                                             \
    {                                                                                                                      \
        pair y;                                                                                                            \
        y.first = fma_(x.first, t.c1, -mul_(x.second, t.s1));                                                              \
        y.second = fma_(x.second, t.c2, mul_(x.first, t.s2));                                                              \
        return y;                                                                                                          \
    }

/* Each operation rounded to the operand's dtype, as a framework that runs them one by one does. */
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
