/* Checks the purpose of rotary embedding: q_m . k_n depends on the positions m and n. The keys travel round the ring of the
 * context parallel ranks, as in ring attention. Each product is summed in a fixed order, so the scores must be
 * bit-identical. */
#include <stdlib.h>
#include <string.h>

#include "value.h"
#include "verify.h"

/* All keys take part, but only this many queries over all ranks. */
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

/* Loads a head and converts it to double, which is exact. */
static void load_vector(int32_t dtype, const char *tensor, int64_t element, int32_t dim, double *vector)
{
    for (int32_t e = 0; e < dim; e++)
        vector[e] = value_load(dtype, tensor, element + e);
}

/* Sums in a fixed order in double. Products of two 24-bit numbers are exact in double. */
static float dot(const double *q, const double *k, int32_t dim)
{
    double sum = 0;
    for (int32_t e = 0; e < dim; e++)
        sum += q[e] * k[e];
    return (float)sum;
}

/* The list of `count` keys to score with all queries. They have columns at[0], at[1], ..., or 0, 1, ... if at is NULL. */
typedef struct key_list {
    const double *vectors;
    const int64_t *at;
    int64_t count;
} key_list;

static void score(const double *queries, const key_list *keys, int32_t dim, score_block *block)
{
    for (int64_t row = 0; row < block->rows; row++)
        for (int64_t t = 0; t < keys->count; t++)
            block->scores[row * block->columns + (keys->at ? keys->at[t] : t)] =
                dot(queries + row * dim, keys->vectors + t * dim, dim);
}

/* ---- ranks ---- */

/* Loads the first query head of a share for batch entry 0, and finds the key head that it attends to. */
static int load_queries(call *mine, const score_block *block, double *queries)
{
    rank_context *r = mine->r;
    const share *s = &mine->s;
    const size_t bytes = (size_t)(share_elements(s, PROBLEM_Q) * value_size(s->p->dtype));
    char *host = rank_malloc(r, bytes);
    const int failed = !host || rank_download(r, host, mine->result[0], bytes);
    for (int64_t row = 0; row < block->rows && !failed; row++)
        load_vector(s->p->dtype, host, share_token(s, PROBLEM_Q, row * block->step, 0), s->p->head_dim,
                    queries + row * s->p->head_dim);
    free(host);
    return failed;
}

/* Memory for a step of the ring: score_owner scores the queries with rank `owner`'s keys, which are in device memory. */
typedef struct ring_room {
    const double *queries;
    char *host;           /* the K operand of a rank */
    double *vectors;      /* the K heads of its tokens */
    char *keys_of_hop[2]; /* on the device: the current keys, and the keys being received */
} ring_room;

static int score_owner(call *mine, const ring_room *room, rank_place owner, const char *keys, score_block *block)
{
    rank_context *r = mine->r;
    const problem *p = mine->s.p;
    share from;
    int failed = share_make(&from, p, owner, (mistake){MISTAKE_NONE, 0});
    if (failed)
        failed = watch_fail(r->watch, WATCH_CAUSE, "rank %d: %s", r->rank, trope_last_error());
    failed =
        failed || rank_download(r, room->host, keys, (size_t)(share_elements(&from, PROBLEM_K) * value_size(p->dtype)));
    for (int64_t t = 0; t < from.tokens && !failed; t++)
        load_vector(p->dtype, room->host, share_token(&from, PROBLEM_K, t, 0), p->head_dim,
                    room->vectors + t * p->head_dim);
    if (!failed)
        score(room->queries, &(key_list){room->vectors, from.in_whole, from.tokens}, p->head_dim, block);
    share_free(&from);
    return failed;
}

/* Scores the keys of this rank, then of the rank before it, and so on. */
static int go_round(call *mine, const ring_room *room, score_block *block)
{
    rank_context *r = mine->r;
    const problem *p = mine->s.p;
    const int32_t cp = p->grid.cp;
    const size_t q_bytes = (size_t)(share_elements(&mine->s, PROBLEM_Q) * value_size(p->dtype));
    rank_place next = mine->s.place, before = next, owner = next;
    const char *keys = mine->result[0] + q_bytes;
    int failed = 0;
    next.cp = (next.cp + 1) % cp;
    before.cp = (before.cp + cp - 1) % cp;
    for (int32_t hop = 0; hop < cp && !failed; hop++) {
        owner.cp = (mine->s.place.cp + cp - hop) % cp;
        failed = score_owner(mine, room, owner, keys, block);
        watch_phase(r->watch, r->rank, "keys round the ring");
        const ring_step step = {keys, room->keys_of_hop[hop % 2], mine->bytes - q_bytes, problem_rank(p, next),
                                problem_rank(p, before)};
        if (!failed && hop + 1 < cp)
            failed = r->data->ring(r->data, &step);
        keys = room->keys_of_hop[hop % 2];
    }
    return failed;
}

static int score_share(call *mine, score_block *block)
{
    rank_context *r = mine->r;
    const share *s = &mine->s;
    const size_t bytes = (size_t)(share_elements(s, PROBLEM_K) * value_size(s->p->dtype));
    const size_t vector = (size_t)s->p->head_dim * sizeof(double);
    const arena_mark mark = rank_mark(r);
    double *queries = rank_malloc(r, (size_t)block->rows * vector);
    ring_room room = {
        .queries = queries, .host = rank_malloc(r, bytes), .vectors = rank_malloc(r, (size_t)s->tokens * vector)};
    room.keys_of_hop[0] = rank_take(r, bytes);
    room.keys_of_hop[1] = rank_take(r, bytes);
    const int failed = !queries || !room.host || !room.vectors || !room.keys_of_hop[0] || !room.keys_of_hop[1] ||
                       load_queries(mine, block, queries) || go_round(mine, &room, block);
    free(queries);
    free(room.host);
    free(room.vectors);
    rank_give_back(r, mark);
    return failed;
}

/* ---- one device ---- */

/* Loads the same queries and keys from the whole's y. */
static void load_from_whole(const share *s, const share *whole, const char *y, const score_block *block, double *vectors)
{
    const problem *p = s->p;
    const int32_t dtype = p->dtype, dim = p->head_dim;
    const char *k = y + (size_t)(share_elements(whole, PROBLEM_Q) * value_size(dtype));
    for (int64_t row = 0; row < block->rows; row++)
        load_vector(dtype, y, share_token_in_whole(s, PROBLEM_Q, row * block->step, 0), dim, vectors + row * dim);
    share in_stream = *s; /* treat any token of the replica as if this share had it */
    for (int64_t n = 0; n < block->columns; n++) {
        in_stream.in_whole = &n;
        load_vector(dtype, k, share_token_in_whole(&in_stream, PROBLEM_K, 0, 0), dim, vectors + (block->rows + n) * dim);
    }
}

static int score_whole(call *mine, int32_t rank, const share *whole, const char *y, score_block *block)
{
    rank_context *r = mine->r;
    const problem *p = mine->s.p;
    double *vectors = rank_malloc(r, (size_t)((block->rows + block->columns) * p->head_dim) * sizeof *vectors);
    share s;
    if (!vectors)
        return 1;
    const int failed = share_make(&s, p, problem_place(p, rank), (mistake){MISTAKE_NONE, 0});
    if (!failed) {
        load_from_whole(&s, whole, y, block, vectors);
        score(vectors, &(key_list){vectors + block->rows * p->head_dim, NULL, block->columns}, p->head_dim, block);
    }
    share_free(&s);
    free(vectors);
    return failed;
}

static int compare_scores(call *mine, const call *whole, const score_block *of_ranks, case_result *result)
{
    rank_context *r = mine->r;
    score_block block = *of_ranks;
    const int64_t count = block.rows * block.columns;
    char *y = rank_malloc(r, whole->bytes);
    block.scores = rank_malloc(r, (size_t)count * sizeof *block.scores);
    int failed = !y || !block.scores || rank_download(r, y, whole->result[0], whole->bytes);
    for (int32_t rank = 0; rank < r->size && !failed; rank++) {
        watch_note(r->watch, 0, "one device's scores");
        failed = score_whole(mine, rank, &whole->s, y, &block);
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
