#include "call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "value.h"

enum { POISON = 0xa5 };
/* For a call that is only timed, this many bytes are generated and then repeated. */
#define PATTERN ((size_t)1 << 20)

static int failed_in_library(const call *c)
{
    return watch_fail(c->r->watch, WATCH_CAUSE, "rank %d: %s", c->r->rank, trope_last_error());
}

/* Allocates device memory for a host array and copies the array there. NULL stays NULL. */
static int bring(call *c, const void *host, size_t bytes, const void **device)
{
    *device = NULL;
    if (!host)
        return 0;
    void *memory = rank_take(c->r, bytes);
    *device = memory;
    return !memory || rank_upload(c->r, memory, host, bytes);
}

static size_t weight_bytes(const share *s, int operand)
{
    return (size_t)(s->weight_heads[operand] * s->p->head_dim) * sizeof(float);
}

static int bring_inputs(call *c)
{
    const share *s = &c->s;
    const trope_args *host = &s->q.args;
    const size_t boundaries = (size_t)(host->sequences + 1) * sizeof(int32_t);
    const size_t table = (size_t)(s->p->rows * s->p->cols) * sizeof(float);
    const size_t starts = (size_t)s->batch * sizeof(int64_t), ids = 3 * (size_t)s->tokens * sizeof(int64_t);
    trope_args *a = &c->q.args;
    for (int i = 0; i < PROBLEM_OPERANDS && s->p->c->norm; i++)
        if (bring(c, s->q.norms[i].weight, weight_bytes(s, i), &c->q.norms[i].weight))
            return 1;
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

static size_t rstd_bytes(const share *s, int operand)
{
    return (size_t)(s->batch * s->tokens * s->rstd_heads[operand]) * sizeof(float);
}

/* Size of the token sums of this rank's heads. */
static size_t sums_bytes(const share *s, int operand)
{
    return (size_t)(s->heads[operand] * s->batch * s->tokens) * sizeof(float);
}

/* Returns the sums of this call's tensor parallel group, whose ranks are neighbours. */
static float *group_part(const call *c, float *all, int operand)
{
    const int32_t first = problem_rank(c->s.p, (rank_place){c->s.place.dp, 0, c->s.place.cp});
    return all + (size_t)first * (sums_bytes(&c->s, operand) / sizeof *all);
}

static int take_norm(call *c, int operand)
{
    const share *s = &c->s;
    const size_t bytes = sums_bytes(s, operand);
    c->rstd[operand] = (float *)(c->result[0] + c->bytes + (operand ? rstd_bytes(s, PROBLEM_Q) : 0));
    c->d_weight[operand] = rank_take(c->r, weight_bytes(s, operand));
    for (int backward = 0; backward < 2 && s->is_norm_split; backward++) {
        c->sums[backward][operand] = rank_take(c->r, bytes);
        c->all_sums[backward][operand] = rank_take(c->r, bytes * (size_t)c->r->size);
        if (!c->sums[backward][operand] || !c->all_sums[backward][operand])
            return 1;
        c->group_sums[backward][operand] = group_part(c, c->all_sums[backward][operand], operand);
    }
    return !c->d_weight[operand];
}

static int take_tensors(call *c, call_data data)
{
    const int all = data == CALL_RIGHT_DATA;
    c->bytes = operand_bytes(c, PROBLEM_Q) + operand_bytes(c, PROBLEM_K);
    c->result_bytes = c->bytes + rstd_bytes(&c->s, PROBLEM_Q) + rstd_bytes(&c->s, PROBLEM_K);
    c->x = rank_take(c->r, c->bytes);
    c->result[0] = rank_take(c->r, c->result_bytes);
    c->dy = all ? rank_take(c->r, c->bytes) : c->x;
    c->result[1] = all ? rank_take(c->r, c->result_bytes) : c->result[0];
    c->flags = rank_take(c->r, sizeof *c->flags);
    if (!c->x || !c->dy || !c->result[0] || !c->result[1] || !c->flags)
        return 1;
    return c->s.p->c->norm && (take_norm(c, PROBLEM_Q) || take_norm(c, PROBLEM_K));
}

/* Returns the offset of an operand in x, dy and the results. */
static size_t operand_begin(const call *c, int operand)
{
    return operand == PROBLEM_K ? operand_bytes(c, PROBLEM_Q) : 0;
}

/* Adds the norms. Forward writes rstd and backward reads it. Split norms get the sums of all ranks. */
static void add_norms(const call *c, request *q, int backward)
{
    for (int i = 0; i < PROBLEM_OPERANDS && c->s.p->c->norm; i++) {
        trope_norm *n = &q->norms[i];
        n->rstd = c->rstd[i];
        n->rstd_use = backward ? TROPE_RSTD_READ : TROPE_RSTD_WRITE;
        if (!c->s.is_norm_split)
            continue;
        n->token_sums = c->group_sums[backward][i];
        n->token_sums_use = TROPE_SUMS_READ;
        n->heads_of_all_ranks = c->s.p->heads[i];
        n->first_head = c->s.first_head[i];
    }
}

request call_request(const call *c, int backward)
{
    request q = c->q;
    const char *from = backward ? c->dy : c->x, *x = backward && c->s.p->c->norm ? c->x : NULL;
    for (int i = 0; i < PROBLEM_OPERANDS; i++) {
        request_tensors(&q, i, from + operand_begin(c, i), c->result[backward] + operand_begin(c, i),
                        x ? x + operand_begin(c, i) : NULL);
        q.norms[i].d_weight = backward ? c->d_weight[i] : NULL;
        q.operands[i].accumulate = backward && c->s.p->c->accumulate;
    }
    add_norms(c, &q, backward);
    q.args.workspace = c->workspace;
    q.args.workspace_size = c->workspace_size;
    return q;
}

/* Returns the first call of a split norm: it writes the sums of this rank's heads, and nothing else. */
static request sums_request(const call *c, int backward)
{
    request q = call_request(c, backward);
    for (int i = 0; i < PROBLEM_OPERANDS; i++) {
        trope_norm *n = &q.norms[i];
        q.operands[i].dst = NULL;
        q.operands[i].dst_layout = 0;
        n->token_sums = c->sums[backward][i];
        n->token_sums_use = TROPE_SUMS_WRITE;
        n->heads_of_all_ranks = n->first_head = 0;
        n->d_weight = NULL;
        n->rstd = backward ? n->rstd : NULL;
        n->rstd_use = backward ? n->rstd_use : 0;
    }
    return q;
}

/* Returns the request for the gradient of the angles alone, for the operands that this share counts. */
static request angle_request(const call *c)
{
    request q = c->q;
    q.args.operand_count = c->s.counts_keys ? PROBLEM_OPERANDS : PROBLEM_K;
    for (int i = 0; i < q.args.operand_count; i++)
        request_tensors(&q, i, c->dy + operand_begin(c, i), NULL, c->x + operand_begin(c, i));
    add_norms(c, &q, 1);
    request_gradient(&q, c->d_angles, c->workspace, c->workspace_size);
    return q;
}

/* Allocates a workspace that is large enough for each kind of backward call. */
static int take_workspace(call *c)
{
    request kinds[] = {angle_request(c), call_request(c, 1), sums_request(c, 1)};
    for (int i = 0; i < (c->s.is_norm_split ? 3 : 2); i++) {
        uint64_t bytes;
        if (trope_workspace_size(request_args(&kinds[i]), &bytes))
            return failed_in_library(c);
        c->workspace_size = bytes > c->workspace_size ? (size_t)bytes : c->workspace_size;
    }
    c->workspace = rank_take(c->r, c->workspace_size);
    return !c->workspace;
}

static int take_angles(call *c)
{
    const problem *p = c->s.p;
    c->angle_dtype = p->c->angles == CASE_INV_FREQ ? TROPE_F64 : TROPE_F32;
    c->angle_count = p->c->angles == CASE_INV_FREQ ? p->c->rotary_dim / 2 : p->rows * p->cols;
    c->d_angles = rank_take(c->r, (size_t)(c->angle_count * value_size(c->angle_dtype)));
    return !c->d_angles || take_workspace(c);
}

static int open_share(call *c, call_data data)
{
    c->q = c->s.q;
    c->q.args.device = c->r->device->id;
    c->q.args.threads = c->r->threads;
    if (bring_inputs(c) || take_tensors(c, data))
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

/* Fills memory with a pattern, so that the result of a refused call cannot look right. */
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

/* Fills a result with the pattern or, if the call accumulates, with old_dst. */
static int prepare_result(call *c, int backward)
{
    char *host = rank_malloc(c->r, c->result_bytes);
    if (!host)
        return 1;
    memset(host, POISON, c->result_bytes);
    for (int i = 0; i < PROBLEM_OPERANDS && backward && c->s.p->c->accumulate; i++)
        share_fill(&c->s, PROBLEM_BEFORE, i, host + operand_begin(c, i));
    int failed = rank_upload(c->r, c->result[backward], host, c->result_bytes);
    for (int i = 0; i < PROBLEM_OPERANDS && c->s.p->c->norm && !failed; i++)
        failed = (c->s.is_norm_split && poison(c, c->sums[backward][i], sums_bytes(&c->s, i))) ||
                 (backward && poison(c, c->d_weight[i], weight_bytes(&c->s, i)));
    free(host);
    return failed;
}

static int clear_flags(call *c)
{
    const int32_t none = 0;
    return rank_upload(c->r, c->flags, &none, sizeof none);
}

/* Waits for the device by reading the status word. A CUDA error is a failure; a refusal by the library is an outcome. */
static int take_outcome(call *c, trope_status status, outcome *o)
{
    memset(o, 0, sizeof *o); /* outcomes are sent and compared as bytes */
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
        memcpy(ordered, memory, c->bytes); /* the sums over shared heads fill only a part of K's memory */
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

static int turn_a_bit(call *c, char *at)
{
    char byte;
    if (rank_download(c->r, &byte, at, 1))
        return 1;
    byte ^= 1;
    return rank_upload(c->r, at, &byte, 1);
}

static int run_request(call *c, request q, int backward, outcome *o)
{
    const trope_args *a = request_args(&q);
    return take_outcome(c, backward ? trope_backward(a) : trope_forward(a), o);
}

/* ---- a norm over heads of several ranks ---- */

/* Makes group_sums point to a copy of the gathered sums [ranks, heads of a rank, tokens] that has MISTAKE_GATHER or
 * MISTAKE_AXIS. */
static int spoil_sums(call *c, int backward, int operand)
{
    const size_t bytes = sums_bytes(&c->s, operand), heads = (size_t)c->s.heads[operand], row = bytes / heads;
    const size_t ranks = (size_t)c->s.p->grid.tp;
    char *right = rank_malloc(c->r, ranks * bytes), *wrong = rank_malloc(c->r, ranks * bytes);
    int failed = !right || !wrong || rank_download(c->r, right, c->group_sums[backward][operand], ranks * bytes);
    for (size_t i = 0; i < ranks * heads && !failed; i++) {
        const size_t rank = i / heads, there = c->m.kind == MISTAKE_AXIS ? i % heads * ranks + rank : i;
        if (c->m.kind == MISTAKE_GATHER && rank != (size_t)c->s.place.tp)
            memset(wrong + there * row, 0, row);
        else
            memcpy(wrong + there * row, right + i * row, row);
    }
    c->group_sums[backward][operand] = rank_take(c->r, ranks * bytes);
    failed = failed || !c->group_sums[backward][operand] ||
             rank_upload(c->r, c->group_sums[backward][operand], wrong, ranks * bytes);
    free(right);
    free(wrong);
    return failed;
}

/* Runs the call that writes the sums, then gathers them. A rank whose call is refused still takes part in the gather. */
static int exchange_sums(call *c, int backward, outcome *o)
{
    rank_context *r = c->r;
    int failed = run_request(c, sums_request(c, backward), backward, o);
    if (!c->peer)
        watch_phase(r->watch, r->rank, "gathering the token sums");
    for (int i = 0; i < PROBLEM_OPERANDS && !failed; i++) {
        float *all = (c->peer ? c->peer : c)->all_sums[backward][i];
        if (!c->peer)
            failed = r->data->all_gather(r->data, c->sums[backward][i], all, sums_bytes(&c->s, i));
        c->group_sums[backward][i] = group_part(c, all, i);
        if (c->m.kind == MISTAKE_GATHER || c->m.kind == MISTAKE_AXIS)
            failed = failed || spoil_sums(c, backward, i);
    }
    return failed;
}

int call_run(call *c, int backward, outcome *o)
{
    if (prepare_result(c, backward) || clear_flags(c))
        return 1;
    o->status = TROPE_OK;
    if (c->s.is_norm_split && exchange_sums(c, backward, o))
        return 1;
    if (!o->status && run_request(c, call_request(c, backward), backward, o))
        return 1;
    if (c->m.kind == MISTAKE_BIT)
        return turn_a_bit(c,
                          c->result[backward] + (c->s.p->c->norm && !backward ? c->bytes : c->bytes / 3)); /* rstd, or y */
    return is_in_order(&c->s) ? 0 : put_in_order(c, backward);
}

int call_run_alone(call *c, const call *peer, int backward, outcome *o)
{
    c->peer = peer;
    return (backward && call_run(c, 0, o)) || call_run(c, backward, o);
}

static int queue_request(request q, void *stream)
{
    q.args.stream = stream;
    return trope_forward(request_args(&q)) != TROPE_OK;
}

int call_queue_forward(const call *c, void *stream)
{
    communicator *data = c->r->data;
    int failed = c->s.is_norm_split && queue_request(sums_request(c, 0), stream);
    for (int i = 0; i < PROBLEM_OPERANDS && c->s.is_norm_split && !failed; i++) {
        const size_t bytes = sums_bytes(&c->s, i);
        failed = data->queue_gather ? data->queue_gather(data, c->sums[0][i], c->all_sums[0][i], bytes, stream)
                                    : data->all_gather(data, c->sums[0][i], c->all_sums[0][i], bytes);
    }
    return failed || queue_request(call_request(c, 0), stream);
}

int call_angles(call *c, outcome *o)
{
    request q = angle_request(c);
    if (poison(c, c->d_angles, (size_t)(c->angle_count * value_size(c->angle_dtype))) || clear_flags(c))
        return 1;
    return take_outcome(c, trope_backward(request_args(&q)), o);
}

int call_load(const call *c, int tensor, int operand, double *values)
{
    const share *s = &c->s;
    const int64_t elements = share_tensor_elements(s, tensor, operand);
    char *bits = rank_malloc(c->r, (size_t)(elements * value_size(s->p->dtype)));
    if (bits)
        share_fill(s, tensor, operand, bits);
    for (int64_t i = 0; bits && i < elements; i++)
        values[i] = value_load(s->p->dtype, bits, i);
    free(bits);
    return !bits;
}

int call_load_dx(const call *c, int operand, float *dx)
{
    const int32_t dtype = c->s.p->dtype;
    const int64_t elements = share_tensor_elements(&c->s, PROBLEM_X, operand);
    const size_t bytes = (size_t)(elements * value_size(dtype));
    char *bits = rank_malloc(c->r, bytes);
    const int failed = !bits || rank_download(c->r, bits, c->result[1] + operand_begin(c, operand), bytes);
    for (int64_t i = 0; i < elements && !failed; i++)
        dx[i] = (float)value_load(dtype, bits, i);
    free(bits);
    return failed;
}

int call_scale_by_rstd(const call *c, int operand, double *x)
{
    const share *s = &c->s;
    const int32_t heads = s->heads[operand], rstd_heads = s->rstd_heads[operand], dim = s->p->head_dim;
    float *rstd = rank_malloc(c->r, rstd_bytes(s, operand));
    const int failed = !rstd || rank_download(c->r, rstd, c->rstd[operand], rstd_bytes(s, operand));
    for (int64_t i = 0; i < share_elements(s, operand) && !failed; i++) {
        const int64_t head = i / dim % heads, cell = i / dim / heads, token = cell / s->batch, batch = cell % s->batch;
        x[i] *= (double)rstd[(batch * s->tokens + token) * rstd_heads + head % rstd_heads];
    }
    free(rstd);
    return failed;
}

double call_traffic(const call *c)
{
    int64_t elements = share_all_elements(&c->s);
    for (int i = 0; i < PROBLEM_OPERANDS; i++)
        elements += share_tensor_elements(&c->s, PROBLEM_X, i);
    return (double)(elements * value_size(c->s.p->dtype)) + (double)(c->result_bytes - c->bytes);
}

int outcome_equal(const outcome *a, const outcome *b)
{
    return !memcmp(a, b, sizeof *a);
}
