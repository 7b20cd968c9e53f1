/* Compares every result with a slow reference, and checks gradients by identities that need no reference.
 *
 *     gradcheck [PART] [--seed S] [--count N]        runs seeds S, S + 1, ...; without PART, runs the default parts
 *
 *     random               seeded random calls, some with many heads, against the reference and its error bounds
 *     covering             every value of every option combined with every value of every other option: covering.c
 *     finite_difference    the gradient of the angles against central differences
 *     norm_difference      the gradients of x and of weights, in calls with norms, against central differences
 *     adjoint              <M x, y> = <x, M' y>, and rotations that are undone
 *     angle_gradient       sums over many tokens, which have the same bits for any number of threads */
#include "gradcheck/gradcheck.h"

#include <stdio.h>
#include <string.h>

typedef struct named_part {
    const char *name;
    int (*run)(seed_range seeds);
    uint64_t count; /* the default number of seeds */
} named_part;

static const named_part parts[] = {
    {"random", gradcheck_random, 3000},
    {"covering", gradcheck_covering, 0},
    {"adjoint", gradcheck_adjoint, 1600},
    {"finite_difference", gradcheck_finite_difference, 240},
    {"norm_difference", gradcheck_norm_difference, 240},
    {"angle_gradient", gradcheck_angle_gradient, 80},
};

void gradcheck_print(const config *c, const char *part)
{
    char description[2048];
    config_describe(c, description, sizeof description);
    printf("    %s %s --seed 0x%llx --count 1\n    %s\n", gradcheck_program, part, (unsigned long long)c->seed,
           description);
}

int gradcheck_compare(config *c, int backward, comparison *result)
{
    config_reset(c);
    call k = config_call(c, backward);
    reference_result expected = reference_run(call_args(&k), backward);
    const trope_status status = gradcheck_run(c, &k, backward);
    const int holds = !status && compare_buffers(c, call_args(&k), &expected, result);
    if (status)
        snprintf(result->why, sizeof result->why, "%s: %s", trope_status_name(status), trope_last_error());
    reference_free(&expected);
    return holds;
}

void gradcheck_print_comparison(const comparison *result)
{
    printf("%ld elements: %ld rotated, %ld copied or zero, %ld poisoned; %ld sums of d_freqs, d_inv_freq and "
           "d_weight, %ld sums without terms\n",
           result->elements, result->kinds[REFERENCE_NUMBER], result->kinds[REFERENCE_BITS], result->kinds[REFERENCE_NAN],
           result->sums[1], result->sums[0]);
    printf("worst error over tolerance:");
    for (int32_t dtype = TROPE_F32; dtype <= TROPE_F64; dtype++)
        printf(" %s %.3f", number_name(dtype), result->worst_ratio[dtype]);
    printf("\n");
}

int gradcheck_random(seed_range seeds)
{
    comparison result = {.elements = 0};
    for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; seed++) {
        config_choices choices = config_choose(seed);
        choices.heads = seed % 16 ? 0 : (int32_t)(1 + seed / 16 % 128);
        config *c = config_make(seed, &choices);
        for (int backward = 0; backward < 2; backward++)
            if (!CHECK_MESSAGE(gradcheck_compare(c, backward, &result), "backward %d: %s", backward, result.why))
                gradcheck_print(c, "random");
        config_free(c);
    }
    printf("%llu configurations, forward and backward\n", (unsigned long long)seeds.count);
    gradcheck_print_comparison(&result);
    return check_result();
}

static int is_default(const char *name)
{
    int i = 0;
    while (gradcheck_default_parts[i] && strcmp(name, gradcheck_default_parts[i]))
        i++;
    return gradcheck_default_parts[i] != NULL;
}

int main(int argc, char **argv)
{
    const int names = argc > 1 && argv[1][0] != '-'; /* 1 if a part is named before the options */
    int status = 0, ran = 0;
    gradcheck_start();
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (names ? strcmp(parts[i].name, argv[1]) : !is_default(parts[i].name))
            continue;
        printf("%s:\n", parts[i].name);
        status |= parts[i].run(parse_seeds(argc - names, argv + names, parts[i].count));
        ran++;
    }
    if (!ran)
        printf("no part has this name\n");
    return status || !ran;
}
