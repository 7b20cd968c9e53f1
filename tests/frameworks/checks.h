/* What the tests of frameworks' calls check: that a call is accepted, and what it has written, forward and backward. */
#ifndef TESTS_FRAMEWORKS_CHECKS_H
#define TESTS_FRAMEWORKS_CHECKS_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "frameworks/eager.h"
#include "support/call.h"
#include "support/check.h"
#include "support/number.h"

/* Runs the call in one direction. */
__attribute__((unused)) static void check_call(const char *what, const trope_args *args, int backward)
{
    const trope_status status = backward ? trope_backward(args) : trope_forward(args);
    CHECK_MESSAGE(status == TROPE_OK, "%s, %s: %s", what, backward ? "backward" : "forward", trope_last_error());
}

/* The bits of `count` elements are the same. */
__attribute__((unused)) static void check_bits(const char *what, int32_t dtype, const void *got, const void *expected,
                                               int64_t count)
{
    const int64_t size = (int64_t)number_size(dtype);
    for (int64_t i = 0; i < count; i++) {
        const char *a = (const char *)got + i * size, *b = (const char *)expected + i * size;
        if (memcmp(a, b, (size_t)size)) {
            CHECK_MESSAGE(0, "%s: element %lld of %lld (%s) is %.9g, not %.9g", what, (long long)i, (long long)count,
                          number_name(dtype), number_load(dtype, a), number_load(dtype, b));
            return;
        }
    }
    CHECK(count > 0);
}

/* Each f32 element is within `bound` of what is expected. */
__attribute__((unused)) static void check_near(const char *what, const void *got, const double *expected, double bound,
                                               int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const double value = ((const float *)got)[i];
        if (!(fabs(value - expected[i]) <= bound)) {
            CHECK_MESSAGE(0, "%s: element %lld of %lld is %.9g, not %.9g", what, (long long)i, (long long)count, value,
                          expected[i]);
            return;
        }
    }
    CHECK(count > 0);
}

/* Two operands of a call, q with the heads of the shape and k with one: sources, destinations, and their shapes. */
typedef struct pair_of_operands {
    shape shape[2];
    void *x[2], *y[2];
} pair_of_operands;

/* Runs the call, which has its angles and positions, on random q and k in one direction. */
__attribute__((unused)) static pair_of_operands run_call(const char *what, call c, const shape *s, const rotation *r,
                                                         int backward, random_state *random)
{
    pair_of_operands p;
    for (int i = 0; i < 2; i++) {
        p.shape[i] = *s;
        p.shape[i].heads = i ? 1 : s->heads;
        p.x[i] = random_tensor(random, r->dtype, shape_count(&p.shape[i]));
        p.y[i] = zero_tensor(r->dtype, shape_count(&p.shape[i]));
        trope_operand *o = call_add(&c, p.x[i], s->layout, p.shape[i].heads, s->head_dim, r->width);
        o->dst = p.y[i];
    }
    c.args.dtype = r->dtype;
    c.args.rounding = r->rounding;
    c.args.pairing = r->pairing;
    c.args.pairing_out = r->pairing_out;
    c.args.batch = s->batch;
    c.args.tokens = s->tokens;
    check_call(what, call_args(&c), backward);
    return p;
}

/* The call gives the bits of eager code, both ways. */
__attribute__((unused)) static void check_eager(const char *what, const call *c, const shape *s, const rotation *r,
                                                const coefficients *k, random_state *random)
{
    for (int backward = 0; backward < 2; backward++) {
        const pair_of_operands p = run_call(what, *c, s, r, backward, random);
        for (int i = 0; i < 2; i++) {
            void *expected = zero_tensor(r->dtype, shape_count(&p.shape[i]));
            eager_apply(r, &p.shape[i], k, backward, p.x[i], expected);
            check_bits(what, r->dtype, p.y[i], expected, shape_count(&p.shape[i]));
            free(expected);
            free(p.x[i]);
            free(p.y[i]);
        }
    }
}

/* The call, in f32, is near the rotation by these angles, [batch, tokens, width] by halves, both ways: inputs are below 2,
 * sine and cosine off by 1.2e-7, and there are three roundings. */
__attribute__((unused)) static void check_exact(const char *what, const call *c, const shape *s, const rotation *r,
                                                const double *angle, random_state *random)
{
    for (int backward = 0; backward < 2; backward++) {
        const pair_of_operands p = run_call(what, *c, s, r, backward, random);
        for (int i = 0; i < 2; i++) {
            double *expected = zero_tensor(TROPE_F64, shape_count(&p.shape[i]));
            exact_apply(r, &p.shape[i], angle, backward, p.x[i], expected);
            check_near(what, p.y[i], expected, 1.2e-6, shape_count(&p.shape[i]));
            free(expected);
            free(p.x[i]);
            free(p.y[i]);
        }
    }
}

#endif
