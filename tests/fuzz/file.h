/* Files of the safetensors format, or nearly, as the input says. */
#ifndef TESTS_FUZZ_FILE_H
#define TESTS_FUZZ_FILE_H

#include "fuzz/input.h"

/* The path of a regular file, until the next one: up to 8 tensors whose names `trope apply` knows, of any types and shapes,
 * with the input's bytes and then zeros as data. Some of the header's characters are changed as the input says. */
const char *take_file(input *in);

/* The path of a file of just these bytes. */
const char *file_of(const void *bytes, size_t size);

#endif
