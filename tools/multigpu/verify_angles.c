/* The gradient of the angles: each rank has the sum over its tokens and heads. An all-reduce adds these to the sum of the
 * whole. A different order of additions rounds differently, so the comparison uses a bound, which docs/multigpu.md derives:
 *
 *     |sum of ranks - one device's| <= (n 2^-52 + [f32] (ranks + 2) 2^-24) * sum |terms|
 *
 * with n terms. The sum of the terms' magnitudes is computed here from the tensors, not by the library. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "value.h"
#include "verify.h"

typedef struct magnitudes {
    const call *call;
    const share *whole; /* of the call */
    double *x, *dy;     /* of one operand */
    int64_t *positions;
    int32_t *sequences;
    double *sum; /* for each element of the gradient */
} magnitudes;

static int32_t axis_of_pair(const problem *p, int32_t pair)
{
    return p->c->positions == CASE_IDS ? pair / (p->c->rotary_dim / 6) : 0;
}

static double size_of(const double *head, const int32_t element[2])
{
    return fabs(head[element[0]]) + fabs(head[element[1]]);
}

/* Returns the index in the gradient for this pair and position. With one column per element, this is the index for the
 * pair's first element. */
static int64_t place_of_angle(const problem *p, int32_t pair, int64_t position)
{
    int32_t element[2];
    if (p->c->angles == CASE_INV_FREQ)
        return pair;
    problem_pair(p, case_pairing_out(p->c), pair, element);
    return position * p->cols + (p->cols == p->c->rotary_dim ? element[0] - p->c->rotary_offset : pair);
}

static void add_term(magnitudes *m, int32_t pair, int64_t position, double term)
{
    const problem *p = m->whole->p;
    const int64_t at = place_of_angle(p, pair, position);
    int32_t element[2];
    m->sum[at] += term;
    if (p->cols != p->c->rotary_dim || p->c->angles == CASE_INV_FREQ)
        return;
    problem_pair(p, case_pairing_out(p->c), pair, element);
    m->sum[at + element[1] - element[0]] += term;
}

/* Normalises x to n(x) or, with a norm after the rotation, replaces dy by du, the gradient of the norm's input. It uses dx
 * for du: dx is du rotated back, and a rotation does not change the length of a pair. */
static int load_normed(const magnitudes *m, int operand)
{
    const problem *p = m->whole->p;
    const int64_t elements = share_elements(m->whole, operand), weights = (int64_t)p->weight_heads[operand] * p->head_dim;
    if (p->c->norm == CASE_NORM_AFTER) {
        float *dx = rank_malloc(m->call->r, (size_t)elements * sizeof *dx);
        const int failed = !dx || call_load_dx(m->call, operand, dx);
        for (int64_t i = 0; i < elements && !failed; i++)
            m->dy[i] = (double)dx[i];
        free(dx);
        return failed;
    }
    for (int64_t i = 0; i < elements && p->c->norm; i++)
        m->x[i] *= (double)p->weights[operand][i % weights];
    return p->c->norm ? call_scale_by_rstd(m->call, operand, m->x) : 0;
}

/* |cos| and |sin| are at most 1, so a term is at most (|x1| + |x2|) (|dy1| + |dy2|), times the position for inv_freq. */
static void add_token(magnitudes *m, int operand, int64_t token, int64_t batch)
{
    const share *s = m->whole;
    const problem *p = s->p;
    const int32_t out = p->c->norm == CASE_NORM_AFTER ? p->c->pairing : case_pairing_out(p->c);
    const int64_t cell = batch * s->tokens + token, axis_stride = s->batch * s->tokens;
    const int32_t x_heads = share_tensor_heads(s, PROBLEM_X, operand);
    for (int32_t h = 0; h < s->heads[operand]; h++) {
        const int64_t dy_head = share_token(s, operand, token, batch) + (int64_t)h * p->head_dim;
        const int64_t x_head = ((token * s->batch + batch) * x_heads + h % x_heads) * p->head_dim;
        for (int32_t i = 0; i < p->c->rotary_dim / 2; i++) {
            const int64_t position = m->positions[axis_of_pair(p, i) * axis_stride + cell];
            int32_t x[2], dy[2];
            problem_pair(p, p->c->pairing, i, x);
            problem_pair(p, out, i, dy);
            const double term = size_of(m->x + x_head, x) * size_of(m->dy + dy_head, dy);
            add_term(m, i, position, p->c->angles == CASE_INV_FREQ ? term * fabs((double)position) : term);
        }
    }
}

static int add_operand(magnitudes *m, int operand)
{
    const share *s = m->whole;
    if (call_load(m->call, PROBLEM_X, operand, m->x) || call_load(m->call, PROBLEM_DY, operand, m->dy) ||
        load_normed(m, operand))
        return 1;
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t t = 0; t < s->tokens; t++)
            if (m->sequences[b * s->tokens + t] >= 0 || s->q.args.padding == TROPE_PADDING_ROTATE)
                add_token(m, operand, t, b);
    return 0;
}

static int add_up(rank_context *r, magnitudes *m)
{
    const share *s = m->whole;
    const size_t cells = (size_t)(s->batch * s->tokens),
                 axes = s->q.args.position_axes ? (size_t)s->q.args.position_axes : 1;
    const size_t elements = (size_t)share_elements(s, PROBLEM_Q); /* Q has at least as many heads as K */
    request q = s->q;
    m->x = rank_malloc(r, elements * sizeof *m->x);
    m->dy = rank_malloc(r, elements * sizeof *m->dy);
    m->positions = rank_malloc(r, axes * cells * sizeof *m->positions);
    m->sequences = rank_malloc(r, cells * sizeof *m->sequences);
    int failed = !m->x || !m->dy || !m->positions || !m->sequences;
    if (!failed && trope_positions(request_args(&q), m->positions, m->sequences))
        failed = watch_fail(r->watch, WATCH_CAUSE, "rank %d: %s", r->rank, trope_last_error());
    for (int i = 0; i < PROBLEM_OPERANDS && !failed; i++)
        failed = add_operand(m, i);
    free(m->x);
    free(m->dy);
    free(m->positions);
    free(m->sequences);
    return failed;
}

/* Returns the largest error, divided by its bound. A NaN error counts as infinite. */
static double largest_error(const call *whole, const char *sum, const char *expected, const magnitudes *m, int32_t ranks)
{
    const share *s = &whole->s;
    const double terms = (double)(s->batch * s->tokens) * (s->heads[PROBLEM_Q] + s->heads[PROBLEM_K]);
    const double part = terms * 0x1p-52 + (whole->angle_dtype == TROPE_F32 ? (ranks + 2) * 0x1p-24 : 0);
    double worst = 0;
    for (int64_t i = 0; i < whole->angle_count; i++) {
        const double error = fabs(value_load(whole->angle_dtype, sum, i) - value_load(whole->angle_dtype, expected, i));
        const double bound = part * m->sum[i];
        if (error == 0)
            continue;
        const double parts = isfinite(error) && bound > 0 ? error / bound : INFINITY;
        worst = parts > worst ? parts : worst;
    }
    return worst;
}

/* ---- all ranks ---- */

static int run_once(call *mine, char *sum)
{
    rank_context *r = mine->r;
    outcome o;
    watch_phase(r->watch, r->rank, "gradient of the angles");
    if (call_angles(mine, &o))
        return 1;
    watch_phase(r->watch, r->rank, "adding the gradients of the angles");
    return r->data->sum(r->data, mine->d_angles, mine->angle_count, mine->angle_dtype) ||
           rank_download(r, sum, mine->d_angles, (size_t)(mine->angle_count * value_size(mine->angle_dtype)));
}

static int compare_angles(call *whole, const char *sum, int32_t ranks, case_result *result)
{
    rank_context *r = whole->r;
    const size_t bytes = (size_t)(whole->angle_count * value_size(whole->angle_dtype));
    magnitudes m = {.call = whole, .whole = &whole->s, .sum = calloc((size_t)whole->angle_count, sizeof *m.sum)};
    char *expected = rank_malloc(r, bytes);
    outcome o;
    watch_note(r->watch, 0, "one device's gradient of the angles");
    int failed = !m.sum || !expected || call_angles(whole, &o) || rank_download(r, expected, whole->d_angles, bytes);
    failed = failed || add_up(r, &m);
    if (!failed)
        result->angle_error = o.status ? INFINITY : largest_error(whole, sum, expected, &m, ranks);
    free(m.sum);
    free(expected);
    return failed;
}

int verify_angles(call *mine, call *whole, case_result *result)
{
    rank_context *r = mine->r;
    const size_t bytes = (size_t)(mine->angle_count * value_size(mine->angle_dtype));
    char *sum = rank_malloc(r, bytes), *again = rank_malloc(r, bytes);
    int failed = !sum || !again || run_once(mine, sum) || run_once(mine, again);
    if (!failed)
        result->angles_repeat = !memcmp(sum, again, bytes);
    if (!failed && r->rank == 0)
        failed = compare_angles(whole, sum, r->size, result);
    free(sum);
    free(again);
    return failed;
}
