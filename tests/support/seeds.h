/* Parses "--seed S --count N" for a program that runs the seeds S, S + 1, ... Without them, the program runs its own
 * number of seeds from 1 on. The environment variable TROPE_TEST_SHARE divides that number (4: a quarter of the seeds),
 * for builds that repeat what another build runs in full. */
#ifndef TESTS_SUPPORT_SEEDS_H
#define TESTS_SUPPORT_SEEDS_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct seed_range {
    uint64_t first, count;
} seed_range;

static inline seed_range parse_seeds(int argc, char **argv, uint64_t count)
{
    const char *share = getenv("TROPE_TEST_SHARE");
    const uint64_t divisor = share ? strtoull(share, NULL, 10) : 1;
    seed_range range = {1, divisor ? (count + divisor - 1) / divisor : count};
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--seed"))
            range.first = strtoull(argv[i + 1], NULL, 0);
        else if (!strcmp(argv[i], "--count"))
            range.count = strtoull(argv[i + 1], NULL, 0);
    }
    return range;
}

#endif
