/* A random call read as y = M x with upstream gradient dy, for the identities that need no reference. x is the config's
 * forward_src (of an operand that is only copied, the forward call's src), dy the backward call's src. */
#ifndef TESTS_GRADCHECK_PROBLEM_H
#define TESTS_GRADCHECK_PROBLEM_H

#include "support/config.h"

typedef struct problem {
    config *c;
    call forward;            /* x to y */
    call backward;           /* dy to dx, with the gradient of the angles */
    int64_t inputs, outputs; /* elements of x and dx, and of y and dy: with shared heads there are fewer of the first */
    char **x, **dx, **y, **dy;
    double amplitude; /* no element of y, and no term of dx, is greater in magnitude than this */
    int heads;        /* the most heads of which a dx is the sum */
} problem;

/* Choices at random without poison, accumulation and sources that coincide, then `fixed` (see config_choose_with), with the
 * gradient of the angles. */
problem *problem_make(uint64_t seed, const uint8_t (*fixed)[2], int count);
void problem_free(problem *p);

/* Prints the configuration, after a check that failed. */
void problem_print(const problem *p, const char *test);

/* What an element of y, or a term of dx, may be off by: what the header of adjoint.c derives. */
double problem_element_error(const problem *p);

double problem_load(const problem *p, const char *element);

#endif
