/* The gradient checks. They are parts of one program, which runs their calls on the host (on_host.c) or a GPU
 * (tests/cuda). */
#ifndef TESTS_GRADCHECK_GRADCHECK_H
#define TESTS_GRADCHECK_GRADCHECK_H

#include "support/check.h"
#include "support/compare.h"
#include "support/number.h"
#include "support/seeds.h"

/* ---- The program: on_host.c or tests/cuda ---- */

/* The parts that run if the command line names none, ended by NULL. */
extern const char *const gradcheck_default_parts[];

/* The name of the program, for commands that repeat a failure. */
extern const char *const gradcheck_program;

/* Must be called first. Ends the program if it cannot run calls here. */
void gradcheck_start(void);

/* Runs a call of a config. The buffers of the config then hold the results. */
trope_status gradcheck_run(config *c, const call *k, int backward);

/* ---- Parts ---- */

/* Each part returns the result of check_result. gradcheck_covering runs all of its configurations if the count is 0. */
int gradcheck_random(seed_range seeds);
int gradcheck_covering(seed_range seeds);
int gradcheck_finite_difference(seed_range seeds);
int gradcheck_norm_difference(seed_range seeds);
int gradcheck_adjoint(seed_range seeds);
int gradcheck_angle_gradient(seed_range seeds);

/* After a failed check: prints the command that repeats a config, and its description. */
void gradcheck_print(const config *c, const char *part);

/* Runs a config in one direction. Returns whether all bytes agree with the reference. */
int gradcheck_compare(config *c, int backward, comparison *result);

void gradcheck_print_comparison(const comparison *result);

/* ---- Checks without a reference ---- */

/* A random call as y = M x with the upstream gradient dy, for checks that need no reference. x is the forward_src of the
 * config, or the src of the forward call for an operand that is only copied. dy is the src of the backward call. */
typedef struct linear_call {
    config *c;
    call forward;            /* x to y */
    call backward;           /* dy to dx, with the gradient of the angles */
    int64_t inputs, outputs; /* the elements of x or dx, and of y or dy; shared heads make the inputs fewer */
    char **x, **dx, **y, **dy;
    double amplitude; /* bounds the magnitude of each element of y and each term of dx */
    int heads;        /* the largest number of heads that are summed to one head of dx */
} linear_call;

/* Makes a random call with the values of `fixed` (see config_choose_with) and the gradient of the angles. It has no
 * poisoned positions, no accumulation, and no source whose elements share memory. */
linear_call *linear_make(uint64_t seed, const uint8_t (*fixed)[2], int count);
void linear_free(linear_call *p);

/* The largest error of an element of y or a term of dx. The comment at the top of adjoint.c derives it. */
double linear_element_error(const linear_call *p);

/* Returns the elements at these addresses. The caller frees the array. */
double *linear_load(const linear_call *p, char *const *address, int64_t count);

#endif
