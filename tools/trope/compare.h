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
} comparison;

/* Of two tensors of the same type and shape. */
comparison compare_tensors(const safetensor *result, const safetensor *expected, uint64_t ulp);

/* A table of all tensors of `result` beside those of the same name in `expected`, and a verdict, on standard output.
 * Returns RESULT_OK, RESULT_DIFFERS if any element is more than `ulp` apart, or RESULT_REFUSED after a complaint about
 * `expected`. */
int compare_files(const safetensors *result, const safetensors *expected, uint64_t ulp);

/* Only the check that each tensor of `result` has its counterpart. Needs no data. */
int compare_headers(const safetensors *result, const safetensors *expected);

#endif
