/* Numbers as they are stored in a tensor: names, sizes, conversions, distances. */
#ifndef TOOLS_TROPE_VALUE_H
#define TOOLS_TROPE_VALUE_H

#include <stdint.h>

#include "trope/trope.h"

/* Types of elements: TROPE_F32, TROPE_F16, TROPE_BF16, TROPE_F64, and these. */
enum { VALUE_I32 = TROPE_F64 + 1, VALUE_I64, VALUE_C64, VALUE_TYPES }; /* C64: two F32 */

/* As safetensors spells it: "F32". */
const char *value_type_name(int32_t type);
/* The type of that name, or -1. */
int32_t value_type_of(const char *name);
int32_t value_size(int32_t type);
int value_is_real(int32_t type);

/* Element i. */
double value_load(int32_t type, const void *data, int64_t i);
int value_is_nan(int32_t type, const void *data, int64_t i);
/* Stores x rounded to nearest, ties to even. Real types only. */
void value_store(int32_t type, void *data, int64_t i, double x);

/* The distance from 1 to the next number of a real type. */
double value_epsilon(int32_t type);

#define VALUE_ULP_INFINITE UINT64_MAX
/* How many steps lie between element i of a and of b: 0 if both are NaN or both are zeros, infinite if one is NaN. */
uint64_t value_ulp(int32_t type, const void *a, const void *b, int64_t i);

#endif
