/* The integer arrays of a problem: sequence boundaries, ids, start positions. */
#include <math.h>

#include "bench_problem.h"
#include "random_bits.h"

#define LONGEST      16384 /* longest sequence of BENCH_SEQS_PARETO, in tokens */
#define SHORTEST     64
#define ID_SEQUENCES 64 /* number of sequences of equal length in BENCH_IDS */

static void store_index(int32_t dtype, void *array, int64_t i, int64_t value)
{
    if (dtype == TROPE_I64)
        ((int64_t *)array)[i] = value;
    else
        ((int32_t *)array)[i] = (int32_t)value;
}

/* Sequences */

/* Returns a Pareto length of at least 1 for sequence i: the same in each call. */
static double pareto(int64_t i)
{
    const double u = ((double)(random_bits(0, (uint64_t)i) >> 12) + 0.5) * 0x1p-52;
    return pow(u, -1 / 1.16);
}

/* Returns the number of sequences, or 0 if it follows from their lengths. */
static int64_t given_count(const bench_problem *p)
{
    switch (p->c->source.lengths) {
    case BENCH_SEQS_GIVEN:
        return p->text.args.sequences;
    case BENCH_SEQS_4:
        return 4;
    case BENCH_SEQS_64:
        return 64;
    case BENCH_SEQS_16384:
        return 16384;
    default:
        return 0;
    }
}

/* Returns where sequence i of `count` begins in a stream of `tokens`. The ranks of any context parallel layout can split
 * it. Lengths alternate between 5/4 and 3/4 of the mean. They differ less if the table of a given call has fewer rows. */
static int64_t edge(const bench_problem *p, int64_t tokens, int64_t count, int64_t i)
{
    const int64_t ranks = bench_ranks(p->c), unit = ranks > 1 ? 2 * ranks : 1, quarter = tokens / count / 4;
    const int is_limited = p->c->source.lengths == BENCH_SEQS_GIVEN && p->cols;
    const int64_t room = is_limited ? p->text.args.angle_rows - (tokens + count - 1) / count : quarter;
    const int64_t more = room < quarter ? room : quarter;
    const int64_t at = tokens * i / count + (i % 2 && more > 0 ? more : 0);
    return i < count ? at / unit * unit : tokens;
}

/* Returns the end of sequence i, which begins at `begin`. It may be beyond `tokens`. */
static int64_t end_of(const bench_problem *p, int64_t tokens, int64_t i, int64_t begin)
{
    const bench_lengths lengths = p->c->source.lengths;
    const int64_t count = given_count(p);
    if (count)
        return edge(p, tokens, count, i + 1);
    if (lengths == BENCH_SEQS_OF_1024 || lengths == BENCH_SEQS_OF_4)
        return begin + (lengths == BENCH_SEQS_OF_4 ? 4 : 1024);
    return begin + (SHORTEST * pareto(i) < LONGEST ? (int64_t)(SHORTEST * pareto(i)) : LONGEST);
}

/* A sequence in the stream of all ranks. `end` is its end in memory, and `unpadded` its number of unpadded tokens. */
typedef struct sequence {
    int64_t number, begin, end, unpadded;
} sequence;

/* Steps to the next sequence; number -1 stands for the place before the first. Returns 0 after the last one, which ends
 * at the last token. */
static int next_sequence(const bench_problem *p, sequence *s)
{
    const int64_t tokens = p->tokens * bench_ranks(p->c), count = given_count(p);
    s->number++;
    if (count ? s->number == count : s->end == tokens)
        return 0;
    s->begin = s->end;
    s->end = end_of(p, tokens, s->number, s->begin);
    s->end = s->end < tokens ? s->end : tokens;
    s->unpadded = s->end - s->begin;
    if (p->c->source.padded)
        s->unpadded -= s->unpadded > 1 ? (s->unpadded + 63) / 64 : 0;
    return 1;
}

/* Number of tokens after which the ids start again. */
static int64_t id_period(const bench_problem *p)
{
    return p->tokens > ID_SEQUENCES ? p->tokens / ID_SEQUENCES : 1;
}

void bench_count_sequences(bench_problem *p)
{
    p->longest = p->c->source.positions == BENCH_IDS ? id_period(p) : p->tokens;
    if (!p->c->source.lengths)
        return;
    p->longest = 0;
    for (sequence s = {-1, 0, 0, 0}; next_sequence(p, &s);) {
        p->sequences++;
        p->padding += s.end - s.begin - s.unpadded;
        p->longest = s.unpadded > p->longest ? s.unpadded : p->longest;
    }
    p->padding /= bench_ranks(p->c);
    p->longest = (p->longest + bench_ranks(p->c) - 1) / bench_ranks(p->c);
}

static void write_sequences(const bench_problem *p, void *const *area)
{
    const int32_t dtype = bench_index_dtype(p->c);
    int64_t unpadded_end = 0;
    store_index(dtype, area[AREA_CU_SEQLENS], 0, 0);
    if (p->c->source.padded)
        store_index(dtype, area[AREA_CU_SEQLENS_PADDED], 0, 0);
    for (sequence s = {-1, 0, 0, 0}; next_sequence(p, &s);) {
        unpadded_end += s.unpadded;
        store_index(dtype, area[AREA_CU_SEQLENS], s.number + 1, unpadded_end);
        if (p->c->source.padded)
            store_index(dtype, area[AREA_CU_SEQLENS_PADDED], s.number + 1, s.end);
    }
}

/* Ids and starts */

int64_t bench_index_count(const bench_problem *p)
{
    if (p->c->source.positions == BENCH_STARTS)
        return p->c->source.lengths ? p->sequences : bench_batch(p->c);
    return bench_id_axes(p->c) * bench_all_tokens(p);
}

/* Returns an id on three axes: frames of 16 x 16 patches. Ids are smaller than the number of tokens, so tables can have
 * that many rows. */
static int64_t id_of(const bench_problem *p, int32_t axis, int64_t token)
{
    if (bench_id_axes(p->c) == 1)
        return p->c->source.positions == BENCH_IDS ? token % id_period(p) : token;
    return axis == 0 ? token / 256 : axis == 1 ? token / 16 % 16 : token % 16;
}

static void write_ids(const bench_problem *p, void *ids)
{
    const int32_t batch = bench_batch(p->c);
    for (int64_t i = 0; i < bench_index_count(p); i++)
        store_index(bench_index_dtype(p->c), ids, i, id_of(p, (int32_t)(i / p->tokens / batch), i % p->tokens));
}

void bench_write_indices(const bench_problem *p, void *const *area)
{
    if (p->c->source.lengths)
        write_sequences(p, area);
    if (bench_id_axes(p->c))
        write_ids(p, area[AREA_INDICES]);
    if (p->c->source.positions == BENCH_STARTS)
        for (int64_t i = 0; i < bench_index_count(p); i++)
            store_index(bench_index_dtype(p->c), area[AREA_INDICES], i, i * 1000 % 8192);
}
