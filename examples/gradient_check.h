/* Compares the gradient of the whole model, including RoPE, with finite differences in double. */
#ifndef EXAMPLE_GRADIENT_CHECK_H
#define EXAMPLE_GRADIENT_CHECK_H

#include "corpus.h"

enum { CHECK_SAMPLES = 8, CHECK_TENSORS = 9 };

/* Errors are relative. The error of one parameter's derivative is relative to that derivative or, if that is smaller, to
 * the root mean square of its tensor's gradient. The error of a derivative along a direction is relative to the length of
 * the gradient. */
struct gradient_check {
    double element[CHECK_TENSORS];   /* the largest error of CHECK_SAMPLES random parameters, for each tensor */
    double direction[CHECK_TENSORS]; /* along random signs of the whole tensor */
    double all;                      /* along random signs of all parameters */
    double *gradient;                /* [parameters], from the backward pass in double; the caller frees it */
};

struct gpt_shape;

/* Checks at the weights that gpt_randomize makes from this seed and CHECK_SPREAD. */
#define CHECK_SPREAD 0.3
void check_gradient(struct gradient_check *check, const struct gpt_shape *shape, const struct batch *batch, uint64_t seed);

#endif
