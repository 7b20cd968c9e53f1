/* The gradient checks: parts of one program, which runs their calls on the host (on_host.c) or on a GPU (tests/cuda). */
#ifndef TESTS_GRADCHECK_GRADCHECK_H
#define TESTS_GRADCHECK_GRADCHECK_H

#include "support/check.h"
#include "support/compare.h"
#include "support/number.h"
#include "support/seeds.h"

/* ---- where calls run ---- */

/* The parts that run without the name of one, and the seeds of these. A NULL ends them. */
extern const char *const gradcheck_usual_parts[];
extern const char *const gradcheck_program;

/* Called first. Ends the program where nothing can run. */
void gradcheck_start(void);

/* Runs a call of a config, whose buffers then hold what it has made of them. */
trope_status gradcheck_run(config *c, const call *k, int backward);

/* ---- parts ---- */

/* Each returns what check_result does. `seeds` has a count of 0 where the part is to choose. */
int gradcheck_random(seed_range seeds);
int gradcheck_covering(seed_range seeds);
int gradcheck_finite_difference(seed_range seeds);
int gradcheck_norm_difference(seed_range seeds);
int gradcheck_adjoint(seed_range seeds);
int gradcheck_angle_gradient(seed_range seeds);

/* Prints the command that repeats a config, and the config, after a check that failed. */
void gradcheck_print(const config *c, const char *part);

/* Runs a config in one direction. Returns whether all bytes are as the reference says. */
int gradcheck_compare(config *c, int backward, comparison *result);

void gradcheck_print_comparison(const comparison *result);

/* ---- identities ---- */

/* A random call read as y = M x with upstream gradient dy, for the identities that need no reference. x is the config's
 * forward_src (of an operand that is only copied, the forward call's src), dy the backward call's src. */
typedef struct linear_call {
    config *c;
    call forward;            /* x to y */
    call backward;           /* dy to dx, with the gradient of the angles */
    int64_t inputs, outputs; /* elements of x and dx, and of y and dy: with shared heads there are fewer of the first */
    char **x, **dx, **y, **dy;
    double amplitude; /* no element of y, and no term of dx, is greater in magnitude than this */
    int heads;        /* the most heads of which a dx is the sum */
} linear_call;

/* Choices at random without poison, accumulation and sources that coincide, then `fixed` (see config_choose_with), with the
 * gradient of the angles. */
linear_call *linear_make(uint64_t seed, const uint8_t (*fixed)[2], int count);
void linear_free(linear_call *p);

/* What an element of y, or a term of dx, may be off by: what the header of adjoint.c derives. */
double linear_element_error(const linear_call *p);

/* The elements at these addresses, to be freed. */
double *linear_load(const linear_call *p, char *const *address, int64_t count);

#endif
