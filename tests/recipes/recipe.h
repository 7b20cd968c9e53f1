/* What the programs around the recipes share: random buffers, and the rotation of a head in double. */
#ifndef TESTS_RECIPES_RECIPE_H
#define TESTS_RECIPES_RECIPE_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/check.h"
#include "support/random.h"
#include "trope/trope.h"

/* Fills with numbers in [-1, 1). */
__attribute__((unused)) static void fill_random(float *x, int64_t count)
{
    static random_state random = {1};
    for (int64_t i = 0; i < count; i++)
        x[i] = (float)random_real(&random);
}

/* base^(-2i/d) */
__attribute__((unused)) static void fill_frequencies(double *inv_freq, int dim, double base)
{
    for (int i = 0; i < dim / 2; i++)
        inv_freq[i] = pow(base, -2.0 * i / dim);
}

/* That y is x, a head of `dim` elements, with pair i turned by angle[i]: pairs by halves in y, in x by `pairing`. */
__attribute__((unused)) static void check_turned(const float *y, const float *x, const double *angle, int dim,
                                                 int32_t pairing)
{
    for (int i = 0; i < dim / 2; i++) {
        const double x1 = pairing == TROPE_PAIRING_HALF ? x[i] : x[2 * i];
        const double x2 = pairing == TROPE_PAIRING_HALF ? x[i + dim / 2] : x[2 * i + 1];
        const double y1 = x1 * cos(angle[i]) - x2 * sin(angle[i]), y2 = x2 * cos(angle[i]) + x1 * sin(angle[i]);
        CHECK_MESSAGE(fabs(y[i] - y1) < 6e-7 && fabs(y[i + dim / 2] - y2) < 6e-7,
                      "pair %d: (%.7f, %.7f) is not (%.7f, %.7f)", i, y[i], y[i + dim / 2], y1, y2);
    }
}

/* The same, by halves, at one position. */
__attribute__((unused)) static void check_rotated(const float *y, const float *x, double position, const double *inv_freq,
                                                  int dim)
{
    double angle[128];
    for (int i = 0; i < dim / 2; i++)
        angle[i] = position * inv_freq[i];
    check_turned(y, x, angle, dim, TROPE_PAIRING_HALF);
}

#define CHECK_OK(status) CHECK_MESSAGE((status) == TROPE_OK, "%s", trope_last_error())

#endif
