/* Sums over the heads of all ranks: dx of shared keys, like MLA's k_pe. Forward broadcasts the keys to every rank's heads;
 * verify.c compares that bit for bit. In backward, each rank has the rounded sum over its own heads. An all-reduce over all
 * ranks adds these to the sum of the whole. Each rank puts its own tokens at their place in the whole, and zeros, which do
 * not change a sum, at the places of the other tokens. This is a different order of additions, so the comparison
 * uses a bound, which docs/multigpu.md derives:
 *
 *     |sum of ranks - one device's| <= (epsilon of dtype + (2 ceil(log2 heads) + tp + 6) 2^-24) * sum |terms|
 *
 * The sum of the terms' magnitudes is computed here from dy, not by the library. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "value.h"
#include "verify.h"

static int64_t sum_elements(const share *s)
{
    return share_tensor_elements(s, PROBLEM_X, PROBLEM_K);
}

/* Puts a rank's sums at their place in the whole. */
static int place_sum(const call *mine, float *whole)
{
    const share *s = &mine->s;
    const size_t row = (size_t)s->p->head_dim * sizeof *whole;
    float *sum = rank_malloc(mine->r, (size_t)sum_elements(s) * sizeof *sum);
    const int failed = !sum || call_load_dx(mine, PROBLEM_K, sum);
    for (int64_t i = 0; i < s->tokens * s->batch && !failed; i++)
        memcpy(whole + share_tensor_token_in_whole(s, PROBLEM_X, PROBLEM_K, i / s->batch, i % s->batch),
               sum + i * s->p->head_dim, row);
    free(sum);
    return failed;
}

int verify_add(call *mine, float *values, int64_t count)
{
    rank_context *r = mine->r;
    const size_t bytes = (size_t)count * sizeof *values;
    const arena_mark mark = rank_mark(r);
    void *on_device = rank_take(r, bytes);
    const int failed = !on_device || rank_upload(r, on_device, values, bytes) ||
                       r->data->sum(r->data, on_device, count, TROPE_F32) || rank_download(r, values, on_device, bytes);
    rank_give_back(r, mark);
    return failed;
}

/* ---- one device ---- */

void verify_add_head(const problem *p, int32_t from, int32_t to, const double *head, double *magnitude)
{
    for (int32_t i = 0; i < p->c->rotary_dim / 2; i++) {
        int32_t read[2], written[2];
        problem_pair(p, from, i, read);
        problem_pair(p, to, i, written);
        for (int k = 0; k < 2; k++)
            magnitude[written[k]] += fabs(head[read[0]]) + fabs(head[read[1]]);
    }
    for (int32_t e = 0; e < p->head_dim; e++)
        if (e < p->c->rotary_offset || e >= p->c->rotary_offset + p->c->rotary_dim)
            magnitude[e] += fabs(head[e]);
}

/* Computes the magnitudes for each sum: old_dst and the terms of all heads. */
static int add_magnitudes(const call *whole, double *magnitude)
{
    const share *s = &whole->s;
    const problem *p = s->p;
    const int32_t heads = s->heads[PROBLEM_K], dim = p->head_dim;
    double *dy = rank_malloc(whole->r, (size_t)share_elements(s, PROBLEM_K) * sizeof *dy);
    const int failed = !dy || (p->c->accumulate && call_load(whole, PROBLEM_BEFORE, PROBLEM_K, magnitude)) ||
                       call_load(whole, PROBLEM_DY, PROBLEM_K, dy);
    for (int64_t i = 0; i < sum_elements(s) && !failed; i++)
        magnitude[i] = fabs(magnitude[i]);
    for (int64_t head = 0; head < s->tokens * s->batch * heads && !failed; head++)
        verify_add_head(p, case_pairing_out(p->c), p->c->pairing, dy + head * dim, magnitude + head / heads * dim);
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

double verify_largest_error(const float *sum, const float *expected, const double *bound, int64_t count)
{
    double worst = 0;
    for (int64_t i = 0; i < count; i++) {
        const double error = fabs((double)sum[i] - (double)expected[i]);
        const double parts = error == 0 ? 0 : isfinite(error) ? error / bound[i] : INFINITY;
        worst = parts > worst ? parts : worst;
    }
    return worst;
}

static int compare_sums(const call *whole, const float *sum, case_result *result)
{
    const size_t count = (size_t)sum_elements(&whole->s);
    float *expected = rank_malloc(whole->r, count * sizeof *expected);
    double *bound = calloc(count, sizeof *bound);
    const int32_t rounds = rounds_of_tree(whole->s.heads[PROBLEM_K]);
    const double part = value_epsilon(whole->s.p->dtype) + (2 * rounds + whole->s.p->grid.tp + 6) * 0x1p-24;
    const int failed = !expected || !bound || call_load_dx(whole, PROBLEM_K, expected) || add_magnitudes(whole, bound);
    for (size_t i = 0; i < count && !failed; i++)
        bound[i] *= part;
    if (!failed)
        result->sum_error = verify_largest_error(sum, expected, bound, sum_elements(&whole->s));
    free(expected);
    free(bound);
    return failed;
}

int verify_sums(call *mine, const call *whole, case_result *result)
{
    rank_context *r = mine->r;
    if (problem_split_operands(mine->s.p, 1) == PROBLEM_OPERANDS)
        return 0;
    const int64_t count = problem_tensor_elements(mine->s.p, PROBLEM_X, PROBLEM_K);
    float *sum = calloc((size_t)count, sizeof *sum);
    watch_phase(r->watch, r->rank, "adding the sums over heads");
    int failed = !sum || place_sum(mine, sum) || verify_add(mine, sum, count);
    if (!failed && r->rank == 0) {
        watch_note(r->watch, 0, "comparing the sums over heads");
        failed = compare_sums(whole, sum, result);
    }
    free(sum);
    return failed;
}
