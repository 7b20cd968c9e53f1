/* A random call read as y = M x with upstream gradient dy, for the identities that need no reference. x is the config's
 * `input` (of an operand that is only copied, its src), dy its src, and y or dx goes to its dst. */
#ifndef TESTS_GRADCHECK_PROBLEM_H
#define TESTS_GRADCHECK_PROBLEM_H

#include "support/config.h"

typedef struct problem {
    config *c;
    trope_args forward;  /* x to dst */
    trope_args backward; /* dy to dst, with the gradient of the angles */
    int64_t count;       /* elements of all operands */
    char **x, **dy, **dst;
    double amplitude; /* no element of y or dx is greater in magnitude than this */
} problem;

/* Choices at random without poison and without sources that coincide, then `fixed` (see config_choose_with), with the
 * gradient of the angles. */
problem *problem_make(uint64_t seed, const uint8_t (*fixed)[2], int count);
void problem_free(problem *p);

/* Prints the configuration, after a check that failed. */
void problem_print(const problem *p, const char *test);

/* What an element of M x may be off by: what the header of adjoint.c derives. */
double problem_element_error(const problem *p);

double problem_load(const problem *p, const char *element);

#endif
