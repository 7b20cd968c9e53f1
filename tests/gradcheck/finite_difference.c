/* Gradients in f64 against central differences of the forward call, for the loss L = sum dy y.
 *
 * L is linear in x, so that the step may be large and nothing but rounding is left. In the angles it is not: with
 * S = sum |dy| |x| over the elements that an angle turns, a step h leaves at most S (h^2 / 6 + 2^-50 / h), which is checked
 * on a ladder of steps, so that the error must also fall as h^2 does.
 *
 *     gradcheck_finite_difference [--seed S] [--count N] */
#include <math.h>
#include <stdio.h>

#include "gradcheck/problem.h"
#include "support/check.h"
#include "support/reference.h"
#include "support/seeds.h"

#define SAMPLES 40
#define RUNGS   4

static const double ladder[RUNGS] = {0x1p-5, 0x1p-9, 0x1p-13, 0x1p-17};

typedef struct state {
    problem *p;
    random_state random;
    double *dy, *plus, *minus; /* by element */
    double worst_dx;           /* error of dx over its scale */
    double
        worst[RUNGS]; /* error of the gradient of the angles over its scale, where the angle is not itself rounded much */
    long checked_dx, checked_angles;
} state;

/* ---- The loss ---- */

static void run_forward(const problem *p, double *y)
{
    CHECK_MESSAGE(trope_forward(&p->forward) == TROPE_OK, "%s", trope_last_error());
    for (int64_t i = 0; i < p->count; i++)
        y[i] = problem_load(p, p->dst[i]);
}

/* L+ - L-, and the sum of |dy| over the elements that differ. */
static double difference(const state *s, double *moved)
{
    long double sum = 0;
    *moved = 0;
    for (int64_t i = 0; i < s->p->count; i++) {
        sum += (long double)s->dy[i] * (s->plus[i] - s->minus[i]);
        *moved += s->plus[i] != s->minus[i] ? fabs(s->dy[i]) : 0;
    }
    return (double)sum;
}

/* ---- dx ---- */

static void check_dx(state *s, const double *dx)
{
    const problem *p = s->p;
    for (int sample = 0; sample < SAMPLES; sample++) {
        const int64_t i = random_between(&s->random, 0, p->count - 1);
        double *x = (double *)(void *)p->x[i], before = *x, moved;
        if (p->x[i] == p->dy[i]) /* an operand that is only copied */
            continue;
        *x = before + 1;
        run_forward(p, s->plus);
        *x = before - 1;
        run_forward(p, s->minus);
        const double step = (before + 1) - (before - 1), numeric = difference(s, &moved) / step;
        *x = before;
        const double error = fabs(numeric - dx[i]) / (p->amplitude + 1);
        s->worst_dx = fmax(s->worst_dx, error);
        s->checked_dx++;
        if (!CHECK_MESSAGE(error < 1e-13, "dx of element %lld is %.17g, by differences %.17g", (long long)i, dx[i],
                           numeric))
            problem_print(p, "gradcheck_finite_difference");
    }
}

/* ---- The gradient of the angles ---- */

/* One entry of freqs, cos and sin, or inv_freq. */
typedef struct angle {
    double *freq, *cosine, *sine;
    double value, gradient;
    double slope;    /* the largest |change| of a token's angle with the value: 1, or the largest position */
    double rounding; /* of that angle, in radians */
} angle;

static void set_angle(const angle *a, double value)
{
    if (a->freq)
        *a->freq = value;
    if (a->cosine) {
        *a->cosine = cos(value);
        *a->sine = sin(value);
    }
}

static void check_angle(state *s, const angle *a)
{
    const problem *p = s->p;
    for (int rung = 0; rung < RUNGS; rung++) {
        const double h = ladder[rung], above = a->value + h / a->slope, below = a->value - h / a->slope;
        double moved;
        set_angle(a, above);
        run_forward(p, s->plus);
        set_angle(a, below);
        run_forward(p, s->minus);
        const double numeric = difference(s, &moved) / (above - below);
        const double scale = moved * p->amplitude * a->slope, error = fabs(numeric - a->gradient);
        const double bound = scale * (h * h / 6 + (0x1p-50 + a->rounding) / h + a->rounding);
        if (scale > 0 && a->rounding < 1e-14)
            s->worst[rung] = fmax(s->worst[rung], error / scale);
        s->checked_angles++;
        if (!CHECK_MESSAGE(error <= bound, "step %g: the gradient is %.17g, by differences %.17g +- %.3g", h, a->gradient,
                           numeric, bound))
            problem_print(p, "gradcheck_finite_difference");
    }
    set_angle(a, a->value);
}

/* Replaces a random table by the cosines and sines of random angles, which it returns. */
static double *make_table_of_angles(state *s, int64_t count)
{
    double *angles = malloc((size_t)count * sizeof *angles);
    double *cosines = (double *)(uintptr_t)s->p->forward.cos, *sines = (double *)(uintptr_t)s->p->forward.sin;
    for (int64_t i = 0; i < count; i++) {
        angles[i] = 3.2 * random_real(&s->random);
        cosines[i] = cos(angles[i]);
        sines[i] = sin(angles[i]);
    }
    return angles;
}

/* A random entry, often one that is in use. */
static int64_t random_entry(state *s)
{
    const trope_args *a = &s->p->forward;
    const int64_t batch = random_between(&s->random, 0, a->batch - 1), token = random_between(&s->random, 0, a->tokens - 1);
    int64_t row = reference_find(a, batch, token).position[random_between(&s->random, 0, TROPE_MAX_AXES - 1)];
    row = row < 0 ? 0 : row >= a->angle_rows ? a->angle_rows - 1 : row;
    return batch * a->angle_batch_stride + row * (a->angle_row_stride ? a->angle_row_stride : a->angle_cols) +
           random_between(&s->random, 0, a->angle_cols - 1);
}

static void check_table(state *s, const double *angles, const double *d_freqs)
{
    const trope_args *a = &s->p->forward;
    for (int sample = 0; sample < SAMPLES; sample++) {
        const int64_t i = random_entry(s);
        angle entry = {.slope = 1, .gradient = d_freqs[i]};
        if (a->freqs) {
            entry.freq = (double *)(uintptr_t)a->freqs + i;
            entry.value = *entry.freq;
        } else {
            entry.cosine = (double *)(uintptr_t)a->cos + i;
            entry.sine = (double *)(uintptr_t)a->sin + i;
            entry.value = angles[i];
        }
        entry.rounding = fabs(entry.value) * 0x1p-52;
        check_angle(s, &entry);
    }
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

static void check_inv_freq(state *s, const double *d_inv_freq)
{
    const double slope = largest_position(&s->p->forward);
    for (int i = 0; i < reference_pairs(&s->p->forward); i++) {
        double *freq = &s->p->c->inv_freq[i];
        const angle entry = {.freq = freq,
                             .value = *freq,
                             .gradient = d_inv_freq[i],
                             .slope = slope,
                             .rounding = slope * (fabs(*freq) * 0x1p-52 + 0x1p-60)};
        check_angle(s, &entry);
    }
}

/* ---- One seed ---- */

static void run_backward(state *s, double *dx)
{
    const problem *p = s->p;
    CHECK_MESSAGE(trope_backward(&p->backward) == TROPE_OK, "%s", trope_last_error());
    for (int64_t i = 0; i < p->count; i++) {
        dx[i] = problem_load(p, p->dst[i]);
        s->dy[i] = problem_load(p, p->dy[i]);
    }
}

static void check_seed(uint64_t seed, state *s)
{
    const uint8_t fixed[][2] = {{OPTION_DTYPE, TROPE_F64},
                                {OPTION_SIZE, SIZE_TINY},
                                {OPTION_ANGLES, (uint8_t)(seed % 3)},
                                {OPTION_ANGLE_DTYPE, seed % 3 == ANGLES_INV_FREQ ? ANGLE_F32 : ANGLE_OPERANDS}};
    s->p = problem_make(seed, fixed, 4);
    s->random.state = seed;
    const int64_t size = (int64_t)sizeof(double) * s->p->count;
    double *dx = malloc((size_t)size), *angles = NULL;
    s->dy = malloc((size_t)size);
    s->plus = malloc((size_t)size);
    s->minus = malloc((size_t)size);
    if (s->p->forward.cos) {
        const config_buffer *table = &s->p->c->buffers[config_buffer_of(s->p->c, s->p->forward.cos)];
        angles = make_table_of_angles(s, (int64_t)(table->size / sizeof(double)));
    }
    run_backward(s, dx);
    check_dx(s, dx);
    if (s->p->forward.inv_freq)
        check_inv_freq(s, s->p->backward.d_inv_freq);
    else
        check_table(s, angles, s->p->backward.d_freqs);
    free(angles);
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
