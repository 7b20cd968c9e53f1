/* The reference: what every element of a call must be, from the formulas in trope.h, in long double and with plain loops.
 * It is written to be read and shares no code with the library.
 *
 * A number comes with the tolerance that the roundings leave. With u = 2^-24 (f64: 2^-53), m = mscale and
 * y = m cos a * p + m sin a * q, where p and q are elements of the source, the library may be off by
 *
 *     (m e + u m|cos a| [m is not 1]) |p| + the same for sin a and q      cos and sin, e = 1.2e-7 (f64: 1e-15) or, for a
 *                                                                        table, 0; then times m, rounded
 *     u |m sin a q|                                                      the rounded product
 *     half an ulp of y in the arithmetic                                 the fused operation
 *
 * TROPE_ROUND_NATIVE and NATIVE_F32 in f64 round one product more. In the other dtypes their roundings are repeated here,
 * for the least and the greatest value that cos and sin may have: nearly always both round to the same number and the
 * tolerance is 0. So is the store to f16 and bf16, for the least and the greatest y.
 *
 * A sum over heads is the tree that trope.h says, bit for bit, and is rotated as one head. Adding to dst is off by u of the sum.
 *
 * rstd, sums of heads and n(x) are bit for bit what trope.h says, in the arithmetic. So is the gradient of a norm where M' dy is
 * exact; elsewhere the tolerance of M' dy is carried through each operation. d_weight is within 2^-20 of the sum of magnitudes (f64: 2^-49). */
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
    REFERENCE_BITS,   /* exactly these bits: a copied element, zero, or what was there */
    REFERENCE_NAN     /* a poisoned element */
} reference_kind;

typedef struct reference_element {
    long double value;
    double tolerance;
    uint64_t bits;
    reference_kind kind;
} reference_element;

/* One element of d_freqs, d_inv_freq or d_weight. */
typedef struct reference_sum {
    long double value;
    double tolerance;
    double magnitude; /* sum of the magnitudes of the terms */
    int64_t terms;    /* 0: nobody used this angle, the gradient is exactly 0 */
    int exists;       /* 0: no entry is here, only room between entries */
} reference_sum;

typedef struct reference_result {
    reference_element *operands[TROPE_MAX_OPERANDS]; /* by the number of dst's elements (support/tensor.h), NULL without */
    reference_sum *angles;                           /* element i from d_freqs or d_inv_freq on, NULL when not asked for */
    int64_t angle_count;
    reference_element
        *rstd[TROPE_MAX_OPERANDS]; /* [batch, tokens, heads], or [batch, tokens]; NULL where none is written */
    reference_element *sums[TROPE_MAX_OPERANDS]; /* of token_sums, [heads, batch, tokens]; NULL where none are written */
    reference_sum *weights[TROPE_MAX_OPERANDS];  /* of d_weight, NULL when not asked for */
    int32_t status;                              /* the bits that the status word gets */
    int backward;
} reference_result;

reference_place reference_find(const trope_args *args, int64_t batch, int64_t token);

/* Pairs of the widest operand. */
int reference_pairs(const trope_args *args);

/* Columns of a table of angles. */
int reference_columns(const trope_args *args);

/* Axes that are said to drive pairs, up to the last: the planes that are read of a table that has planes. */
int reference_axes(const trope_args *args);

/* Planes of a gradient that has planes: those, and of all other axes of the ids. */
int reference_planes(const trope_args *args);

/* The heads of an operand, the elements of its weight (or of what would be one), and its norm or NULL. */
int64_t reference_heads(const trope_args *args, int operand);

/* Numbers of rstd of a token: one for each head, or one. */
int64_t reference_rstds(const trope_args *args, int operand);
int64_t reference_weights(const trope_args *args, int operand);
const trope_norm *reference_norm(const trope_args *args, int operand);

/* What trope_forward (backward = 0) or trope_backward must write. Reads the call's sources and what it adds to, so it goes
 * before the call. The args must be valid. */
reference_result reference_run(const trope_args *args, int backward);

void reference_free(reference_result *result);

#endif
