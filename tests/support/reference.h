/* The reference computes what every element of a call must be, from the formulas in trope.h, in long double and with
 * plain loops. It is written to be read and shares no code with the library.
 *
 * A number comes with a tolerance for the roundings. Let u = 2^-24 (f64: 2^-53), m = mscale and
 * y = m cos a * p + m sin a * q, where p and q are elements of the source. The library's error is at most the sum of
 *
 *     (m e + u m|cos a| [m is not 1]) |p| + the same for sin a and q      e is the error of cos and sin: 1.2e-7 (f64:
 *                                                                        1e-15), or 0 if they come from a table.
 *                                                                        u m|cos a| is the rounding of m cos a
 *     u |m sin a q|                                                      the rounded product
 *     half an ulp of y in the arithmetic                                 the fused operation
 *
 * In f64, TROPE_ROUND_NATIVE and NATIVE_F32 round one more product. In the other dtypes, the reference repeats their
 * roundings for the least and the greatest value that cos and sin may have. Nearly always both round to the same number,
 * and the tolerance is 0. The store to f16 and bf16 is treated in the same way, with the least and the greatest y.
 *
 * A sum over heads uses the tree in trope.h, bit for bit, and is rotated like one head. Adding to dst adds an error of u
 * times the sum.
 *
 * rstd, sums of heads and n(x) must have the bits that trope.h specifies, in the arithmetic type (f32, or f64 for f64
 * operands). Where M' dy is exact, the gradient of a norm must also have these bits. Elsewhere, the tolerance of M' dy
 * propagates through each operation. d_weight must be within 2^-20 of the sum of magnitudes (f64: 2^-49). */
#ifndef TESTS_SUPPORT_REFERENCE_H
#define TESTS_SUPPORT_REFERENCE_H

#include <stdint.h>

#include "trope/trope.h"

/* The sequence and the position of a token. */
typedef struct reference_place {
    int64_t sequence; /* -1: none */
    int64_t position[TROPE_MAX_AXES];
    int is_padding;
} reference_place;

typedef enum reference_kind {
    REFERENCE_NUMBER, /* value, to within tolerance */
    REFERENCE_BITS,   /* exactly these bits: a copied element, zero, or old_dst */
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
    int64_t terms;    /* 0: nothing uses this angle or weight, so the gradient is exactly 0 */
    int exists;       /* 0: this is a gap between elements */
} reference_sum;

typedef struct reference_result {
    reference_element *operands[TROPE_MAX_OPERANDS]; /* by element number of dst (support/tensor.h); NULL without dst */
    reference_sum *angles;                           /* element i of d_freqs (gaps included) or d_inv_freq, or NULL */
    int64_t angle_count;
    reference_element *rstd[TROPE_MAX_OPERANDS]; /* [batch, tokens, heads], or [batch, tokens]; NULL if none is written */
    reference_element *sums[TROPE_MAX_OPERANDS]; /* token_sums [heads, batch, tokens]; NULL if none are written */
    reference_sum *weights[TROPE_MAX_OPERANDS];  /* d_weight, or NULL */
    int32_t status;                              /* the bits that the call sets in the status word */
    int backward;
} reference_result;

reference_place reference_find(const trope_args *args, int64_t batch, int64_t token);

/* The number of pairs of the widest operand. */
int reference_pairs(const trope_args *args);

/* The number of columns of a table of angles. */
int reference_columns(const trope_args *args);

/* The number of axes up to the last one that a pair uses. A call reads this many planes of a table with planes. */
int reference_axes(const trope_args *args);

/* The number of planes of a gradient with a plane for each axis: reference_axes, or more if the ids have more axes. */
int reference_planes(const trope_args *args);

/* The number of heads of an operand. */
int64_t reference_heads(const trope_args *args, int operand);

/* The number of rstd values of a token: one for each head, or one for the whole token. */
int64_t reference_rstds(const trope_args *args, int operand);

/* The number of elements of an operand's weight. Without a weight, the number that it would have. */
int64_t reference_weights(const trope_args *args, int operand);

/* The norm of an operand, or NULL. */
const trope_norm *reference_norm(const trope_args *args, int operand);

/* Computes what trope_forward (backward = 0) or trope_backward must write. It reads the call's sources and the
 * destinations that it accumulates into, so it must run before the call. The args must be valid. */
reference_result reference_run(const trope_args *args, int backward);

void reference_free(reference_result *result);

#endif
