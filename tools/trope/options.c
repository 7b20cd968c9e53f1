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
#define FIRST_CODE  256 /* getopt_long's value of option 0: above every character */

int parse_integer(const char *option, const char *text, int64_t low, int64_t high, int64_t *value)
{
    char *end;
    errno = 0;
    const long long number = strtoll(text, &end, 10);
    if (!*text || *end || errno || strchr(" \t\n\v\f\r", *text))
        return complain("--%s: '%.64s' is not a whole number of 64 bits", option, text);
    if (number < low || number > high)
        return complain("--%s: %lld must be in [%" PRId64 ", %" PRId64 "]", option, number, low, high);
    *value = number;
    return 0;
}

int parse_real(const char *option, const char *text, double *value)
{
    char *end;
    const double number = strtod(text, &end);
    if (!*text || *end || !isfinite(number) || strchr(" \t\n\v\f\r", *text))
        return complain("--%s: '%.64s' is not a finite number", option, text);
    *value = number;
    return 0;
}

int parse_choice(const char *option, const char *text, const choice *choices, int32_t *value)
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
    return complain("--%s: '%.64s' is not one of %s", option, text, names);
}

int parse_integers(const char *option, const char *text, int64_t low, int count, int64_t *values)
{
    const char *item = text;
    for (int i = 0; i < count; i++) {
        char digits[32];
        const size_t length = strcspn(item, ",");
        const int last = item[length] == 0;
        if (length >= sizeof digits || last != (i == count - 1))
            return complain("--%s: '%.64s' is not a list of %d whole numbers, such as 1,2,3", option, text, count);
        memcpy(digits, item, length);
        digits[length] = 0;
        if (parse_integer(option, digits, low, INT64_MAX, &values[i]))
            return RESULT_REFUSED;
        item += length + 1;
    }
    return 0;
}

const char *choice_name(const choice *choices, int32_t value)
{
    for (const choice *c = choices; c->name; c++)
        if (c->value == value)
            return c->name;
    return "?";
}

/* An option and the field that it sets. */
typedef struct slot {
    const option_spec *spec;
    char *field;
} slot;

static int set_field(const slot *s, const char *text)
{
    const option_spec *spec = s->spec;
    int64_t number = 0;
    switch (spec->kind) {
    case OPTION_FLAG:
        *(int32_t *)(void *)s->field = 1;
        return 0;
    case OPTION_INT32:
        if (parse_integer(spec->name, text, spec->low, spec->high, &number))
            return RESULT_REFUSED;
        *(int32_t *)(void *)s->field = (int32_t)number;
        return 0;
    case OPTION_INT64:
        return parse_integer(spec->name, text, spec->low, spec->high, (int64_t *)(void *)s->field);
    case OPTION_REAL:
        return parse_real(spec->name, text, (double *)(void *)s->field);
    case OPTION_CHOICE:
        return parse_choice(spec->name, text, spec->choices, (int32_t *)(void *)s->field);
    case OPTION_TEXT:
        *(const char **)(void *)s->field = text;
        return 0;
    }
    return RESULT_REFUSED;
}

static const char *argument_word(const option_spec *spec)
{
    static const char *const words[] = {"", " N", " N", " X", " NAME", " TEXT"};
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

/* Fills slots and getopt's tables; returns the number of options. */
static int collect(const option_group *groups, slot *slots, struct option *longs, char *shorts)
{
    int count = 0;
    *shorts++ = ':'; /* a missing value is told from an unknown option */
    *shorts++ = 'h';
    for (const option_group *g = groups; g->specs; g++) {
        for (const option_spec *spec = g->specs; spec->name && count < MAX_OPTIONS; spec++, count++) {
            const int takes_value = spec->kind != OPTION_FLAG;
            slots[count] = (slot){spec, (char *)g->target + spec->offset};
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

int options_parse(int argc, char **argv, const option_group *groups, const char *usage)
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
        if (!s) {
            complain(code == ':' ? "'%.64s' needs a value" : "'%.64s' is not an option; --help lists them",
                     argv[optind - 1]);
            return OPTIONS_BAD;
        }
        if (set_field(s, optarg))
            return OPTIONS_BAD;
    }
    return optind;
}
