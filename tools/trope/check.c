/* trope check: checks values and gradients of the library on a shape from the command line. */
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
    "Compares forward and backward with an evaluation in double on the host. Checks the adjoint identity, that the "
    "inverse\n"
    "undoes the rotation, and the gradients, with finite differences in f64. The calls run on --device. The default is "
    "the\n"
    "simplest call: batch 2, 64 tokens, 4 heads of 64, sbhd, half pairing, the whole head rotates, --rope-theta 10000.\n"
    "With --cu-seqlens it is thd, batch 1, and as many tokens as the sequences have. docs/command-line.md\n"
    "explains the columns.\n";

static const choice angle_choices[] = {
    {"inv_freq", ANGLES_INV_FREQ}, {"freqs", ANGLES_FREQS}, {"table", ANGLES_TABLE}, {NULL, 0}};

static const option_spec check_specs[] = {
    {"shape", 0, OPTION_TEXT, offsetof(check_options, shape),
     .help = "batch,tokens,heads,head_dim, in this order for any layout"},
    {"batch", 0, OPTION_INT64, offsetof(check_options, batch), .low = 1, .high = CHECK_LARGEST,
     .help = "batch size, default 2 (thd: 1)"},
    {"tokens", 0, OPTION_INT64, offsetof(check_options, tokens), .low = 1, .high = CHECK_LARGEST,
     .help = "number of tokens of this rank, default 64, or those of --cu-seqlens"},
    {"heads", 0, OPTION_INT32, offsetof(check_options, heads), .low = 1, .high = CHECK_LARGEST,
     .help = "number of heads of q, default 4"},
    {"k-heads", 0, OPTION_INT32, offsetof(check_options, k_heads), .low = 1, .high = CHECK_LARGEST,
     .help = "number of heads of k, in the same call; default: no k"},
    {"head-dim", 0, OPTION_INT32, offsetof(check_options, head_dim), .low = 1, .high = CHECK_LARGEST,
     .help = "elements of a head, default 64"},
    {"cu-seqlens", 0, OPTION_TEXT, offsetof(check_options, cu_seqlens),
     .help = "boundaries of packed sequences in the stream of all ranks: 0,5,9"},
    {"cu-seqlens-padded", 0, OPTION_TEXT, offsetof(check_options, cu_seqlens_padded),
     .help = "offsets of the padded sequences in memory"},
    {"dtype", 0, OPTION_CHOICE, offsetof(check_options, dtype), .choices = dtype_choices,
     .help = "data type of the tensors, default f32"},
    {"angles", 0, OPTION_CHOICE, offsetof(check_options, angles), .choices = angle_choices, .help = "source of the angles"},
    {"full", 0, OPTION_FLAG, offsetof(check_options, full),
     .help = "the table has a column for each element, not for each pair"},
    {"quiet", 0, OPTION_FLAG, offsetof(check_options, quiet), .help = "do not print the progress"},
    {"seed", 0, OPTION_INT64, offsetof(check_options, seed), .low = 0, .high = INT64_MAX,
     .help = "seed of the random numbers"},
    {.name = NULL}};

/* An error and its bound. Of several errors, the one with the largest ratio is kept. */
typedef struct finding {
    double error, bound;
    double ratio;      /* 0 for no error; infinite if the bound is 0 or the error is NaN */
    int64_t overflows; /* results beyond the dtype's range, which are not compared */
    int64_t nan;       /* unexpected NaN results */
} finding;

static void keep_worst(finding *worst, double error, double bound)
{
    double ratio = error == 0 ? 0 : error / bound;
    if (isnan(ratio))
        ratio = INFINITY;
    if (ratio > worst->ratio || (ratio == worst->ratio && bound > worst->bound))
        worst->error = error, worst->bound = bound, worst->ratio = ratio;
}

/* Compares an element of a result with its expected value. */
static void compare_element(const check_problem *p, finding *found, double result, double expected, double magnitude,
                            double bound)
{
    if (!isfinite(result) && check_overflows(p, magnitude)) {
        found->overflows++;
        return;
    }
    found->nan += isnan(result);
    keep_worst(found, fabs(result - expected), bound);
}

static int holds(const finding *f)
{
    return f->ratio <= 1;
}

/* The error that arithmetic may add to an element, in units of its magnitude (see reference_apply). In fp32 this is the
 * rounding of cos, sin, mscale, the product and the sum; in f64 also the rounding of an angle in radians in this program.
 */
static double arithmetic_error(const check_problem *p)
{
    if (p->args.dtype != TROPE_F64)
        return 8 * 0x1p-24;
    return 16 * 0x1p-53 + (p->cols ? 0 : (double)p->rows * p->inv_freq[0] * 0x1p-52);
}

/* The error that the store may add: half a step of the dtype, or a few half steps with native rounding. */
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
        compare_element(p, found, p->y[i], p->result[i], p->magnitude[i], element_bound(p, p->result[i], p->magnitude[i]));
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

/* Compares <M x, y> with <x, M' y>. The rounding errors are independent, so their sum grows like a square root. The bound
 * is 8 standard deviations. */
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
            found->overflows += !isfinite(p->z[i]) && check_overflows(p, p->magnitude[i]);
            difference += backward ? -term : term;
            variance += bound * bound;
        }
    }
    if (!found->overflows)
        keep_worst(found, (double)fabsl(difference), 8 * sqrt(variance) + 0x1p-60 * (double)p->elements);
    return 0;
}

/* Makes the call with `inverse` flipped on the output of the forward call. */
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
    check_fill_kept(p, p->x);
    if (check_call(p, 0, p->x, p->y) || call_undoing(p, p->y, p->z))
        return RESULT_REFUSED;
    reference_apply(p, 1, p->y, p->result, p->magnitude);
    for (int64_t i = 0; i < p->elements; i++) {
        const double factor = p->magnitude[i] > 0 ? p->mscale * p->mscale : 1;
        const double bound = 4 * element_bound(p, p->magnitude[i], p->magnitude[i]);
        compare_element(p, found, p->z[i], factor * p->x[i], p->magnitude[i], bound);
    }
    check_draw_angles(p, 0);
    return 0;
}

/* Finite differences. L = <M x, dy>, with dy in p->y. The differences of elements are summed; subtracting two sums would
 * lose digits. */

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

/* Checks one direction: all elements at once, or only element `only`. The call is linear, so a step of 1 is exact. */
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

/* Computes dL/d(angle) by a central difference. */
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

/* Checks the gradient for some columns, and for rows that tokens use. Extrapolates the slopes of two steps to step 0. */
static int check_angle_gradient(check_problem *p, finding *found)
{
    const double sequences = p->cu_seqlens ? (double)p->args.sequences + 1 : 1;
    const int32_t columns = p->cols ? p->cols : p->pairs;
    const double reach = p->cols ? 1 : (double)p->rows; /* how far an angle moves if its source moves by 1 */
    const double step = 1e-3 / reach;
    const double share = /* largest number of elements that depend on one source entry */
        p->cols ? sequences * (double)p->elements / (double)p->args.tokens : (double)p->elements;
    check_fill(p, p->x);
    check_fill(p, p->y);
    if (check_call_angle_gradient(p, p->x, p->y))
        return RESULT_REFUSED;
    for (int i = 0; i < ELEMENTS; i++) {
        const int64_t row = p->position[(int64_t)((check_random(p) + 1) / 2 * (double)p->args.tokens)];
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
    int calls; /* of the library */
    int (*run)(check_problem *p, finding *found);
} check_row;

/* clang-format off */
static const check_row rows[] = {
    {"forward, against double", 0, 1, check_forward},
    {"backward, against double", 0, 1, check_backward},
    {"adjoint, <Mx,y> = <x,M'y>", 0, 2, check_adjoint},
    {"inverse undoes forward", 0, 2, check_inverse},
    {"dx, finite differences", 1, 1 + 2 * (DIRECTIONS + ELEMENTS), check_input_gradient},
    {"d angles, finite differences", 1, 1 + 4 * ELEMENTS, check_angle_gradient},
};
/* clang-format on */
enum { ROW_COUNT = sizeof rows / sizeof rows[0] };

/* ---- the command ---- */

/* Reads --shape, which stands for four other options. */
static int read_shape(check_options *options)
{
    int64_t shape[4];
    if (parse_integers("--shape", options->shape, 1, 4, shape))
        return RESULT_REFUSED;
    if (options->batch || options->tokens || options->heads || options->head_dim)
        return complain("--shape: contradicts --batch, --tokens, --heads and --head-dim; give one or the other");
    if (shape[2] > CHECK_LARGEST || shape[3] > CHECK_LARGEST)
        return complain("--shape: heads and head_dim must be at most %d", CHECK_LARGEST);
    options->batch = shape[0];
    options->tokens = shape[1];
    options->heads = (int32_t)shape[2];
    options->head_dim = (int32_t)shape[3];
    return 0;
}

/* Within this limit, mscale squared and sums of it over all elements are finite in double. */
#define LARGEST_MSCALE 1e100

/* Refuses options that contradict each other or have no effect. */
static int check_effects(const check_options *options)
{
    if (fabs(options->rotation.mscale) > LARGEST_MSCALE)
        return complain("--mscale: %g must be at most %g, for finite differences", options->rotation.mscale,
                        LARGEST_MSCALE);
    if (options->full && options->angles == ANGLES_INV_FREQ)
        return complain("--full: has no effect without a table of angles (--angles freqs or table)");
    if (options->cu_seqlens_padded && !options->cu_seqlens)
        return complain("--cu-seqlens-padded: needs --cu-seqlens, the lengths of the sequences");
    if (options->sequence.padding && !options->cu_seqlens)
        return complain("--padding: has no effect without --cu-seqlens");
    if (options->sequence.stream_positions && !options->cu_seqlens)
        return complain("--packed-positions: has no effect without --cu-seqlens");
    return 0;
}

/* Sets the defaults of options that are not given. */
static int complete_options(check_options *options)
{
    if (check_effects(options) || (options->shape && read_shape(options)))
        return RESULT_REFUSED;
    if (!options->rotation.layout)
        options->rotation.layout = options->cu_seqlens ? TROPE_THD : TROPE_SBHD;
    if (!options->batch)
        options->batch = options->rotation.layout == TROPE_THD || options->cu_seqlens ? 1 : 2;
    if (!options->tokens && (options->tokens = check_tokens_of_sequences(options)) < 0)
        return RESULT_REFUSED;
    options->tokens = options->tokens ? options->tokens : 64;
    options->heads = options->heads ? options->heads : 4;
    options->head_dim = options->head_dim ? options->head_dim : 64;
    const double stream = (double)options->tokens * (double)cp_ranks(&options->sequence);
    const double heads = (double)options->heads + options->k_heads;
    const double elements = (double)options->batch * (double)options->tokens * heads * options->head_dim;
    if (elements > CHECK_LARGEST || stream > CHECK_LARGEST)
        return complain("the shape has %.0f elements, and %.0f tokens over all ranks; at most %d can be checked", elements,
                        stream, CHECK_LARGEST);
    return 0;
}

static void print_heading(const check_problem *p)
{
    const check_options *o = p->options;
    char keys[32] = "";
    if (o->k_heads)
        snprintf(keys, sizeof keys, " (k %d)", o->k_heads);
    printf("# device %s, %s, batch %" PRId64 ", tokens %" PRId64 ", heads %d%s, head_dim %d, seed %" PRId64 "\n",
           o->device->name, choice_name(layout_choices, o->rotation.layout), o->batch, o->tokens, o->heads, keys,
           o->head_dim, o->seed);
    if (p->cu_seqlens || p->args.cp_size > 1) {
        int64_t padding = 0;
        for (int64_t t = 0; t < o->tokens; t++)
            padding += p->is_padding[t];
        printf("# %" PRId64 " sequences, %" PRId64 " tokens of padding, context parallel rank %d of %" PRId64
               ", positions up to %" PRId64 "\n",
               p->cu_seqlens ? p->args.sequences : o->batch, padding, p->args.cp_rank, cp_ranks(&o->sequence), p->rows - 1);
    }
    printf(
        "# error: the difference that is largest relative to its bound; bound: the largest possible rounding error there;\n"
        "# dtype: data type of the calls, f64 for finite differences\n");
    printf("# %-28s %-6s %12s %12s  %s\n", "check", "dtype", "error", "bound", "verdict");
}

static const char *verdict(const finding *found)
{
    if (!holds(found))
        return found->nan ? "NAN" : "FAILED";
    return found->overflows ? "OVERFLOW" : "ok";
}

typedef struct verdicts {
    int failed, overflown;
} verdicts;

static int run_row(const check_row *row, check_problem *problems, verdicts *count)
{
    check_problem *p = &problems[row->in_f64];
    const char *dtype = choice_name(dtype_choices, p->args.dtype);
    finding found = {0};
    p->progress->name = row->name;
    if (row->run(p, &found))
        return RESULT_REFUSED;
    check_progress_clear(p->progress);
    printf("%-30s %-6s %12.3g %12.3g  %s\n", row->name, dtype, found.error, found.bound, verdict(&found));
    if (found.overflows)
        printf("# %" PRId64 " results are infinite or NaN, beyond what %s holds, and not compared\n", found.overflows,
               dtype);
    if (found.nan)
        printf("# %" PRId64 " results are NaN and should be finite\n", found.nan);
    fflush(stdout);
    count->failed += !holds(&found);
    count->overflown += holds(&found) && found.overflows;
    return 0;
}

static int conclude(const check_problem *p, const verdicts *count)
{
    printf("# %d of %d checks hold\n", ROW_COUNT - count->failed - count->overflown, ROW_COUNT);
    if (count->failed)
        return RESULT_DIFFERS;
    return count->overflown
               ? complain("%d of %d checks do not compare all results: with mscale %g, some exceed the range of --dtype %s",
                          count->overflown, ROW_COUNT, p->mscale, choice_name(dtype_choices, p->args.dtype))
               : RESULT_OK;
}

static int run_checks(const check_options *options)
{
    check_problem problems[2] = {0};
    verdicts count = {0, 0};
    int calls = 0;
    for (int i = 0; i < ROW_COUNT; i++)
        calls += rows[i].calls;
    check_progress progress = check_progress_begin(options->quiet, calls);
    int result = check_prepare(&problems[0], options, options->dtype);
    if (!result)
        result = check_prepare(&problems[1], options, TROPE_F64);
    if (!result)
        print_heading(&problems[0]);
    for (int i = 0; i < ROW_COUNT && !result; i++) {
        problems[0].progress = problems[1].progress = &progress;
        result = run_row(&rows[i], problems, &count);
    }
    check_progress_clear(&progress);
    result = result ? RESULT_REFUSED : conclude(&problems[0], &count);
    check_release(&problems[0]);
    check_release(&problems[1]);
    return result;
}

int command_check(int argc, char **argv)
{
    check_options options = {.rotation = {ROTATION_DEFAULTS, .pairing = TROPE_PAIRING_HALF, .rope_theta = 10000},
                             .sequence = {SEQUENCE_DEFAULTS},
                             .machine = {MACHINE_DEFAULTS},
                             .dtype = TROPE_F32,
                             .seed = 1};
    option_group groups[] = {{.specs = check_specs, .target = &options},
                             {.specs = rotation_specs, .target = &options.rotation},
                             {.specs = sequence_specs, .target = &options.sequence},
                             {.specs = machine_specs, .target = &options.machine},
                             {.specs = NULL}};
    const int first = options_parse(argc, argv, groups, usage);
    if (first < 0)
        return first == OPTIONS_HELP ? RESULT_OK : RESULT_REFUSED;
    if (first != argc)
        return complain("takes no file, got '%.64s'", argv[first]);
    options.device = device_find(options.machine.device, options.machine.isa);
    if (!options.device || check_rotation(&options.rotation) || complete_options(&options))
        return RESULT_REFUSED;
    return run_checks(&options);
}
