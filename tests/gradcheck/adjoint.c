/* Identities of the rotation M that need no reference, with random x and y in every dtype:
 *
 *     <M x, y> = <x, M' y>                 forward and backward are transposes of each other
 *     M' M x = x, M^-1 M x = x             backward, and forward the other way, undo forward when mscale is 1
 *
 * With A the largest |x1| + |x2| times mscale, u of the dtype and v = 2^-24 (f64: 2^-53) of the arithmetic, an element of M
 * x is off by at most e = A (u + 3 v), natively rounded by A (4 u + 3 v); so <M x, y> by e sum |y|.
 *
 *     gradcheck_adjoint [--seed S] [--count N] */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gradcheck/problem.h"
#include "support/check.h"
#include "support/number.h"
#include "support/seeds.h"

static double *load_all(const problem *p, char *const *address)
{
    double *values = malloc((size_t)p->count * sizeof *values);
    for (int64_t i = 0; i < p->count; i++)
        values[i] = problem_load(p, address[i]);
    return values;
}

static void check_transpose(problem *p, double *worst)
{
    long double in_y = 0, in_x = 0;
    double length = 0;
    config_reset(p->c);
    double *x = load_all(p, p->x), *dy = load_all(p, p->dy);
    CHECK_MESSAGE(trope_forward(&p->forward) == TROPE_OK, "%s", trope_last_error());
    double *y = load_all(p, p->dst);
    CHECK_MESSAGE(trope_backward(&p->backward) == TROPE_OK, "%s", trope_last_error());
    double *dx = load_all(p, p->dst);
    for (int64_t i = 0; i < p->count; i++) {
        in_y += (long double)y[i] * dy[i];
        in_x += (long double)x[i] * dx[i];
        length += fabs(x[i]) + fabs(dy[i]);
    }
    const double error = fabs((double)(in_y - in_x)), bound = length * problem_element_error(p);
    *worst = fmax(*worst, error / (length * p->amplitude));
    if (!CHECK_MESSAGE(error <= bound, "<Mx, y> is %.17Lg, <x, M'y> is %.17Lg, bound %.3g", in_y, in_x, bound))
        problem_print(p, "gradcheck_adjoint");
    free(x);
    free(dy);
    free(y);
    free(dx);
}

/* The args that take dst back to where dy was, by backward or by turning the other way. */
static trope_args undo(const problem *p, int by_backward)
{
    trope_args args = p->forward;
    for (int i = 0; i < args.operand_count; i++) {
        trope_operand *o = &args.operands[i];
        const trope_operand *backward = &p->backward.operands[i];
        o->src = backward->dst;
        o->dst = (void *)(uintptr_t)backward->src;
        memcpy(o->src_stride, backward->dst_stride, sizeof o->src_stride);
        memcpy(o->dst_stride, backward->src_stride, sizeof o->dst_stride);
    }
    if (by_backward)
        return args;
    const int32_t in = args.pairing ? args.pairing : TROPE_PAIRING_HALF, out = args.pairing_out ? args.pairing_out : in;
    args.inverse = !args.inverse;
    args.pairing = out;
    args.pairing_out = in;
    return args;
}

static void check_undone(problem *p, int by_backward, double *worst)
{
    config_reset(p->c);
    double *x = load_all(p, p->x);
    const trope_args back = undo(p, by_backward);
    CHECK_MESSAGE(trope_forward(&p->forward) == TROPE_OK, "%s", trope_last_error());
    CHECK_MESSAGE((by_backward ? trope_backward(&back) : trope_forward(&back)) == TROPE_OK, "%s", trope_last_error());
    for (int64_t i = 0; i < p->count; i++) {
        /* y is off by e in both elements of the pair, x then by twice that and by e of its own; cos^2 + sin^2 is off by
         * 4e-7. */
        const double error = fabs(problem_load(p, p->dy[i]) - x[i]);
        const double bound = 3 * problem_element_error(p) + (p->forward.dtype == TROPE_F64 ? 1e-15 : 4e-7) * p->amplitude;
        *worst = fmax(*worst, error / p->amplitude);
        if (!CHECK_MESSAGE(error <= bound, "x[%lld] is %.17g, restored by %s %.17g", (long long)i, x[i],
                           by_backward ? "backward" : "turning back", problem_load(p, p->dy[i])))
            problem_print(p, "gradcheck_adjoint");
    }
    free(x);
}

static void check_seed(uint64_t seed, double worst[2][4])
{
    const uint8_t dtype = (uint8_t)(seed % 4);
    const uint8_t any[][2] = {{OPTION_DTYPE, dtype}};
    problem *p = problem_make(seed, any, 1);
    check_transpose(p, &worst[0][dtype]);
    problem_free(p);
    /* Rotations proper, of which none is left out: one angle a pair, mscale 1, no zeros for padding. */
    const uint8_t rotation[][2] = {{OPTION_DTYPE, dtype},
                                   {OPTION_MSCALE, (uint8_t)(seed / 4 % 2)},
                                   {OPTION_ANGLE_COLS, COLS_HALF},
                                   {OPTION_ANGLES, seed / 8 % 2 ? ANGLES_FREQS : ANGLES_INV_FREQ},
                                   {OPTION_SEQUENCES, (uint8_t)(seed / 16 % 5)},
                                   {OPTION_PADDING, (uint8_t)(seed / 16 % 5 ? TROPE_PADDING_COPY + seed / 80 % 2 : 0)}};
    p = problem_make(seed, rotation, 6);
    check_undone(p, 0, &worst[1][dtype]);
    check_undone(p, 1, &worst[1][dtype]);
    problem_free(p);
}

int main(int argc, char **argv)
{
    const seed_range seeds = parse_seeds(argc, argv, 1600);
    double worst[2][4] = {{0}};
    for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; seed++)
        check_seed(seed, worst);
    for (int32_t dtype = 0; dtype < 4; dtype++)
        printf("%-4s worst |<Mx,y> - <x,M'y>| / (A sum(|x| + |y|)) %.2g, worst error of a restored x / A %.2g\n",
               number_name(dtype), worst[0][dtype], worst[1][dtype]);
    return check_result();
}
