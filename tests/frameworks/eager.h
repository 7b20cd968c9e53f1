/* What frameworks compute, in plain C and one head at a time, as their documentation has it: each operation by itself, as
 * eager PyTorch runs them, or as a fused kernel does that computes in fp32. Shares nothing with the library. */
#ifndef TESTS_FRAMEWORKS_EAGER_H
#define TESTS_FRAMEWORKS_EAGER_H

#include <stdint.h>

#include "support/random.h"

enum { EAGER_MAX_WIDTH = 256 };

/* How a window of `width` elements is rotated. The rounding is that of the call which should give the same bits. */
typedef struct rotation {
    int32_t dtype;
    int32_t rounding;
    int32_t pairing, pairing_out;
    int width;
} rotation;

/* y of x, in fp32: what is then stored is its rounding to the dtype. cos and sin have an entry for each element, by halves:
 * those of pair i are i and i + width / 2, whatever the pairing is. */
void eager_rotate(const rotation *r, const float *cos, const float *sin, const float *x, float *y);

/* dx of dy: the transpose. */
void eager_rotate_back(const rotation *r, const float *cos, const float *sin, const float *dy, float *dx);

/* The same in double, from angles by halves; the result is by pairing_out, or (back) by pairing. */
void exact_rotate(const rotation *r, const double *angle, const float *x, double *y);
void exact_rotate_back(const rotation *r, const double *angle, const float *dy, double *dx);

/* A contiguous tensor of one of the layouts; of each head the first `width` elements of a rotation are rotated. */
typedef struct shape {
    int32_t layout;
    int64_t batch, tokens;
    int32_t heads, head_dim;
} shape;

int64_t shape_count(const shape *s);

/* What the rows of a tensor are rotated by: [batch, tokens, width], each row by halves. */
typedef struct coefficients {
    const float *cos, *sin;
} coefficients;

/* A whole tensor, from x to y or (back) from dy to dx. */
void eager_apply(const rotation *r, const shape *s, const coefficients *c, int back, const void *x, void *y);
void exact_apply(const rotation *r, const shape *s, const double *angle, int back, const void *x, double *y);

/* Rounds to the dtype; x is what it rounds in fp32. */
float eager_round(int32_t dtype, float x);

/* A tensor of random elements in [-2, 2), or of zeros; free() frees it. */
void *random_tensor(random_state *random, int32_t dtype, int64_t count);
void *zero_tensor(int32_t dtype, int64_t count);

/* A copy of a tensor, and of it rounded to another dtype. */
void *copy_tensor(int32_t dtype, const void *tensor, int64_t count);
void *cast_tensor(int32_t to, int32_t from, const void *tensor, int64_t count);

/* The pointer to an element, for slices. */
void *element_of(int32_t dtype, void *tensor, int64_t index);

/* Elements [index, index + count) as fp32, and back, rounded. */
void load_elements(int32_t dtype, const void *tensor, int64_t index, int count, float *values);
void store_elements(int32_t dtype, void *tensor, int64_t index, int count, const float *values);

#endif
