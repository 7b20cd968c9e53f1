/* What rotary embedding is for: q_m . k_n depends on where m and n are. The keys pass round the ring of the context parallel
 * ranks, as in ring attention; each product is summed in one order, so the scores have to be the same to the bit. */
#include <stdlib.h>
#include <string.h>

#include "value.h"
#include "verify.h"

/* All keys, but so many queries over all ranks. */
enum { QUERIES = 512, QUERIES_OF_RANK = 96 };

typedef struct score_block {
    int64_t rows, step, columns; /* local queries 0, step, ...; keys of the whole replica */
    float *scores;               /* [rows, columns] */
} score_block;

static void shape_block(const share *s, int32_t ranks, score_block *block)
{
    int64_t rows = QUERIES / ranks < 4 ? 4 : QUERIES / ranks;
    rows = rows > QUERIES_OF_RANK ? QUERIES_OF_RANK : rows;
    rows = rows > s->tokens ? s->tokens : rows;
    block->step = s->tokens / rows;
    block->rows = rows;
    block->columns = s->p->tokens;
}

/* One order of summation, in double: the products of two numbers of 24 bits are exact in it. */
static float dot(int32_t dtype, const char *q, const char *k, int32_t dim)
{
    double sum = 0;
    for (int32_t e = 0; e < dim; e++)
        sum += value_load(dtype, q, e) * value_load(dtype, k, e);
    return (float)sum;
}

/* The first query head of a share and the key head that it attends to, of batch entry 0: rows within a tensor. */
static const char *row_of(const share *s, const char *tensor, int64_t element)
{
    return tensor + (size_t)element * (size_t)value_size(s->p->dtype);
}

/* Scores of the queries of `mine` with the keys of rank `from`, in the columns where those tokens are. */
static void score_keys(const share *mine, const char *queries, const share *from, const char *keys, score_block *block)
{
    for (int64_t row = 0; row < block->rows; row++)
        for (int64_t t = 0; t < from->tokens; t++)
            block->scores[row * block->columns + from->in_whole[t]] =
                dot(mine->p->dtype, row_of(mine, queries, share_row(mine, PROBLEM_Q, row * block->step, 0)),
                    row_of(from, keys, share_row(from, PROBLEM_K, t, 0)), mine->p->head_dim);
}

/* ---- ranks ---- */

/* The keys of rank `mine`, then of the rank before it, and so on. */
static int go_round(call *mine, const char *queries, score_block *block)
{
    rank_context *r = mine->r;
    const problem *p = mine->s.p;
    const mistake none = {MISTAKE_NONE, 0};
    const size_t q_bytes = (size_t)(share_elements(&mine->s, PROBLEM_Q) * value_size(p->dtype)), bytes = mine->bytes - q_bytes;
    char *host = rank_malloc(r, bytes), *held[2] = {rank_take(r, bytes), rank_take(r, bytes)};
    rank_place next = mine->s.place, before = next;
    const char *keys = mine->result[0] + q_bytes;
    int failed = !host || !held[0] || !held[1];
    next.cp = (next.cp + 1) % p->grid.cp;
    before.cp = (before.cp + p->grid.cp - 1) % p->grid.cp;
    for (int32_t hop = 0; hop < p->grid.cp && !failed; hop++) {
        rank_place owner = mine->s.place;
        share from;
        owner.cp = (owner.cp + p->grid.cp - hop) % p->grid.cp;
        failed = share_make(&from, p, owner, none) || rank_download(r, host, keys, bytes);
        if (!failed)
            score_keys(&mine->s, queries, &from, host, block);
        share_free(&from);
        watch_phase(r->watch, r->rank, "keys round the ring");
        const ring_step step = {keys, held[hop % 2], bytes, problem_rank(p, next), problem_rank(p, before)};
        if (!failed && hop + 1 < p->grid.cp)
            failed = r->data->ring(r->data, &step);
        keys = held[hop % 2];
    }
    free(host);
    return failed;
}

static int score_share(call *mine, score_block *block)
{
    rank_context *r = mine->r;
    const size_t q_bytes = (size_t)(share_elements(&mine->s, PROBLEM_Q) * value_size(mine->s.p->dtype));
    const arena_mark mark = rank_mark(r);
    char *queries = rank_malloc(r, q_bytes);
    const int failed = !queries || rank_download(r, queries, mine->result[0], q_bytes) || go_round(mine, queries, block);
    free(queries);
    rank_give_back(r, mark);
    return failed;
}

/* ---- one device ---- */

/* The same scores from the whole's y: where rank's queries and its replica's keys are. */
static void score_whole(const share *s, const share *whole, const char *y, score_block *block)
{
    const size_t q_bytes = (size_t)(share_elements(whole, PROBLEM_Q) * value_size(s->p->dtype));
    share in_stream = *s; /* any token of the replica, as if this share had it */
    for (int64_t row = 0; row < block->rows; row++) {
        const char *q = row_of(s, y, share_row_in_whole(s, PROBLEM_Q, row * block->step, 0));
        for (int64_t n = 0; n < block->columns; n++) {
            in_stream.in_whole = &n;
            const char *k = row_of(s, y + q_bytes, share_row_in_whole(&in_stream, PROBLEM_K, 0, 0));
            block->scores[row * block->columns + n] = dot(s->p->dtype, q, k, s->p->head_dim);
        }
    }
}

static int compare_scores(call *mine, const call *whole, const score_block *of_ranks, case_result *result)
{
    rank_context *r = mine->r;
    const mistake none = {MISTAKE_NONE, 0};
    score_block block = *of_ranks;
    const int64_t count = block.rows * block.columns;
    char *y = rank_malloc(r, whole->bytes);
    block.scores = rank_malloc(r, (size_t)count * sizeof *block.scores);
    int failed = !y || !block.scores || rank_download(r, y, whole->result[0], whole->bytes);
    for (int32_t rank = 0; rank < r->size && !failed; rank++) {
        share s;
        watch_note(r->watch, 0, "one device's scores");
        failed = share_make(&s, mine->s.p, problem_place(mine->s.p, rank), none);
        if (!failed)
            score_whole(&s, &whole->s, y, &block);
        share_free(&s);
        for (int64_t i = 0; i < count && !failed; i++)
            result->scores_wrong += !!memcmp(&of_ranks->scores[rank * count + i], &block.scores[i], sizeof(float));
    }
    result->scores = count * r->size;
    free(block.scores);
    free(y);
    return failed;
}

int verify_scores(call *mine, const call *whole, case_result *result)
{
    rank_context *r = mine->r;
    score_block block, all;
    shape_block(&mine->s, r->size, &block);
    all = block;
    const size_t bytes = (size_t)(block.rows * block.columns) * sizeof *block.scores;
    block.scores = rank_malloc(r, bytes);
    all.scores = rank_malloc(r, bytes * (size_t)r->size);
    int failed = !block.scores || !all.scores || score_share(mine, &block);
    watch_phase(r->watch, r->rank, "gathering scores");
    failed = failed || r->host->all_gather(r->host, block.scores, all.scores, bytes);
    if (!failed && r->rank == 0)
        failed = compare_scores(mine, whole, &all, result);
    free(block.scores);
    free(all.scores);
    return failed;
}
