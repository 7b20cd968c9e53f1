/* trope check: values and gradients of the library on a shape from the command line. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "command.h"
#include "value.h"

static const char usage[] =
    "usage: trope check [--shape B,S,H,D] [OPTION...]\n\n"
    "Compares forward and backward with an evaluation in double, and checks the adjoint identity, that the inverse undoes\n"
    "the rotation, and the gradients with finite differences (in f64). The calls are made on --device, the evaluation is "
    "the\n"
    "host's. What is not said is the library's simplest call: sbhd, half pairs, all of the head, --rope-theta 10000.\n";

static const choice angle_choices[] = {
    {"inv_freq", ANGLES_INV_FREQ}, {"freqs", ANGLES_FREQS}, {"table", ANGLES_TABLE}, {NULL, 0}};

#define LARGEST 0x10000000 /* of batch * tokens * heads * head_dim */

static const option_spec check_specs[] = {
    {"shape", 0, OPTION_TEXT, offsetof(check_options, shape), .help = "batch,tokens,heads,head_dim, whatever the layout"},
    {"batch", 0, OPTION_INT64, offsetof(check_options, batch), .low = 1, .high = LARGEST, .help = "default 2, with thd 1"},
    {"tokens", 0, OPTION_INT64, offsetof(check_options, tokens), .low = 1, .high = LARGEST, .help = "default 64"},
    {"heads", 0, OPTION_INT32, offsetof(check_options, heads), .low = 1, .high = LARGEST, .help = "default 4"},
    {"head-dim", 0, OPTION_INT32, offsetof(check_options, head_dim), .low = 1, .high = LARGEST, .help = "default 64"},
    {"dtype", 0, OPTION_CHOICE, offsetof(check_options, dtype), .choices = dtype_choices, .help = "default f32"},
    {"angles", 0, OPTION_CHOICE, offsetof(check_options, angles), .choices = angle_choices,
     .help = "where angles come from"},
    {"full", 0, OPTION_FLAG, offsetof(check_options, full), .help = "a column of angles per element, not per pair"},
    {"seed", 0, OPTION_INT64, offsetof(check_options, seed), .low = 0, .high = INT64_MAX, .help = "of the random numbers"},
    {.name = NULL}};

/* An error beside what is allowed; of many, the one that is worst in proportion. */
typedef struct finding {
    double error, bound;
    double ratio; /* 0 for no error, infinite where none is allowed or the error is NaN */
} finding;

static void keep_worst(finding *worst, double error, double bound)
{
    double ratio = error == 0 ? 0 : error / bound;
    if (isnan(ratio))
        ratio = INFINITY;
    if (ratio > worst->ratio || (ratio == worst->ratio && bound > worst->bound))
        *worst = (finding){error, bound, ratio};
}

static int holds(const finding *f)
{
    return f->ratio <= 1;
}

/* What arithmetic may add to the error of an element, in units of its magnitude (see reference_apply): in fp32 the rounding
 * of cos, sin, mscale, the product and the sum; in f64 also that of an angle in radians, which is this program's. */
static double arithmetic_error(const check_problem *p)
{
    if (p->args.dtype != TROPE_F64)
        return 8 * 0x1p-24;
    return 16 * 0x1p-53 + (p->cols ? 0 : (double)p->args.tokens * p->inv_freq[0] * 0x1p-52);
}

/* What the store may add: half a step of the dtype, or with native rounding a few of them. */
static double store_error(const check_problem *p, double value, double magnitude)
{
    const double half = value_epsilon(p->args.dtype) / 2;
    return p->args.rounding == TROPE_ROUND_NATIVE ? 5 * half * magnitude : half * fabs(value);
}

static double element_bound(const check_problem *p, double value, double magnitude)
{
    const double smallest = p->args.dtype == TROPE_F16 ? 0x1p-25 : p->args.dtype == TROPE_F64 ? 0 : 0x1p-133;
    if (magnitude == 0) /* not rotated, or zero: exact */
        return 0;
    return store_error(p, value, magnitude) + arithmetic_error(p) * magnitude + 2 * smallest;
}

/* The checks. Each returns nonzero after a complaint. */

static int check_values(check_problem *p, int backward, finding *found)
{
    check_fill(p, p->x);
    if (check_call(p, backward, p->x, p->y))
        return RESULT_REFUSED;
    reference_apply(p, backward, p->x, p->result, p->magnitude);
    for (int64_t i = 0; i < p->elements; i++)
        keep_worst(found, fabs(p->y[i] - p->result[i]), element_bound(p, p->result[i], p->magnitude[i]));
    return 0;
}

static int check_forward(check_problem *p, finding *found)
{
    return check_values(p, 0, found);
}

static int check_backward(check_problem *p, finding *found)
{
    return check_values(p, 1, found);
}

/* <M x, y> beside <x, M' y>. The roundings are independent, so their sum grows like a root: 8 standard deviations. */
static int check_adjoint(check_problem *p, finding *found)
{
    long double difference = 0;
    double variance = 0;
    check_fill(p, p->x);
    check_fill(p, p->y);
    for (int backward = 0; backward < 2; backward++) {
        const double *in = backward ? p->y : p->x, *with = backward ? p->x : p->y;
        if (check_call(p, backward, in, p->z))
            return RESULT_REFUSED;
        reference_apply(p, backward, in, p->result, p->magnitude);
        for (int64_t i = 0; i < p->elements; i++) {
            const double term = p->z[i] * with[i], bound = element_bound(p, p->result[i], p->magnitude[i]) * with[i];
            difference += backward ? -term : term;
            variance += bound * bound;
        }
    }
    keep_worst(found, (double)fabsl(difference), 8 * sqrt(variance) + 0x1p-60 * (double)p->elements);
    return 0;
}

/* The call with `inverse` turned over, reading what the forward call wrote. */
static int call_undoing(check_problem *p, const double *in, double *out)
{
    const trope_args saved = p->args;
    p->args.pairing = saved.pairing_out ? saved.pairing_out : saved.pairing;
    p->args.pairing_out = saved.pairing;
    p->args.inverse = !saved.inverse;
    if (p->cols)
        p->args.angle_columns = columns_of_table(&p->args, p->options->full);
    check_write_angles(p);
    const int result = check_call(p, 0, in, out);
    p->args = saved;
    check_write_angles(p);
    return result;
}

static int check_inverse(check_problem *p, finding *found)
{
    check_draw_angles(p, 1);
    check_fill(p, p->x);
    if (check_call(p, 0, p->x, p->y) || call_undoing(p, p->y, p->z))
        return RESULT_REFUSED;
    reference_apply(p, 1, p->y, p->result, p->magnitude);
    for (int64_t i = 0; i < p->elements; i++) {
        const double factor = p->magnitude[i] > 0 ? p->mscale * p->mscale : 1;
        const double bound = 4 * element_bound(p, p->magnitude[i], p->magnitude[i]);
        keep_worst(found, fabs(p->z[i] - factor * p->x[i]), bound);
    }
    check_draw_angles(p, 0);
    return 0;
}

/* Finite differences. L = <M x, dy>, with dy in p->y; differences are summed, not sums subtracted. */

static int loss_difference(check_problem *p, const double *plus, const double *minus, double *difference)
{
    long double sum = 0;
    if (check_call(p, 0, plus, p->result) || check_call(p, 0, minus, p->magnitude))
        return RESULT_REFUSED;
    for (int64_t i = 0; i < p->elements; i++)
        sum += (long double)(p->result[i] - p->magnitude[i]) * p->y[i];
    *difference = (double)sum;
    return 0;
}

#define DIRECTIONS 8
#define ELEMENTS   24

/* Along one direction: that of all elements at once, or of element `only`. The call is linear, so a step of 1 is exact. */
static int check_direction(check_problem *p, const double *dx, double *direction, int64_t only, finding *found)
{
    double expected = 0, scale = 0, difference;
    for (int64_t i = 0; i < p->elements; i++) {
        const double step = only < 0 ? check_random(p) : i == only;
        expected += dx[i] * step;
        scale += p->y[i] * p->y[i] * (only < 0 || i == only);
        direction[i] = p->x[i] + step / 2;
        p->z[i] = p->x[i] - step / 2;
    }
    if (loss_difference(p, direction, p->z, &difference))
        return RESULT_REFUSED;
    keep_worst(found, fabs(difference - expected), 1e-13 * (1 + fabs(p->mscale)) * sqrt(1 + scale));
    return 0;
}

static int check_input_gradient(check_problem *p, finding *found)
{
    double *dx = malloc((size_t)p->elements * sizeof *dx), *direction = malloc((size_t)p->elements * sizeof *direction);
    check_fill(p, p->x);
    check_fill(p, p->y);
    int result = dx && direction ? check_call(p, 1, p->y, dx) : complain("out of memory");
    for (int i = 0; i < DIRECTIONS + ELEMENTS && !result; i++) {
        const int64_t at = (int64_t)((check_random(p) + 1) / 2 * (double)p->elements);
        result = check_direction(p, dx, direction, i < DIRECTIONS ? -1 : at, found);
    }
    free(dx);
    free(direction);
    return result;
}

/* dL/d(angle) by a central difference. */
static int angle_slope(check_problem *p, int64_t row, int32_t column, double step, double *slope)
{
    double difference = 0;
    check_move_angle(p, row, column, step);
    int result = check_call(p, 0, p->x, p->z);
    check_move_angle(p, row, column, -step);
    result = result || check_call(p, 0, p->x, p->result);
    check_move_angle(p, row, column, 0);
    for (int64_t i = 0; i < p->elements; i++)
        difference += (p->z[i] - p->result[i]) * p->y[i];
    *slope = difference / (2 * step);
    return result;
}

/* Two steps, extrapolated to none, for some rows and columns. */
static int check_angle_gradient(check_problem *p, finding *found)
{
    const int32_t columns = p->cols ? p->cols : p->pairs;
    const double reach = p->cols ? 1 : (double)p->args.tokens; /* how far an angle moves when its source moves by 1 */
    const double step = 1e-3 / reach;
    const double share = (double)p->elements / (p->cols ? (double)p->args.tokens : 1); /* elements that feel it, at most */
    check_fill(p, p->x);
    check_fill(p, p->y);
    if (check_call_angle_gradient(p, p->x, p->y))
        return RESULT_REFUSED;
    for (int i = 0; i < ELEMENTS; i++) {
        const int64_t row = (int64_t)((check_random(p) + 1) / 2 * (double)p->args.tokens);
        const int32_t column = (int32_t)((check_random(p) + 1) / 2 * columns);
        double wide, narrow;
        if (angle_slope(p, row, column, step, &wide) || angle_slope(p, row, column, step / 2, &narrow))
            return RESULT_REFUSED;
        const double slope = (4 * narrow - wide) / 3, got = p->d_angles[p->cols ? row * columns + column : column];
        keep_worst(found, fabs(got - slope), 1e-11 * reach * (1 + fabs(p->mscale)) * sqrt(share));
    }
    return 0;
}

typedef struct check_row {
    const char *name;
    int in_f64;
    int (*run)(check_problem *p, finding *found);
} check_row;

/* clang-format off */
static const check_row rows[] = {
    {"forward, beside double", 0, check_forward},
    {"backward, beside double", 0, check_backward},
    {"adjoint, <Mx,y> = <x,M'y>", 0, check_adjoint},
    {"inverse undoes forward", 0, check_inverse},
    {"dx, finite differences", 1, check_input_gradient},
    {"d angles, finite differences", 1, check_angle_gradient},
};
/* clang-format on */
enum { ROW_COUNT = sizeof rows / sizeof rows[0] };

static int complete_options(check_options *options)
{
    int64_t shape[4];
    if (options->shape) {
        if (parse_integers("--shape", options->shape, 1, 4, shape))
            return RESULT_REFUSED;
        if (shape[2] > LARGEST || shape[3] > LARGEST)
            return complain("--shape: heads and head_dim must be at most %d", LARGEST);
        options->batch = shape[0];
        options->tokens = shape[1];
        options->heads = (int32_t)shape[2];
        options->head_dim = (int32_t)shape[3];
    }
    if (!options->batch)
        options->batch = options->rotation.layout == TROPE_THD ? 1 : 2;
    const double elements = (double)options->batch * (double)options->tokens * options->heads * options->head_dim;
    if (elements > LARGEST)
        return complain("the shape has %.0f elements, at most %d can be checked", elements, LARGEST);
    return 0;
}

static int run_row(const check_row *row, check_problem *problems, int *failed)
{
    check_problem *p = &problems[row->in_f64];
    finding found = {0};
    if (row->run(p, &found))
        return RESULT_REFUSED;
    printf("%-30s %-6s %12.3g %12.3g  %s\n", row->name, choice_name(dtype_choices, p->args.dtype), found.error, found.bound,
           holds(&found) ? "ok" : "FAILED");
    *failed += !holds(&found);
    return 0;
}

static int run_checks(const check_options *options)
{
    check_problem problems[2] = {0};
    int failed = 0, done = 0;
    int result = check_prepare(&problems[0], options, options->dtype);
    if (!result)
        result = check_prepare(&problems[1], options, TROPE_F64);
    if (!result) {
        printf("# device %s, batch %" PRId64 ", tokens %" PRId64 ", heads %d, head_dim %d, seed %" PRId64 "\n",
               options->device->name, options->batch, options->tokens, options->heads, options->head_dim, options->seed);
        printf("# %-28s %-6s %12s %12s  %s\n", "check", "dtype", "error", "bound", "verdict");
    }
    for (; done < ROW_COUNT && !result; done++)
        result = run_row(&rows[done], problems, &failed);
    check_release(&problems[0]);
    check_release(&problems[1]);
    if (result)
        return result;
    printf("# %d of %d checks hold\n", ROW_COUNT - failed, ROW_COUNT);
    return failed ? RESULT_DIFFERS : RESULT_OK;
}

int command_check(int argc, char **argv)
{
    check_options options = {.rotation = {ROTATION_DEFAULTS, .pairing = TROPE_PAIRING_HALF, .rope_theta = 10000},
                             .machine = {MACHINE_DEFAULTS},
                             .tokens = 64,
                             .heads = 4,
                             .head_dim = 64,
                             .dtype = TROPE_F32,
                             .seed = 1};
    option_group groups[] = {{.specs = check_specs, .target = &options},
                             {.specs = rotation_specs, .target = &options.rotation},
                             {.specs = machine_specs, .target = &options.machine},
                             {.specs = NULL}};
    const int first = options_parse(argc, argv, groups, usage);
    if (first < 0)
        return first == OPTIONS_HELP ? RESULT_OK : RESULT_REFUSED;
    if (first != argc)
        return complain("takes no file, got '%.64s'", argv[first]);
    options.device = device_find(options.machine.device);
    if (!options.device || check_rotation(&options.rotation) || complete_options(&options))
        return RESULT_REFUSED;
    return run_checks(&options);
}
