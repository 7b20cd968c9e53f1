/* The threads of the tool: those of OpenMP, as in the library, so that a copy and a call are timed on the same ones. */
#ifndef TOOLS_TROPE_PARALLEL_H
#define TOOLS_TROPE_PARALLEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef _OPENMP
#include <omp.h>
#endif

/* Runs body(context, begin, end) on `threads` threads, each with one contiguous part of [0, bytes). */
typedef void (*parallel_body)(void *context, size_t begin, size_t end);

static inline int32_t parallel_threads(int32_t threads)
{
#ifdef _OPENMP
    return threads > 0 ? threads : omp_get_max_threads();
#else
    (void)threads;
    return 1;
#endif
}

/* Where part i of n begins, at a multiple of 4096 bytes. */
static inline size_t parallel_begin(size_t bytes, int32_t i, int32_t n)
{
    const size_t pages = (bytes + 4095) / 4096;
    const size_t begin = (pages / (size_t)n * (size_t)i + pages % (size_t)n * (size_t)i / (size_t)n) * 4096;
    return begin < bytes && i < n ? begin : bytes;
}

static inline void parallel_bytes(parallel_body body, void *context, size_t bytes, int32_t threads)
{
#ifdef _OPENMP
#pragma omp parallel num_threads(parallel_threads(threads))
    {
        const int32_t i = omp_get_thread_num(), n = omp_get_num_threads();
        body(context, parallel_begin(bytes, i, n), parallel_begin(bytes, i + 1, n));
    }
#else
    (void)threads;
    body(context, 0, bytes);
#endif
}

#endif
