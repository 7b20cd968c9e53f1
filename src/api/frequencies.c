/* trope_frequencies: the rules that turn a model's RoPE configuration into inv_freq and an attention factor. The formulas
 * and defaults come from Hugging Face transformers (modeling_rope_utils.py). They are evaluated in double, without the fp32
 * intermediates of transformers.
 *
 * A new rule needs one function here, one line in `rules`, and one line in `fields` for each of its fields. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "api/args.h"
#include "core/environment.h"
#include "core/error.h"
#include "core/phase.h"
#include "trope/trope.h"

#define TWO_PI 6.28318530717958647693

#define FUNCTION "trope_frequencies"

/* base^(-2i/d) */
static double plain_frequency(const trope_frequency_args *a, double base, int32_t pair)
{
    return pow(base, -2.0 * pair / a->rotary_dim);
}

/* Returns frequency if keep is 1, frequency / factor if keep is 0, and a linear blend in between. */
static double interpolated(double frequency, double factor, double keep)
{
    return (1.0 - keep) * (frequency / factor) + keep * frequency;
}

static double clamp_to_unit(double x)
{
    return x < 0.0 ? 0.0 : x > 1.0 ? 1.0 : x;
}

static void rule_default(const trope_frequency_args *a, double *inv_freq, double *attention)
{
    (void)attention;
    for (int32_t i = 0; i < a->rotary_dim / 2; i++)
        inv_freq[i] = plain_frequency(a, a->base, i);
}

static void rule_linear(const trope_frequency_args *a, double *inv_freq, double *attention)
{
    (void)attention;
    for (int32_t i = 0; i < a->rotary_dim / 2; i++)
        inv_freq[i] = plain_frequency(a, a->base, i) / a->factor;
}

static void rule_dynamic(const trope_frequency_args *a, double *inv_freq, double *attention)
{
    const double d = a->rotary_dim, m = a->original_max_position, s = fmax(a->seq_len, m);
    const double base = a->base * pow(a->factor * s / m - (a->factor - 1.0), d / (d - 2.0));
    (void)attention;
    for (int32_t i = 0; i < a->rotary_dim / 2; i++)
        inv_freq[i] = plain_frequency(a, base, i);
}

/* Returns the index, a real number, of the pair that makes this many turns in original_max_position positions. */
static double yarn_pair(const trope_frequency_args *a, double turns)
{
    return a->rotary_dim * log(a->original_max_position / (turns * TWO_PI)) / (2.0 * log(a->base));
}

static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1.0 ? 1.0 : 0.1 * mscale * log(factor) + 1.0;
}

static void rule_yarn(const trope_frequency_args *a, double *inv_freq, double *attention)
{
    double low = yarn_pair(a, a->beta_fast), high = yarn_pair(a, a->beta_slow);
    if (!a->no_truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0.0);
    /* The limit is d - 1, not d / 2 - 1: transformers has this limit, and models are trained with it. */
    high = fmin(high, a->rotary_dim - 1.0);
    if (low == high)
        high += 0.001;
    for (int32_t i = 0; i < a->rotary_dim / 2; i++)
        inv_freq[i] =
            interpolated(plain_frequency(a, a->base, i), a->factor, 1.0 - clamp_to_unit((i - low) / (high - low)));

    if (a->attention_factor != 0.0)
        *attention = a->attention_factor;
    else if (a->mscale != 0.0 && a->mscale_all_dim != 0.0)
        *attention = yarn_mscale(a->factor, a->mscale) / yarn_mscale(a->factor, a->mscale_all_dim);
    else
        *attention = yarn_mscale(a->factor, 1.0);
}

static void rule_longrope(const trope_frequency_args *a, double *inv_freq, double *attention)
{
    const double *divisor = a->seq_len > a->original_max_position ? a->long_factor : a->short_factor;
    for (int32_t i = 0; i < a->rotary_dim / 2; i++)
        inv_freq[i] = plain_frequency(a, a->base, i) / divisor[i];

    if (a->attention_factor != 0.0)
        *attention = a->attention_factor;
    else if (a->factor > 1.0)
        *attention = sqrt(1.0 + log(a->factor) / log(a->original_max_position));
}

static void rule_llama3(const trope_frequency_args *a, double *inv_freq, double *attention)
{
    const double low = a->low_freq_factor, high = a->high_freq_factor;
    (void)attention;
    for (int32_t i = 0; i < a->rotary_dim / 2; i++) {
        const double frequency = plain_frequency(a, a->base, i);
        const double turns = a->original_max_position * frequency / TWO_PI;
        inv_freq[i] = interpolated(frequency, a->factor, clamp_to_unit((turns - low) / (high - low)));
    }
}

static void rule_proportional(const trope_frequency_args *a, double *inv_freq, double *attention)
{
    const int32_t turning = (int32_t)(a->partial_rotary_factor * a->rotary_dim / 2.0);
    (void)attention;
    for (int32_t i = 0; i < a->rotary_dim / 2; i++)
        inv_freq[i] = i < turning ? plain_frequency(a, a->base, i) / (a->factor != 0.0 ? a->factor : 1.0) : 0.0;
}

/* The function of a rule. Its caller has checked every field, filled in the defaults, and set *attention to 1. */
typedef void (*rule_function)(const trope_frequency_args *a, double *inv_freq, double *attention);

static const struct {
    const char *name;
    rule_function evaluate;
} rules[] = {
    [TROPE_RULE_DEFAULT] = {"TROPE_RULE_DEFAULT", rule_default},
    [TROPE_RULE_LINEAR] = {"TROPE_RULE_LINEAR", rule_linear},
    [TROPE_RULE_DYNAMIC] = {"TROPE_RULE_DYNAMIC", rule_dynamic},
    [TROPE_RULE_YARN] = {"TROPE_RULE_YARN", rule_yarn},
    [TROPE_RULE_LONGROPE] = {"TROPE_RULE_LONGROPE", rule_longrope},
    [TROPE_RULE_LLAMA3] = {"TROPE_RULE_LLAMA3", rule_llama3},
    [TROPE_RULE_PROPORTIONAL] = {"TROPE_RULE_PROPORTIONAL", rule_proportional},
};

#define RULE_COUNT ((int32_t)(sizeof rules / sizeof rules[0]))

enum {
    LINEAR = 1 << TROPE_RULE_LINEAR,
    DYNAMIC = 1 << TROPE_RULE_DYNAMIC,
    YARN = 1 << TROPE_RULE_YARN,
    LONGROPE = 1 << TROPE_RULE_LONGROPE,
    LLAMA3 = 1 << TROPE_RULE_LLAMA3,
    PROPORTIONAL = 1 << TROPE_RULE_PROPORTIONAL,
    SCALED = LINEAR | DYNAMIC | YARN | LONGROPE | LLAMA3 | PROPORTIONAL,
    ALL = SCALED | 1 << TROPE_RULE_DEFAULT
};

/* The fields of type double. Only the rules in `used_by` accept a value other than 0, and it must be greater than `above`.
 * The rules in `needed_by` refuse 0. With the other rules, `fallback` replaces 0. */
#define FIELD(name) #name, offsetof(trope_frequency_args, name)
static const struct {
    const char *name;
    size_t offset;
    int32_t used_by, needed_by;
    double fallback, above;
} fields[] = {
    {FIELD(base), ALL, ALL, 0.0, 1.0},
    {FIELD(factor), SCALED, LINEAR | DYNAMIC | YARN | LLAMA3, 0.0, 0.0},
    {FIELD(original_max_position), DYNAMIC | YARN | LONGROPE | LLAMA3, DYNAMIC | YARN | LONGROPE | LLAMA3, 0.0, 1.0},
    {FIELD(seq_len), DYNAMIC | LONGROPE, 0, 0.0, 0.0},
    {FIELD(low_freq_factor), LLAMA3, LLAMA3, 0.0, 0.0},
    {FIELD(high_freq_factor), LLAMA3, LLAMA3, 0.0, 0.0},
    {FIELD(beta_fast), YARN, 0, 32.0, 0.0},
    {FIELD(beta_slow), YARN, 0, 1.0, 0.0},
    {FIELD(attention_factor), YARN | LONGROPE, 0, 0.0, 0.0},
    {FIELD(mscale), YARN, 0, 0.0, 0.0},
    {FIELD(mscale_all_dim), YARN, 0, 0.0, 0.0},
    {FIELD(partial_rotary_factor), PROPORTIONAL, PROPORTIONAL, 0.0, 0.0},
};

/* Checks each field of type double by itself, and fills in the defaults. */
static trope_status check_fields(trope_frequency_args *a)
{
    for (size_t f = 0; f < sizeof fields / sizeof fields[0]; f++) {
        double *value = (double *)((char *)a + fields[f].offset);
        if (*value == 0.0) {
            if (fields[f].needed_by >> a->rule & 1)
                return trope_fail(TROPE_ERROR_ARGUMENT, FUNCTION ": %s (0) must be given with %s", fields[f].name,
                                  rules[a->rule].name);
            *value = fields[f].fallback;
            continue;
        }
        if (!(fields[f].used_by >> a->rule & 1))
            return trope_fail(TROPE_ERROR_ARGUMENT, FUNCTION ": %s (%.15g) must be 0: %s does not use it", fields[f].name,
                              *value, rules[a->rule].name);
        if (!isfinite(*value) || *value <= fields[f].above)
            return trope_fail(TROPE_ERROR_ARGUMENT, FUNCTION ": %s (%.15g) must be finite and greater than %.15g",
                              fields[f].name, *value, fields[f].above);
    }
    return TROPE_OK;
}

static trope_status check_integers(const trope_frequency_args *a)
{
    if (a->rule < TROPE_RULE_DEFAULT || a->rule >= RULE_COUNT)
        return trope_fail(TROPE_ERROR_ARGUMENT, FUNCTION ": rule (%d) must be a TROPE_RULE_ value, 1 to %d", (int)a->rule,
                          (int)RULE_COUNT - 1);
    if (a->rotary_dim < 2 || a->rotary_dim % 2)
        return trope_fail(TROPE_ERROR_ARGUMENT, FUNCTION ": rotary_dim (%d) must be even and at least 2",
                          (int)a->rotary_dim);
    if (a->rotary_dim > TROPE_MAX_ROTARY_DIM)
        return trope_fail(TROPE_ERROR_ARGUMENT, FUNCTION ": rotary_dim (%d) must be at most %d", (int)a->rotary_dim,
                          TROPE_MAX_ROTARY_DIM);
    if (a->rule == TROPE_RULE_DYNAMIC && a->rotary_dim == 2)
        return trope_fail(TROPE_ERROR_ARGUMENT, FUNCTION ": rotary_dim (2) must be at least 4 with TROPE_RULE_DYNAMIC");
    if (a->no_truncate != 0 && a->no_truncate != 1)
        return trope_fail(TROPE_ERROR_ARGUMENT, FUNCTION ": no_truncate (%d) must be 0 or 1", (int)a->no_truncate);
    if (a->no_truncate && a->rule != TROPE_RULE_YARN)
        return trope_fail(TROPE_ERROR_ARGUMENT, FUNCTION ": no_truncate (1) must be 0: %s does not use it",
                          rules[a->rule].name);
    if (a->reserved != 0)
        return trope_fail(TROPE_ERROR_ARGUMENT, FUNCTION ": reserved (%d) must be 0", (int)a->reserved);
    return TROPE_OK;
}

/* Checks the limits that `fields` does not hold, most of which relate two fields. */
static trope_status check_together(const trope_frequency_args *a)
{
    if ((a->mscale != 0.0) != (a->mscale_all_dim != 0.0))
        return trope_fail(TROPE_ERROR_ARGUMENT, FUNCTION ": %s (0) must be given: mscale and mscale_all_dim go together",
                          a->mscale != 0.0 ? "mscale_all_dim" : "mscale");
    if (a->rule == TROPE_RULE_LLAMA3 && a->high_freq_factor <= a->low_freq_factor)
        return trope_fail(TROPE_ERROR_ARGUMENT,
                          FUNCTION ": high_freq_factor (%.15g) must be greater than "
                                   "low_freq_factor (%.15g)",
                          a->high_freq_factor, a->low_freq_factor);
    if (a->rule == TROPE_RULE_LONGROPE && a->factor == 0.0 && a->attention_factor == 0.0)
        return trope_fail(TROPE_ERROR_ARGUMENT,
                          FUNCTION ": factor (0) or attention_factor must be given with TROPE_RULE_LONGROPE");
    if (a->beta_fast < a->beta_slow)
        return trope_fail(TROPE_ERROR_ARGUMENT, FUNCTION ": beta_fast (%.15g) must be at least beta_slow (%.15g)",
                          a->beta_fast, a->beta_slow);
    if (a->partial_rotary_factor > 1.0)
        return trope_fail(TROPE_ERROR_ARGUMENT, FUNCTION ": partial_rotary_factor (%.15g) must be at most 1",
                          a->partial_rotary_factor);
    return TROPE_OK;
}

/* Checks one of the two arrays of LongRoPE. */
static trope_status check_divisors(const trope_frequency_args *a, const char *name, const double *divisor)
{
    if (a->rule != TROPE_RULE_LONGROPE) {
        if (divisor)
            return trope_fail(TROPE_ERROR_ARGUMENT, FUNCTION ": %s (%p) must be NULL: %s does not use it", name,
                              (const void *)divisor, rules[a->rule].name);
        return TROPE_OK;
    }
    if (!divisor)
        return trope_fail(TROPE_ERROR_NULL, FUNCTION ": %s is NULL, but %s needs it", name, rules[a->rule].name);
    if ((uintptr_t)divisor % sizeof *divisor)
        return trope_fail(TROPE_ERROR_ARGUMENT, FUNCTION ": %s (%p) must be aligned to 8 bytes", name,
                          (const void *)divisor);
    for (int32_t i = 0; i < a->rotary_dim / 2; i++) {
        if (!isfinite(divisor[i]) || divisor[i] <= 0.0)
            return trope_fail(TROPE_ERROR_ARGUMENT, FUNCTION ": %s[%d] (%.15g) must be finite and greater than 0", name,
                              (int)i, divisor[i]);
    }
    return TROPE_OK;
}

/* Checks that a call can use the results as inv_freq and mscale. Tiny divisors can make them too large. */
static trope_status check_results(const trope_frequency_args *a, const double *inv_freq, double attention)
{
    for (int32_t i = 0; i < a->rotary_dim / 2; i++) {
        if (!(inv_freq[i] < TROPE_MAX_FREQUENCY))
            return trope_fail(TROPE_ERROR_ARGUMENT,
                              FUNCTION ": inv_freq[%d] (%.15g) is too large: the result must be below 2^64", (int)i,
                              inv_freq[i]);
    }
    if (!isfinite(attention))
        return trope_fail(TROPE_ERROR_ARGUMENT,
                          FUNCTION ": attention_factor (%.15g) is infinite: the result must be finite", attention);
    return TROPE_OK;
}

static trope_status check_args(trope_frequency_args *a)
{
    trope_status status = check_integers(a);
    if (!status)
        status = check_fields(a);
    if (!status)
        status = check_together(a);
    if (!status)
        status = check_divisors(a, "short_factor", a->short_factor);
    if (!status)
        status = check_divisors(a, "long_factor", a->long_factor);
    return status;
}

static trope_status find_frequencies(const trope_frequency_args *args, double *inv_freq, double *attention_factor)
{
    trope_frequency_args a;
    double frequencies[TROPE_MAX_ROTARY_DIM / 2], attention = 1.0;

    trope_status status = trope_copy_struct(FUNCTION, "args", &a, sizeof a, args);
    if (status)
        return status;
    if (!inv_freq || !attention_factor)
        return trope_fail(TROPE_ERROR_NULL, FUNCTION ": %s is NULL", inv_freq ? "attention_factor" : "inv_freq");
    if (((uintptr_t)inv_freq | (uintptr_t)attention_factor) % sizeof(double))
        return trope_fail(TROPE_ERROR_ARGUMENT, FUNCTION ": %s (%p) must be aligned to 8 bytes",
                          (uintptr_t)inv_freq % sizeof(double) ? "inv_freq" : "attention_factor",
                          (uintptr_t)inv_freq % sizeof(double) ? (void *)inv_freq : (void *)attention_factor);
    status = check_args(&a);
    if (status)
        return status;
    rules[a.rule].evaluate(&a, frequencies, &attention);
    status = check_results(&a, frequencies, attention);
    if (status)
        return status;
    memcpy(inv_freq, frequencies, (size_t)a.rotary_dim / 2 * sizeof *inv_freq);
    *attention_factor = attention;
    return TROPE_OK;
}

trope_status trope_frequencies(const trope_frequency_args *args, double *inv_freq, double *attention_factor)
{
    const trope_environment saved = trope_set_default_environment();
    const trope_status status = find_frequencies(args, inv_freq, attention_factor);
    trope_restore_environment(saved);
    return status;
}
