/* How far two tensors of the same type are apart. */
#ifndef TOOLS_TROPE_COMPARE_H
#define TOOLS_TROPE_COMPARE_H

#include <stdint.h>

#include "safetensors.h"

/* What has been compared so far. */
typedef struct comparisons {
    uint64_t over;   /* elements */
    int32_t tensors; /* compared */
    int32_t all_nan; /* of these, with nothing but NaN on both sides, which says nothing */
} comparisons;

/* Complains, and returns nonzero, unless `expected` has a tensor of the same name, dtype and shape. Needs no data. */
int compare_headers(const safetensor *result, const safetensors *expected);
/* A row of a table on standard output, with lines on NaN and infinity if there are any. threads: 0 = all. */
void compare_pair(const safetensor *result, const safetensor *expected, uint64_t ulp, int32_t threads, comparisons *found);
/* The last line. Returns RESULT_OK, RESULT_DIFFERS if any element is more than `ulp` apart, or RESULT_REFUSED after a
 * complaint. */
int compare_verdict(const comparisons *found, uint64_t ulp);

#endif
