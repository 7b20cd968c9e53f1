/* Gradients in f64 against central differences of the forward call, for the loss L = sum dy y.
 *
 * L is linear in x, so that the step may be large and nothing but rounding is left. In the angles it is not: with
 * S = sum |dy| |x| over the elements that an angle turns, a step h leaves at most S (h^2 / 6 + 2^-50 / h), which is checked
 * on a ladder of steps, so that the error must also fall as h^2 does.
 *
 *     gradcheck_finite_difference [--seed S] [--count N] */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "gradcheck/problem.h"
#include "support/check.h"
#include "support/reference.h"
#include "support/seeds.h"
#include "support/tensor.h"

#define SAMPLES 40
#define RUNGS   4

static const double ladder[RUNGS] = {0x1p-5, 0x1p-9, 0x1p-13, 0x1p-17};

typedef struct state {
    problem *p;
    random_state random;
    double *dy, *plus, *minus; /* by element of y */
    double worst_dx;           /* error of dx over its scale */
    double
        worst[RUNGS]; /* error of the gradient of the angles over its scale, where the angle is not itself rounded much */
    long checked_dx, checked_angles;
} state;

/* ---- The loss ---- */

static void run_forward(problem *p, double *y)
{
    CHECK_MESSAGE(trope_forward(call_args(&p->forward)) == TROPE_OK, "%s", trope_last_error());
    for (int64_t i = 0; i < p->outputs; i++)
        y[i] = problem_load(p, p->y[i]);
}

/* L+ - L-, and the sum of |dy| over the elements that differ. */
static double difference(const state *s, double *moved)
{
    long double sum = 0;
    *moved = 0;
    for (int64_t i = 0; i < s->p->outputs; i++) {
        sum += (long double)s->dy[i] * (s->plus[i] - s->minus[i]);
        *moved += s->plus[i] != s->minus[i] ? fabs(s->dy[i]) : 0;
    }
    return (double)sum;
}

/* ---- dx ---- */

static void check_dx(state *s, const double *dx)
{
    problem *p = s->p;
    for (int sample = 0; sample < SAMPLES; sample++) {
        const int64_t i = random_between(&s->random, 0, p->inputs - 1);
        double *x = (double *)(void *)p->x[i], before = *x, moved;
        *x = before + 1;
        run_forward(p, s->plus);
        *x = before - 1;
        run_forward(p, s->minus);
        const double step = (before + 1) - (before - 1), numeric = difference(s, &moved) / step;
        *x = before;
        const double error = fabs(numeric - dx[i]) / (p->heads * (p->amplitude + 1));
        s->worst_dx = fmax(s->worst_dx, error);
        s->checked_dx++;
        if (!CHECK_MESSAGE(error < 1e-13, "dx of element %lld is %.17g, by differences %.17g", (long long)i, dx[i],
                           numeric))
            problem_print(p, "gradcheck_finite_difference");
    }
}

/* ---- The gradient of the angles ---- */

/* Sums over all ways in which a step of the angle changes L. */
typedef struct slope {
    double gradient;
    double per_step; /* the largest |change| of a token's angle with the step: 1, or the largest position */
    double rounding; /* of that angle, in radians */
} slope;

/* Turns what was chosen by `step` from where it is. */
typedef void (*turn_angles)(state *s, const void *chosen, double step);

static void check_slope(state *s, const slope *a, turn_angles turn, const void *chosen)
{
    problem *p = s->p;
    for (int rung = 0; rung < RUNGS; rung++) {
        const double h = ladder[rung];
        double moved;
        turn(s, chosen, h / a->per_step);
        run_forward(p, s->plus);
        turn(s, chosen, -h / a->per_step);
        run_forward(p, s->minus);
        const double numeric = difference(s, &moved) / (2 * h / a->per_step);
        const double scale = moved * p->amplitude * a->per_step, error = fabs(numeric - a->gradient);
        const double bound = scale * (h * h / 6 + (0x1p-50 + a->rounding) / h + a->rounding);
        if (scale > 0 && a->rounding < 1e-14)
            s->worst[rung] = fmax(s->worst[rung], error / scale);
        s->checked_angles++;
        if (!CHECK_MESSAGE(error <= bound, "step %g: the gradient is %.17g, by differences %.17g +- %.3g", h, a->gradient,
                           numeric, bound))
            problem_print(p, "gradcheck_finite_difference");
    }
    turn(s, chosen, 0);
}

/* ---- Of a table ---- */

/* A table and its gradient, of which either may have entries that serve several {axis, batch, row, column}. */
typedef struct table {
    int64_t size[4], stride[4], gradient_stride[4];
    double *freqs, *cosines, *sines; /* freqs, or the two others */
    double *angles;                  /* by offset: what freqs was, or cosines and sines are of */
} table;

/* Entries of a table that are turned together: those at which `free` has a 1 have all indices, the others this one. */
typedef struct entries {
    const table *t;
    int64_t index[4];
    int free[4];
} entries;

static int64_t offset_of(const int64_t index[4], const int64_t stride[4])
{
    return index[0] * stride[0] + index[1] * stride[1] + index[2] * stride[2] + index[3] * stride[3];
}

/* The next index of those that are free, in turn; returns 0 after the last. */
static int next_index(const entries *e, int64_t index[4], const int64_t stride[4])
{
    for (int d = 0; d < 4; d++) {
        if (!e->free[d] || stride[d] == 0) /* where the stride is 0 all are one entry */
            continue;
        if (++index[d] < e->t->size[d])
            return 1;
        index[d] = 0;
    }
    return 0;
}

static void first_index(const entries *e, int64_t index[4])
{
    for (int d = 0; d < 4; d++)
        index[d] = e->free[d] ? 0 : e->index[d];
}

static void turn_entry(const table *t, int64_t offset, double step)
{
    const double angle = t->angles[offset] + step;
    if (t->freqs) {
        t->freqs[offset] = angle;
        return;
    }
    t->cosines[offset] = cos(angle);
    t->sines[offset] = sin(angle);
}

static void turn_entries(state *s, const void *chosen, double step)
{
    const entries *e = chosen;
    int64_t index[4];
    (void)s;
    first_index(e, index);
    do
        turn_entry(e->t, offset_of(index, e->t->stride), step);
    while (next_index(e, index, e->t->stride));
}

static double sum_of_gradients(const entries *e, const double *d_freqs)
{
    int64_t index[4];
    long double sum = 0;
    first_index(e, index);
    do
        sum += d_freqs[offset_of(index, e->t->gradient_stride)];
    while (next_index(e, index, e->t->gradient_stride));
    return (double)sum;
}

static double largest_angle(const entries *e)
{
    int64_t index[4];
    double largest = 0;
    first_index(e, index);
    do
        largest = fmax(largest, fabs(e->t->angles[offset_of(index, e->t->stride)]));
    while (next_index(e, index, e->t->stride));
    return largest;
}

/* Of the angles of the call; random tables become the cosines and sines of random angles. */
static table make_table(state *s)
{
    const trope_args *a = call_args(&s->p->backward);
    table t = {.size = {reference_axes(a), a->batch, a->angle_rows, reference_pairs(a)},
               .freqs = (double *)(uintptr_t)a->freqs,
               .cosines = (double *)(uintptr_t)a->cos,
               .sines = (double *)(uintptr_t)a->sin};
    t.size[3] *= a->angle_columns == TROPE_COLUMNS_PAIR ? 1 : 2;
    tensor_table_strides(a, a->angle_layout, a->angle_stride, t.size[3], t.stride);
    tensor_table_strides(a, a->d_freqs_layout, a->d_freqs_stride, t.size[3], t.gradient_stride);
    const int64_t last[4] = {t.size[0] - 1, t.size[1] - 1, t.size[2] - 1, t.size[3] - 1};
    t.angles = malloc((size_t)(offset_of(last, t.stride) + 1) * sizeof *t.angles);
    const entries all = {.t = &t, .free = {1, 1, 1, 1}};
    int64_t index[4] = {0};
    do {
        const int64_t offset = offset_of(index, t.stride);
        t.angles[offset] = t.freqs ? t.freqs[offset] : 3.2 * random_real(&s->random);
        turn_entry(&t, offset, 0);
    } while (next_index(&all, index, t.stride));
    return t;
}

/* Random entries, often of a row that is in use; with all others with which either the table or its gradient is one. */
static entries choose_entries(state *s, const table *t)
{
    const trope_args *a = &s->p->backward.args;
    entries e = {.t = t};
    for (int d = 0; d < 4; d++) {
        e.index[d] = random_between(&s->random, 0, t->size[d] - 1);
        e.free[d] = t->stride[d] == 0 || t->gradient_stride[d] == 0;
    }
    const int64_t token = random_between(&s->random, 0, a->tokens - 1);
    const int64_t row = reference_find(a, e.index[1], token).position[random_between(&s->random, 0, TROPE_MAX_AXES - 1)];
    e.index[2] = row < 0 ? 0 : row >= a->angle_rows ? a->angle_rows - 1 : row;
    return e;
}

static void check_table(state *s, const table *t, const double *d_freqs)
{
    for (int sample = 0; sample < SAMPLES; sample++) {
        const entries e = choose_entries(s, t);
        const slope a = {
            .per_step = 1, .gradient = sum_of_gradients(&e, d_freqs), .rounding = (largest_angle(&e) + 1) * 0x1p-52};
        check_slope(s, &a, turn_entries, &e);
    }
}

/* ---- Of frequencies ---- */

typedef struct frequency {
    int pair;
    double value;
} frequency;

static void turn_frequency(state *s, const void *chosen, double step)
{
    const frequency *f = chosen;
    config *c = s->p->c;
    c->inv_freq[f->pair] = f->value + step;
    if (s->p->forward.args.phase_step)
        CHECK(trope_phase_steps(&c->inv_freq[f->pair], 1, &c->phase_step[f->pair]) == TROPE_OK);
}

static double largest_position(const trope_args *a)
{
    double largest = 1;
    for (int64_t i = 0; i < a->batch * a->tokens; i++) {
        const reference_place place = reference_find(a, i / a->tokens, i % a->tokens);
        for (int axis = 0; axis < TROPE_MAX_AXES; axis++)
            largest = fmax(largest, fabs((double)place.position[axis]));
    }
    return largest;
}

static void check_frequencies(state *s, const double *d_inv_freq)
{
    const double per_step = largest_position(&s->p->forward.args);
    for (int i = 0; i < reference_pairs(call_args(&s->p->forward)); i++) {
        const frequency f = {.pair = i, .value = s->p->c->inv_freq[i]};
        const slope a = {
            .gradient = d_inv_freq[i], .per_step = per_step, .rounding = per_step * (fabs(f.value) * 0x1p-52 + 0x1p-60)};
        check_slope(s, &a, turn_frequency, &f);
    }
}

/* ---- One seed ---- */

static void run_backward(state *s, double *dx)
{
    problem *p = s->p;
    for (int64_t i = 0; i < p->outputs; i++)
        s->dy[i] = problem_load(p, p->dy[i]);
    CHECK_MESSAGE(trope_backward(call_args(&p->backward)) == TROPE_OK, "%s", trope_last_error());
    for (int64_t i = 0; i < p->inputs; i++)
        dx[i] = problem_load(p, p->dx[i]);
}

static void check_angles(state *s, double *dx)
{
    const trope_args *a = &s->p->backward.args;
    if (a->d_inv_freq) {
        run_backward(s, dx);
        check_dx(s, dx);
        check_frequencies(s, a->d_inv_freq);
        return;
    }
    table t = make_table(s);
    run_backward(s, dx);
    check_dx(s, dx);
    check_table(s, &t, a->d_freqs);
    free(t.angles);
}

static void check_seed(uint64_t seed, state *s)
{
    const uint8_t angles = (uint8_t)(seed % 4);
    const uint8_t fixed[][2] = {{OPTION_DTYPE, DTYPE_F64},
                                {OPTION_SIZE, SIZE_TINY},
                                {OPTION_ANGLES, angles},
                                {OPTION_ANGLE_DTYPE, angles >= ANGLES_INV_FREQ ? DTYPE_F32 : DTYPE_F64}};
    s->p = problem_make(seed, fixed, 4);
    s->random.state = seed;
    double *dx = malloc((size_t)s->p->inputs * sizeof *dx);
    s->dy = malloc((size_t)s->p->outputs * sizeof *s->dy);
    s->plus = malloc((size_t)s->p->outputs * sizeof *s->plus);
    s->minus = malloc((size_t)s->p->outputs * sizeof *s->minus);
    check_angles(s, dx);
    free(dx);
    free(s->dy);
    free(s->plus);
    free(s->minus);
    problem_free(s->p);
}

int main(int argc, char **argv)
{
    const seed_range seeds = parse_seeds(argc, argv, 240);
    state s = {.worst_dx = 0};
    for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; seed++)
        check_seed(seed, &s);
    printf("dx: %ld elements, worst error %.2g of the largest element\n", s.checked_dx, s.worst_dx);
    printf("angles: %ld differences; worst error over the sum of magnitudes, by step:", s.checked_angles);
    for (int rung = 0; rung < RUNGS; rung++)
        printf(" %.2g: %.2g", ladder[rung], s.worst[rung]);
    printf("\n");
    return check_result();
}
