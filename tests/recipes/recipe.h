/* Functions that the programs of the recipes share: random buffers, and checks against a rotation in double. */
#ifndef TESTS_RECIPES_RECIPE_H
#define TESTS_RECIPES_RECIPE_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/check.h"
#include "support/random.h"
#include "trope/trope.h"

/* Fills `size` bytes of x with random numbers in [-1, 1), and copies them to `before` unless it is NULL. */
__attribute__((unused)) static void fill_random(float *x, float *before, int64_t size)
{
    static random_state random = {1};
    for (int64_t i = 0; i < size / (int64_t)sizeof(float); i++)
        x[i] = (float)random_real(&random);
    if (before)
        memcpy(before, x, (size_t)size);
}

/* inv_freq[i] = base^(-2i/dim) */
__attribute__((unused)) static void fill_frequencies(double *inv_freq, int dim, double base)
{
    for (int i = 0; i < dim / 2; i++)
        inv_freq[i] = pow(base, -2.0 * i / dim);
}

/* Checks that each head of y is the head of x with pair i rotated by angle[i]. A head has `dim` elements. y has half
 * pairing, and x has the pairing `pairing`. */
__attribute__((unused)) static void check_turned(const float *y, const float *x, int heads, int dim, const double *angle,
                                                 int32_t pairing)
{
    for (int n = 0; n < heads * dim / 2; n++) {
        const int start = n / (dim / 2) * dim, i = n % (dim / 2), first = start + i, second = first + dim / 2;
        const double x1 = pairing == TROPE_PAIRING_HALF ? x[first] : x[start + 2 * i];
        const double x2 = pairing == TROPE_PAIRING_HALF ? x[second] : x[start + 2 * i + 1];
        const double y1 = x1 * cos(angle[i]) - x2 * sin(angle[i]), y2 = x2 * cos(angle[i]) + x1 * sin(angle[i]);
        CHECK_MESSAGE(fabs(y[first] - y1) < 6e-7 && fabs(y[second] - y2) < 6e-7,
                      "pair %d: (%.7f, %.7f) is not (%.7f, %.7f)", i, y[first], y[second], y1, y2);
    }
}

/* The same check at one position, with half pairing. */
__attribute__((unused)) static void check_rotated(const float *y, const float *x, int heads, int dim, double position,
                                                  const double *inv_freq)
{
    double angle[128];
    for (int i = 0; i < dim / 2; i++)
        angle[i] = position * inv_freq[i];
    check_turned(y, x, heads, dim, angle, TROPE_PAIRING_HALF);
}

#define CHECK_OK(status) CHECK_MESSAGE((status) == TROPE_OK, "%s", trope_last_error())

#endif
