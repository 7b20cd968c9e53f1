/* Numbers of the four dtypes for the tests. They are decoded, encoded and rounded in double with ldexp and nearbyint,
 * which is slow and easy to check by eye. This code shares nothing with the library. */
#ifndef TESTS_SUPPORT_NUMBER_H
#define TESTS_SUPPORT_NUMBER_H

#include <stddef.h>
#include <stdint.h>

/* The size of an element in bytes. */
size_t number_size(int32_t dtype);

double number_load(int32_t dtype, const void *element);

/* Rounds to nearest, ties to even. */
void number_store(int32_t dtype, void *element, double value);

/* The nearest number of the dtype. Infinity if the value is at least half an ulp above the largest number. */
double number_round(int32_t dtype, double value);

/* Half of the distance between two neighbouring numbers of the dtype around `value`. */
double number_half_ulp(int32_t dtype, double value);

/* The bytes of an element as an integer, to compare and print them. */
uint64_t number_bits(int32_t dtype, const void *element);

/* "f32", "f16", "bf16", "f64". */
const char *number_name(int32_t dtype);

#endif
