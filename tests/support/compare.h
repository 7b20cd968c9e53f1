/* Runs a config and compares every byte that it could have written with the reference: the elements of the destinations,
 * the gradient of the angles, the status word, and all that must have stayed as it was. */
#ifndef TESTS_SUPPORT_COMPARE_H
#define TESTS_SUPPORT_COMPARE_H

#include <stddef.h>

#include "support/config.h"
#include "support/reference.h"

/* What comparing found, over any number of calls. */
typedef struct comparison {
    char why[256];                     /* the first difference of the last call, "" if there was none */
    long elements;                     /* compared */
    long kinds[3];                     /* of those, by reference_kind */
    long sums[2];                      /* of angles and weights, compared: those that nobody uses, those in use */
    double worst_ratio[TROPE_F64 + 1]; /* of error to tolerance, by dtype */
} comparison;

/* Compares the buffers of c with what a call with `args` should have made of them. Returns whether they agree. */
int compare_buffers(const config *c, const trope_args *args, const reference_result *expected, comparison *result);

/* Resets c, runs it in one direction and compares. Returns whether all is well. */
int compare_call(config *c, int backward, comparison *result);

#endif
