/* The only place that knows of threads: the caller's, and a pool of workers.
 *
 * Workers are made when a call first wants them and stay until the process ends, asleep between calls. They are named
 * "trope", and get no signals but those of faults of their own. If one cannot be made, calls have fewer threads. One call
 * at a time has the workers; a call that is made meanwhile, or from a body, runs on its caller's thread alone. A child of
 * fork() makes workers of its own. Their code must stay loaded: what holds the library is linked with -z nodelete. */
#ifndef TROPE_CORE_THREADS_H
#define TROPE_CORE_THREADS_H

#include <stdint.h>

typedef void (*trope_range_body)(const void *context, int64_t begin, int64_t end);

/* Threads that a call with threads = 0 uses: the first number in OMP_NUM_THREADS, which training scripts set, or else the
 * processors that the process may run on; at most 4 per processor (or 8). They are read once, and again in a child of
 * fork(): asking the system took half of the time of a small call. */
int trope_default_threads(void);

/* As many of `threads` (0 is the default number) as are worth waking for work that takes as long as moving `bytes`. (A double:
 * expanded tensors can have more than an integer holds.) */
int trope_useful_threads(int threads, double bytes);

/* Runs body over [0, count), cut into one contiguous range per thread, with the default floating-point environment on each
 * (round to nearest, subnormals kept) and the caller's restored after it. threads = 0 is the default number. The caller
 * also runs the ranges of workers that have not begun when its own is done. */
void trope_parallel_for(int threads, int64_t count, trope_range_body body, const void *context);

#endif
