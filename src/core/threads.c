#include "core/threads.h"

#ifdef _OPENMP
#include <omp.h>
#endif

#if defined(__SSE2__)
#include <xmmintrin.h>
/* Frameworks set flush-to-zero on their threads, and OpenMP's have what their creator had: results must not depend on it.
 */
static unsigned set_default_environment(void)
{
    const unsigned saved = _mm_getcsr();
    _mm_setcsr(0x1f80);
    return saved;
}
static void restore_environment(unsigned saved)
{
    _mm_setcsr(saved);
}
#elif defined(__aarch64__)
static unsigned long set_default_environment(void)
{
    unsigned long saved;
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved));
    __asm__ volatile("msr fpcr, %0" : : "r"(0ul));
    return saved;
}
static void restore_environment(unsigned long saved)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(saved));
}
#else
static int set_default_environment(void)
{
    return 0;
}
static void restore_environment(int saved)
{
    (void)saved;
}
#endif

static void run_range(trope_range_body body, const void *context, int64_t begin, int64_t end)
{
    const __typeof__(set_default_environment()) saved = set_default_environment();
    if (begin < end)
        body(context, begin, end);
    restore_environment(saved);
}

int trope_default_threads(void)
{
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

/* More threads than this are no use, and asking for thousands can end the process. */
static int most_threads(void)
{
#ifdef _OPENMP
    const int processors = 4 * omp_get_num_procs(), offered = omp_get_max_threads();
    const int most = processors > offered ? processors : offered;
    return most > 8 ? most : 8;
#else
    return 1;
#endif
}

void trope_parallel_for(int threads, int64_t count, trope_range_body body, const void *context)
{
    if (threads <= 0)
        threads = trope_default_threads();
    if (threads > most_threads())
        threads = most_threads();
    if (threads > count)
        threads = (int)count;
    if (threads <= 1) {
        run_range(body, context, 0, count);
        return;
    }
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
    {
        /* OpenMP may give fewer threads than asked for. */
        const int64_t team = omp_get_num_threads(), rank = omp_get_thread_num();
        const int64_t share = count / team, rest = count % team;
        const int64_t begin = rank * share + (rank < rest ? rank : rest);
        run_range(body, context, begin, begin + share + (rank < rest));
    }
#else
    run_range(body, context, 0, count);
#endif
}
