/* Refusals and their messages do not depend on the caller's rounding direction, floating-point traps or locale. */
#include <locale.h>
#include <math.h>

#include "api/refused.h"
#include "support/environment.h"

/* Comparing a signalling NaN is an invalid operation. With traps enabled, it would end the process. */
static void store_signalling_nan(double *to)
{
    const uint64_t bits = 0x7ff4000000000001u;
    memcpy(to, &bits, sizeof bits);
}

/* Some rounding directions turn a number outside the range of fp32 into the largest or smallest fp32 number. The call must
 * be refused in every direction. */
static void check_environment(int environment)
{
    trope_frequency_args rule = {.struct_size = sizeof rule, .rule = TROPE_RULE_DEFAULT, .rotary_dim = 8};
    double inv_freq[4] = {1, 1, 1, 1}, attention_factor;
    uint64_t steps[4];
    memset(&out, 0xff, sizeof out);
    store_signalling_nan(&inv_freq[2]);
    store_signalling_nan(&rule.base);
    environment_enter(environment);
    ROW(dense(), a->mscale = 1e300, ARGUMENT, "mscale", "e+300)");
    ROW(dense(), a->mscale = -1e300, ARGUMENT, "mscale", "e+300)");
    ROW(dense(), a->mscale = 1e-300, ARGUMENT, "mscale", "e-300)");
    ROW(dense(), a->mscale = -1e-300, ARGUMENT, "mscale", "e-300)");
    ROW(dense(), (a->dtype = TROPE_BF16, a->mscale = 1e300), ARGUMENT, "mscale", "e+300)");
    ROW(dense(), store_signalling_nan(&a->mscale), ARGUMENT, "mscale", "nan");
    ROW(phase(), store_signalling_nan(&in.inv_freq[1]), ARGUMENT, "inv_freq[1]", "nan");
    ROW(phase(), in.inv_freq[0] = INFINITY, ARGUMENT, "inv_freq[0]", "(inf)");
    CALL_ROW(trope_phase_steps, (inv_freq, 4, steps), ARGUMENT, "inv_freq[2]", "nan");
    CALL_ROW(trope_frequencies, (&rule, inv_freq, &attention_factor), ARGUMENT, "base", "nan");
    begin(dense());
    a->mscale = 0x1.fffffep127;
    const trope_status largest = trope_forward(a);
    a->dtype = a->angle_dtype = TROPE_F64;
    a->mscale = 1e300;
    const trope_status in_double = trope_forward(a);
    const int is_same = environment_leave(environment);
    CHECK_MESSAGE(largest == TROPE_OK && in_double == TROPE_OK && is_same, "environment %d: %s", environment,
                  trope_last_error());
}

/* Messages have decimal points, also in a locale that writes 0.5 as 0,5. */
static void decimal_comma(void)
{
    const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "de_DE", "fr_FR.UTF-8", "fr_FR.utf8"};
    size_t i = 0;
    while (i < sizeof names / sizeof names[0] && !setlocale(LC_ALL, names[i]))
        i++;
    if (i == sizeof names / sizeof names[0]) {
        printf("skipped the check of decimal commas: no German or French locale is installed\n");
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
    for (int i = 0; i < ENVIRONMENTS; i++)
        check_environment(i);
    decimal_comma();
    return refused_result();
}
