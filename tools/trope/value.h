/* Numbers as stored in a tensor: sizes, conversions, distances. */
#ifndef TOOLS_TROPE_VALUE_H
#define TOOLS_TROPE_VALUE_H

#include <stdint.h>

#include "trope/trope.h"

/* Element types are TROPE_F32, TROPE_F16, TROPE_BF16 and TROPE_F64. */
int32_t value_size(int32_t type);

/* Returns element i. */
double value_load(int32_t type, const void *data, int64_t i);
/* Stores x rounded to nearest, ties to even. */
void value_store(int32_t type, void *data, int64_t i, double x);

/* Returns the distance from 1 to the next larger number of a type. */
double value_epsilon(int32_t type);

#define VALUE_ULP_INFINITE UINT64_MAX
/* Returns the number of steps between element i of a and of b. It is 0 if both are NaN or both are zeros, and infinite if
 * only one is NaN. */
uint64_t value_ulp(int32_t type, const void *a, const void *b, int64_t i);

#endif
