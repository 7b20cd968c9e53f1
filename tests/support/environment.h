/* Floating-point environments that a caller may have set: four rounding directions, with and without flushing of
 * subnormals, with and without traps.
 *
 *     for (int i = 0; i < ENVIRONMENTS; i++) {
 *         environment_enter(i);
 *         ... the call ...
 *         is_same = environment_leave(i);        whether the call left the environment unchanged
 *     }
 *
 * Between enter and leave, a test computes nothing itself, because that might trap. */
#ifndef TESTS_SUPPORT_ENVIRONMENT_H
#define TESTS_SUPPORT_ENVIRONMENT_H

#include <fenv.h>

#if defined(__SSE2__)
#include <xmmintrin.h>
#define FLUSH_SUBNORMALS 0x8040u /* flush to zero, and read subnormals as zero */
#define ALL_TRAPS        0x1f80u /* a bit that is set masks a trap */

typedef unsigned environment_control;

static inline environment_control get_control(void)
{
    return _mm_getcsr();
}

static inline void set_control(environment_control c)
{
    _mm_setcsr(c);
}

static inline environment_control with_flush(environment_control c)
{
    return c | FLUSH_SUBNORMALS;
}

static inline environment_control with_traps(environment_control c)
{
    return c & ~ALL_TRAPS;
}
#elif defined(__aarch64__)
#define FLUSH_SUBNORMALS (1ul << 24 | 1ul << 19) /* a bit for f32 and f64, and a bit for f16 */
#define ALL_TRAPS        0x9f00ul                /* a bit that is set enables a trap, if the processor can trap */

typedef unsigned long environment_control;

static inline environment_control get_control(void)
{
    environment_control c;
    __asm__ volatile("mrs %0, fpcr" : "=r"(c));
    return c;
}

static inline void set_control(environment_control c)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(c));
}

static inline environment_control with_flush(environment_control c)
{
    return c | FLUSH_SUBNORMALS;
}

static inline environment_control with_traps(environment_control c)
{
    return c | ALL_TRAPS;
}
#else
typedef int environment_control;

static inline environment_control get_control(void)
{
    return fegetround();
}

static inline void set_control(environment_control c)
{
    fesetround(c);
}

static inline environment_control with_flush(environment_control c)
{
    return c;
}

static inline environment_control with_traps(environment_control c)
{
    return c;
}
#endif

enum { ENVIRONMENTS = 16 };
static const int environment_directions[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
static environment_control environment_before, environment_entered;

static inline void environment_enter(int environment)
{
    environment_before = get_control();
    fesetround(environment_directions[environment % 4]);
    const environment_control flushing = environment / 4 % 2 ? with_flush(get_control()) : get_control();
    set_control(environment / 8 ? with_traps(flushing) : flushing);
    environment_entered = get_control(); /* the part of the request that the processor supports */
}

/* Restores the previous environment. Returns whether the environment was still the entered one. */
static inline int environment_leave(int environment)
{
    const int is_same = get_control() == environment_entered && fegetround() == environment_directions[environment % 4];
    fesetround(FE_TONEAREST);
    set_control(environment_before);
    return is_same;
}

#endif
