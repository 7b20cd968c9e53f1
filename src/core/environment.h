/* The default floating-point environment of a thread: it rounds to nearest, keeps subnormals and traps nothing. Results
 * must not depend on the caller's environment: frameworks set flush-to-zero on their threads, and some callers use another
 * rounding direction or traps. */
#ifndef TROPE_CORE_ENVIRONMENT_H
#define TROPE_CORE_ENVIRONMENT_H

#if defined(__SSE2__)
#include <xmmintrin.h>

typedef unsigned trope_environment;

static inline trope_environment trope_set_default_environment(void)
{
    const unsigned saved = _mm_getcsr();
    _mm_setcsr(0x1f80);
    return saved;
}

static inline void trope_restore_environment(trope_environment saved)
{
    _mm_setcsr(saved);
}
#elif defined(__aarch64__)
typedef unsigned long trope_environment;

static inline trope_environment trope_set_default_environment(void)
{
    unsigned long saved;
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved));
    __asm__ volatile("msr fpcr, %0" : : "r"(0ul));
    return saved;
}

static inline void trope_restore_environment(trope_environment saved)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(saved));
}
#else
typedef int trope_environment;

static inline trope_environment trope_set_default_environment(void)
{
    return 0;
}

static inline void trope_restore_environment(trope_environment saved)
{
    (void)saved;
}
#endif

#endif
