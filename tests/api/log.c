/* trope_log_calls records each kind of call once, with its count, kernel and text. */
#include <pthread.h>
#include <stdlib.h>

#include "api/valid_call.h"
#include "support/check.h"

static char record[1 << 16];

static size_t read_record(void)
{
    return trope_logged_calls(record, sizeof record);
}

static int count_lines(void)
{
    int lines = 0;
    read_record();
    for (const char *c = record; *c; c++)
        lines += *c == '\n';
    return lines;
}

/* Returns the count of the kind whose text contains all these words, or -1 if there is none. */
static long count_of(const char *one, const char *other)
{
    read_record();
    for (char *state = NULL, *line = strtok_r(record, "\n", &state); line; line = strtok_r(NULL, "\n", &state))
        if (strstr(line, one) && strstr(line, other))
            return strtol(line, NULL, 10);
    return -1;
}

static void is_off_until_asked(void)
{
    call *c = dense();
    CHECK(trope_forward(call_args(c)) == TROPE_OK);
    CHECK(count_lines() == 0 && read_record() == 1);
    CHECK(trope_log_calls(2) == TROPE_ERROR_ARGUMENT && !strcmp(trope_last_error_argument(), "on"));
    CHECK(trope_log_calls(-1) == TROPE_ERROR_ARGUMENT);
    CHECK(count_lines() == 0);
}

static void counts_kinds(void)
{
    CHECK(trope_log_calls(1) == TROPE_OK);
    for (int i = 0; i < 3; i++) {
        call *c = dense();
        c->args.tokens = 4 + i; /* another number of tokens is the same kind */
        c->args.mscale = 1 + i;
        CHECK(trope_forward(call_args(c)) == TROPE_OK);
    }
    CHECK(trope_backward(call_args(dense())) == TROPE_OK);
    CHECK(count_lines() == 2);
    CHECK(count_of("forward ", "freqs") == 3);
    CHECK(count_of("backward ", "freqs") == 1);
    CHECK(count_of("forward ", " tokens=6 ") == 3); /* the text is that of the most tokens */
    char name[64];
    CHECK(trope_kernel_name(call_args(dense()), 0, name, sizeof name) == TROPE_OK);
    CHECK(count_of("forward ", name) == 3);
    call *c = dense();
    c->args.inverse = 1;
    CHECK(trope_forward(call_args(c)) == TROPE_OK);
    CHECK(count_lines() == 3 && count_of("inverse=1", "forward") == 1);
}

static void omits_other_calls(void)
{
    const int before = count_lines();
    uint64_t bytes;
    call *c = dense();
    c->args.pairing = 0;
    CHECK(trope_forward(call_args(c)) != TROPE_OK);
    CHECK(trope_workspace_size(call_args(phase()), &bytes) == TROPE_OK);
    CHECK(count_lines() == before);
    CHECK(trope_log_calls(0) == TROPE_OK);
    CHECK(trope_forward(call_args(phase())) == TROPE_OK);
    CHECK(count_lines() == before);
}

/* The result is the size of the whole record, also if only a part of it fits. */
static void writes_what_fits(void)
{
    char part[16];
    const size_t size = read_record();
    memset(part, 'x', sizeof part);
    CHECK(size == strlen(record) + 1 && size > sizeof part);
    CHECK(trope_logged_calls(part, sizeof part - 1) == size);
    CHECK(part[sizeof part - 2] == 0 && part[sizeof part - 1] == 'x' && !strncmp(part, record, sizeof part - 2));
    CHECK(trope_logged_calls(part, 1) == size && part[0] == 0);
    CHECK(trope_logged_calls(NULL, 0) == size && trope_logged_calls(NULL, 100) == size);
}

static void *call_often(void *unused)
{
    float x[8] = {1}, table[4] = {1, 2, 3, 4};
    for (int i = 0; i < 1000; i++) {
        call c = call_make(TROPE_F32, 1, 1);
        call_add(&c, x, TROPE_BSHD, 1, 8, 8);
        call_freqs(&c, table, TROPE_COLUMNS_PAIR, 1);
        if (trope_forward(call_args(&c)))
            return (void *)trope_last_error();
    }
    return unused;
}

static void counts_all_threads(void)
{
    pthread_t threads[4];
    CHECK(trope_log_calls(1) == TROPE_OK);
    for (int i = 0; i < 4; i++)
        CHECK(!pthread_create(&threads[i], NULL, call_often, NULL));
    for (int i = 0; i < 4; i++) {
        void *error;
        CHECK(!pthread_join(threads[i], &error));
        CHECK_MESSAGE(!error, "%s", (const char *)error);
    }
    CHECK(count_of("head_dim=8 rotary_dim=8", "tokens=1") == 4000);
}

int main(void)
{
    is_off_until_asked();
    counts_kinds();
    omits_other_calls();
    writes_what_fits();
    counts_all_threads();
    return check_result();
}
