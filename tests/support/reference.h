/* The reference: what every element of a call must be, from the formulas in trope.h, in long double and with plain loops.
 * It is written to be read and shares no code with the library.
 *
 * A number comes with the tolerance that one rounding leaves. With u = 2^-24 (f64: 2^-53), m = mscale and
 * y = m cos a * p + m sin a * q, where p and q are elements of the source, the library may be off by
 *
 *     (m e + u m|cos a| [m is not 1]) |p| + the same for sin a and q      cos and sin, e = 1.2e-7 (f64: 1e-15) or, for a
 *                                                                        table, 0; then times m, rounded
 *     u |m sin a q|                                                      the rounded product
 *     half an ulp of y in the arithmetic                                 the fused operation
 *     half an ulp of y in f16 or bf16                                    the store
 *
 * TROPE_ROUND_NATIVE in f32 and f64 rounds one product more. In f16 and bf16 its roundings are repeated here, for the least
 * and the greatest value that cos and sin may have: nearly always both round to the same number and the tolerance is 0. */
#ifndef TESTS_SUPPORT_REFERENCE_H
#define TESTS_SUPPORT_REFERENCE_H

#include <stdint.h>

#include "trope/trope.h"

/* Where a token is. */
typedef struct reference_place {
    int64_t sequence; /* -1: none */
    int64_t position[TROPE_MAX_AXES];
    int is_padding;
} reference_place;

typedef enum reference_kind {
    REFERENCE_NUMBER, /* value, to within tolerance */
    REFERENCE_BITS,   /* exactly these bits: a copied element, or zero */
    REFERENCE_NAN     /* a poisoned element */
} reference_kind;

typedef struct reference_element {
    long double value;
    double tolerance;
    uint64_t bits;
    reference_kind kind;
} reference_element;

/* One element of d_freqs or d_inv_freq. */
typedef struct reference_sum {
    long double value;
    double tolerance;
    double magnitude; /* sum of the magnitudes of the terms */
    int64_t terms;    /* 0: nobody used this angle, the gradient is exactly 0 */
} reference_sum;

typedef struct reference_result {
    reference_element
        *operands[TROPE_MAX_OPERANDS]; /* [batch, tokens, groups, heads_per_group, head_dim], NULL without dst */
    reference_sum *angles;             /* [angle batches, rows, cols] or [pairs], NULL when not asked for */
    int64_t angle_count;
    int32_t status; /* the bits that the status word gets */
} reference_result;

reference_place reference_find(const trope_args *args, int64_t batch, int64_t token);

/* Pairs of the widest operand. */
int reference_pairs(const trope_args *args);

/* Whether any pair is driven by this axis of the positions. */
int reference_uses_axis(const trope_args *args, int axis);

/* How many batch entries of angles there are: batch with angle_batch_stride, otherwise 1. */
int64_t reference_angle_batches(const trope_args *args);

/* Elements of an operand. */
int64_t reference_count(const trope_args *args, int operand);

/* What trope_forward (backward = 0) or trope_backward must write. Reads the call's sources, so it goes before an in-place
 * call. The args must be valid. */
reference_result reference_run(const trope_args *args, int backward);

void reference_free(reference_result *result);

#endif
