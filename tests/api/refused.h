/* Tests that wrong calls are refused. Each call must return the expected status, name the argument, write nothing, and give
 * a message of one line with function, argument, value and rule.
 *
 * A row is { a valid call, the change that makes it wrong, status, argument, words of the message }. Each row is tested
 * with every function that takes such args. */
#ifndef TESTS_API_REFUSED_H
#define TESTS_API_REFUSED_H

#include "api/row_call.h"
#include "support/check.h"

/* The functions that must refuse a row. */
enum {
    FORWARD = 1,
    BACKWARD = 2,
    NAME = 4, /* trope_kernel_name, for the directions that are also set */
    SIZE = 8  /* trope_workspace_size */
};
enum {
    IS_NULL = TROPE_ERROR_NULL,
    ARGUMENT = TROPE_ERROR_ARGUMENT,
    OVERLAP = TROPE_ERROR_OVERLAP,
    TOO_LARGE = TROPE_ERROR_OVERFLOW,
    DATA = TROPE_ERROR_DATA,
    UNSUPPORTED = TROPE_ERROR_UNSUPPORTED
};

static int row_count;

/* The refusal that a row expects. */
typedef struct refusal {
    const char *what;
    trope_status status;
    const char *argument, *words;
} refusal;

/* Checks one refusal, and returns whether it is as expected. */
static int check_one(const refusal *r, const char *function, trope_status got)
{
    const char *message = trope_last_error(), *argument = trope_last_error_argument();
    const size_t length = strlen(function);
    if (!CHECK_MESSAGE(got == r->status, "%s: %s returned %s, not %s (%s %s)", r->what, function, trope_status_name(got),
                       trope_status_name(r->status), r->argument, r->words))
        return 0;
    return CHECK_MESSAGE(strncmp(message, function, length) == 0 && strncmp(message + length, ": ", 2) == 0,
                         "%s: the message does not begin with \"%s: \": %s", r->what, function, message) &&
           CHECK_MESSAGE(strcmp(argument, r->argument) == 0, "%s: %s names the argument \"%s\", not \"%s\": %s", r->what,
                         function, argument, r->argument, message) &&
           CHECK_MESSAGE(strstr(message, argument) && strstr(message, r->words) && !strchr(message, '\n'),
                         "%s: the message of %s is not one line with \"%s\" and \"%s\": %s", r->what, function, argument,
                         r->words, message) &
               CHECK_MESSAGE(outputs_are_untouched(), "%s: %s wrote something", r->what, function);
}

__attribute__((unused)) static void check_refused(const refusal *r, int functions)
{
    char name[64];
    uint64_t bytes;
    row_count++;
    if (functions & FORWARD && !check_one(r, "trope_forward", trope_forward(a)))
        return; /* the other functions would fail in the same way */
    if (functions & BACKWARD && !check_one(r, "trope_backward", trope_backward(a)))
        return;
    for (int backward = 0; backward < 2 && functions & NAME; backward++)
        if (functions & (backward ? BACKWARD : FORWARD))
            check_one(r, "trope_kernel_name", trope_kernel_name(a, backward, name, sizeof name));
    if (functions & SIZE)
        check_one(r, "trope_workspace_size", trope_workspace_size(a, &bytes));
}

#define ROW_FOR(functions, valid, change, ...)                                                                             \
    do {                                                                                                                   \
        begin(valid);                                                                                                      \
        change;                                                                                                            \
        check_refused(&(refusal){#valid ", " #change, __VA_ARGS__}, functions);                                            \
    } while (0)
/* ROW: both directions refuse the call. FORWARD_ROW, BACKWARD_ROW: this direction refuses it. DATA_ROW: trope_forward and
 * trope_backward refuse it. Only these functions read the data behind the pointers. */
#define ROW(valid, change, ...)          ROW_FOR(FORWARD | BACKWARD | NAME | SIZE, valid, change, __VA_ARGS__)
#define FORWARD_ROW(valid, change, ...)  ROW_FOR(FORWARD | NAME, valid, change, __VA_ARGS__)
#define BACKWARD_ROW(valid, change, ...) ROW_FOR(BACKWARD | NAME | SIZE, valid, change, __VA_ARGS__)
#define DATA_ROW(valid, change, ...)     ROW_FOR(FORWARD | BACKWARD, valid, change, DATA, __VA_ARGS__)

/* The argument that VALUES expects for a field: "operands[1].head_dim" for k->head_dim. VALUES tests values that the field
 * must not have. */
__attribute__((unused)) static const char *argument_of(const char *field)
{
    static char text[64];
    snprintf(text, sizeof text, "%s%s", *field == 'a' ? "" : *field == 'q' ? "operands[0]." : "operands[1].", field + 3);
    return text;
}

__attribute__((unused)) static const char *in_brackets(int64_t value)
{
    static char text[32];
    snprintf(text, sizeof text, "(%lld)", (long long)value);
    return text;
}

#define VALUES_FOR(row, valid, field, ...)                                                                                 \
    do {                                                                                                                   \
        const int64_t values[] = {__VA_ARGS__};                                                                            \
        for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)                                                      \
            row(valid, field = (__typeof__(field))values[i], ARGUMENT, argument_of(#field), in_brackets(values[i]));       \
    } while (0)
#define VALUES(valid, field, ...)          VALUES_FOR(ROW, valid, field, __VA_ARGS__)
#define BACKWARD_VALUES(valid, field, ...) VALUES_FOR(BACKWARD_ROW, valid, field, __VA_ARGS__)

/* A call of a function that takes other arguments. */
#define CALL_ROW(function, arguments, ...)                                                                                 \
    do {                                                                                                                   \
        row_count++;                                                                                                       \
        check_one(&(refusal){#function #arguments, __VA_ARGS__}, #function, function arguments);                           \
    } while (0)

#define POSITIONS_ROW(valid, change, ...)                                                                                  \
    do {                                                                                                                   \
        begin(valid);                                                                                                      \
        change;                                                                                                            \
        row_count++;                                                                                                       \
        check_one(&(refusal){#valid ", " #change, __VA_ARGS__}, "trope_positions",                                         \
                  trope_positions(a, (int64_t *)out.q, (int32_t *)out.k));                                                 \
    } while (0)

/* Returns "name[i]". */
__attribute__((unused)) static const char *at(const char *name, int i)
{
    static char text[64];
    snprintf(text, sizeof text, "%s[%d]", name, i);
    return text;
}

static int refused_result(void)
{
    printf("%d calls that must be refused\n", row_count);
    return check_result();
}

#endif
