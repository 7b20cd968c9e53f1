#include "call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "value.h"

enum { POISON = 0xa5 };
/* Of numbers that are only timed, this many bytes are made and then repeated. */
#define PATTERN ((size_t)1 << 20)

static int failed_in_library(const call *c)
{
    return watch_fail(c->r->watch, WATCH_CAUSE, "rank %d: %s", c->r->rank, trope_last_error());
}

/* Takes memory for a host array and copies it there; NULL stays NULL. */
static int bring(call *c, const void *host, size_t bytes, const void **device)
{
    *device = NULL;
    if (!host)
        return 0;
    void *memory = rank_take(c->r, bytes);
    *device = memory;
    return !memory || rank_upload(c->r, memory, host, bytes);
}

static int bring_indexes(call *c)
{
    const share *s = &c->s;
    const trope_args *host = &s->q.args;
    const size_t boundaries = (size_t)(host->sequences + 1) * sizeof(int32_t);
    const size_t table = (size_t)(s->p->rows * s->p->cols) * sizeof(float);
    const size_t starts = (size_t)s->batch * sizeof(int64_t), ids = 3 * (size_t)s->tokens * sizeof(int64_t);
    trope_args *a = &c->q.args;
    return bring(c, host->cu_seqlens, boundaries, &a->cu_seqlens) ||
           bring(c, host->cu_seqlens_padded, boundaries, &a->cu_seqlens_padded) ||
           bring(c, host->start_positions, starts, &a->start_positions) ||
           bring(c, host->position_ids, ids, &a->position_ids) || bring(c, host->freqs, table, &a->freqs) ||
           bring(c, host->cos, table, &a->cos) || bring(c, host->sin, table, &a->sin);
}

static size_t operand_bytes(const call *c, int operand)
{
    return (size_t)(share_elements(&c->s, operand) * value_size(c->s.p->dtype));
}

static int fill_right(call *c)
{
    char *host = rank_malloc(c->r, c->bytes);
    char *const tensor[2] = {c->x, c->dy};
    int failed = !host;
    for (int t = PROBLEM_X; t <= PROBLEM_DY && !failed; t++) {
        share_fill(&c->s, t, PROBLEM_Q, host);
        share_fill(&c->s, t, PROBLEM_K, host + operand_bytes(c, PROBLEM_Q));
        failed = rank_upload(c->r, tensor[t], host, c->bytes);
    }
    free(host);
    return failed;
}

static int fill_any(call *c)
{
    char *host = rank_malloc(c->r, PATTERN);
    const int32_t dtype = c->s.p->dtype;
    int failed = !host;
    for (int64_t i = 0; i < (int64_t)PATTERN / value_size(dtype) && !failed; i++)
        value_store(dtype, host, i, data_real(1, (uint64_t)i, 2));
    for (size_t at = 0; at < c->bytes && !failed; at += PATTERN)
        failed = rank_upload(c->r, c->x + at, host, c->bytes - at < PATTERN ? c->bytes - at : PATTERN);
    free(host);
    return failed;
}

static int take_tensors(call *c, call_data data)
{
    const int all = data == CALL_RIGHT_DATA;
    c->bytes = operand_bytes(c, PROBLEM_Q) + operand_bytes(c, PROBLEM_K);
    c->x = rank_take(c->r, c->bytes);
    c->result[0] = rank_take(c->r, c->bytes);
    c->dy = all ? rank_take(c->r, c->bytes) : c->x;
    c->result[1] = all ? rank_take(c->r, c->bytes) : c->result[0];
    c->flags = rank_take(c->r, sizeof *c->flags);
    return !c->x || !c->dy || !c->result[0] || !c->result[1] || !c->flags;
}

/* Where an operand begins in x, dy and the results. */
static size_t operand_begin(const call *c, int operand)
{
    return operand == PROBLEM_K ? operand_bytes(c, PROBLEM_Q) : 0;
}

request call_request(const call *c, int backward)
{
    request q = c->q;
    const char *from = backward ? c->dy : c->x;
    for (int i = 0; i < PROBLEM_OPERANDS; i++)
        request_tensors(&q, i, from + operand_begin(c, i), c->result[backward] + operand_begin(c, i), NULL);
    for (int i = 0; i < PROBLEM_OPERANDS && backward; i++)
        q.operands[i].accumulate = c->s.p->c->accumulate;
    return q;
}

/* The request for the gradient of the angles alone, of the operands that this share counts. */
static request angle_request(const call *c)
{
    request q = c->q;
    q.args.operand_count = c->s.counts_keys ? PROBLEM_OPERANDS : PROBLEM_K;
    for (int i = 0; i < q.args.operand_count; i++)
        request_tensors(&q, i, c->dy + operand_begin(c, i), NULL, c->x + operand_begin(c, i));
    request_gradient(&q, c->d_angles, c->workspace, c->workspace_size);
    return q;
}

static int take_angles(call *c)
{
    const problem *p = c->s.p;
    uint64_t bytes;
    c->angle_dtype = p->c->angles == CASE_INV_FREQ ? TROPE_F64 : TROPE_F32;
    c->angle_count = p->c->angles == CASE_INV_FREQ ? p->c->rotary_dim / 2 : p->rows * p->cols;
    c->d_angles = rank_take(c->r, (size_t)(c->angle_count * value_size(c->angle_dtype)));
    if (!c->d_angles)
        return 1;
    request q = angle_request(c);
    if (trope_workspace_size(request_args(&q), &bytes))
        return failed_in_library(c);
    c->workspace_size = (size_t)bytes;
    c->workspace = rank_take(c->r, c->workspace_size);
    return !c->workspace;
}

static int open_share(call *c, call_data data)
{
    c->q = c->s.q;
    c->q.args.device = c->r->device->id;
    c->q.args.threads = c->r->threads;
    if (bring_indexes(c) || take_tensors(c, data))
        return 1;
    c->q.args.status = c->flags;
    return data == CALL_RIGHT_DATA ? fill_right(c) || take_angles(c) : fill_any(c);
}

static int open_call(call *c, const problem *p, const rank_place *place, const mistake *m)
{
    rank_context *r = c->r;
    const mistake none = {MISTAKE_NONE, 0};
    c->mark = rank_mark(r);
    const int failed = place ? share_make(&c->s, p, *place, m ? *m : none) : share_make_whole(&c->s, p);
    return failed ? failed_in_library(c) : open_share(c, m ? CALL_RIGHT_DATA : CALL_ANY_DATA);
}

int call_open(call *c, rank_context *r, const problem *p, const rank_place *place, mistake m)
{
    *c = (call){.r = r, .m = m};
    return open_call(c, p, place, &m);
}

int call_open_for_time(call *c, rank_context *r, const problem *p, const rank_place *place)
{
    *c = (call){.r = r};
    return open_call(c, p, place, NULL);
}

void call_close(call *c)
{
    share_free(&c->s);
    rank_give_back(c->r, c->mark);
}

/* ---- calls ---- */

/* Fills a result: with the pattern, and what is to be added to. */
static int prepare_result(call *c, int backward)
{
    char *host = rank_malloc(c->r, c->bytes);
    if (!host)
        return 1;
    memset(host, POISON, c->bytes);
    for (int i = 0; i < PROBLEM_OPERANDS && backward && c->s.p->c->accumulate; i++)
        share_fill(&c->s, PROBLEM_BEFORE, i, host + operand_begin(c, i));
    const int failed = rank_upload(c->r, c->result[backward], host, c->bytes);
    free(host);
    return failed;
}

static int clear_flags(call *c)
{
    const int32_t none = 0;
    return rank_upload(c->r, c->flags, &none, sizeof none);
}

/* Waits for the device, by reading the status word. What CUDA could not do is a failure; what the library refuses is none.
 */
static int take_outcome(call *c, trope_status status, outcome *o)
{
    memset(o, 0, sizeof *o); /* outcomes travel and are compared as bytes */
    o->status = status;
    if (status)
        snprintf(o->message, sizeof o->message, "%s", trope_last_error());
    if (status == TROPE_ERROR_DEVICE)
        return failed_in_library(c);
    return rank_download(c->r, &o->flags, c->flags, sizeof o->flags);
}

static int put_in_order(call *c, int backward)
{
    const int tensor = backward ? PROBLEM_X : PROBLEM_DY;
    char *result = c->result[backward];
    const size_t first = operand_bytes(c, PROBLEM_Q);
    char *memory = rank_malloc(c->r, c->bytes), *ordered = rank_malloc(c->r, c->bytes);
    int failed = !memory || !ordered || rank_download(c->r, memory, result, c->bytes);
    if (!failed) {
        memcpy(ordered, memory, c->bytes); /* sums leave room behind them */
        share_put_in_order(&c->s, tensor, PROBLEM_Q, memory, ordered);
        share_put_in_order(&c->s, tensor, PROBLEM_K, memory + first, ordered + first);
        failed = rank_upload(c->r, result, ordered, c->bytes);
    }
    free(memory);
    free(ordered);
    return failed;
}

static int is_in_order(const share *s)
{
    for (int64_t t = 0; t < s->tokens; t++)
        if (s->in_memory[t] != t)
            return 0;
    return 1;
}

static int turn_a_bit(call *c, char *result)
{
    char byte;
    if (rank_download(c->r, &byte, result + c->bytes / 3, 1))
        return 1;
    byte ^= 1;
    return rank_upload(c->r, result + c->bytes / 3, &byte, 1);
}

int call_run(call *c, int backward, outcome *o)
{
    request q = call_request(c, backward);
    const trope_args *a = request_args(&q);
    if (prepare_result(c, backward) || clear_flags(c))
        return 1;
    if (take_outcome(c, backward ? trope_backward(a) : trope_forward(a), o))
        return 1;
    if (c->m.kind == MISTAKE_BIT)
        return turn_a_bit(c, c->result[backward]);
    return is_in_order(&c->s) ? 0 : put_in_order(c, backward);
}

/* A refused call must not look as if the ranks agreed. */
static int poison(call *c, void *device, size_t bytes)
{
    void *host = rank_malloc(c->r, bytes);
    if (!host)
        return 1;
    memset(host, POISON, bytes);
    const int failed = rank_upload(c->r, device, host, bytes);
    free(host);
    return failed;
}

int call_angles(call *c, outcome *o)
{
    request q = angle_request(c);
    if (poison(c, c->d_angles, (size_t)(c->angle_count * value_size(c->angle_dtype))) || clear_flags(c))
        return 1;
    return take_outcome(c, trope_backward(request_args(&q)), o);
}

double call_traffic(const call *c)
{
    int64_t elements = share_all_elements(&c->s);
    for (int i = 0; i < PROBLEM_OPERANDS; i++)
        elements += share_tensor_elements(&c->s, PROBLEM_X, i);
    return (double)(elements * value_size(c->s.p->dtype));
}

int outcome_equal(const outcome *a, const outcome *b)
{
    return !memcmp(a, b, sizeof *a);
}
