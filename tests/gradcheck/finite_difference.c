/* Compares the gradient of the angles in f64 with central differences of the forward call, for the loss L = sum dy y, in
 * random directions. Some directions turn all angles, others only a few. (The loss is linear in x. adjoint.c checks dx.)
 *
 * With S = sum |dy| |x| over the elements that a direction turns, the error of a step h is at most S (h^2 / 6 + 2^-50 / h).
 * The test checks this bound for a ladder of steps, so the error must also fall like h^2. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gradcheck/gradcheck.h"
#include "support/random.h"
#include "support/reference.h"
#include "support/tensor.h"

#define RUNGS         4
#define SMALLEST_STEP 0.5 /* an entry of a direction is 0, or at least this in magnitude */

static const double ladder[RUNGS] = {0x1p-5, 0x1p-9, 0x1p-13, 0x1p-17};
static const int one_in[] = {1, 3, 9}; /* direction i turns one in one_in[i] angles */
enum { DIRECTIONS = sizeof one_in / sizeof one_in[0] };

/* The angles of a call, numbered in the order [axis, batch, row, column]. Several angles can share one entry of the
 * table or of its gradient. Frequencies are the columns of one row. */
typedef struct angles {
    linear_call *p;
    int64_t count;
    tensor table, gradient; /* the place of the entry of each angle */
    tensor once;            /* the lowest angle with the same entry of the gradient */
    tensor together;        /* the lowest angle that turns with this one: they share an entry of the table or gradient */
    double *values, *steps; /* the angles or frequencies before they are turned, and the direction */
    double per_step;        /* the largest |change| of an angle for step 1: 1, or the largest |position| */
} angles;

typedef struct tally {
    double worst[RUNGS]; /* error / scale, for angles with a small rounding error */
    long checked;
} tally;

/* ---- Angles ---- */

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

static void describe(angles *a, const trope_args *args)
{
    const int is_table = !args->d_inv_freq;
    const int64_t columns = reference_pairs(args) * (!is_table || args->angle_columns == TROPE_COLUMNS_PAIR ? 1 : 2);
    const tensor all = {.size = {is_table ? reference_axes(args) : 1, is_table ? args->batch : 1,
                                 is_table ? args->angle_rows : 1, columns, 1}};
    a->table = a->gradient = a->once = a->together = all;
    tensor_table_strides(args, args->angle_layout, args->angle_stride, columns, a->table.stride);
    tensor_table_strides(args, args->d_freqs_layout, args->d_freqs_stride, columns, a->gradient.stride);
    a->count = 1;
    for (int d = 3; d >= 0; d--) {
        a->once.stride[d] = a->gradient.stride[d] ? a->count : 0;
        a->together.stride[d] = a->table.stride[d] ? a->once.stride[d] : 0;
        a->count *= all.size[d];
    }
    a->per_step = is_table ? 1 : largest_position(args);
}

/* Turns all angles by `step` times the direction. */
static void turn(const angles *a, double step)
{
    const trope_args *args = &a->p->forward.args;
    double *const freqs = (double *)(uintptr_t)args->freqs, *const inv_freq = a->p->c->inv_freq;
    for (int64_t i = 0; i < a->count; i++) {
        const int64_t at = tensor_offset(&a->table, i);
        const double value = a->values[i] + step * a->steps[i];
        if (args->cos) {
            ((double *)(uintptr_t)args->cos)[at] = cos(value);
            ((double *)(uintptr_t)args->sin)[at] = sin(value);
        } else {
            (freqs ? freqs : inv_freq)[at] = value;
        }
    }
    if (args->phase_step)
        CHECK(trope_phase_steps(inv_freq, (int32_t)a->count, a->p->c->phase_step) == TROPE_OK);
}

/* Tables of random numbers are replaced by cosines and sines of random angles. Angles that share an entry are equal. */
static angles make_angles(linear_call *p)
{
    const trope_args *args = call_args(&p->backward);
    const double *const values = args->freqs ? args->freqs : p->c->inv_freq;
    angles a = {.p = p};
    describe(&a, args);
    a.values = malloc((size_t)a.count * sizeof *a.values);
    a.steps = calloc((size_t)a.count, sizeof *a.steps);
    for (int64_t i = 0; i < a.count; i++) {
        const int64_t at = tensor_offset(&a.table, i);
        a.values[i] = args->cos ? 3.2 * random_real(&(random_state){p->c->seed + (uint64_t)at}) : values[at];
    }
    turn(&a, 0);
    return a;
}

/* ---- One direction ---- */

/* Chooses a direction. Returns a bound on the rounding errors of the turned angles, in radians. */
static double choose_direction(angles *a, int once_in, uint64_t key)
{
    double largest = 0;
    for (int64_t i = 0; i < a->count; i++) {
        random_state random = {key + (uint64_t)tensor_offset(&a->together, i)};
        const int is_turned = random_between(&random, 1, once_in) == 1;
        const double real = random_real(&random);
        a->steps[i] = is_turned ? copysign(SMALLEST_STEP + (1 - SMALLEST_STEP) * fabs(real), real) : 0;
        largest = is_turned ? fmax(largest, fabs(a->values[i])) : largest;
    }
    if (a->p->backward.args.d_inv_freq)
        return a->per_step * (largest * 0x1p-52 + 0x1p-60);
    return (largest + 1) * 0x1p-52;
}

/* The gradient along the direction. Each entry of the gradient counts once. */
static double slope(const angles *a, const double *gradient)
{
    long double sum = 0;
    for (int64_t i = 0; i < a->count; i++)
        if (tensor_offset(&a->once, i) == i)
            sum += (long double)gradient[tensor_offset(&a->gradient, i)] * a->steps[i];
    return (double)sum;
}

static double *run_forward(const angles *a, double step)
{
    turn(a, step);
    CHECK_MESSAGE(gradcheck_run(a->p->c, &a->p->forward, 0) == TROPE_OK, "%s", trope_last_error());
    return linear_load(a->p, a->p->y, a->p->outputs);
}

/* Returns L+ - L-. *moved receives the sum of |dy| over the elements that differ. */
static double difference(const angles *a, const double *dy, double step, double *moved)
{
    double *const plus = run_forward(a, step), *const minus = run_forward(a, -step);
    long double sum = 0;
    *moved = 0;
    for (int64_t i = 0; i < a->p->outputs; i++) {
        sum += (long double)dy[i] * (plus[i] - minus[i]);
        *moved += plus[i] != minus[i] ? fabs(dy[i]) : 0;
    }
    free(plus);
    free(minus);
    return (double)sum;
}

static void check_direction(const angles *a, const double *dy, double gradient, double rounding, tally *t)
{
    for (int rung = 0; rung < RUNGS; rung++) {
        const double h = ladder[rung];
        double moved;
        if (rounding > h * SMALLEST_STEP) /* the step is smaller than the rounding of the angles */
            continue;
        const double numeric = difference(a, dy, h / a->per_step, &moved) / (2 * h / a->per_step);
        const double scale = moved * a->p->amplitude * a->per_step, error = fabs(numeric - gradient);
        const double bound = scale * (h * h / 6 + (0x1p-50 + rounding) / h + rounding);
        if (scale > 0 && rounding < 1e-14)
            t->worst[rung] = fmax(t->worst[rung], error / scale);
        t->checked += scale > 0;
        if (!CHECK_MESSAGE(error <= bound, "step %g: the gradient is %.17g, differences give %.17g +- %.3g", h, gradient,
                           numeric, bound))
            gradcheck_print(a->p->c, "finite_difference");
    }
}

static void check_seed(uint64_t seed, tally *t)
{
    const uint8_t source = (uint8_t)(seed % 4);
    const uint8_t fixed[][2] = {{OPTION_DTYPE, DTYPE_F64},
                                {OPTION_SIZE, SIZE_TINY},
                                {OPTION_ANGLES, source},
                                {OPTION_ANGLE_DTYPE, source >= ANGLES_INV_FREQ ? DTYPE_F32 : DTYPE_F64}};
    linear_call *p = linear_make(seed, fixed, 4);
    const trope_args *args = &p->backward.args;
    angles a = make_angles(p);
    double *const dy = linear_load(p, p->dy, p->outputs);
    CHECK_MESSAGE(gradcheck_run(p->c, &p->backward, 1) == TROPE_OK, "%s", trope_last_error());
    for (int i = 0; i < DIRECTIONS; i++) {
        const double rounding = choose_direction(&a, one_in[i], seed * DIRECTIONS + (uint64_t)i);
        const double gradient = slope(&a, args->d_inv_freq ? args->d_inv_freq : args->d_freqs);
        check_direction(&a, dy, gradient, rounding, t);
    }
    free(dy);
    free(a.values);
    free(a.steps);
    linear_free(p);
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
