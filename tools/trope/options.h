/* Command line options as data: tables that say where each option goes, in groups that commands share. */
#ifndef TOOLS_TROPE_OPTIONS_H
#define TOOLS_TROPE_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

typedef struct choice {
    const char *name; /* NULL ends the table */
    int32_t value;
} choice;

/* What an option says that may be given several times. */
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
    OPTION_NONZERO, /* the same, but not 0, which stands for "not given" */
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
    uint64_t given; /* bit i: spec i is on the command line */
} option_group;

enum { OPTIONS_BAD = -1, OPTIONS_HELP = -2 };

/* Sets the fields and returns the index of the first argument that is no option, with all of those moved to the end;
 * OPTIONS_BAD after a complaint; OPTIONS_HELP after printing usage and the options. A name is written out and
 * occurs once, unless it is of OPTION_TEXTS. */
int options_parse(int argc, char **argv, option_group *groups, const char *usage);

/* Whether the option is on the command line. */
int options_given(const option_group *groups, const char *name);
/* Refuses what is on the command line beside option `mode` and has no effect then: all but `allowed`, a list that NULL
 * ends. Returns nonzero after a complaint. */
int options_refuse_beside(const option_group *groups, const char *mode, const char *const *allowed);

/* Text to values, strictly: no text may be left over. They return 0, or complain, beginning with `label`, and return
 * nonzero. */
int parse_integer(const char *label, const char *text, int64_t low, int64_t high, int64_t *value);
int parse_real(const char *label, const char *text, double *value);
int parse_choice(const char *label, const char *text, const choice *choices, int32_t *value);
/* "a,b,c" to exactly `count` integers of at least low. */
int parse_integers(const char *label, const char *text, int64_t low, int count, int64_t *values);
/* How many items "a,b,c" has. */
int list_length(const char *text);

/* The name of a value, "?" if it is in no row. */
const char *choice_name(const choice *choices, int32_t value);

#endif
