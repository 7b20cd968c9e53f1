/* The tool's thread pool. It is of the same kind as the library's (src/core/threads.h), so that copies and calls are timed
 * on threads that are woken in the same way. */
#ifndef TOOLS_TROPE_PARALLEL_H
#define TOOLS_TROPE_PARALLEL_H

#include <stddef.h>
#include <stdint.h>

typedef void (*parallel_body)(void *context, size_t begin, size_t end);

/* Resolves `threads` (0 = all) to a number of threads. */
int32_t parallel_threads(int32_t threads);

/* Returns how many of these threads the library would use to move `bytes`. */
int32_t parallel_useful_threads(int32_t threads, size_t bytes);

/* Runs body(context, begin, end) on `threads` threads. Each thread gets one contiguous part of [0, bytes) that begins at a
 * multiple of 4096. */
void parallel_bytes(parallel_body body, void *context, size_t bytes, int32_t threads);

#endif
