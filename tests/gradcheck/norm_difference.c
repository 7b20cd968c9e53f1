/* Compares the gradients of x and of weights in f64, in calls with norms, with differences of the forward call, for the
 * loss L = sum dy y, in random directions. Each element of x moves in proportion to its value, so that heads whose mean
 * square is near eps also change little.
 *
 * Differences at four points have an error of order h^4. With h = 2^-12, it is below 1e-11 times the sum of
 * |dy| (|y| + |change of y| / h). */
#include <math.h>
#include <stdlib.h>

#include "gradcheck/gradcheck.h"
#include "support/random.h"
#include "support/reference.h"

#define STEP  0x1p-12
#define LIMIT 1e-11

/* The doubles that a call reads and that a direction moves, and the addresses of their gradients. */
typedef struct numbers {
    const char *name;
    char **at, **gradient;
    double *value, *direction;
    int64_t count;
} numbers;

static void choose_direction(const linear_call *p, numbers *n, int is_relative, random_state *random)
{
    n->value = linear_load(p, n->at, n->count);
    n->direction = malloc((size_t)n->count * sizeof *n->direction);
    for (int64_t i = 0; i < n->count; i++)
        n->direction[i] = random_real(random) * (is_relative ? n->value[i] : 1);
}

/* Lists the f64 weights whose gradient the call computes. */
static numbers list_weights(linear_call *p)
{
    const trope_args *args = call_args(&p->backward);
    numbers n = {.name = "weight"};
    for (int i = 0; i < args->operand_count; i++) {
        const trope_norm *norm = reference_norm(args, i);
        if (!norm || !norm->d_weight || norm->weight_dtype != TROPE_F64)
            continue;
        const int64_t more = reference_weights(args, i);
        n.at = realloc(n.at, (size_t)(n.count + more) * sizeof *n.at);
        n.gradient = realloc(n.gradient, (size_t)(n.count + more) * sizeof *n.gradient);
        for (int64_t j = 0; j < more; j++, n.count++) {
            n.at[n.count] = (char *)(uintptr_t)norm->weight + 8 * j;
            n.gradient[n.count] = (char *)norm->d_weight + 8 * j;
        }
    }
    return n;
}

/* Returns y for the numbers moved by `step` times the direction. Then restores the numbers. */
static double *run_forward(linear_call *p, const numbers *n, double step)
{
    for (int64_t i = 0; i < n->count; i++)
        number_store(TROPE_F64, n->at[i], n->value[i] + step * n->direction[i]);
    CHECK_MESSAGE(gradcheck_run(p->c, &p->forward, 0) == TROPE_OK, "%s", trope_last_error());
    for (int64_t i = 0; i < n->count; i++)
        number_store(TROPE_F64, n->at[i], n->value[i]);
    return linear_load(p, p->y, p->outputs);
}

static void check_direction(linear_call *p, const numbers *n, const double *dy, double *worst)
{
    static const double steps[] = {STEP, -STEP, 2 * STEP, -2 * STEP}, factors[] = {8, -8, -1, 1};
    double *const gradient = linear_load(p, n->gradient, n->count), *y[4];
    long double slope = 0, numeric = 0, scale = 0;
    for (int64_t i = 0; i < n->count; i++)
        slope += (long double)gradient[i] * n->direction[i];
    for (int k = 0; k < 4; k++)
        y[k] = run_forward(p, n, steps[k]);
    for (int64_t i = 0; i < p->outputs; i++) {
        for (int k = 0; k < 4; k++)
            numeric += dy[i] * (long double)y[k][i] * factors[k] / (12 * STEP);
        scale += fabs(dy[i]) * (fabs(y[0][i]) + fabs(y[0][i] - y[1][i]) / (2 * STEP));
    }
    *worst = fmax(*worst, (double)(fabsl(numeric - slope) / scale));
    if (!CHECK_MESSAGE(fabsl(numeric - slope) <= LIMIT * scale,
                       "%s: the gradient is %.17Lg, differences give %.17Lg +- %.3Lg", n->name, slope, numeric,
                       LIMIT * scale))
        gradcheck_print(p->c, "norm_difference");
    for (int k = 0; k < 4; k++)
        free(y[k]);
    free(gradient);
}

static void check_seed(uint64_t seed, double *worst)
{
    const uint8_t fixed[][2] = {{OPTION_DTYPE, DTYPE_F64},
                                {OPTION_SIZE, SIZE_TINY},
                                {OPTION_NORM, (uint8_t)(NORM_ALL + seed % 2)},
                                {OPTION_WEIGHT, WEIGHT_F64},
                                {OPTION_D_WEIGHT, D_WEIGHT_TOO}};
    linear_call *p = linear_make(seed, fixed, 5);
    random_state random = {seed};
    numbers inputs[] = {{.name = "x", .at = p->x, .gradient = p->dx, .count = p->inputs}, list_weights(p)};
    double *const dy = linear_load(p, p->dy, p->outputs);
    CHECK_MESSAGE(gradcheck_run(p->c, &p->backward, 1) == TROPE_OK, "%s", trope_last_error());
    for (int i = 0; i < 2; i++) {
        choose_direction(p, &inputs[i], i == 0, &random);
        check_direction(p, &inputs[i], dy, &worst[i]);
        free(inputs[i].value);
        free(inputs[i].direction);
    }
    free(inputs[1].at);
    free(inputs[1].gradient);
    free(dy);
    linear_free(p);
}

int gradcheck_norm_difference(seed_range seeds)
{
    double worst[2] = {0};
    for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; seed++)
        check_seed(seed, worst);
    printf("worst error over the sum of magnitudes: x %.2g, weight %.2g\n", worst[0], worst[1]);
    return check_result();
}
