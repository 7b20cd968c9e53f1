/* Runs a config and compares every byte that it could have written with the reference: the elements of the destinations,
 * the gradient of the angles, the status word, and all memory that must not change. */
#ifndef TESTS_SUPPORT_COMPARE_H
#define TESTS_SUPPORT_COMPARE_H

#include <stddef.h>

#include "support/config.h"
#include "support/reference.h"

/* The results of comparisons, over any number of calls. */
typedef struct comparison {
    char why[256];                     /* the first difference of the last call, "" if there was none */
    long elements;                     /* compared elements */
    long kinds[3];                     /* the compared elements of each reference_kind */
    long sums[2];                      /* compared gradients of angles and weights: [0] without terms, [1] with terms */
    double worst_ratio[TROPE_F64 + 1]; /* the largest error / tolerance, by dtype */
} comparison;

/* Compares the buffers of c with the result that a call with `args` should have written. Returns whether they agree. */
int compare_buffers(const config *c, const trope_args *args, const reference_result *expected, comparison *result);

/* Resets c, runs it in one direction and compares. Returns whether everything agrees. */
int compare_call(config *c, int backward, comparison *result);

#endif
