#include <stddef.h>
#include <string.h>

#include "command.h"
#include "options.h"
#include "scaling.h"

#define OPTION "--scaling"

static const choice rule_choices[] = {{"default", TROPE_RULE_DEFAULT},           {"linear", TROPE_RULE_LINEAR},
                                      {"dynamic", TROPE_RULE_DYNAMIC},           {"yarn", TROPE_RULE_YARN},
                                      {"longrope", TROPE_RULE_LONGROPE},         {"llama3", TROPE_RULE_LLAMA3},
                                      {"proportional", TROPE_RULE_PROPORTIONAL}, {NULL, 0}};

enum {
    DEFAULT = 1 << TROPE_RULE_DEFAULT,
    LINEAR = 1 << TROPE_RULE_LINEAR,
    DYNAMIC = 1 << TROPE_RULE_DYNAMIC,
    YARN = 1 << TROPE_RULE_YARN,
    LONGROPE = 1 << TROPE_RULE_LONGROPE,
    LLAMA3 = 1 << TROPE_RULE_LLAMA3,
    PROPORTIONAL = 1 << TROPE_RULE_PROPORTIONAL
};

typedef struct scaling_key {
    const char *name; /* as in a config.json */
    size_t offset;    /* of a double in trope_frequency_args */
    int rules;        /* rules that have this key */
    int needed_by;    /* rules that require this key */
} scaling_key;

static const scaling_key keys[] = {
    {"factor", offsetof(trope_frequency_args, factor), LINEAR | DYNAMIC | YARN | LONGROPE | LLAMA3 | PROPORTIONAL,
     LINEAR | DYNAMIC | YARN | LLAMA3},
    {"original_max_position_embeddings", offsetof(trope_frequency_args, original_max_position),
     DYNAMIC | YARN | LONGROPE | LLAMA3, DYNAMIC | YARN | LONGROPE | LLAMA3},
    {"low_freq_factor", offsetof(trope_frequency_args, low_freq_factor), LLAMA3, LLAMA3},
    {"high_freq_factor", offsetof(trope_frequency_args, high_freq_factor), LLAMA3, LLAMA3},
    {"beta_fast", offsetof(trope_frequency_args, beta_fast), YARN, 0},
    {"beta_slow", offsetof(trope_frequency_args, beta_slow), YARN, 0},
    {"attention_factor", offsetof(trope_frequency_args, attention_factor), YARN | LONGROPE, 0},
    {"mscale", offsetof(trope_frequency_args, mscale), YARN, 0},
    {"mscale_all_dim", offsetof(trope_frequency_args, mscale_all_dim), YARN, 0},
    {"partial_rotary_factor", offsetof(trope_frequency_args, partial_rotary_factor), PROPORTIONAL, PROPORTIONAL},
};
enum { KEY_COUNT = sizeof keys / sizeof keys[0] };

static const choice truth_choices[] = {{"true", 0}, {"false", 1}, {NULL, 0}}; /* truncate sets no_truncate */

/* Parses "1;1.25;..." into one factor per pair. */
static int parse_factors(const char *name, char *text, int32_t count, double *factors)
{
    int32_t found = 0;
    for (char *item = text; item; found++) {
        char *next = strchr(item, ';');
        if (next)
            *next++ = 0;
        if (found == count)
            return complain(OPTION ": %s must have %d factors, one per pair, and has more", name, count);
        if (parse_real(OPTION, item, &factors[found]))
            return RESULT_REFUSED;
        item = next;
    }
    if (found != count)
        return complain(OPTION ": %s must have %d factors, one per pair, and has %d", name, count, found);
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
    if (own == YARN && !strcmp(name, "truncate"))
        return parse_choice(OPTION ": truncate", value, truth_choices, &rule->args.no_truncate);
    for (int i = 0; i < KEY_COUNT; i++) {
        if (!(keys[i].rules & own) || strcmp(keys[i].name, name))
            continue;
        double *field = field_of(&keys[i], rule);
        if (parse_real(OPTION, value, field))
            return RESULT_REFUSED;
        return *field != 0 ? 0 : complain(OPTION ": %s must not be 0", name);
    }
    if (own == DEFAULT)
        return complain(OPTION ": rule default has no keys, but '%.64s' is given", name);
    return complain(OPTION ": rule %s has no key '%.64s'", choice_name(rule_choices, rule->args.rule), name);
}

/* Returns whether the key `item` also occurs before it in the text from `first` on. Separators are already zeros there. */
static int is_repeated(const char *first, const char *item)
{
    for (const char *c = first; c < item; c += strlen(c) + 1)
        if (!strcmp(c, item))
            return 1;
    return 0;
}

/* Parses `text` and writes zeros over its separators. */
static int parse_rule(char *text, scaling_rule *rule)
{
    char *item = strchr(text, ':');
    if (item)
        *item++ = 0;
    const char *first = item;
    if (parse_choice(OPTION, text, rule_choices, &rule->args.rule))
        return RESULT_REFUSED;
    while (item) {
        char *next = strchr(item, ',');
        if (next)
            *next++ = 0;
        char *value = strchr(item, '=');
        if (!value)
            return complain(OPTION ": '%.64s' is not key=value", item);
        *value++ = 0;
        if (is_repeated(first, item))
            return complain(OPTION ": %.64s is given twice", item);
        if (set_key(rule, item, value))
            return RESULT_REFUSED;
        item = next;
    }
    return 0;
}

static int check_missing(scaling_rule *rule)
{
    const int own = 1 << rule->args.rule;
    for (int i = 0; i < KEY_COUNT; i++)
        if ((keys[i].needed_by & own) && *field_of(&keys[i], rule) == 0)
            return complain(OPTION ": rule %s needs %s=..., which is missing", choice_name(rule_choices, rule->args.rule),
                            keys[i].name);
    if (own == LONGROPE && (!rule->args.short_factor || !rule->args.long_factor))
        return complain(OPTION ": rule longrope needs short_factor=... and long_factor=...");
    return 0;
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
        return complain(OPTION ": the text must be shorter than %zu bytes", sizeof copy);
    memcpy(copy, text, strlen(text) + 1);
    if (parse_rule(copy, rule))
        return RESULT_REFUSED;
    return check_missing(rule);
}
