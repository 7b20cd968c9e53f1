#include <stddef.h>
#include <string.h>

#include "command.h"
#include "options.h"
#include "scaling.h"

#define OPTION "scaling"

static const choice rule_choices[] = {{"default", TROPE_RULE_DEFAULT},           {"linear", TROPE_RULE_LINEAR},
                                      {"dynamic", TROPE_RULE_DYNAMIC},           {"yarn", TROPE_RULE_YARN},
                                      {"longrope", TROPE_RULE_LONGROPE},         {"llama3", TROPE_RULE_LLAMA3},
                                      {"proportional", TROPE_RULE_PROPORTIONAL}, {NULL, 0}};

enum {
    LINEAR = 1 << TROPE_RULE_LINEAR,
    DYNAMIC = 1 << TROPE_RULE_DYNAMIC,
    YARN = 1 << TROPE_RULE_YARN,
    LONGROPE = 1 << TROPE_RULE_LONGROPE,
    LLAMA3 = 1 << TROPE_RULE_LLAMA3,
    PROPORTIONAL = 1 << TROPE_RULE_PROPORTIONAL
};

typedef struct scaling_key {
    const char *name;
    size_t offset;    /* of a double in trope_frequency_args */
    int rules;        /* that have this key */
    double otherwise; /* its value where it is not given, if the library has none */
} scaling_key;

static const scaling_key keys[] = {
    {"factor", offsetof(trope_frequency_args, factor), LINEAR | DYNAMIC | YARN | LONGROPE | LLAMA3 | PROPORTIONAL, 1},
    {"original_max_position", offsetof(trope_frequency_args, original_max_position), DYNAMIC | YARN | LONGROPE | LLAMA3, 0},
    {"seq_len", offsetof(trope_frequency_args, seq_len), DYNAMIC | LONGROPE, 0},
    {"low_freq_factor", offsetof(trope_frequency_args, low_freq_factor), LLAMA3, 1},
    {"high_freq_factor", offsetof(trope_frequency_args, high_freq_factor), LLAMA3, 4},
    {"beta_fast", offsetof(trope_frequency_args, beta_fast), YARN, 0},
    {"beta_slow", offsetof(trope_frequency_args, beta_slow), YARN, 0},
    {"attention_factor", offsetof(trope_frequency_args, attention_factor), YARN | LONGROPE, 0},
    {"mscale", offsetof(trope_frequency_args, mscale), YARN, 0},
    {"mscale_all_dim", offsetof(trope_frequency_args, mscale_all_dim), YARN, 0},
    {"partial_rotary_factor", offsetof(trope_frequency_args, partial_rotary_factor), PROPORTIONAL, 1},
};
enum { KEY_COUNT = sizeof keys / sizeof keys[0] };

/* "1;1.25;..." to one factor a pair. */
static int parse_factors(const char *name, char *text, int32_t count, double *factors)
{
    int32_t found = 0;
    for (char *item = text; item; found++) {
        char *next = strchr(item, ';');
        if (next)
            *next++ = 0;
        if (found == count)
            return complain("--" OPTION ": %s must have %d factors, one per pair, and has more", name, count);
        if (parse_real(OPTION, item, &factors[found]))
            return RESULT_REFUSED;
        item = next;
    }
    if (found != count)
        return complain("--" OPTION ": %s must have %d factors, one per pair, and has %d", name, count, found);
    return 0;
}

static double *field_of(const scaling_key *key, scaling_rule *rule)
{
    return (double *)(void *)((char *)&rule->args + key->offset);
}

static int set_key(scaling_rule *rule, const char *name, char *value)
{
    const int own = 1 << rule->args.rule;
    const int32_t pairs = rule->args.rotary_dim / 2;
    if (own == LONGROPE && !strcmp(name, "short_factor")) {
        rule->args.short_factor = rule->short_factor;
        return parse_factors(name, value, pairs, rule->short_factor);
    }
    if (own == LONGROPE && !strcmp(name, "long_factor")) {
        rule->args.long_factor = rule->long_factor;
        return parse_factors(name, value, pairs, rule->long_factor);
    }
    if (own == YARN && !strcmp(name, "no_truncate")) {
        int64_t flag;
        if (parse_integer(OPTION, value, 0, 1, &flag))
            return RESULT_REFUSED;
        rule->args.no_truncate = (int32_t)flag;
        return 0;
    }
    for (int i = 0; i < KEY_COUNT; i++)
        if ((keys[i].rules & own) && !strcmp(keys[i].name, name))
            return parse_real(OPTION, value, field_of(&keys[i], rule));
    return complain("--" OPTION ": rule %s has no key '%.64s'", choice_name(rule_choices, rule->args.rule), name);
}

/* Cuts `text` up in place. */
static int parse_rule(char *text, scaling_rule *rule)
{
    char *item = strchr(text, ':');
    if (item)
        *item++ = 0;
    if (parse_choice(OPTION, text, rule_choices, &rule->args.rule))
        return RESULT_REFUSED;
    while (item) {
        char *next = strchr(item, ',');
        if (next)
            *next++ = 0;
        char *value = strchr(item, '=');
        if (!value)
            return complain("--" OPTION ": '%.64s' is not key=value", item);
        *value++ = 0;
        if (set_key(rule, item, value))
            return RESULT_REFUSED;
        item = next;
    }
    return 0;
}

static void set_missing(scaling_rule *rule)
{
    for (int i = 0; i < KEY_COUNT; i++)
        if ((keys[i].rules & 1 << rule->args.rule) && *field_of(&keys[i], rule) == 0)
            *field_of(&keys[i], rule) = keys[i].otherwise;
}

int scaling_parse(const char *text, int32_t rotary_dim, scaling_rule *rule)
{
    char copy[65536];
    memset(rule, 0, sizeof *rule);
    rule->args.struct_size = sizeof rule->args;
    rule->args.rule = TROPE_RULE_DEFAULT;
    rule->args.rotary_dim = rotary_dim;
    if (!text)
        return 0;
    if (strlen(text) >= sizeof copy)
        return complain("--" OPTION ": the text must be shorter than %zu bytes", sizeof copy);
    memcpy(copy, text, strlen(text) + 1);
    if (parse_rule(copy, rule))
        return RESULT_REFUSED;
    set_missing(rule);
    return 0;
}
