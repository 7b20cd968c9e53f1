#include "verify.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "value.h"

enum { UNWRITTEN = 0x5a };

int case_holds(const case_result *result)
{
    return !result->wrong[0] && !result->wrong[1] && !result->scores_wrong && result->angle_error <= 1 &&
           result->sum_error <= 1 && result->angles_repeat && !result->refused;
}

/* ---- deliberate failures ---- */

/* Kills a process with SIGKILL. A rank that is a thread ends without a message. */
static void come_to_grief(rank_context *r, const verify_options *options)
{
    if (options->failing_rank != r->rank)
        return;
    if (options->failure == FAILURE_DIE) {
        if (!r->host->is_thread)
            (void)raise(SIGKILL);
        pthread_exit(NULL);
    }
    while (options->failure == FAILURE_HANG)
        (void)pause();
}

/* ---- global order ---- */

static size_t element_size(const share *s)
{
    return (size_t)value_size(s->p->dtype);
}

/* Returns the offset of an operand in a result. */
static size_t operand_begin(const share *s, int operand)
{
    return operand == PROBLEM_K ? (size_t)share_elements(s, PROBLEM_Q) * element_size(s) : 0;
}

typedef struct assembly {
    const share *whole;
    int operands;         /* number of operands to assemble */
    char *result;         /* in global order */
    unsigned char *times; /* how many ranks have put each head of a token there */
    int64_t contradicted; /* tokens on which two ranks disagree */
} assembly;

/* Returns the number of the head that begins at an element. The heads of all tokens are numbered, first Q, then K. */
static int64_t head_number(const assembly *a, int operand, int64_t element)
{
    const int64_t before = operand == PROBLEM_K ? share_elements(a->whole, PROBLEM_Q) : 0;
    return (before + element) / a->whole->p->head_dim;
}

static void put_token(assembly *a, const share *s, int operand, int64_t token, int64_t batch, const char *result)
{
    const int64_t there = share_token_in_whole(s, operand, token, batch), first_head = head_number(a, operand, there);
    const size_t bytes = (size_t)(s->heads[operand] * s->p->head_dim) * element_size(s);
    char *to = a->result + operand_begin(a->whole, operand) + (size_t)there * element_size(s);
    const char *from = result + operand_begin(s, operand) + (size_t)share_token(s, operand, token, batch) * element_size(s);
    if (a->times[first_head])
        a->contradicted += !!memcmp(to, from, bytes);
    else
        memcpy(to, from, bytes);
    for (int32_t h = 0; h < s->heads[operand]; h++)
        a->times[first_head + h] = (unsigned char)(a->times[first_head + h] < 255 ? a->times[first_head + h] + 1 : 255);
}

static void put_share(assembly *a, const share *s, const char *result)
{
    for (int operand = 0; operand < a->operands; operand++)
        for (int64_t t = 0; t < s->tokens; t++)
            for (int64_t b = 0; b < s->batch; b++)
                put_token(a, s, operand, t, b, result);
}

/* Checks that each head of a token came from every rank that has it. */
static int is_covered(const assembly *a)
{
    const problem *p = a->whole->p;
    const int64_t q_heads = share_elements(a->whole, PROBLEM_Q) / p->head_dim;
    const int64_t all_heads = a->operands == PROBLEM_K ? q_heads : share_all_elements(a->whole) / p->head_dim;
    const int32_t keys = p->heads[PROBLEM_K], copies = keys < p->grid.tp ? p->grid.tp / keys : 1;
    for (int64_t i = 0; i < all_heads; i++)
        if (a->times[i] != (i < q_heads || copies == 1 ? 1 : copies < 255 ? copies : 255))
            return 0;
    return 1;
}

/* Counts wrong elements of rstd. `result` points to the rstd of this share, `whole` to the rstd of the whole. */
static int64_t count_rstd_wrong(const share *s, const char *result, const char *whole)
{
    const problem *p = s->p;
    const int64_t tokens = p->tokens * (p->sequences ? p->grid.dp : 1), is_token = p->c->norm == CASE_NORM_TOKEN;
    int64_t wrong = 0;
    for (int operand = 0; operand < PROBLEM_OPERANDS; operand++) {
        const int64_t heads = s->rstd_heads[operand], all = is_token ? 1 : p->heads[operand], size = sizeof(float);
        const int64_t first = is_token ? 0 : s->first_head[operand];
        for (int64_t i = 0; i < s->batch * s->tokens; i++) {
            const int64_t token = (s->first_batch + i / s->tokens) * tokens + s->first_token + s->in_whole[i % s->tokens];
            for (int64_t h = 0; h < heads; h++)
                wrong += !!memcmp(result + (i * heads + h) * size, whole + (token * all + first + h) * size, (size_t)size);
        }
        result += s->batch * s->tokens * heads * size;
        whole += p->tokens * p->batch * p->grid.dp * all * size;
    }
    return wrong;
}

int64_t count_wrong(const share *s, int backward, const char *result, const char *whole, int64_t *first)
{
    const int operands = problem_split_operands(s->p, backward);
    const size_t size = element_size(s);
    int64_t wrong = 0, elements = 0;
    size_t whole_at = 0;
    for (int operand = 0; operand < operands; operand++) {
        for (int64_t i = 0; i < s->tokens * s->batch; i++) {
            const int64_t here = share_token(s, operand, i / s->batch, i % s->batch);
            const int64_t there = share_token_in_whole(s, operand, i / s->batch, i % s->batch);
            for (int64_t e = 0; e < (int64_t)s->heads[operand] * s->p->head_dim; e++) {
                if (!memcmp(result + operand_begin(s, operand) + (size_t)(here + e) * size,
                            whole + whole_at + (size_t)(there + e) * size, size))
                    continue;
                if (!wrong++)
                    *first = elements + here + e;
            }
        }
        elements += share_elements(s, operand);
        whole_at += (size_t)problem_tensor_elements(s->p, PROBLEM_DY, operand) * size;
    }
    if (backward || !s->p->c->norm)
        return wrong;
    const int64_t rstd_wrong = count_rstd_wrong(s, result + elements * (int64_t)size, whole + whole_at);
    if (rstd_wrong && !wrong)
        *first = elements;
    return wrong + rstd_wrong;
}

/* ---- comparing, on rank 0 ---- */

static int assemble(rank_context *r, assembly *a, const problem *p, const gathered *found, size_t bytes)
{
    const mistake none = {MISTAKE_NONE, 0};
    for (int32_t rank = 0; rank < r->size; rank++) {
        share s;
        const int failed = share_make(&s, p, problem_place(p, rank), none);
        if (!failed)
            put_share(a, &s, found->results + (size_t)rank * bytes);
        share_free(&s);
        if (failed)
            return watch_fail(r->watch, WATCH_CAUSE, "rank 0: %s", trope_last_error());
    }
    return 0;
}

static int64_t count_all_wrong(const call *mine, const gathered *found, int backward, const char *whole)
{
    const problem *p = mine->s.p;
    const mistake none = {MISTAKE_NONE, 0};
    int64_t wrong = 0, first;
    for (int32_t rank = 0; rank < mine->r->size; rank++) {
        share s;
        if (!share_make(&s, p, problem_place(p, rank), none))
            wrong += count_wrong(&s, backward, found->results + (size_t)rank * mine->result_bytes, whole, &first);
        share_free(&s);
    }
    return wrong;
}

/* Checks that the ranks' results in global order equal the whole's byte for byte. Otherwise counts the elements that
 * differ. */
static int compare(call *mine, call *whole, const gathered *found, int backward, case_result *result)
{
    rank_context *r = mine->r;
    const problem *p = mine->s.p;
    const size_t heads = (size_t)(share_all_elements(&whole->s) / p->head_dim);
    const int operands = problem_split_operands(p, backward);
    const size_t compared = operands == PROBLEM_K ? operand_begin(&whole->s, PROBLEM_K) : whole->bytes;
    assembly a = {&whole->s, operands, rank_malloc(r, whole->bytes), rank_malloc(r, heads), 0};
    char *expected = rank_malloc(r, whole->result_bytes);
    int failed = !a.result || !a.times || !expected;
    if (!failed) {
        memset(a.result, UNWRITTEN, whole->bytes);
        memset(a.times, 0, heads);
        failed = rank_download(r, expected, whole->result[backward], whole->result_bytes) ||
                 assemble(r, &a, p, found, mine->result_bytes);
    }
    if (!failed && !is_covered(&a))
        failed = watch_fail(r->watch, WATCH_CAUSE, "the shares of the ranks are not a partition of the whole");
    if (!failed && (p->c->norm || memcmp(a.result, expected, compared) || a.contradicted))
        result->wrong[backward] = count_all_wrong(mine, found, backward, expected);
    result->compared += (int64_t)(compared / element_size(&whole->s));
    free(a.result);
    free(a.times);
    free(expected);
    return failed;
}

/* ---- a direction ---- */

static int gather(call *mine, const outcome *o, int backward, gathered *found)
{
    rank_context *r = mine->r;
    const size_t all = mine->result_bytes * (size_t)r->size;
    const arena_mark mark = rank_mark(r);
    char *on_device = rank_take(r, all);
    found->results = rank_malloc(r, all);
    found->outcomes = rank_malloc(r, sizeof *o * (size_t)r->size);
    int failed = !on_device || !found->results || !found->outcomes;
    watch_phase(r->watch, r->rank, backward ? "gathering dx" : "gathering y");
    failed = failed || r->data->all_gather(r->data, mine->result[backward], on_device, mine->result_bytes) ||
             r->host->all_gather(r->host, o, found->outcomes, sizeof *o);
    if (!failed && r->rank == 0)
        failed = rank_download(r, found->results, on_device, all);
    rank_give_back(r, mark);
    return failed;
}

static void count_refused(const rank_context *r, const gathered *found, case_result *result)
{
    int refused = 0;
    for (int32_t rank = 0; rank < r->size; rank++)
        refused += found->outcomes[rank].status || found->outcomes[rank].flags;
    result->refused = refused > result->refused ? refused : result->refused;
}

static int check_direction(call *mine, call *whole, const gathered *found, int backward, case_result *result)
{
    rank_context *r = mine->r;
    outcome o;
    watch_note(r->watch, 0, "one device's run");
    if (call_run(whole, backward, &o))
        return 1;
    if (o.status || o.flags)
        return watch_fail(r->watch, WATCH_CAUSE, "rank 0: the whole on one device: %s (status word %d)", o.message,
                          o.flags);
    watch_note(r->watch, 0, "comparing");
    count_refused(r, found, result);
    if (compare(mine, whole, found, backward, result))
        return 1;
    if (result->causes || result->cause[0] || (!result->wrong[backward] && !result->refused))
        return 0;
    watch_note(r->watch, 0, "looking for the cause");
    return diagnose(mine, found, backward, result);
}

static int run_direction(call *mine, call *whole, int backward, const verify_options *options, case_result *result)
{
    rank_context *r = mine->r;
    gathered found = {NULL, NULL};
    outcome o;
    watch_phase(r->watch, r->rank, backward ? "backward" : "forward");
    if (backward)
        come_to_grief(r, options);
    int failed = call_run(mine, backward, &o) || gather(mine, &o, backward, &found);
    if (!failed && r->rank == 0)
        failed = check_direction(mine, whole, &found, backward, result);
    free(found.results);
    free(found.outcomes);
    return failed;
}

int verify_case(rank_context *r, const problem *p, const verify_options *options, case_result *result)
{
    const rank_place place = problem_place(p, r->rank);
    const mistake m = mistake_of_rank(p, options->broken, place.cp), none = {MISTAKE_NONE, 0};
    const int is_mine = m.kind != MISTAKE_BIT || r->rank == r->size - 1;
    call mine, whole = {.r = r};
    *result = (case_result){.is_broken = m.kind != MISTAKE_NONE, .angles_repeat = 1};
    int failed = call_open(&mine, r, p, &place, is_mine ? m : none);
    failed = failed || (r->rank == 0 && call_open(&whole, r, p, NULL, none));
    for (int backward = 0; backward < 2 && !failed; backward++)
        failed = run_direction(&mine, &whole, backward, options, result);
    failed = failed || verify_sums(&mine, &whole, result) || verify_weights(&mine, &whole, result) ||
             verify_angles(&mine, &whole, result);
    if (p->grid.cp > 1)
        failed = failed || verify_scores(&mine, &whole, result);
    if (r->rank == 0)
        call_close(&whole);
    call_close(&mine);
    return failed;
}
