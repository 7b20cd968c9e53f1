#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "options.h"

#define MAX_OPTIONS 64
#define FIRST_CODE  256 /* getopt_long's value of option 0: larger than every character */

int parse_integer(const char *label, const char *text, int64_t low, int64_t high, int64_t *value)
{
    char *end;
    errno = 0;
    const long long number = strtoll(text, &end, 10);
    if (!*text || *end || errno || strchr(" \t\n\v\f\r", *text))
        return complain("%s: '%.64s' is not a whole number of 64 bits", label, text);
    if (number < low || number > high)
        return complain("%s: %lld must be in [%" PRId64 ", %" PRId64 "]", label, number, low, high);
    *value = number;
    return 0;
}

int parse_real(const char *label, const char *text, double *value)
{
    char *end;
    const double number = strtod(text, &end);
    if (!*text || *end || !isfinite(number) || strchr(" \t\n\v\f\r", *text))
        return complain("%s: '%.64s' is not a finite number", label, text);
    *value = number;
    return 0;
}

int parse_choice(const char *label, const char *text, const choice *choices, int32_t *value)
{
    char names[256] = "";
    for (const choice *c = choices; c->name; c++) {
        if (!strcmp(c->name, text)) {
            *value = c->value;
            return 0;
        }
        const size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", c->name);
    }
    return complain("%s: '%.64s' is not one of %s", label, text, names);
}

int parse_integers(const char *label, const char *text, int64_t low, int count, int64_t *values)
{
    const char *item = text;
    for (int i = 0; i < count; i++) {
        char digits[32];
        const size_t length = strcspn(item, ",");
        const int last = item[length] == 0;
        if (length >= sizeof digits || last != (i == count - 1))
            return complain("%s: '%.64s' is not a list of %d whole numbers, such as 1,2,3", label, text, count);
        memcpy(digits, item, length);
        digits[length] = 0;
        if (parse_integer(label, digits, low, INT64_MAX, &values[i]))
            return RESULT_REFUSED;
        item += length + 1;
    }
    return 0;
}

int list_length(const char *text)
{
    int count = 1;
    for (const char *c = text; *c; c++)
        count += *c == ',';
    return count;
}

const char *choice_name(const choice *choices, int32_t value)
{
    for (const choice *c = choices; c->name; c++)
        if (c->value == value)
            return c->name;
    return "?";
}

/* An option, the field that it sets, and the word that marks it as given. */
typedef struct slot {
    const option_spec *spec;
    char *field;
    uint64_t *given;
    uint64_t mark;
} slot;

static int add_text(option_texts *texts, const char *text, const char *label)
{
    const int32_t most = (int32_t)(sizeof texts->texts / sizeof texts->texts[0]);
    if (!*text)
        return complain("%s: must not be empty", label);
    if (texts->count == most)
        return complain("%s: must be given at most %d times", label, most);
    texts->texts[texts->count++] = text;
    return 0;
}

static int set_field(const option_spec *spec, char *field, const char *text, const char *label)
{
    int64_t number = 0;
    switch (spec->kind) {
    case OPTION_FLAG:
        *(int32_t *)(void *)field = 1;
        return 0;
    case OPTION_INT32:
        if (parse_integer(label, text, spec->low, spec->high, &number))
            return RESULT_REFUSED;
        *(int32_t *)(void *)field = (int32_t)number;
        return 0;
    case OPTION_INT64:
        return parse_integer(label, text, spec->low, spec->high, (int64_t *)(void *)field);
    case OPTION_REAL:
        return parse_real(label, text, (double *)(void *)field);
    case OPTION_NONZERO:
        if (parse_real(label, text, (double *)(void *)field))
            return RESULT_REFUSED;
        return *(double *)(void *)field != 0 ? 0 : complain("%s: must not be 0", label);
    case OPTION_CHOICE:
        return parse_choice(label, text, spec->choices, (int32_t *)(void *)field);
    case OPTION_TEXT:
        *(const char **)(void *)field = text;
        return *text ? 0 : complain("%s: must not be empty", label);
    case OPTION_TEXTS:
        return add_text((option_texts *)(void *)field, text, label);
    }
    return RESULT_REFUSED;
}

static const char *argument_word(const option_spec *spec)
{
    static const char *const words[] = {"", " N", " N", " X", " X", " NAME", " TEXT", " TEXT"};
    return words[spec->kind];
}

static void print_options(const option_group *groups, const char *usage)
{
    printf("%s\n", usage);
    for (const option_group *g = groups; g->specs; g++) {
        for (const option_spec *spec = g->specs; spec->name; spec++) {
            char left[64];
            const int used = spec->letter ? snprintf(left, sizeof left, "-%c, ", spec->letter) : 0;
            snprintf(left + used, sizeof left - (size_t)used, "--%s%s", spec->name, argument_word(spec));
            printf("  %-26s%s", left, spec->help);
            for (const choice *c = spec->choices; c && c->name; c++)
                printf("%s%s", c == spec->choices ? ": " : ", ", c->name);
            printf("\n");
        }
    }
}

/* Fills the slots and getopt's tables. Returns the number of options. */
static int collect(option_group *groups, slot *slots, struct option *longs, char *shorts)
{
    int count = 0;
    *shorts++ = ':'; /* distinguishes a missing value from an unknown option */
    *shorts++ = 'h';
    for (option_group *g = groups; g->specs; g++) {
        for (const option_spec *spec = g->specs; spec->name && count < MAX_OPTIONS; spec++, count++) {
            const int takes_value = spec->kind != OPTION_FLAG;
            slots[count] = (slot){spec, (char *)g->target + spec->offset, &g->given, (uint64_t)1 << (spec - g->specs)};
            longs[count] =
                (struct option){spec->name, takes_value ? required_argument : no_argument, NULL, FIRST_CODE + count};
            if (spec->letter)
                *shorts++ = spec->letter;
            if (spec->letter && takes_value)
                *shorts++ = ':';
        }
    }
    *shorts = 0;
    longs[count] = (struct option){"help", no_argument, NULL, 'h'};
    longs[count + 1] = (struct option){NULL, 0, NULL, 0};
    return count;
}

static const slot *slot_of(int code, const slot *slots, int count)
{
    if (code >= FIRST_CODE)
        return code - FIRST_CODE < count ? &slots[code - FIRST_CODE] : NULL;
    for (int i = 0; i < count; i++)
        if (slots[i].spec->letter && slots[i].spec->letter == code)
            return &slots[i];
    return NULL;
}

/* Names of options in other programs and config files. */
static const char *const other_names[][2] = {
    {"base", "--rope-theta"},
    {"theta", "--rope-theta"},
    {"rotary-base", "--rope-theta"},
    {"rope-base", "--rope-theta"},
    {"rotary-emb-base", "--rope-theta"},
    {"rope-scaling", "--scaling"},
    {"rope-type", "--scaling"},
    {"rope-parameters", "--scaling"},
    {"rope-factor", "--scaling RULE:factor=..."},
    {"factor", "--scaling RULE:factor=..."},
    {"rotary-percent", "--partial-rotary-factor"},
    {"rotary-pct", "--partial-rotary-factor"},
    {"qk-rope-head-dim", "--rotary-dim"},
    {"interleaved", "--pairing interleaved"},
    {"rotary-interleaved", "--pairing interleaved"},
    {"neox-style", "--pairing half"},
    {"is-neox", "--pairing half"},
    {"tensor-format", "--layout"},
    {"qkv-format", "--layout"},
    {"mrope-section", "--axis-sections"},
    {"mrope-interleaved", "--axis-map interleaved"},
    {"context-parallel-size", "--cp-size"},
    {"context-parallel-rank", "--cp-rank"},
    {"conjugate", "--inverse"},
    {"attention-scaling", "--mscale"},
    {"attention-factor", "--mscale"},
    {"rtol", "--ulp"},
    {"atol", "--ulp"},
    {"out", "--output"},
    {"reference", "--expect"},
};

/* `word` is the argument on the command line, such as --theta or --theta=3. */
static int complain_unknown(const char *word, const slot *slots, int count)
{
    char name[32] = "";
    if (!strncmp(word, "--", 2))
        snprintf(name, sizeof name, "%.*s", (int)strcspn(word + 2, "="), word + 2);
    for (char *c = name; *c; c++)
        *c = *c == '_' ? '-' : *c;
    for (int i = 0; i < count; i++)
        if (!strcmp(name, slots[i].spec->name))
            return complain("'%.64s' is spelled --%s", word, name);
    for (size_t i = 0; i < sizeof other_names / sizeof other_names[0]; i++)
        if (!strcmp(name, other_names[i][0]))
            return complain("'%.64s' is not an option; its name in trope is %s, if this command has it (see --help)", word,
                            other_names[i][1]);
    return complain("'%.64s' is not an option; --help lists them", word);
}

/* getopt accepts abbreviated names. They are refused here, because a new option could make them ambiguous. */
static int is_abbreviated(const option_spec *spec, const char *word)
{
    return !strncmp(word, "--", 2) && strlen(spec->name) != strcspn(word + 2, "=");
}

/* Returns the argument that names the option which getopt has just read. */
static const char *option_word(char **argv, const option_spec *spec)
{
    return spec->kind != OPTION_FLAG && optarg == argv[optind - 1] ? argv[optind - 2] : argv[optind - 1];
}

static int take(const slot *s, const char *word)
{
    char label[64];
    snprintf(label, sizeof label, "--%s", s->spec->name);
    if (is_abbreviated(s->spec, word))
        return complain("'%.64s' must be written out: %s", word, label);
    if (*s->given & s->mark && s->spec->kind != OPTION_TEXTS)
        return complain("%s: is given twice", label);
    *s->given |= s->mark;
    return set_field(s->spec, s->field, optarg, label);
}

int options_parse(int argc, char **argv, option_group *groups, const char *usage)
{
    slot slots[MAX_OPTIONS];
    struct option longs[MAX_OPTIONS + 2];
    char shorts[2 * MAX_OPTIONS + 3];
    const int count = collect(groups, slots, longs, shorts);
    opterr = 0;
    optind = 1;
    int code;
    while ((code = getopt_long(argc, argv, shorts, longs, NULL)) != -1) {
        if (code == 'h') {
            print_options(groups, usage);
            return OPTIONS_HELP;
        }
        const slot *s = slot_of(code, slots, count);
        if (!s && code == ':') {
            complain("'%.64s' needs a value", argv[optind - 1]);
            return OPTIONS_BAD;
        }
        if (!s) {
            complain_unknown(argv[optind - 1], slots, count);
            return OPTIONS_BAD;
        }
        if (take(s, option_word(argv, s->spec)))
            return OPTIONS_BAD;
    }
    return optind;
}

static const option_spec *find_option(const option_group *groups, const char *name, const option_group **group)
{
    for (const option_group *g = groups; g->specs; g++)
        for (const option_spec *spec = g->specs; spec->name; spec++)
            if (!strcmp(spec->name, name)) {
                *group = g;
                return spec;
            }
    return NULL;
}

int options_given(const option_group *groups, const char *name)
{
    const option_group *group;
    const option_spec *spec = find_option(groups, name, &group);
    return spec && group->given >> (spec - group->specs) & 1;
}

static int is_in(const char *name, const char *const *list)
{
    while (*list && strcmp(*list, name))
        list++;
    return *list != NULL;
}

int options_refuse_beside(const option_group *groups, const char *mode, const char *const *allowed)
{
    if (!options_given(groups, mode))
        return 0;
    for (const option_group *g = groups; g->specs; g++)
        for (const option_spec *spec = g->specs; spec->name; spec++)
            if (g->given >> (spec - g->specs) & 1 && strcmp(spec->name, mode) && !is_in(spec->name, allowed))
                return complain("--%s: has no effect with --%s", spec->name, mode);
    return 0;
}
