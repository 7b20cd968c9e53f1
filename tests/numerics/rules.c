/* Compares trope_frequencies, in every floating-point environment, with tables that make_tables.py computes from the
 * formulas of the papers with 50 digits. Also tests all arguments that it must refuse. (Struct sizes:
 * tests/api/struct_size.c.) */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "numerics/tables.h"
#include "support/check.h"
#include "support/environment.h"
#include "trope/trope.h"

#define MAX_PAIRS (TROPE_MAX_ROTARY_DIM / 2)
#define CASES     ((int)(sizeof table_rules / sizeof table_rules[0]))

/* Allows for the rounding of the exponent 2i/d, which is multiplied by ln(base), and for cancellation near the ends of
 * ramps. */
#define TOLERANCE 2e-14

static void check_case(int n)
{
    const int pairs = table_rules[n].args.rotary_dim / 2;
    double inv_freq[MAX_PAIRS + 1], factor = 0.0, worst = 0.0;

    inv_freq[pairs] = 1234.0;
    const trope_status status = trope_frequencies(&table_rules[n].args, inv_freq, &factor);
    if (!CHECK_MESSAGE(status == TROPE_OK, "%s: %s", table_rules[n].name, trope_last_error()))
        return;
    for (int i = 0; i < pairs; i++) {
        const double expected = table_rules[n].inv_freq[i];
        const double error = expected == 0.0 ? fabs(inv_freq[i]) : fabs(inv_freq[i] / expected - 1.0);
        worst = fmax(worst, error);
        CHECK_MESSAGE(error <= TOLERANCE, "%s: inv_freq[%d] is %.17g, expected %.17g", table_rules[n].name, i, inv_freq[i],
                      expected);
    }
    CHECK_MESSAGE(fabs(factor / table_rules[n].attention_factor - 1.0) <= TOLERANCE,
                  "%s: attention_factor is %.17g, expected %.17g", table_rules[n].name, factor,
                  table_rules[n].attention_factor);
    CHECK(inv_freq[pairs] == 1234.0);
    printf("%-32s largest relative error %.2g\n", table_rules[n].name, worst);
}

/* The rounding direction, flushing and traps of the caller do not change the bits of frequencies and phase steps. The
 * functions leave these settings unchanged. */
static void check_environments(int n)
{
    const int32_t pairs = table_rules[n].args.rotary_dim / 2;
    const size_t bytes = (size_t)pairs * sizeof(double);
    double expected[MAX_PAIRS], inv_freq[MAX_PAIRS], expected_factor, factor;
    uint64_t expected_steps[MAX_PAIRS], steps[MAX_PAIRS];

    CHECK(trope_frequencies(&table_rules[n].args, expected, &expected_factor) == TROPE_OK);
    CHECK(trope_phase_steps(expected, pairs, expected_steps) == TROPE_OK);
    for (int i = 0; i < ENVIRONMENTS; i++) {
        environment_enter(i);
        trope_status status = trope_frequencies(&table_rules[n].args, inv_freq, &factor);
        status |= trope_phase_steps(inv_freq, pairs, steps);
        const int is_same = environment_leave(i);
        CHECK_MESSAGE(status == TROPE_OK && is_same, "%s, environment %d: a call failed, or changed the environment",
                      table_rules[n].name, i);
        CHECK_MESSAGE(factor == expected_factor && !memcmp(inv_freq, expected, bytes) &&
                          !memcmp(steps, expected_steps, bytes),
                      "%s, environment %d: the bits differ", table_rules[n].name, i);
    }
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
    double inv_freq[2][MAX_PAIRS], factor[2];
    CHECK_MESSAGE(trope_frequencies(a, inv_freq[0], &factor[0]) == TROPE_OK, "%s: %s", what, trope_last_error());
    CHECK_MESSAGE(trope_frequencies(b, inv_freq[1], &factor[1]) == TROPE_OK, "%s: %s", what, trope_last_error());
    CHECK_MESSAGE(factor[0] == factor[1] && !memcmp(inv_freq[0], inv_freq[1], (size_t)a->rotary_dim / 2 * sizeof(double)),
                  "%s: the results differ", what);
}

/* A field of 0 has the default that the header documents. */
static void check_defaults(void)
{
    trope_frequency_args a = *find_case("DeepSeek-V3"), b;
    a.beta_fast = a.beta_slow = 0;
    check_same("YaRN's betas", find_case("DeepSeek-V3"), &a);

    a = b = *find_case("dynamic NTK, short sequence");
    a.seq_len = 0;
    b.seq_len = b.original_max_position;
    check_same("dynamic NTK without seq_len", &a, &b);

    a = *find_case("Phi-3, short");
    a.seq_len = 0;
    check_same("LongRoPE without seq_len", &a, find_case("Phi-3, short"));

    a = b = *find_case("Gemma, 1/4 rotates");
    a.factor = 1;
    check_same("proportional without factor", &a, &b);
    a.factor = 0;
    a.partial_rotary_factor = 1;
    b.rule = TROPE_RULE_DEFAULT;
    b.partial_rotary_factor = 0;
    check_same("proportional with partial_rotary_factor 1", &a, &b);

    a = *find_case("Phi-3, given attention factor");
    a.factor = 0;
    check_same("LongRoPE with an attention factor and no factor", &a, find_case("Phi-3, given attention factor"));
}

/* A LongRoPE array may be the memory of the result. */
static void check_in_place(void)
{
    trope_frequency_args a = *find_case("Phi-3, short");
    double expected[MAX_PAIRS], inv_freq[MAX_PAIRS], factor;

    CHECK(trope_frequencies(&a, expected, &factor) == TROPE_OK);
    memcpy(inv_freq, table_short_factor, sizeof table_short_factor);
    a.short_factor = inv_freq;
    CHECK(trope_frequencies(&a, inv_freq, &factor) == TROPE_OK);
    CHECK(!memcmp(inv_freq, expected, (size_t)a.rotary_dim / 2 * sizeof(double)));
}

/* A valid case of each rule. */
static const struct {
    int32_t rule;
    const char *base;
} rules[] = {{TROPE_RULE_DEFAULT, "RoFormer"},
             {TROPE_RULE_LINEAR, "position interpolation"},
             {TROPE_RULE_DYNAMIC, "dynamic NTK, long sequence"},
             {TROPE_RULE_YARN, "Qwen2.5, YaRN"},
             {TROPE_RULE_LONGROPE, "Phi-3, short"},
             {TROPE_RULE_LLAMA3, "Llama 3.1"},
             {TROPE_RULE_PROPORTIONAL, "Gemma, 1/4 rotates"}};

typedef enum field_type { INTEGER, REAL, POINTER } field_type;

#define AT(field) offsetof(trope_frequency_args, field)
static const struct {
    const char *name;
    size_t offset;
    field_type type;
    const char *uses; /* one letter for each rule: R requires the field, o accepts it, - does not use it */
} fields[] = {
    {"base", AT(base), REAL, "RRRRRRR"},
    {"factor", AT(factor), REAL, "-RRRRRo"},
    {"original_max_position", AT(original_max_position), REAL, "--RRRR-"},
    {"seq_len", AT(seq_len), REAL, "--o-o--"},
    {"low_freq_factor", AT(low_freq_factor), REAL, "-----R-"},
    {"high_freq_factor", AT(high_freq_factor), REAL, "-----R-"},
    {"beta_fast", AT(beta_fast), REAL, "---o---"},
    {"beta_slow", AT(beta_slow), REAL, "---o---"},
    {"attention_factor", AT(attention_factor), REAL, "---oo--"},
    {"mscale", AT(mscale), REAL, "---o---"},
    {"mscale_all_dim", AT(mscale_all_dim), REAL, "---o---"},
    {"partial_rotary_factor", AT(partial_rotary_factor), REAL, "------R"},
    {"short_factor", AT(short_factor), POINTER, "----R--"},
    {"long_factor", AT(long_factor), POINTER, "----R--"},
    {"no_truncate", AT(no_truncate), INTEGER, "---o---"},
};

/* All other refused arguments: a case, the value of one field, and a part of the message. */
typedef struct refusal {
    const char *base;
    size_t offset;
    field_type type;
    double value;
    trope_status status;
    const char *words;
} refusal;

/* Arrays of ones with one bad element: see fill_bad_arrays. */
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

#define BAD TROPE_ERROR_ARGUMENT
static const refusal refusals[] = {
    {"RoFormer", AT(rule), INTEGER, -1, BAD, "rule (-1) must be a TROPE_RULE_ value"},
    {"RoFormer", AT(rule), INTEGER, 0, BAD, "rule (0) must be a TROPE_RULE_ value"},
    {"RoFormer", AT(rule), INTEGER, 8, BAD, "rule (8) must be a TROPE_RULE_ value"},
    {"RoFormer", AT(rotary_dim), INTEGER, 0, BAD, "rotary_dim (0) must be even and at least 2"},
    {"RoFormer", AT(rotary_dim), INTEGER, 7, BAD, "rotary_dim (7) must be even and at least 2"},
    {"RoFormer", AT(rotary_dim), INTEGER, -2, BAD, "rotary_dim (-2) must be even and at least 2"},
    {"RoFormer", AT(rotary_dim), INTEGER, 1026, BAD, "rotary_dim (1026) must be at most 1024"},
    {"RoFormer", AT(reserved), INTEGER, 1, BAD, "reserved (1) must be 0"},
    {"RoFormer", AT(base), REAL, NAN, BAD, "base (nan) must be finite and greater than 1"},
    {"RoFormer", AT(base), REAL, INFINITY, BAD, "base (inf) must be finite and greater than 1"},
    {"RoFormer", AT(base), REAL, 1, BAD, "base (1) must be finite and greater than 1"},
    {"RoFormer", AT(base), REAL, -10000, BAD, "base (-10000) must be finite and greater than 1"},
    {"position interpolation", AT(factor), REAL, NAN, BAD, "factor (nan) must be finite and greater than 0"},
    {"position interpolation", AT(factor), REAL, -1, BAD, "factor (-1) must be finite and greater than 0"},
    {"position interpolation", AT(factor), REAL, 0x1p-64, BAD, "inv_freq[0] (1.84467440737096e+19) is too large"},
    {"position interpolation", AT(factor), REAL, 1e-320, BAD, "inv_freq[0] (inf) is too large"},
    {"two dimensions", AT(rule), INTEGER, TROPE_RULE_DYNAMIC, BAD, "rotary_dim (2) must be at least 4"},
    {"dynamic NTK, long sequence", AT(original_max_position), REAL, 1, BAD, "must be finite and greater than 1"},
    {"dynamic NTK, long sequence", AT(original_max_position), REAL, NAN, BAD, "original_max_position (nan) must be finite"},
    {"dynamic NTK, long sequence", AT(seq_len), REAL, -1, BAD, "seq_len (-1) must be finite and greater than 0"},
    {"dynamic NTK, long sequence", AT(seq_len), REAL, INFINITY, BAD, "seq_len (inf) must be finite"},
    {"DeepSeek-V3", AT(no_truncate), INTEGER, 2, BAD, "no_truncate (2) must be 0 or 1"},
    {"DeepSeek-V3", AT(beta_fast), REAL, 0.5, BAD, "beta_fast (0.5) must be at least beta_slow (1)"},
    {"DeepSeek-V3", AT(beta_fast), REAL, -32, BAD, "beta_fast (-32) must be finite and greater than 0"},
    {"DeepSeek-V3", AT(beta_slow), REAL, 33, BAD, "beta_fast (32) must be at least beta_slow (33)"},
    {"DeepSeek-V3", AT(beta_slow), REAL, NAN, BAD, "beta_slow (nan) must be finite"},
    {"DeepSeek-V3", AT(mscale), REAL, 0, BAD, "mscale (0) must be given: mscale and"},
    {"DeepSeek-V3", AT(mscale_all_dim), REAL, 0, BAD, "mscale_all_dim (0) must be given: mscale and"},
    {"DeepSeek-V3", AT(mscale), REAL, -1, BAD, "mscale (-1) must be finite and greater than 0"},
    {"DeepSeek-V3", AT(mscale_all_dim), REAL, INFINITY, BAD, "mscale_all_dim (inf) must be finite"},
    {"DeepSeek-V3", AT(attention_factor), REAL, -1, BAD, "attention_factor (-1) must be finite"},
    {"Phi-3, short", AT(short_factor), POINTER, 1, BAD, "short_factor[3] (-1) must be finite and greater than 0"},
    {"Phi-3, short", AT(long_factor), POINTER, 2, BAD, "long_factor[1] (inf) must be finite and greater than 0"},
    {"Phi-3, short", AT(short_factor), POINTER, 3, BAD, "is too large"},
    {"Phi-3, short", AT(attention_factor), REAL, NAN, BAD, "attention_factor (nan) must be finite"},
    {"Llama 3.1", AT(low_freq_factor), REAL, 4, BAD, "high_freq_factor (4) must be greater than low_freq_factor (4)"},
    {"Llama 3.1", AT(low_freq_factor), REAL, NAN, BAD, "low_freq_factor (nan) must be finite"},
    {"Llama 3.1", AT(high_freq_factor), REAL, 0.5, BAD, "high_freq_factor (0.5) must be greater than low_freq_factor (1)"},
    {"Llama 3.1", AT(high_freq_factor), REAL, -4, BAD, "high_freq_factor (-4) must be finite and greater than 0"},
    {"Llama 3.1", AT(low_freq_factor), REAL, 4.0000001, BAD, "(4) must be greater than low_freq_factor (4.0000001)"},
    {"Gemma, 1/4 rotates", AT(partial_rotary_factor), REAL, 1.0000001, BAD, "(1.0000001) must be at most 1"},
    {"Gemma, 1/4 rotates", AT(partial_rotary_factor), REAL, 1.5, BAD, "partial_rotary_factor (1.5) must be at most 1"},
    {"Gemma, 1/4 rotates", AT(partial_rotary_factor), REAL, -0.5, BAD, "partial_rotary_factor (-0.5) must be finite"},
    {"Gemma, 1/4 rotates", AT(partial_rotary_factor), REAL, NAN, BAD, "partial_rotary_factor (nan) must be finite"},
};

/* Checks that a call fails with a message that contains `words` and begins with the name of the argument. */
static void check_refused(const char *what, const trope_frequency_args *args, trope_status expected, const char *words)
{
    double inv_freq[MAX_PAIRS], untouched[MAX_PAIRS], factor = 77.0;

    memset(inv_freq, 0xff, sizeof inv_freq);
    memset(untouched, 0xff, sizeof untouched);
    const trope_status status = trope_frequencies(args, inv_freq, &factor);
    const char *argument = trope_last_error_argument();
    CHECK_MESSAGE(status == expected, "%s: status %d, expected %d", what, (int)status, (int)expected);
    CHECK_MESSAGE(strstr(trope_last_error(), words) && !strncmp(trope_last_error(), "trope_frequencies: ", 19),
                  "%s: the message is \"%s\", expected \"%s\"", what, trope_last_error(), words);
    CHECK_MESSAGE(argument[0] && !strncmp(trope_last_error() + 19, argument, strlen(argument)),
                  "%s: the name of the argument is \"%s\", the message is \"%s\"", what, argument, trope_last_error());
    CHECK_MESSAGE(factor == 77.0 && !memcmp(inv_freq, untouched, sizeof inv_freq), "%s: the failed call wrote results",
                  what);
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

static void set_field(trope_frequency_args *args, size_t offset, field_type type, int is_given)
{
    const double one_and_a_half = 1.5;
    const double *const pointer = is_given ? negative_factor : NULL;
    const int32_t one = 1;
    void *field = (char *)args + offset;
    if (type == POINTER)
        memcpy(field, &pointer, sizeof pointer);
    else if (!is_given)
        memset(field, 0, type == REAL ? sizeof one_and_a_half : sizeof one);
    else if (type == REAL)
        memcpy(field, &one_and_a_half, sizeof one_and_a_half);
    else
        memcpy(field, &one, sizeof one);
}

/* A required field that is missing, and a given field that the rule does not use, are refused by name. */
static void check_field(int rule, int field)
{
    const char use = fields[field].uses[rule], *name = fields[field].name;
    const trope_frequency_args *base = find_case(rules[rule].base);
    trope_frequency_args args = *base;
    double inv_freq[MAX_PAIRS], factor;
    CHECK(base->rule == rules[rule].rule);
    set_field(&args, fields[field].offset, fields[field].type, use == '-');
    if (use == 'o') {
        CHECK_MESSAGE(trope_frequencies(&args, inv_freq, &factor) == TROPE_OK, "%s of rule %d: %s", name, base->rule,
                      trope_last_error());
        return;
    }
    check_refused(name, &args, use == 'R' && fields[field].type == POINTER ? TROPE_ERROR_NULL : TROPE_ERROR_ARGUMENT,
                  use == '-'                      ? "does not use it"
                  : fields[field].type == POINTER ? "needs it"
                                                  : "must be given with");
    CHECK_MESSAGE(!strcmp(trope_last_error_argument(), name), "%s of rule %d: %s", name, base->rule, trope_last_error());
}

static void check_fields(void)
{
    for (int rule = 0; rule < (int)(sizeof rules / sizeof rules[0]); rule++)
        for (int field = 0; field < (int)(sizeof fields / sizeof fields[0]); field++)
            check_field(rule, field);
}

static void check_pointers(void)
{
    trope_frequency_args args = *find_case("RoFormer");
    double inv_freq[MAX_PAIRS], factor;

    check_refused("no arguments", NULL, TROPE_ERROR_NULL, "args is NULL");
    CHECK(trope_frequencies(&args, NULL, &factor) == TROPE_ERROR_NULL);
    CHECK(strstr(trope_last_error(), "trope_frequencies: inv_freq is NULL"));
    CHECK(trope_frequencies(&args, inv_freq, NULL) == TROPE_ERROR_NULL);
    CHECK(strstr(trope_last_error(), "trope_frequencies: attention_factor is NULL"));
    CHECK(trope_frequencies(&args, inv_freq, (double *)(void *)((char *)&factor + 4)) == TROPE_ERROR_ARGUMENT);
    CHECK(strcmp(trope_last_error_argument(), "attention_factor") == 0);
    args = *find_case("Phi-3, short");
    args.long_factor = (const double *)(const void *)((const char *)args.long_factor + 4);
    check_refused("misaligned factors", &args, TROPE_ERROR_ARGUMENT, "long_factor");
}

int main(void)
{
    for (int n = 0; n < CASES; n++) {
        check_case(n);
        check_environments(n);
    }
    check_defaults();
    check_in_place();
    fill_bad_arrays();
    check_fields();
    for (size_t r = 0; r < sizeof refusals / sizeof refusals[0]; r++)
        check_refusal(&refusals[r]);
    check_pointers();
    return check_result();
}
