/* The gradient of the whole model, RoPE included, against finite differences, in double. */
#ifndef EXAMPLE_GRADIENT_CHECK_H
#define EXAMPLE_GRADIENT_CHECK_H

#include "corpus.h"

enum { CHECK_SAMPLES = 8, CHECK_TENSORS = 9 };

/* Errors are relative: of one parameter's derivative to that derivative or, if it is smaller, to the root mean square of
 * its tensor's; of a derivative along a direction to the length of the gradient. */
struct gradient_check {
    double element[CHECK_TENSORS];   /* the largest of CHECK_SAMPLES random parameters, for each tensor */
    double direction[CHECK_TENSORS]; /* along random signs of the whole tensor */
    double all;                      /* along random signs of all parameters */
    double *gradient;                /* [parameters], of the backward pass in double; the caller frees it */
};

struct gpt_shape;

/* At the weights that gpt_randomize makes of this seed and CHECK_SPREAD. */
#define CHECK_SPREAD 0.3
void check_gradient(struct gradient_check *check, const struct gpt_shape *shape, const struct batch *batch, uint64_t seed);

#endif
