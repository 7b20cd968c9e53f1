/* Seeded random calls, forward and backward, against the reference. The bound is the one of support/reference.h.
 *
 *     gradcheck_random [--seed S] [--count N]        seeds S, S + 1, ... */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/check.h"
#include "support/compare.h"
#include "support/number.h"

static void check_seed(uint64_t seed, comparison *result)
{
    const config_choices choices = config_choose(seed);
    config *c = config_make(seed, &choices);
    for (int backward = 0; backward < 2; backward++) {
        char description[2048];
        const int holds = compare_call(c, backward, result);
        config_describe(c, description, sizeof description);
        CHECK_MESSAGE(holds, "%s: %s\n    gradcheck_random --seed 0x%llx --count 1\n    %s",
                      backward ? "backward" : "forward", result->why, (unsigned long long)seed, description);
    }
    config_free(c);
}

int main(int argc, char **argv)
{
    uint64_t seed = 1, count = 10000;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--seed"))
            seed = strtoull(argv[i + 1], NULL, 0);
        else if (!strcmp(argv[i], "--count"))
            count = strtoull(argv[i + 1], NULL, 0);
    }
    comparison result = {.elements = 0};
    for (uint64_t i = 0; i < count; i++)
        check_seed(seed + i, &result);
    printf("%llu configurations, forward and backward, %ld elements; worst error over tolerance:",
           (unsigned long long)count, result.elements);
    for (int32_t dtype = 0; dtype < 4; dtype++)
        printf(" %s %.3f", number_name(dtype), result.worst_ratio[dtype]);
    printf("\n");
    return check_result();
}
