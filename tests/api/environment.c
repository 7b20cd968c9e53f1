/* What is refused, and with which words, does not depend on the caller's rounding direction, its floating-point traps or its
 * locale. */
#define _GNU_SOURCE /* feenableexcept */
#include <fenv.h>
#include <locale.h>
#include <math.h>

#include "api/refused.h"

static const int directions[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};

/* Beyond fp32 on either side: rounded to fp32 another way these are its largest and its smallest number. */
static void mscale_by_direction(void)
{
    for (int i = 0; i < 4; i++) {
        CHECK(!fesetround(directions[i]));
        ROW(dense(), a->mscale = 1e300, ARGUMENT, "mscale", "e+300)");
        ROW(dense(), a->mscale = -1e300, ARGUMENT, "mscale", "e+300)");
        ROW(dense(), a->mscale = 1e-300, ARGUMENT, "mscale", "e-300)");
        ROW(dense(), a->mscale = -1e-300, ARGUMENT, "mscale", "e-300)");
        ROW(dense(), (a->dtype = TROPE_BF16, a->mscale = 1e300), ARGUMENT, "mscale", "e+300)");
        begin(dense());
        a->dtype = a->angle_dtype = TROPE_F64;
        a->mscale = 1e300;
        CHECK_MESSAGE(trope_forward(a) == TROPE_OK, "%s", trope_last_error());
        begin(dense());
        a->mscale = 0x1.fffffep127;
        CHECK_MESSAGE(trope_forward(a) == TROPE_OK, "%s", trope_last_error());
        CHECK(fegetround() == directions[i]);
    }
    fesetround(FE_TONEAREST);
}

static double signalling_nan(void)
{
    const uint64_t bits = 0x7ff4000000000001u;
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

#ifdef __GLIBC__
#define TRAPS (FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW)

static void store_nan(double *to)
{
    const double value = signalling_nan();
    memcpy(to, &value, sizeof value);
}

/* A comparison with a signalling NaN is an invalid operation: with traps enabled, the end of the process. */
static void traps(void)
{
    trope_frequency_args rule = {.struct_size = sizeof rule, .rule = TROPE_RULE_DEFAULT, .rotary_dim = 8};
    double inv_freq[4] = {1, 1, 1, 1}, attention_factor;
    uint64_t steps[4];
    memset(&out, 0xff, sizeof out);
    store_nan(&inv_freq[2]);
    store_nan(&rule.base);
    if (feenableexcept(TRAPS) < 0 || fegetexcept() != TRAPS) {
        printf("traps are left out: this processor has none\n");
        return;
    }
    ROW(phase(), store_nan(&in.inv_freq[1]), ARGUMENT, "inv_freq[1]", "nan");
    ROW(dense(), store_nan(&a->mscale), ARGUMENT, "mscale", "nan");
    ROW(dense(), a->mscale = 1e300, ARGUMENT, "mscale", "e+300)");
    ROW(phase(), in.inv_freq[0] = INFINITY, ARGUMENT, "inv_freq[0]", "(inf)");
    CALL_ROW(trope_phase_steps, (inv_freq, 4, steps), ARGUMENT, "inv_freq[2]", "nan");
    CALL_ROW(trope_frequencies, (&rule, inv_freq, &attention_factor), ARGUMENT, "base", "nan");
    CHECK(fegetexcept() == TRAPS);
    fedisableexcept(FE_ALL_EXCEPT);
}
#else
static void traps(void)
{
    printf("traps are left out: they need glibc's feenableexcept\n");
}
#endif

/* Where 0.5 is written 0,5. */
static void decimal_comma(void)
{
    const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "de_DE", "fr_FR.UTF-8", "fr_FR.utf8"};
    size_t i = 0;
    while (i < sizeof names / sizeof names[0] && !setlocale(LC_ALL, names[i]))
        i++;
    if (i == sizeof names / sizeof names[0]) {
        printf("the check of decimal commas is left out: no German or French locale is installed\n");
        return;
    }
    char text[8];
    snprintf(text, sizeof text, "%.1f", 0.5);
    CHECK(strcmp(text, "0,5") == 0);
    ROW(dense(), a->mscale = 1.5e300, ARGUMENT, "mscale", "(1.5e+300)");
    ROW(phase(), in.inv_freq[1] = 2.5e30, ARGUMENT, "inv_freq[1]", "(2.5e+30)");
    setlocale(LC_ALL, "C");
}

int main(void)
{
    mscale_by_direction();
    traps();
    decimal_comma();
    return refused_result();
}
