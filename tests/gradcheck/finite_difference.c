/* The gradient of the angles in f64 against central differences of the forward call, for the loss L = sum dy y, in random
 * directions: some turn all angles, others a few. (In x the loss is linear: adjoint.c has its gradient.)
 *
 * With S = sum |dy| |x| over the elements that a direction turns, a step h leaves at most S (h^2 / 6 + 2^-50 / h), which is
 * checked on a ladder of steps, so that the error must also fall as h^2 does. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gradcheck/gradcheck.h"
#include "support/random.h"
#include "support/reference.h"
#include "support/tensor.h"

#define RUNGS 4

static const double ladder[RUNGS] = {0x1p-5, 0x1p-9, 0x1p-13, 0x1p-17};
static const int one_in[] = {1, 3, 9}; /* one of so many angles turns, by direction */
enum { DIRECTIONS = sizeof one_in / sizeof one_in[0] };

/* The angles {axis, batch, row, column} of a call and their gradient, of which either may have entries that serve several.
 * Frequencies are columns of one row. */
typedef struct angles {
    problem *p;
    int64_t size[4], stride[4], gradient_stride[4], count;
    double *values;  /* by number: what the angles or frequencies are before they are turned */
    double *steps;   /* by number: the direction */
    double per_step; /* the largest |change| of a token's angle with the step: 1, or the largest position */
} angles;

typedef struct tally {
    double worst[RUNGS]; /* error over its scale, where the angle is not itself rounded much */
    long checked;
} tally;

/* ---- angles ---- */

static int64_t offset_of(const int64_t size[4], const int64_t stride[4], int64_t number)
{
    int64_t offset = 0;
    for (int d = 3; d >= 0; d--) {
        offset += number % size[d] * stride[d];
        number /= size[d];
    }
    return offset;
}

/* The number of the first angle that is one with this, in the table or in the gradient. */
static int64_t first_like(const angles *a, int64_t number)
{
    int64_t first = 0, step = 1;
    for (int d = 3; d >= 0; d--) {
        if (a->stride[d] && a->gradient_stride[d])
            first += number % a->size[d] * step;
        number /= a->size[d];
        step *= a->size[d];
    }
    return first;
}

/* Turns all angles by `step` times the direction. */
static void turn(const angles *a, double step)
{
    const trope_args *args = &a->p->forward.args;
    double *const freqs = (double *)(uintptr_t)args->freqs, *const inv_freq = a->p->c->inv_freq;
    for (int64_t i = 0; i < a->count; i++) {
        const int64_t at = offset_of(a->size, a->stride, i);
        const double value = a->values[i] + step * a->steps[i];
        if (freqs) {
            freqs[at] = value;
        } else if (args->cos) {
            ((double *)(uintptr_t)args->cos)[at] = cos(value);
            ((double *)(uintptr_t)args->sin)[at] = sin(value);
        } else {
            inv_freq[i] = value;
        }
    }
    if (args->phase_step)
        CHECK(trope_phase_steps(inv_freq, (int32_t)a->count, a->p->c->phase_step) == TROPE_OK);
}

static double largest_position(const trope_args *args)
{
    double largest = 1;
    for (int64_t i = 0; i < args->batch * args->tokens; i++) {
        const reference_place place = reference_find(args, i / args->tokens, i % args->tokens);
        for (int axis = 0; axis < TROPE_MAX_AXES; axis++)
            largest = fmax(largest, fabs((double)place.position[axis]));
    }
    return largest;
}

static void describe_table(const trope_args *args, angles *a)
{
    const int64_t columns = reference_pairs(args) * (args->angle_columns == TROPE_COLUMNS_PAIR ? 1 : 2);
    const int64_t size[4] = {reference_axes(args), args->batch, args->angle_rows, columns};
    memcpy(a->size, size, sizeof size);
    tensor_table_strides(args, args->angle_layout, args->angle_stride, columns, a->stride);
    tensor_table_strides(args, args->d_freqs_layout, args->d_freqs_stride, columns, a->gradient_stride);
    a->per_step = 1;
}

/* Random tables become the cosines and sines of random angles. */
static angles make_angles(problem *p)
{
    const trope_args *args = call_args(&p->backward);
    angles a = {.p = p, .size = {1, 1, 1, reference_pairs(args)}, .stride = {0, 0, 0, 1}, .gradient_stride = {0, 0, 0, 1}};
    if (args->d_inv_freq)
        a.per_step = largest_position(args);
    else
        describe_table(args, &a);
    a.count = a.size[0] * a.size[1] * a.size[2] * a.size[3];
    a.values = malloc((size_t)a.count * sizeof *a.values);
    a.steps = calloc((size_t)a.count, sizeof *a.steps);
    for (int64_t i = 0; i < a.count; i++) {
        const int64_t at = offset_of(a.size, a.stride, i);
        if (args->freqs)
            a.values[i] = ((const double *)args->freqs)[at];
        else if (args->d_inv_freq)
            a.values[i] = p->c->inv_freq[i];
        else /* the same for all that have this entry */
            a.values[i] = 3.2 * random_real(&(random_state){p->c->seed + (uint64_t)at});
    }
    turn(&a, 0);
    return a;
}

/* ---- one direction ---- */

static double *run_forward(problem *p)
{
    CHECK_MESSAGE(gradcheck_run(p->c, &p->forward, 0) == TROPE_OK, "%s", trope_last_error());
    return problem_load(p, p->y, p->outputs);
}

/* L+ - L-, and the sum of |dy| over the elements that differ. */
static double difference(const angles *a, const double *dy, double step, double *moved)
{
    long double sum = 0;
    turn(a, step);
    double *const plus = run_forward(a->p);
    turn(a, -step);
    double *const minus = run_forward(a->p);
    *moved = 0;
    for (int64_t i = 0; i < a->p->outputs; i++) {
        sum += (long double)dy[i] * (plus[i] - minus[i]);
        *moved += plus[i] != minus[i] ? fabs(dy[i]) : 0;
    }
    free(plus);
    free(minus);
    return (double)sum;
}

/* Chooses a direction; angles that are one in the table or in the gradient turn together. Returns what the angles that turn
 * are rounded by, in radians. */
static double choose_direction(angles *a, int once_in, uint64_t key)
{
    double largest = 0;
    for (int64_t i = 0; i < a->count; i++) {
        random_state random = {key + (uint64_t)first_like(a, i)};
        const int is_turned = random_between(&random, 1, once_in) == 1;
        a->steps[i] = is_turned ? random_real(&random) : 0;
        largest = is_turned ? fmax(largest, fabs(a->values[i])) : largest;
    }
    if (a->p->backward.args.d_inv_freq)
        return a->per_step * (largest * 0x1p-52 + 0x1p-60);
    return (largest + 1) * 0x1p-52;
}

/* The gradient along the direction: each of its entries once. */
static double slope(const angles *a, const double *gradient)
{
    long double sum = 0;
    for (int64_t i = 0; i < a->count; i++) {
        int64_t rest = i, is_repeated = 0;
        for (int d = 3; d >= 0; d--) {
            is_repeated |= !a->gradient_stride[d] && rest % a->size[d];
            rest /= a->size[d];
        }
        if (!is_repeated)
            sum += (long double)gradient[offset_of(a->size, a->gradient_stride, i)] * a->steps[i];
    }
    return (double)sum;
}

static void check_direction(const angles *a, const double *dy, double gradient, double rounding, tally *t)
{
    for (int rung = 0; rung < RUNGS; rung++) {
        const double h = ladder[rung];
        double moved;
        const double numeric = difference(a, dy, h / a->per_step, &moved) / (2 * h / a->per_step);
        const double scale = moved * a->p->amplitude * a->per_step, error = fabs(numeric - gradient);
        const double bound = scale * (h * h / 6 + (0x1p-50 + rounding) / h + rounding);
        if (scale > 0 && rounding < 1e-14)
            t->worst[rung] = fmax(t->worst[rung], error / scale);
        t->checked += scale > 0;
        if (!CHECK_MESSAGE(error <= bound, "step %g: the gradient is %.17g, by differences %.17g +- %.3g", h, gradient,
                           numeric, bound))
            gradcheck_print(a->p->c, "finite_difference", a->p->c->seed);
    }
}

static void check_seed(uint64_t seed, tally *t)
{
    const uint8_t source = (uint8_t)(seed % 4);
    const uint8_t fixed[][2] = {{OPTION_DTYPE, DTYPE_F64},
                                {OPTION_SIZE, SIZE_TINY},
                                {OPTION_ANGLES, source},
                                {OPTION_ANGLE_DTYPE, source >= ANGLES_INV_FREQ ? DTYPE_F32 : DTYPE_F64}};
    problem *p = problem_make(seed, fixed, 4);
    const trope_args *args = &p->backward.args;
    angles a = make_angles(p);
    double *const dy = problem_load(p, p->dy, p->outputs);
    CHECK_MESSAGE(gradcheck_run(p->c, &p->backward, 1) == TROPE_OK, "%s", trope_last_error());
    for (int i = 0; i < DIRECTIONS; i++) {
        const double rounding = choose_direction(&a, one_in[i], seed * DIRECTIONS + (uint64_t)i);
        const double *const gradient = args->d_inv_freq ? args->d_inv_freq : args->d_freqs;
        check_direction(&a, dy, slope(&a, gradient), rounding, t);
    }
    free(dy);
    free(a.values);
    free(a.steps);
    problem_free(p);
}

int gradcheck_finite_difference(seed_range seeds)
{
    tally t = {.checked = 0};
    for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; seed++)
        check_seed(seed, &t);
    printf("%ld differences; worst error over the sum of magnitudes, by step:", t.checked);
    for (int rung = 0; rung < RUNGS; rung++)
        printf(" %.2g: %.2g", ladder[rung], t.worst[rung]);
    printf("\n");
    return check_result();
}
