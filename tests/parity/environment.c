/* The bits of a result do not depend on the caller's floating-point environment: subnormals are neither flushed nor taken as
 * zero, rounding is to nearest and nothing traps, whatever a framework has set; and the library
 * leaves all of the caller's setting as it was, its exception flags included.
 *
 *     parity_environment [--seed S] [--count N] */
#include <fenv.h>
#include <stdlib.h>
#include <string.h>

#include "parity/parity.h"
#include "support/seeds.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#define FLUSH_SUBNORMALS 0x8040u /* flush to zero, subnormals are zero */
#define ALL_TRAPS        0x1f80u /* that are masked */

typedef unsigned control;

static control get_control(void)
{
    return _mm_getcsr();
}

static void set_control(control c)
{
    _mm_setcsr(c);
}

static control with_flush(control c)
{
    return c | FLUSH_SUBNORMALS;
}

static control with_traps(control c)
{
    return c & ~ALL_TRAPS;
}
#elif defined(__aarch64__)
#define FLUSH_SUBNORMALS (1ul << 24 | 1ul << 19) /* of all types, and of f16 */
#define ALL_TRAPS        0x9f00ul                /* that are enabled, where the processor can trap */

typedef unsigned long control;

static control get_control(void)
{
    control c;
    __asm__ volatile("mrs %0, fpcr" : "=r"(c));
    return c;
}

static void set_control(control c)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(c));
}

static control with_flush(control c)
{
    return c | FLUSH_SUBNORMALS;
}

static control with_traps(control c)
{
    return c | ALL_TRAPS;
}
#else
typedef int control;

static control get_control(void)
{
    return fegetround();
}

static void set_control(control c)
{
    fesetround(c);
}

static control with_flush(control c)
{
    return c;
}

static control with_traps(control c)
{
    return c;
}
#endif

/* ---- The environments: four rounding directions, with and without flushing, with and without traps ---- */

enum { ENVIRONMENTS = 16 };
static const int directions[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
static control plain, entered;

static void enter(int environment)
{
    plain = get_control();
    fesetround(directions[environment % 4]);
    const control flushing = environment / 4 % 2 ? with_flush(get_control()) : get_control();
    set_control(environment / 8 ? with_traps(flushing) : flushing);
    entered = get_control(); /* what the processor has of what was asked for */
}

/* Returns whether the environment was still that which was entered. */
static int leave(int environment)
{
    const int is_same = get_control() == entered && fegetround() == directions[environment % 4];
    fesetround(FE_TONEAREST);
    set_control(plain);
    return is_same;
}

static void check_config(config *c, int backward)
{
    call k = config_call(c, backward);
    trope_args *args = call_args(&k);
    config_reset(c);
    run_call(args, backward);
    unsigned char *expected = snapshot(c);
    for (int i = 0; i < ENVIRONMENTS; i++) {
        config_reset(c);
        enter(i);
        const trope_status status = config_run(c, args, backward);
        const int is_same = leave(i);
        CHECK_MESSAGE(status == TROPE_OK && is_same, "environment %d: refused, or another behind the call", i);
        check_parity(c, is_snapshot(c, expected), "parity_environment");
    }
    free(expected);
}

/* Frequencies and phases as well, which are made by the C library, and by dividing. */
static void check_rules(void)
{
    enum { DIM = 128 };
    double expected[DIM / 2], inv_freq[DIM / 2], factor;
    uint64_t expected_steps[DIM / 2], steps[DIM / 2];
    trope_frequency_args rule = {.struct_size = sizeof rule, .rule = TROPE_RULE_YARN, .rotary_dim = DIM, .base = 1e6};
    rule.factor = 4;
    rule.original_max_position = 32768;
    CHECK(!trope_frequencies(&rule, expected, &factor) && !trope_phase_steps(expected, DIM / 2, expected_steps));
    for (int i = 0; i < ENVIRONMENTS; i++) {
        enter(i);
        const int status = trope_frequencies(&rule, inv_freq, &factor) | trope_phase_steps(expected, DIM / 2, steps);
        const int is_same = leave(i);
        CHECK_MESSAGE(!status && is_same, "environment %d: refused, or another behind the call", i);
        CHECK_MESSAGE(!memcmp(inv_freq, expected, sizeof expected) && !memcmp(steps, expected_steps, sizeof steps),
                      "environment %d: the bits of frequencies differ", i);
    }
}

int main(int argc, char **argv)
{
    const seed_range seeds = parse_seeds(argc, argv, 300);
    for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; seed++) {
        config_choices choices = config_choose(seed);
        choices.specials = (int32_t)(seed % 2); /* subnormals among them */
        config *c = config_make(seed, &choices);
        for (int backward = 0; backward < 2; backward++)
            check_config(c, backward);
        config_free(c);
    }
    check_rules();
    return check_result();
}
