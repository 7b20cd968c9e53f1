/* The gradient of the norms' weights: each rank has the sum over its tokens (and over its heads, if they share a weight).
 * An all-reduce adds these to the sum of the whole. Each rank puts its weights at their place in the whole, and zeros,
 * which do not change a sum, elsewhere. A different order of additions rounds differently, so the comparison uses a bound
 * (docs/multigpu.md):
 *
 *     |sum of ranks - one device's| <= (2^-20 + ranks 2^-24) * sum |terms|
 *
 * The sum of the terms' magnitudes is computed here from x, dy and rstd, not by the library. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "value.h"
#include "verify.h"

/* Returns the offset of an operand's weights in the weights of Q and K. PROBLEM_OPERANDS gives the end of all weights. */
static int64_t weight_begin(const problem *p, int operand)
{
    int64_t heads = 0;
    for (int i = 0; i < operand; i++)
        heads += p->weight_heads[i];
    return heads * p->head_dim;
}

/* Puts a call's d_weight at its place in the whole. K heads that several ranks have are counted once. */
static int place_weights(const call *c, float *whole)
{
    const share *s = &c->s;
    const int operands = s->counts_keys ? PROBLEM_OPERANDS : PROBLEM_K;
    int failed = 0;
    for (int i = 0; i < operands && !failed; i++)
        failed = rank_download(c->r, whole + weight_begin(s->p, i) + (int64_t)s->first_weight[i] * s->p->head_dim,
                               c->d_weight[i], (size_t)(s->weight_heads[i] * s->p->head_dim) * sizeof *whole);
    return failed;
}

static int32_t place_in(rank_place place, int32_t dimension)
{
    return dimension == SPLIT_DATA ? place.dp : dimension == SPLIT_TENSOR ? place.tp : place.cp;
}

/* Adds the magnitudes of the terms: M' dy times x rstd or, with a norm after the rotation, dy times M x rstd. */
static void add_terms(const share *s, int operand, const double *x, const double *dy, double *magnitude)
{
    const problem *p = s->p;
    const int is_after = p->c->norm == CASE_NORM_AFTER, out = case_pairing_out(p->c);
    const int64_t dim = p->head_dim, heads = p->weight_heads[operand];
    double *turned = malloc((size_t)dim * sizeof *turned);
    for (int64_t head = 0; turned && head < share_elements(s, operand) / dim; head++) {
        const double *kept = (is_after ? dy : x) + head * dim;
        memset(turned, 0, (size_t)dim * sizeof *turned);
        verify_add_head(p, is_after ? p->c->pairing : out, is_after ? out : p->c->pairing, (is_after ? x : dy) + head * dim,
                        turned);
        for (int64_t e = 0; e < dim; e++)
            magnitude[head % heads * dim + e] += fabs(kept[e]) * turned[e];
    }
    free(turned);
}

static int add_magnitudes(const call *whole, int operand, double *magnitude)
{
    const size_t bytes = (size_t)share_elements(&whole->s, operand) * sizeof(double);
    double *x = rank_malloc(whole->r, bytes), *dy = rank_malloc(whole->r, bytes);
    const int failed = !x || !dy || call_load(whole, PROBLEM_X, operand, x) || call_load(whole, PROBLEM_DY, operand, dy) ||
                       call_scale_by_rstd(whole, operand, x);
    if (!failed)
        add_terms(&whole->s, operand, x, dy, magnitude);
    free(x);
    free(dy);
    return failed;
}

/* Names the dimension whose sum is missing. The ranks' parts, added without this dimension, give the sum that was found. */
static void find_cause(const call *whole, const float *parts, const float *sum, const double *bound, case_result *result)
{
    static const char *const names[] = {[SPLIT_DATA] = "data", [SPLIT_TENSOR] = "tensor", [SPLIT_CONTEXT] = "context"};
    const int64_t count = weight_begin(whole->s.p, PROBLEM_OPERANDS);
    for (int32_t dimension = SPLIT_DATA; dimension <= SPLIT_CONTEXT && !result->cause[0]; dimension *= 2) {
        float *lacking = calloc((size_t)count, sizeof *lacking);
        for (int32_t rank = 0; rank < whole->r->size && lacking; rank++)
            for (int64_t i = 0; i < count && !place_in(problem_place(whole->s.p, rank), dimension); i++)
                lacking[i] += parts[rank * count + i];
        if (lacking && verify_largest_error(sum, lacking, bound, count) <= 1) {
            result->causes = 1u << MISTAKE_REDUCE;
            snprintf(result->cause, sizeof result->cause, "reduce: d_weight is not added over the %s parallel ranks",
                     names[dimension]);
        }
        free(lacking);
    }
}

static int compare_weights(const call *whole, const float *parts, const float *sum, case_result *result)
{
    const int64_t count = weight_begin(whole->s.p, PROBLEM_OPERANDS);
    float *expected = rank_malloc(whole->r, (size_t)count * sizeof *expected);
    double *bound = calloc((size_t)count, sizeof *bound);
    int failed = !expected || !bound || place_weights(whole, expected);
    for (int i = 0; i < PROBLEM_OPERANDS && !failed; i++)
        failed = add_magnitudes(whole, i, bound + weight_begin(whole->s.p, i));
    for (int64_t i = 0; i < count && !failed; i++)
        bound[i] *= 0x1p-20 + whole->r->size * 0x1p-24;
    if (!failed)
        result->sum_error = verify_largest_error(sum, expected, bound, count);
    if (!failed && result->sum_error > 1)
        find_cause(whole, parts, sum, bound, result);
    free(expected);
    free(bound);
    return failed;
}

int verify_weights(call *mine, const call *whole, case_result *result)
{
    rank_context *r = mine->r;
    const problem *p = mine->s.p;
    if (!p->c->norm)
        return 0;
    const int64_t count = weight_begin(p, PROBLEM_OPERANDS);
    const size_t bytes = (size_t)count * sizeof(float);
    float *sum = calloc((size_t)count, sizeof *sum), *parts = rank_malloc(r, bytes * (size_t)r->size);
    watch_phase(r->watch, r->rank, "adding d_weight");
    int failed = !sum || !parts || place_weights(mine, sum) || r->host->all_gather(r->host, sum, parts, bytes);
    if (!failed && mine->m.kind == MISTAKE_REDUCE && place_in(mine->s.place, mine->m.value))
        memset(sum, 0, bytes); /* the sum then covers only the first ranks of the dimension */
    failed = failed || verify_add(mine, sum, count);
    if (!failed && r->rank == 0) {
        watch_note(r->watch, 0, "comparing d_weight");
        failed = compare_weights(whole, parts, sum, result);
    }
    free(sum);
    free(parts);
    return failed;
}
