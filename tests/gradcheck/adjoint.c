/* Identities of the rotation M that need no reference, with random x and y in every dtype:
 *
 *     <M x, y> = <x, M' y>                 forward and backward are transposes of each other
 *     M' M x = x, M^-1 M x = x             with mscale 1, backward and the inverse forward call undo forward
 *
 * A is the largest |x1| + |x2| times mscale. u is the unit roundoff of the dtype, and v = 2^-24 (f64: 2^-53) the unit
 * roundoff of the arithmetic. The error of an element of M x is at most e = A (u + 3 v), or A (4 u + 3 v) with
 * ROUND_NATIVE, so the error of <M x, y> is at most e sum |y|. With shared heads, M' y is the sum of H terms. Each term has
 * the error e, and each of the ceil(log2 H) levels of the tree adds another v.
 *
 * Because y is linear in x, the first identity also serves as the difference quotient of sum dy y in the direction x. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gradcheck/gradcheck.h"

static void run(linear_call *p, const call *k, int backward)
{
    CHECK_MESSAGE(gradcheck_run(p->c, k, backward) == TROPE_OK, "%s", trope_last_error());
}

static void print(const linear_call *p)
{
    gradcheck_print(p->c, "adjoint");
}

/* Returns the inner product of the elements at these addresses with `with`. Adds the sum of |with| to *length. */
static long double product(const linear_call *p, char *const *address, const double *with, int64_t count, double *length)
{
    double *const values = linear_load(p, address, count);
    long double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += (long double)values[i] * with[i];
        *length += fabs(with[i]);
    }
    free(values);
    return sum;
}

static void check_transpose(linear_call *p, double *worst)
{
    double of_y = 0, of_x = 0;
    config_reset(p->c);
    double *x = linear_load(p, p->x, p->inputs), *dy = linear_load(p, p->dy, p->outputs);
    run(p, &p->forward, 0);
    const long double in_y = product(p, p->y, dy, p->outputs, &of_y);
    run(p, &p->backward, 1);
    const long double in_x = product(p, p->dx, x, p->inputs, &of_x);
    const double length = of_y + p->heads * of_x, error = fabs((double)(in_y - in_x));
    const double bound = length * linear_element_error(p);
    *worst = fmax(*worst, error / (length * p->amplitude));
    if (!CHECK_MESSAGE(error <= bound, "<Mx, y> is %.17Lg, <x, M'y> is %.17Lg, bound %.3g", in_y, in_x, bound))
        print(p);
    free(x);
    free(dy);
}

/* Returns the call that undoes forward, by backward or by the inverse rotation. It writes to the memory of dy. */
static call undo(const linear_call *p, int by_backward)
{
    call k = p->forward;
    for (int i = 0; i < k.args.operand_count; i++) {
        trope_operand *o = &k.operands[i];
        const trope_operand *forward = &p->forward.operands[i], *backward = &p->backward.operands[i];
        o->src = forward->dst;
        o->src_layout = forward->dst_layout;
        memcpy(o->src_stride, forward->dst_stride, sizeof o->src_stride);
        o->dst = (void *)(uintptr_t)backward->src;
        o->dst_layout = backward->src_layout;
        memcpy(o->dst_stride, backward->src_stride, sizeof o->dst_stride);
    }
    if (by_backward)
        return k;
    k.args.inverse = !k.args.inverse;
    k.args.pairing = p->forward.args.pairing_out ? p->forward.args.pairing_out : p->forward.args.pairing;
    k.args.pairing_out = p->forward.args.pairing;
    return k;
}

static void check_undone(linear_call *p, int by_backward, double *worst)
{
    const call back = undo(p, by_backward);
    config_reset(p->c);
    double *const x = linear_load(p, p->x, p->inputs);
    run(p, &p->forward, 0);
    run(p, &back, by_backward);
    double *const found = linear_load(p, p->dy, p->inputs);
    /* Both elements of a pair of y have the error e. The restored x has twice that error and another e of its own.
     * cos^2 + sin^2 has the error 4e-7. */
    const double of_sines = p->forward.args.dtype == TROPE_F64 ? 1e-15 : 4e-7;
    const double bound = 3 * linear_element_error(p) + of_sines * p->amplitude;
    for (int64_t i = 0; i < p->inputs; i++) {
        const double error = fabs(found[i] - x[i]);
        *worst = fmax(*worst, error / p->amplitude);
        if (!CHECK_MESSAGE(error <= bound, "x[%lld] is %.17g, %s restores %.17g", (long long)i, x[i],
                           by_backward ? "backward" : "the inverse rotation", found[i]))
            print(p);
    }
    free(x);
    free(found);
}

static void check_seed(uint64_t seed, double worst[2][4])
{
    const uint8_t dtype = (uint8_t)(seed % 4);
    static const uint8_t angles[] = {ANGLES_FREQS, ANGLES_INV_FREQ, ANGLES_PHASE_STEP};
    const uint8_t any[][2] = {{OPTION_DTYPE, dtype}, {OPTION_NORM, NORM_NONE}};
    linear_call *p = linear_make(seed, any, 2);
    check_transpose(p, &worst[0][dtype]);
    linear_free(p);
    /* These calls can be undone: they have one angle for each pair, mscale 1, no random tables of cos and sin, and no
     * padding that is zeroed. */
    const uint8_t rotation[][2] = {{OPTION_DTYPE, dtype},
                                   {OPTION_MSCALE, (uint8_t)(seed / 4 % 2)},
                                   {OPTION_NORM, NORM_NONE},
                                   {OPTION_SHARED, SHARED_NONE},
                                   {OPTION_COLUMNS, COLUMNS_PAIR},
                                   {OPTION_ANGLES, angles[seed / 8 % 3]},
                                   {OPTION_SEQUENCES, (uint8_t)(seed / 24 % 5)},
                                   {OPTION_PADDING, (uint8_t)(seed / 24 % 5 ? TROPE_PADDING_COPY + seed / 120 % 2 : 0)}};
    p = linear_make(seed, rotation, 8);
    check_undone(p, 0, &worst[1][dtype]);
    check_undone(p, 1, &worst[1][dtype]);
    linear_free(p);
}

int gradcheck_adjoint(seed_range seeds)
{
    double worst[2][4] = {{0}};
    for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; seed++)
        check_seed(seed, worst);
    for (int dtype = DTYPE_F32; dtype <= DTYPE_F64; dtype++)
        printf("%-4s worst |<Mx,y> - <x,M'y>| / (A sum(H|x| + |y|)) %.2g, worst error of a restored x / A %.2g\n",
               number_name(TROPE_F32 + dtype), worst[0][dtype], worst[1][dtype]);
    return check_result();
}
