/* trope_frequencies against tables made from the papers' formulas in 50 digits (make_tables.py), and everything that it
 * must refuse. */
#include <math.h>
#include <string.h>

#include "numerics/tables.h"
#include "support/check.h"
#include "trope/trope.h"

#define MAX_PAIRS (TROPE_MAX_ROTARY_DIM / 2)
#define CASES     ((int)(sizeof table_rules / sizeof table_rules[0]))

/* The exponent 2i/d is rounded before it is multiplied by ln(base); a ramp near its end cancels. */
#define TOLERANCE 2e-14

static void check_case(int n)
{
    const int pairs = table_rules[n].args.rotary_dim / 2;
    double inv_freq[MAX_PAIRS + 1], mscale = 0.0, worst = 0.0;

    inv_freq[pairs] = 1234.0;
    const trope_status status = trope_frequencies(&table_rules[n].args, inv_freq, &mscale);
    if (!CHECK_MESSAGE(status == TROPE_OK, "%s: %s", table_rules[n].name, trope_last_error()))
        return;
    for (int i = 0; i < pairs; i++) {
        const double expected = table_rules[n].inv_freq[i];
        const double error = expected == 0.0 ? fabs(inv_freq[i]) : fabs(inv_freq[i] / expected - 1.0);
        worst = fmax(worst, error);
        CHECK_MESSAGE(error <= TOLERANCE, "%s: inv_freq[%d] is %.17g, expected %.17g", table_rules[n].name, i, inv_freq[i],
                      expected);
    }
    CHECK_MESSAGE(fabs(mscale / table_rules[n].mscale - 1.0) <= TOLERANCE, "%s: mscale is %.17g, expected %.17g",
                  table_rules[n].name, mscale, table_rules[n].mscale);
    CHECK(inv_freq[pairs] == 1234.0);
    printf("%-32s largest relative error %.2g\n", table_rules[n].name, worst);
}

static const trope_frequency_args *find_case(const char *name)
{
    for (int n = 0; n < CASES; n++)
        if (!strcmp(table_rules[n].name, name))
            return &table_rules[n].args;
    CHECK_MESSAGE(0, "no case named %s", name);
    return &table_rules[0].args;
}

static void check_same(const char *what, const trope_frequency_args *a, const trope_frequency_args *b)
{
    double inv_freq[2][MAX_PAIRS], mscale[2];
    CHECK(trope_frequencies(a, inv_freq[0], &mscale[0]) == TROPE_OK);
    CHECK(trope_frequencies(b, inv_freq[1], &mscale[1]) == TROPE_OK);
    CHECK_MESSAGE(mscale[0] == mscale[1] && !memcmp(inv_freq[0], inv_freq[1], (size_t)a->rotary_dim / 2 * sizeof(double)),
                  "%s: the results differ", what);
}

/* A 0 is the default that the header names; and an mscale without its partner counts as not given. */
static void check_defaults(void)
{
    const trope_frequency_args *llama = find_case("Llama 3.1"), *deepseek = find_case("DeepSeek-V3");
    trope_frequency_args a = *llama, b;

    a.low_freq_factor = a.high_freq_factor = 0;
    check_same("Llama 3 defaults", llama, &a);

    a = *deepseek;
    a.base = a.beta_fast = a.beta_slow = 0;
    check_same("YaRN defaults", deepseek, &a);

    a = b = *deepseek;
    a.mscale = 0;
    b.mscale = b.mscale_all_dim = 0;
    check_same("YaRN with mscale_all_dim alone", &a, &b);

    a = b = *find_case("dynamic NTK, inside the window");
    a.seq_len = 0;
    b.seq_len = b.original_max_position;
    check_same("dynamic NTK without seq_len", &a, &b);

    a = *find_case("Phi-3, short");
    a.seq_len = 0;
    check_same("LongRoPE without seq_len", &a, find_case("Phi-3, short"));

    a = b = *find_case("Gemma, a quarter");
    a.partial_rotary_factor = 0;
    b.rule = TROPE_RULE_DEFAULT;
    b.partial_rotary_factor = 0;
    check_same("proportional in full", &a, &b);

    a = *find_case("position interpolation");
    b = a;
    a.factor = 0;
    b.factor = 1;
    check_same("factor 1", &a, &b);

    a = *find_case("Phi-3, short");
    a.factor = 0.5;
    check_same("LongRoPE with a factor below 1", &a, find_case("LongRoPE, factor 1"));
}

/* The source of a LongRoPE array may be the destination. */
static void check_in_place(void)
{
    trope_frequency_args a = *find_case("Phi-3, short");
    double expected[MAX_PAIRS], inv_freq[MAX_PAIRS], mscale;

    CHECK(trope_frequencies(&a, expected, &mscale) == TROPE_OK);
    memcpy(inv_freq, table_short_factor, sizeof table_short_factor);
    a.short_factor = inv_freq;
    CHECK(trope_frequencies(&a, inv_freq, &mscale) == TROPE_OK);
    CHECK(!memcmp(inv_freq, expected, (size_t)a.rotary_dim / 2 * sizeof(double)));
}

/* Everything that is refused: a case, one field changed, and words of the message. */
typedef struct refusal {
    const char *base;
    size_t offset;
    enum { INTEGER, REAL, POINTER } type;
    double value;
    trope_status status;
    const char *words;
} refusal;

/* Arrays of ones with one bad element, see fill_bad_arrays. */
static double negative_factor[48], infinite_factor[48], tiny_factor[48];
static const double *const bad_arrays[] = {NULL, negative_factor, infinite_factor, tiny_factor};

static void fill_bad_arrays(void)
{
    for (int i = 0; i < 48; i++)
        negative_factor[i] = infinite_factor[i] = tiny_factor[i] = 1.0;
    negative_factor[3] = -1.0;
    infinite_factor[1] = INFINITY;
    tiny_factor[0] = 0x1p-64;
}

#define AT(field) offsetof(trope_frequency_args, field)
#define BAD       TROPE_ERROR_ARGUMENT
static const refusal refusals[] = {
    {"RoFormer", AT(rule), INTEGER, -1, BAD, "rule (-1) must be a TROPE_RULE_ value"},
    {"RoFormer", AT(rule), INTEGER, 7, BAD, "rule (7) must be a TROPE_RULE_ value"},
    {"RoFormer", AT(rotary_dim), INTEGER, 0, BAD, "rotary_dim (0) must be even and at least 2"},
    {"RoFormer", AT(rotary_dim), INTEGER, 7, BAD, "rotary_dim (7) must be even and at least 2"},
    {"RoFormer", AT(rotary_dim), INTEGER, -2, BAD, "rotary_dim (-2) must be even and at least 2"},
    {"RoFormer", AT(rotary_dim), INTEGER, 1026, BAD, "rotary_dim (1026) must be at most 1024"},
    {"RoFormer", AT(reserved), INTEGER, 1, BAD, "reserved (1) must be 0"},
    {"RoFormer", AT(base), REAL, NAN, BAD, "base (nan) must be finite and greater than 1"},
    {"RoFormer", AT(base), REAL, INFINITY, BAD, "base (inf) must be finite and greater than 1"},
    {"RoFormer", AT(base), REAL, 1, BAD, "base (1) must be finite and greater than 1"},
    {"RoFormer", AT(base), REAL, -10000, BAD, "base (-10000) must be finite and greater than 1"},
    {"RoFormer", AT(factor), REAL, 2, BAD, "factor (2) must be 0: TROPE_RULE_DEFAULT does not use it"},
    {"RoFormer", AT(original_max_position), REAL, 2048, BAD, "original_max_position (2048) must be 0"},
    {"RoFormer", AT(partial_rotary_factor), REAL, 0.5, BAD, "partial_rotary_factor (0.5) must be 0"},
    {"RoFormer", AT(no_truncate), INTEGER, 1, BAD, "no_truncate (1) must be 0: TROPE_RULE_DEFAULT does not use it"},
    {"RoFormer", AT(short_factor), POINTER, 1, BAD, "must be NULL: TROPE_RULE_DEFAULT does not use it"},
    {"RoFormer", AT(long_factor), POINTER, 1, BAD, "must be NULL: TROPE_RULE_DEFAULT does not use it"},
    {"position interpolation", AT(factor), REAL, NAN, BAD, "factor (nan) must be finite and greater than 0"},
    {"position interpolation", AT(factor), REAL, -1, BAD, "factor (-1) must be finite and greater than 0"},
    {"position interpolation", AT(factor), REAL, 0x1p-64, BAD, "inv_freq[0] (1.84467e+19) comes out too large"},
    {"position interpolation", AT(factor), REAL, 1e-320, BAD, "inv_freq[0] (inf) comes out too large"},
    {"position interpolation", AT(seq_len), REAL, 100, BAD, "seq_len (100) must be 0: TROPE_RULE_LINEAR does not use it"},
    {"two dimensions", AT(rule), INTEGER, TROPE_RULE_DYNAMIC, BAD, "rotary_dim (2) must be at least 4"},
    {"dynamic NTK, three windows", AT(original_max_position), REAL, 0, BAD, "original_max_position (0) is required by"},
    {"dynamic NTK, three windows", AT(original_max_position), REAL, 1, BAD, "must be finite and greater than 1"},
    {"dynamic NTK, three windows", AT(original_max_position), REAL, NAN, BAD, "original_max_position (nan) must be finite"},
    {"dynamic NTK, three windows", AT(seq_len), REAL, -1, BAD, "seq_len (-1) must be finite and greater than 0"},
    {"dynamic NTK, three windows", AT(seq_len), REAL, INFINITY, BAD, "seq_len (inf) must be finite"},
    {"dynamic NTK, three windows", AT(attention_factor), REAL, 1, BAD, "TROPE_RULE_DYNAMIC does not use it"},
    {"DeepSeek-V3", AT(original_max_position), REAL, 0, BAD, "original_max_position (0) is required by TROPE_RULE_YARN"},
    {"DeepSeek-V3", AT(no_truncate), INTEGER, 2, BAD, "no_truncate (2) must be 0 or 1"},
    {"DeepSeek-V3", AT(beta_fast), REAL, 0.5, BAD, "beta_fast (0.5) must be at least beta_slow (1)"},
    {"DeepSeek-V3", AT(beta_fast), REAL, -32, BAD, "beta_fast (-32) must be finite and greater than 0"},
    {"DeepSeek-V3", AT(beta_slow), REAL, 33, BAD, "beta_fast (32) must be at least beta_slow (33)"},
    {"DeepSeek-V3", AT(beta_slow), REAL, NAN, BAD, "beta_slow (nan) must be finite"},
    {"DeepSeek-V3", AT(mscale), REAL, -1, BAD, "mscale (-1) must be finite and greater than 0"},
    {"DeepSeek-V3", AT(mscale_all_dim), REAL, INFINITY, BAD, "mscale_all_dim (inf) must be finite"},
    {"DeepSeek-V3", AT(attention_factor), REAL, -1, BAD, "attention_factor (-1) must be finite"},
    {"DeepSeek-V3", AT(low_freq_factor), REAL, 1, BAD, "low_freq_factor (1) must be 0: TROPE_RULE_YARN does not use it"},
    {"Phi-3, short", AT(original_max_position), REAL, 0, BAD, "original_max_position (0) is required by"},
    {"Phi-3, short", AT(short_factor), POINTER, 0, TROPE_ERROR_NULL, "short_factor is NULL, TROPE_RULE_LONGROPE needs it"},
    {"Phi-3, short", AT(long_factor), POINTER, 0, TROPE_ERROR_NULL, "long_factor is NULL, TROPE_RULE_LONGROPE needs it"},
    {"Phi-3, short", AT(short_factor), POINTER, 1, BAD, "short_factor[3] (-1) must be finite and greater than 0"},
    {"Phi-3, short", AT(long_factor), POINTER, 2, BAD, "long_factor[1] (inf) must be finite and greater than 0"},
    {"Phi-3, short", AT(short_factor), POINTER, 3, BAD, "comes out too large"},
    {"Phi-3, short", AT(attention_factor), REAL, NAN, BAD, "attention_factor (nan) must be finite"},
    {"Phi-3, short", AT(mscale), REAL, 1, BAD, "mscale (1) must be 0: TROPE_RULE_LONGROPE does not use it"},
    {"Llama 3.1", AT(original_max_position), REAL, 0, BAD, "original_max_position (0) is required by TROPE_RULE_LLAMA3"},
    {"Llama 3.1", AT(low_freq_factor), REAL, 4, BAD, "high_freq_factor (4) must be greater than low_freq_factor (4)"},
    {"Llama 3.1", AT(low_freq_factor), REAL, NAN, BAD, "low_freq_factor (nan) must be finite"},
    {"Llama 3.1", AT(high_freq_factor), REAL, 0.5, BAD, "high_freq_factor (0.5) must be greater than low_freq_factor (1)"},
    {"Llama 3.1", AT(high_freq_factor), REAL, -4, BAD, "high_freq_factor (-4) must be finite and greater than 0"},
    {"Llama 3.1", AT(beta_slow), REAL, 1, BAD, "beta_slow (1) must be 0: TROPE_RULE_LLAMA3 does not use it"},
    {"Gemma, a quarter", AT(partial_rotary_factor), REAL, 1.5, BAD, "partial_rotary_factor (1.5) must be at most 1"},
    {"Gemma, a quarter", AT(partial_rotary_factor), REAL, -0.5, BAD, "partial_rotary_factor (-0.5) must be finite"},
    {"Gemma, a quarter", AT(partial_rotary_factor), REAL, NAN, BAD, "partial_rotary_factor (nan) must be finite"},
};

static void check_refused(const char *what, const trope_frequency_args *args, trope_status expected, const char *words)
{
    double inv_freq[MAX_PAIRS], untouched[MAX_PAIRS], mscale = 77.0;

    memset(inv_freq, 0xff, sizeof inv_freq);
    memset(untouched, 0xff, sizeof untouched);
    const trope_status status = trope_frequencies(args, inv_freq, &mscale);
    CHECK_MESSAGE(status == expected, "%s: status %d, expected %d", what, (int)status, (int)expected);
    CHECK_MESSAGE(strstr(trope_last_error(), words) && !strncmp(trope_last_error(), "trope_frequencies: ", 19),
                  "%s: the message is \"%s\", expected \"%s\"", what, trope_last_error(), words);
    CHECK_MESSAGE(mscale == 77.0 && !memcmp(inv_freq, untouched, sizeof inv_freq), "%s: something was written", what);
}

static void check_refusal(const refusal *r)
{
    trope_frequency_args args = *find_case(r->base);
    void *field = (char *)&args + r->offset;
    const int32_t integer = r->type == REAL ? 0 : (int32_t)r->value;

    if (r->type == INTEGER)
        memcpy(field, &integer, sizeof integer);
    else if (r->type == REAL)
        memcpy(field, &r->value, sizeof r->value);
    else
        memcpy(field, &bad_arrays[integer], sizeof bad_arrays[integer]);
    check_refused(r->words, &args, r->status, r->words);
}

static void check_pointers_and_sizes(void)
{
    struct {
        trope_frequency_args args;
        double more;
    } newer = {*find_case("RoFormer"), 0.0};
    trope_frequency_args args = newer.args;
    double inv_freq[MAX_PAIRS], mscale;

    check_refused("no arguments", NULL, TROPE_ERROR_NULL, "args is NULL");
    args.struct_size = 4;
    check_refused("struct too small", &args, TROPE_ERROR_ARGUMENT, "struct_size (4)");
    args.struct_size = offsetof(trope_frequency_args, factor);
    CHECK(trope_frequencies(&args, inv_freq, &mscale) == TROPE_OK && inv_freq[0] == 1.0);
    newer.args.struct_size = sizeof newer;
    CHECK(trope_frequencies(&newer.args, inv_freq, &mscale) == TROPE_OK && inv_freq[0] == 1.0);
    newer.more = 1.0;
    check_refused("unknown tail", &newer.args, TROPE_ERROR_ARGUMENT, "struct_size");

    args = *find_case("RoFormer");
    CHECK(trope_frequencies(&args, NULL, &mscale) == TROPE_ERROR_NULL);
    CHECK(strstr(trope_last_error(), "trope_frequencies: inv_freq is NULL"));
    CHECK(trope_frequencies(&args, inv_freq, NULL) == TROPE_ERROR_NULL);
    CHECK(strstr(trope_last_error(), "trope_frequencies: mscale is NULL"));
}

int main(void)
{
    for (int n = 0; n < CASES; n++)
        check_case(n);
    check_defaults();
    check_in_place();
    fill_bad_arrays();
    for (size_t r = 0; r < sizeof refusals / sizeof refusals[0]; r++)
        check_refusal(&refusals[r]);
    check_pointers_and_sizes();
    return check_result();
}
