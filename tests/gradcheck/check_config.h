/* One config in both directions, and a verdict over many. */
#ifndef TESTS_GRADCHECK_CHECK_CONFIG_H
#define TESTS_GRADCHECK_CHECK_CONFIG_H

#include "support/check.h"
#include "support/compare.h"
#include "support/number.h"

/* `again` is the command line that repeats this config alone. */
static inline void check_config(uint64_t seed, const config_choices *choices, const char *again, comparison *result)
{
    config *c = config_make(seed, choices);
    for (int backward = 0; backward < 2; backward++) {
        char description[2048];
        const int holds = compare_call(c, backward, result);
        config_describe(c, description, sizeof description);
        CHECK_MESSAGE(holds, "%s: %s\n    %s\n    %s", backward ? "backward" : "forward", result->why, again, description);
    }
    config_free(c);
}

static inline void print_comparison(const comparison *result)
{
    printf("%ld elements: %ld rotated, %ld copied or zero, %ld poisoned; %ld sums of d_freqs and d_inv_freq, %ld unused "
           "angles\n",
           result->elements, result->kinds[REFERENCE_NUMBER], result->kinds[REFERENCE_BITS], result->kinds[REFERENCE_NAN],
           result->sums[1], result->sums[0]);
    printf("worst error over tolerance:");
    for (int32_t dtype = TROPE_F32; dtype <= TROPE_F64; dtype++)
        printf(" %s %.3f", number_name(dtype), result->worst_ratio[dtype]);
    printf("\n");
}

#endif
