/* Shared by the parts of the reference: reference_angles.c finds the coefficients of a pair, reference.c rotates,
 * reference_norm.c normalises, and reference_gradient.c sums the gradient of the angles. */
#ifndef TESTS_SUPPORT_REFERENCE_PARTS_H
#define TESTS_SUPPORT_REFERENCE_PARTS_H

#include <math.h>

#include "support/number.h"
#include "support/reference.h"
#include "support/tensor.h"

/* ---- Numbers ---- */

static inline int is_double(const trope_args *args)
{
    return args->dtype == TROPE_F64;
}

static inline double unit(const trope_args *args)
{
    return is_double(args) ? 0x1p-53 : 0x1p-24;
}

/* mscale, rounded to the arithmetic type. */
static inline double scale(const trope_args *args)
{
    const double m = args->mscale != 0 ? args->mscale : 1;
    return is_double(args) ? m : (double)(float)m;
}

/* One product of the rotation: an element of the source times a coefficient. `off` is the tolerance of x, and `error` is
 * the tolerance of the coefficient. */
typedef struct term {
    double x;
    long double coefficient;
    double error, off;
} term;

/* ---- The state of a walk over a call ---- */

/* The coefficients of one pair for one token. */
typedef struct turn {
    long double cosine[2], sine[2]; /* of the angles of the first and the second element */
    double error;                   /* the tolerance of cosine and sine */
    int64_t position, row;
    int axis;
    int is_poisoned;
} turn;

/* The numbers that a norm computes from the elements that it covers. */
typedef struct norm_numbers {
    reference_element rstd;
    double k, of_k; /* backward: k = ((p / D) rstd) rstd, and its tolerance */
    int is_exact;   /* the library must compute exactly these numbers */
} norm_numbers;

typedef struct walk {
    const trope_args *args;
    int backward;
    int64_t batch, token;
    reference_place place;
    turn turns[TROPE_MAX_ROTARY_DIM / 2];
    double *x, *off;         /* the rotation's input for one head, and its tolerance */
    reference_element *head; /* the result for this head, in the arithmetic type */
    norm_numbers of_token;   /* of the current operand, if its norm covers the token */
    reference_result *result;
} walk;

typedef struct head {
    int operand;
    int64_t group, head;
} head;

/* The number of the first element of a head for the current token. Shared heads have the same number. */
static inline int64_t head_number(const walk *w, head h, const tensor *t)
{
    const int64_t row = w->batch * t->size[TROPE_DIM_TOKEN] + w->token;
    const int64_t group = row * t->size[TROPE_DIM_GROUP] + (t->size[TROPE_DIM_GROUP] > 1 ? h.group : 0);
    const int64_t number = group * t->size[TROPE_DIM_HEAD] + (t->size[TROPE_DIM_HEAD] > 1 ? h.head : 0);
    return number * t->size[TROPE_DIM_ELEMENT];
}

static inline const char *element_address(const walk *w, const tensor *t, int64_t number)
{
    return (const char *)t->base + tensor_offset(t, number) * (int64_t)number_size(w->args->dtype);
}

static inline double element_at(const walk *w, const tensor *t, int64_t number)
{
    return number_load(w->args->dtype, element_address(w, t, number));
}

/* The number of pairs of an operand: 0 if it is only copied. */
static inline int pairs_of(const trope_operand *o)
{
    return o->rotary_dim < 0 ? 0 : o->rotary_dim / 2;
}

/* ---- Pairs and angles ---- */

static inline int32_t pairing_out(const trope_args *args)
{
    return args->pairing_out ? args->pairing_out : args->pairing;
}

/* The two elements of a pair in a window of `dim` elements, which is divided into equal parts. */
void reference_pair_elements(const trope_args *args, int32_t pairing, int dim, int pair, int element[2]);

/* The two columns for the angles of a pair. They are the same if the table has one column for each pair. */
void reference_columns_of_pair(const trope_args *args, int pair, int column[2]);

turn reference_find_turn(const trope_args *args, int64_t batch, const reference_place *place, int pair);

/* ---- Norms ---- */

/* Sets w->of_token if the norm of the operand covers the token, and stores the sums of its heads if the call writes
 * them. */
void reference_find_token(walk *w, int operand);

/* Sets w->x to the elements of a head, with a tolerance of 0. */
void reference_load_head(const walk *w, head h, tensor_role role);

/* Normalises w->x, a head of x, if the operand has a norm before the rotation. Stores rstd if the call writes it. */
void reference_normalise(const walk *w, head h);

/* Normalises w->head if the norm comes after the rotation. */
void reference_normalise_rotated(const walk *w, head h);

/* Computes dx of a head with a norm, stores it in w->head, and adds the head's terms to d_weight. */
void reference_norm_gradient(const walk *w, head h);

/* The gradient of the rotated head: dy or, if the norm comes after the rotation, du. Returns 0 if the head is NaN. */
int reference_rotated_gradient(const walk *w, head h, reference_element *d);

/* ---- The rotation ---- */

/* Rotates the window of w->x: M w->x or, if backward, M' w->x. */
void reference_rotate(const walk *w, head h, int backward, reference_element *to);

/* Rounds y to the dtype of the operands. */
void reference_round(const trope_args *args, reference_element *y);

/* ---- The gradient of the angles ---- */

/* Makes the sums of a call, which have no terms yet. */
void reference_make_sums(const trope_args *args, reference_result *result);

/* Adds the terms of a head to the sums. */
void reference_add_head(const walk *w, head h);

/* Sets the tolerances of the sums. */
void reference_finish_sums(const trope_args *args, reference_result *result);

#endif
