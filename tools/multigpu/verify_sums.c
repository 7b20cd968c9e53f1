/* Sums over the heads of all ranks: dx of keys that are one in memory, like MLA's k_pe. Forward broadcasts them to every
 * rank's heads, which verify.c compares to the bit. Backward, each rank has the sum over its own heads, rounded, and an
 * all-reduce makes the whole's of them: over all ranks, each of which has its own tokens in the whole, and zeros, which
 * change no sum, for those of others. That is another order of additions, so it is compared within a bound, which
 * docs/multigpu.md derives:
 *
 *     |sum of ranks - one device's| <= (epsilon of dtype + (2 ceil(log2 heads) + tp + 6) 2^-24) * sum |terms|
 *
 * The sum of the terms' magnitudes is taken here from dy, not from the library. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "value.h"
#include "verify.h"

static int64_t sum_elements(const share *s)
{
    return share_tensor_elements(s, PROBLEM_X, PROBLEM_K);
}

/* dx of the keys of a call, in fp32, which all numbers of 16 bits are, too. */
static int load_sum(const call *c, float *sum)
{
    const int32_t dtype = c->s.p->dtype;
    const size_t begin = (size_t)(share_elements(&c->s, PROBLEM_Q) * value_size(dtype));
    const size_t bytes = (size_t)(sum_elements(&c->s) * value_size(dtype));
    char *bits = rank_malloc(c->r, bytes);
    const int failed = !bits || rank_download(c->r, bits, c->result[1] + begin, bytes);
    for (int64_t i = 0; i < sum_elements(&c->s) && !failed; i++)
        sum[i] = (float)value_load(dtype, bits, i);
    free(bits);
    return failed;
}

/* A rank's sums, at their place in the whole. */
static int place_sum(const call *mine, float *whole)
{
    const share *s = &mine->s;
    const size_t row = (size_t)s->p->head_dim * sizeof *whole;
    float *sum = rank_malloc(mine->r, (size_t)sum_elements(s) * sizeof *sum);
    const int failed = !sum || load_sum(mine, sum);
    for (int64_t i = 0; i < s->tokens * s->batch && !failed; i++)
        memcpy(whole + share_tensor_row_in_whole(s, PROBLEM_X, PROBLEM_K, i / s->batch, i % s->batch),
               sum + i * s->p->head_dim, row);
    free(sum);
    return failed;
}

static int add_ranks(call *mine, float *whole, int64_t count)
{
    rank_context *r = mine->r;
    const size_t bytes = (size_t)count * sizeof *whole;
    const arena_mark mark = rank_mark(r);
    void *on_device = rank_take(r, bytes);
    memset(whole, 0, bytes);
    const int failed = !on_device || place_sum(mine, whole) || rank_upload(r, on_device, whole, bytes) ||
                       r->data->sum(r->data, on_device, count, TROPE_F32) || rank_download(r, whole, on_device, bytes);
    rank_give_back(r, mark);
    return failed;
}

/* ---- one device ---- */

/* Adds the terms of a head's dx. |cos| and |sin| are at most 1; what passes through, or is copied, is a term itself. */
static void add_head(const problem *p, const double *dy, double *magnitude)
{
    for (int32_t i = 0; i < p->c->rotary_dim / 2; i++) {
        int32_t from[2], to[2];
        problem_pair(p, case_pairing_out(p->c), i, from);
        problem_pair(p, p->c->pairing, i, to);
        for (int k = 0; k < 2; k++)
            magnitude[to[k]] += fabs(dy[from[0]]) + fabs(dy[from[1]]);
    }
    for (int32_t e = 0; e < p->head_dim; e++)
        if (e < p->c->rotary_offset || e >= p->c->rotary_offset + p->c->rotary_dim)
            magnitude[e] += fabs(dy[e]);
}

/* Of each sum: what was there before, and the terms of all heads. */
static int add_magnitudes(const call *whole, double *magnitude)
{
    const share *s = &whole->s;
    const problem *p = s->p;
    const int32_t heads = s->heads[PROBLEM_K], dim = p->head_dim;
    const int64_t elements = share_elements(s, PROBLEM_K);
    char *bits = rank_malloc(whole->r, (size_t)(elements * value_size(p->dtype)));
    double *dy = rank_malloc(whole->r, (size_t)elements * sizeof *dy);
    const int failed = !bits || !dy;
    if (!failed && p->c->accumulate)
        share_fill(s, PROBLEM_BEFORE, PROBLEM_K, bits);
    for (int64_t i = 0; i < sum_elements(s) && !failed; i++)
        magnitude[i] = p->c->accumulate ? fabs(value_load(p->dtype, bits, i)) : 0;
    if (!failed)
        share_fill(s, PROBLEM_DY, PROBLEM_K, bits);
    for (int64_t i = 0; i < elements && !failed; i++)
        dy[i] = value_load(p->dtype, bits, i);
    for (int64_t head = 0; head < s->tokens * s->batch * heads && !failed; head++)
        add_head(p, dy + head * dim, magnitude + head / heads * dim);
    free(bits);
    free(dy);
    return failed;
}

static int32_t rounds_of_tree(int32_t heads)
{
    int32_t rounds = 0;
    while (1 << rounds < heads)
        rounds++;
    return rounds;
}

/* The largest error in parts of its bound; an error that is not a number is infinite. */
static double largest_error(const call *whole, const float *sum, const float *expected, const double *magnitude)
{
    const share *s = &whole->s;
    const int32_t rounds = rounds_of_tree(s->heads[PROBLEM_K]);
    const double part = value_epsilon(s->p->dtype) + (2 * rounds + s->p->grid.tp + 6) * 0x1p-24;
    double worst = 0;
    for (int64_t i = 0; i < sum_elements(s); i++) {
        const double error = fabs((double)sum[i] - (double)expected[i]);
        const double parts = error == 0 ? 0 : isfinite(error) ? error / (part * magnitude[i]) : INFINITY;
        worst = parts > worst ? parts : worst;
    }
    return worst;
}

static int compare_sums(const call *whole, const float *sum, case_result *result)
{
    const size_t count = (size_t)sum_elements(&whole->s);
    float *expected = rank_malloc(whole->r, count * sizeof *expected);
    double *magnitude = rank_malloc(whole->r, count * sizeof *magnitude);
    const int failed = !expected || !magnitude || load_sum(whole, expected) || add_magnitudes(whole, magnitude);
    if (!failed)
        result->sum_error = largest_error(whole, sum, expected, magnitude);
    free(expected);
    free(magnitude);
    return failed;
}

int verify_sums(call *mine, const call *whole, case_result *result)
{
    rank_context *r = mine->r;
    if (problem_split_operands(mine->s.p, 1) == PROBLEM_OPERANDS)
        return 0;
    const int64_t count = problem_tensor_elements(mine->s.p, PROBLEM_X, PROBLEM_K);
    float *sum = rank_malloc(r, (size_t)count * sizeof *sum);
    watch_phase(r->watch, r->rank, "adding the sums over heads");
    int failed = !sum || add_ranks(mine, sum, count);
    if (!failed && r->rank == 0) {
        watch_note(r->watch, 0, "comparing the sums over heads");
        failed = compare_sums(whole, sum, result);
    }
    free(sum);
    return failed;
}
