/* The threads of the tool: the tool has a pool of the library's kind (src/core/threads.h), so that a copy and a call are
 * timed on threads that are woken alike. */
#ifndef TOOLS_TROPE_PARALLEL_H
#define TOOLS_TROPE_PARALLEL_H

#include <stddef.h>
#include <stdint.h>

typedef void (*parallel_body)(void *context, size_t begin, size_t end);

/* The threads that `threads` (0 = all) stands for. */
int32_t parallel_threads(int32_t threads);

/* Those of them that the library would use to move `bytes`. */
int32_t parallel_useful_threads(int32_t threads, size_t bytes);

/* Runs body(context, begin, end) on `threads` threads, each with one contiguous part of [0, bytes) that begins at a
 * multiple of 4096. */
void parallel_bytes(parallel_body body, void *context, size_t bytes, int32_t threads);

#endif
