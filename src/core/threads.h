/* Threads: the caller's thread, and a pool of workers. No other file knows about threads.
 *
 * A worker is created when a call first needs it, and stays until the process ends. It sleeps between calls. Workers are
 * named "trope", and receive no signals except for their own faults. If a worker cannot be created, calls use fewer
 * threads. Only one call at a time uses the workers. A call that is made meanwhile, or from a body, runs on its caller's
 * thread alone. A child of fork() creates its own workers. The code of the workers must stay loaded, so the binary that
 * contains the library is linked with -z nodelete. */
#ifndef TROPE_CORE_THREADS_H
#define TROPE_CORE_THREADS_H

#include <stdint.h>

typedef void (*trope_range_body)(const void *context, int64_t begin, int64_t end);

/* Returns the number of threads of a call with threads = 0. It is the first number in OMP_NUM_THREADS, which training
 * scripts set, or else the number of processors that the process may run on. The limit is 4 threads per processor, but at
 * least 8 and at most 512. The variable and the processors are read once, and again in a child of fork(), because asking
 * the system took half of the time of a small call. */
int trope_default_threads(void);

/* Returns how many of `threads` (0 = the default number) are worth waking for work that takes as long as moving `bytes`.
 * (`bytes` is a double because expanded tensors can have more bytes than an integer holds.) */
int trope_useful_threads(int threads, double bytes);

/* Runs body over [0, count), divided into one contiguous range for each thread. Each range runs with the default
 * floating-point environment (round to nearest, subnormals kept), and the caller's environment is restored afterwards.
 * threads = 0 means the default number. The caller also runs the ranges of workers that have not begun when its own range
 * is done. */
void trope_parallel_for(int threads, int64_t count, trope_range_body body, const void *context);

#endif
