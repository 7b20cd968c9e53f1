/* The only place that knows of threads. */
#ifndef TROPE_CORE_THREADS_H
#define TROPE_CORE_THREADS_H

#include <stdint.h>

typedef void (*trope_range_body)(const void *context, int64_t begin, int64_t end);

/* Threads that a call with threads = 0 uses. */
int trope_default_threads(void);

/* Runs body over [0, count), cut into one contiguous range per thread, with the default floating-point environment on each
 * (round to nearest, subnormals kept) and the caller's restored after it. threads = 0 is the default number. */
void trope_parallel_for(int threads, int64_t count, trope_range_body body, const void *context);

#endif
