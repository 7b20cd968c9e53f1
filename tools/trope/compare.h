/* How far two tensors of the same type are apart. */
#ifndef TOOLS_TROPE_COMPARE_H
#define TOOLS_TROPE_COMPARE_H

#include <stdint.h>

#include "safetensors.h"

/* Two NaN are equal, and so are 0 and -0. A NaN beside a number differs by infinitely much. */
typedef struct comparison {
    double largest_error; /* absolute, in double */
    uint64_t largest_ulp; /* VALUE_ULP_INFINITE for a NaN beside a number */
    uint64_t differing;   /* elements that are not equal */
    uint64_t over;        /* elements that are more ulp apart than allowed */
    uint64_t first;       /* the first differing element, if any */
    uint64_t both_nan;    /* elements that are NaN here and there */
    uint64_t nan[2];      /* elements that are NaN only here, only there */
    uint64_t infinite[2]; /* elements that are infinite only here, only there, beside a number */
} comparison;

/* Of two tensors of the same type and shape. */
comparison compare_tensors(const safetensor *result, const safetensor *expected, uint64_t ulp);

/* What has been compared so far. */
typedef struct comparisons {
    uint64_t over;   /* elements */
    int32_t tensors; /* compared */
    int32_t all_nan; /* of these, with nothing but NaN on both sides, which says nothing */
} comparisons;

/* Complains, and returns nonzero, unless `expected` has a tensor of the same name, dtype and shape. Needs no data. */
int compare_headers(const safetensor *result, const safetensors *expected);
/* A row of a table on standard output, with lines on NaN and infinity if there are any. */
void compare_pair(const safetensor *result, const safetensor *expected, uint64_t ulp, comparisons *found);
/* The last line. Returns RESULT_OK, RESULT_DIFFERS if any element is more than `ulp` apart, or RESULT_REFUSED after a
 * complaint. */
int compare_verdict(const comparisons *found, uint64_t ulp);

#endif
