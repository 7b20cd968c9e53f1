/* "--seed S --count N" of a program that runs seeds S, S + 1, ... */
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
    seed_range range = {1, count};
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--seed"))
            range.first = strtoull(argv[i + 1], NULL, 0);
        else if (!strcmp(argv[i], "--count"))
            range.count = strtoull(argv[i + 1], NULL, 0);
    }
    return range;
}

#endif
