/* A covering sweep. It combines every value of every option with every value of every other option, unless the two
 * contradict each other, and compares forward and backward with the reference. The sweep is the same in every run.
 *
 *     gradcheck covering --seed N --count 1        runs only configuration N */
#include <stdio.h>

#include "gradcheck/gradcheck.h"

#define MAX_VALUES 8
#define OPTIONS    OPTION_COUNT
#define ATTEMPTS   400 /* attempts to find choices with a pair of values; if all fail, the pair is a contradiction */
#define CANDIDATES 12  /* after this many choices, the sweep runs the one with the most new pairs */

typedef struct sweep {
    uint8_t covered[OPTIONS][MAX_VALUES][OPTIONS][MAX_VALUES];
    long hits[OPTIONS][MAX_VALUES];
    long pairs, contradictions;
    uint64_t configs;
    seed_range seeds; /* the configurations that run; a count of 0 runs all */
    random_state random;
    comparison result;
} sweep;

static int new_pairs(const sweep *s, const config_choices *choices)
{
    int count = 0;
    for (int a = 0; a < OPTIONS; a++)
        for (int b = a + 1; b < OPTIONS; b++)
            count += !s->covered[a][choices->value[a]][b][choices->value[b]];
    return count;
}

static void run(sweep *s, const config_choices *choices)
{
    for (int a = 0; a < OPTIONS; a++) {
        s->hits[a][choices->value[a]]++;
        for (int b = a + 1; b < OPTIONS; b++)
            s->covered[a][choices->value[a]][b][choices->value[b]] = 1;
    }
    const uint64_t number = s->configs++;
    if (s->seeds.count && number - s->seeds.first >= s->seeds.count)
        return;
    config *c = config_make(number, choices);
    for (int backward = 0; backward < 2; backward++)
        if (!CHECK_MESSAGE(gradcheck_compare(c, backward, &s->result), "backward %d: %s", backward, s->result.why))
            gradcheck_print(c, "covering");
    config_free(c);
}

/* Runs a configuration with the two values, unless an earlier one had both, or no configuration can have both. */
static void cover(sweep *s, const uint8_t pair[2][2])
{
    int most = 0, found = 0;
    config_choices best, choices;
    s->pairs++;
    if (s->covered[pair[0][0]][pair[0][1]][pair[1][0]][pair[1][1]])
        return;
    for (int attempt = 0; attempt < ATTEMPTS && found < CANDIDATES; attempt++) {
        if (!config_try(&s->random, pair, 2, &choices))
            continue;
        found++;
        if (new_pairs(s, &choices) > most) {
            most = new_pairs(s, &choices);
            best = choices;
        }
    }
    if (found)
        run(s, &best);
    else
        s->contradictions++;
}

static void print_hits(const sweep *s)
{
    for (int option = 0; option < OPTIONS; option++) {
        printf("%-14s", config_option_name(option));
        for (int value = 0; value < config_value_count(option); value++) {
            printf(" %s %ld", config_value_name(option, value), s->hits[option][value]);
            CHECK_MESSAGE(s->hits[option][value] > 0, "%s=%s was never tried", config_option_name(option),
                          config_value_name(option, value));
        }
        printf("\n");
    }
}

int gradcheck_covering(seed_range seeds)
{
    static sweep s;
    s.seeds = seeds;
    for (int a = 0; a < OPTIONS; a++)
        for (int b = a + 1; b < OPTIONS; b++)
            for (int i = 0; i < config_value_count(a) * config_value_count(b); i++) {
                const uint8_t pair[2][2] = {{(uint8_t)a, (uint8_t)(i / config_value_count(b))},
                                            {(uint8_t)b, (uint8_t)(i % config_value_count(b))}};
                cover(&s, pair);
            }
    print_hits(&s);
    printf("%llu configurations, forward and backward, for %ld pairs of values; %ld pairs contradict each other\n",
           (unsigned long long)s.configs, s.pairs, s.contradictions);
    gradcheck_print_comparison(&s.result);
    return check_result();
}
