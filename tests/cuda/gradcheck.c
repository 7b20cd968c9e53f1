/* The gradient checks on the GPU: random calls of what 0.1 could say against the slow reference, and the identity
 * <M x, y> = <x, M' y>, which needs none. In every dtype; the bounds are those of tests/gradcheck.
 *
 *     cuda_gradcheck [--seed S] [--count N] */
#include <math.h>
#include <stdlib.h>

#include "cuda/device_call.h"
#include "gradcheck/problem.h"
#include "support/check.h"
#include "support/compare.h"
#include "support/number.h"
#include "support/seeds.h"

static void describe(const config *c, const char *why)
{
    char text[2048];
    config_describe(c, text, sizeof text);
    printf("    %s\n    cuda_gradcheck --seed 0x%llx --count 1\n    %s\n", why, (unsigned long long)c->seed, text);
}

/* ---- against the reference ---- */

static void check_reference(device_arena *arena, uint64_t seed, comparison *result)
{
    const config_choices choices = config_choose(seed);
    config *c = config_make(seed, &choices);
    for (int backward = 0; backward < 2; backward++) {
        config_reset(c);
        call k = config_call(c, backward);
        reference_result expected = reference_run(call_args(&k), backward);
        CHECK_MESSAGE(device_run(arena, c, &k, backward) == TROPE_OK, "%s", trope_last_error());
        if (!CHECK_MESSAGE(compare_buffers(c, &k.args, &expected, result), "%s", backward ? "backward" : "forward"))
            describe(c, result->why);
        reference_free(&expected);
    }
    config_free(c);
}

/* ---- without one ---- */

static double *load_all(const problem *p, char *const *address, int64_t count)
{
    double *values = malloc((size_t)count * sizeof *values);
    for (int64_t i = 0; i < count; i++)
        values[i] = problem_load(p, address[i]);
    return values;
}

/* Runs one direction on the device and returns the inner product of what it wrote with `with`. */
static long double product(device_arena *arena, const problem *p, int backward, const double *with)
{
    char *const *const address = backward ? p->dx : p->y;
    long double sum = 0;
    config_reset(p->c);
    CHECK_MESSAGE(device_run(arena, p->c, backward ? &p->backward : &p->forward, backward) == TROPE_OK, "%s",
                  trope_last_error());
    for (int64_t i = 0; i < (backward ? p->inputs : p->outputs); i++)
        sum += (long double)problem_load(p, address[i]) * with[i];
    return sum;
}

static void check_adjoint(device_arena *arena, uint64_t seed, double *worst)
{
    const uint8_t any[][2] = {{OPTION_DTYPE, (uint8_t)(seed % 4)}, {OPTION_SHARED, SHARED_NONE}};
    problem *p = problem_make(seed, any, 2);
    double *x = load_all(p, p->x, p->inputs), *dy = load_all(p, p->dy, p->outputs), length = 0;
    for (int64_t i = 0; i < p->inputs; i++)
        length += fabs(x[i]) + fabs(dy[i]); /* no heads are shared: as many of these */
    const double error = fabs((double)(product(arena, p, 0, dy) - product(arena, p, 1, x)));
    *worst = fmax(*worst, error / (length * problem_element_error(p)));
    if (!CHECK_MESSAGE(error <= length * problem_element_error(p), "<Mx,y> and <x,M'y> differ by %g", error))
        problem_print(p, "cuda_gradcheck");
    free(x);
    free(dy);
    problem_free(p);
}

int main(int argc, char **argv)
{
    const seed_range seeds = parse_seeds(argc, argv, 1000);
    comparison result = {.elements = 0};
    double worst = 0;
    device_require();
    device_arena *arena = device_arena_new(0);
    for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; seed++) {
        arena->align = seed % 4 < 3;
        check_reference(arena, seed, &result);
        check_adjoint(arena, seed, &worst);
    }
    device_arena_free(arena);
    printf("%ld elements and %ld sums against the reference; worst error over tolerance:", result.elements, result.sums[1]);
    for (int32_t dtype = TROPE_F32; dtype <= TROPE_F64; dtype++)
        printf(" %s %.3f", number_name(dtype), result.worst_ratio[dtype]);
    printf("\nworst |<Mx,y> - <x,M'y>| over its bound: %.3f\n", worst);
    return check_result();
}
