/* Sine and cosine: the only implementation for f32, f16 and bf16. It works in quarter turns. The reduction writes an angle
 * as q + t, where q is an integer and |t| <= 1/2 (a little more where the fast reduction rounds). Two polynomials give sin
 * and cos of t * pi/2, and q rotates them by quarter turns. The absolute error is below 1.2e-7 for every finite angle;
 * docs/numerics.md has the largest error seen.
 *
 * The polynomials are minimax fits (Remez) on |t| <= 0.53 with coefficients rounded to fp32. Their errors are 3.0e-9 for
 * sin and 1.0e-10 for cos. */
#ifndef TROPE_CORE_SINCOS_H
#define TROPE_CORE_SINCOS_H

#include <stdint.h>

#include "core/host_device.h"
#include "core/phase.h"
#include "core/scalar.h"

/* Angles of this magnitude or more are reduced by trope_phase_of_large_angle. */
#define TROPE_LARGE_ANGLE 0x1p20f

typedef struct trope_quarter_turns {
    float t;    /* the rest, in quarter turns */
    uint32_t q; /* the whole quarter turns modulo 4, in the top two bits; the other bits have no meaning */
} trope_quarter_turns;

/* Reduces an angle with |angle| < TROPE_LARGE_ANGLE. An infinity or a NaN gives t = NaN. */
TROPE_HD trope_quarter_turns trope_reduce_angle(float angle)
{
    const float two_over_pi = 0x1.45f306p-1f, two_over_pi_low = 0x1.b93910p-26f;
    const float to_integer = 0x1.8p23f; /* adding it rounds to an integer, in the last bits of the sum */
    const float shifted = trope_fma(angle, two_over_pi, to_integer);
    const float q = trope_add(shifted, -to_integer);
    trope_quarter_turns r;
    r.t = trope_fma(angle, two_over_pi_low, trope_fma(angle, two_over_pi, -q));
    r.q = trope_float_bits(shifted) << 30;
    return r;
}

/* Reduces a phase, given as the top 32 bits of a fraction of a turn. */
TROPE_HD trope_quarter_turns trope_reduce_phase(uint32_t phase)
{
    trope_quarter_turns r;
    r.q = phase + 0x20000000u;                               /* rounds to the nearest quarter turn, which is 2^30 */
    r.t = trope_mul((float)(int32_t)(phase << 2), 0x1p-32f); /* the rest: the 30 bits below, with a sign */
    return r;
}

TROPE_HD void trope_sincos_quarter(trope_quarter_turns r, float *sine, float *cosine)
{
    const float u = trope_mul(r.t, r.t);
    float p = trope_fma(-0x1.2cd2f4p-8f, u, 0x1.465aa6p-4f);
    p = trope_fma(p, u, -0x1.4abbb0p-1f);
    p = trope_fma(p, u, -0x1.777a5cp-25f); /* this and the next constant are pi/2 to 48 bits */
    const float s = trope_fma(r.t, 0x1.921fb6p+0f, trope_mul(r.t, p));
    p = trope_fma(0x1.d8fd1ep-11f, u, -0x1.55c2e6p-6f);
    p = trope_fma(p, u, 0x1.03c1d8p-2f);
    p = trope_fma(p, u, -0x1.3bd3ccp+0f);
    const float c = trope_fma(p, u, 1.0f);
    /* The bits of q: if q is odd, sine and cosine change places and the sign of the cosine changes. If q is 2 or 3, both
     * signs change. */
    const uint32_t odd = r.q & 0x40000000u, sign = r.q & 0x80000000u;
    const float turned_s = trope_float_from_bits(trope_float_bits(s) ^ sign);
    const float turned_c = trope_float_from_bits(trope_float_bits(c) ^ sign);
    *sine = odd ? turned_c : turned_s;
    *cosine = odd ? -turned_s : turned_c;
}

TROPE_HD int trope_is_large_angle(float angle)
{
    const uint32_t magnitude = trope_float_bits(angle) & 0x7fffffffu;
    return magnitude >= 0x49800000u && magnitude < 0x7f800000u; /* at least TROPE_LARGE_ANGLE, and finite */
}

/* Computes one angle. Code that computes many angles at once calls the parts separately, because large angles are rare. */
TROPE_HD void trope_sincos(float angle, float *sine, float *cosine)
{
    trope_sincos_quarter(trope_is_large_angle(angle) ? trope_reduce_phase(trope_phase_of_large_angle(angle))
                                                     : trope_reduce_angle(angle),
                         sine, cosine);
}

/* Double precision, for f64 operands. */
TROPE_HD void trope_sincos_phase_double(uint64_t phase, double *sine, double *cosine)
{
    const uint64_t q = (phase + ((uint64_t)1 << 61)) >> 62;
    const double x = (double)(int64_t)(phase - (q << 62)) * (0x1p-62 * 1.57079632679489661923);
    const double s = sin(x), c = cos(x);
    *sine = q == 0 ? s : q == 1 ? c : q == 2 ? -s : -c;
    *cosine = q == 0 ? c : q == 1 ? -s : q == 2 ? -c : s;
}

#endif
