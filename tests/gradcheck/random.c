/* Seeded random calls, forward and backward, now and then with many heads, against the reference and its bounds.
 *
 *     gradcheck_random [--seed S] [--count N]        seeds S, S + 1, ... */
#include "gradcheck/check_config.h"
#include "support/seeds.h"

int main(int argc, char **argv)
{
    const seed_range seeds = parse_seeds(argc, argv, 3000);
    comparison result = {.elements = 0};
    for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; seed++) {
        char again[80];
        config_choices choices = config_choose(seed);
        choices.heads = seed % 16 ? 0 : (int32_t)(1 + seed / 16 % 128);
        snprintf(again, sizeof again, "gradcheck_random --seed 0x%llx --count 1", (unsigned long long)seed);
        check_config(seed, &choices, again, &result);
    }
    printf("%llu configurations, forward and backward\n", (unsigned long long)seeds.count);
    print_comparison(&result);
    return check_result();
}
