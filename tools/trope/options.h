/* Command line options as data: tables that map each option to a field, in groups that commands share. */
#ifndef TOOLS_TROPE_OPTIONS_H
#define TOOLS_TROPE_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

typedef struct choice {
    const char *name; /* NULL ends the table */
    int32_t value;
} choice;

/* The values of an option that may be given several times. */
typedef struct option_texts {
    int32_t count;
    const char *texts[16];
} option_texts;

/* The type of the field that an option sets. */
typedef enum option_kind {
    OPTION_FLAG,    /* int32_t, becomes 1 */
    OPTION_INT32,   /* int32_t in [low, high] */
    OPTION_INT64,   /* int64_t in [low, high] */
    OPTION_REAL,    /* double, finite */
    OPTION_NONZERO, /* double, finite and not 0, which stands for "not given" */
    OPTION_CHOICE,  /* int32_t, one of choices */
    OPTION_TEXT,    /* const char * */
    OPTION_TEXTS    /* option_texts; may be given several times */
} option_kind;

typedef struct option_spec {
    const char *name; /* NULL ends the table */
    char letter;      /* short form, or 0 */
    option_kind kind;
    size_t offset; /* of the field in the group's target */
    int64_t low, high;
    const choice *choices;
    const char *help;
} option_spec;

typedef struct option_group {
    const option_spec *specs; /* at most 64; NULL ends the list */
    void *target;
    uint64_t given; /* bit i: option i is on the command line */
} option_group;

enum { OPTIONS_BAD = -1, OPTIONS_HELP = -2 };

/* Sets the fields and returns the index of the first argument that is not an option; all such arguments move to the end.
 * Returns OPTIONS_BAD after a complaint, or OPTIONS_HELP after printing usage and the options. Options cannot be
 * abbreviated, and only those of kind OPTION_TEXTS may be repeated. */
int options_parse(int argc, char **argv, option_group *groups, const char *usage);

/* Returns whether the option is on the command line. */
int options_given(const option_group *groups, const char *name);
/* Refuses options that have no effect beside option `mode`: all on the command line except `allowed`, a list that ends with
 * NULL. Returns nonzero after a complaint. */
int options_refuse_beside(const option_group *groups, const char *mode, const char *const *allowed);

/* Convert text to values, strictly: no text may be left over. They return 0, or nonzero after a complaint that begins with
 * `label`. */
int parse_integer(const char *label, const char *text, int64_t low, int64_t high, int64_t *value);
int parse_real(const char *label, const char *text, double *value);
int parse_choice(const char *label, const char *text, const choice *choices, int32_t *value);
/* Converts "a,b,c" to exactly `count` integers of at least `low`. */
int parse_integers(const char *label, const char *text, int64_t low, int count, int64_t *values);
/* Returns the number of items in "a,b,c". */
int list_length(const char *text);

/* Returns the name of a value, or "?" if the table does not have it. */
const char *choice_name(const choice *choices, int32_t value);

#endif
