/* Why checking runs is enough. For one rank, the library's position of local token i is an affine function of i. With
 * zigzag there is one function for each half (src/varlen/sequence_template.h). A rank therefore has at most two runs of
 * evenly spaced positions. The expected runs are written down here from the descriptions of the layouts. The library's
 * function is evaluated for the first, second and last token of each run and for two between them. An affine function that
 * is right in two places is right everywhere, unless an intermediate result overflows. Intermediate results grow with i and
 * the rank, so the last tokens would show an overflow. simulate_every_position proves that the function is affine: it
 * checks every position of a short sequence for each number of ranks. */
#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "simulate.h"
#include "trope/trope.h"
#include "varlen/position.h"

typedef unsigned __int128 work;

const int32_t simulate_layouts[SIMULATE_LAYOUTS] = {TROPE_CP_ZIGZAG, TROPE_CP_CONTIGUOUS, TROPE_CP_STRIPED, TROPE_CP_FLAT};

/* Positions first, first + stride, ... of the local tokens begin, begin + 1, ... */
typedef struct run {
    int64_t begin, first, stride, count;
} run;

/* Computes the expected runs of a rank that has `local` tokens of a sequence. */
static int make_runs(int32_t layout, int64_t ranks, int64_t rank, int64_t local, run *runs)
{
    const int64_t chunk = local / 2;
    if (layout == TROPE_CP_ZIGZAG) { /* chunks rank and 2 * ranks - 1 - rank, of 2 * ranks */
        runs[0] = (run){0, rank * chunk, 1, chunk};
        runs[1] = (run){chunk, (2 * ranks - 1 - rank) * chunk, 1, chunk};
        return 2;
    }
    runs[0] = layout == TROPE_CP_STRIPED ? (run){0, rank, ranks, local} : (run){0, rank * local, 1, local};
    return 1;
}

static int is_run(const trope_position_source *s, const trope_span *span, const run *r)
{
    const uint64_t seed = data_seed(7, (uint64_t)(r->first ^ r->count));
    const int64_t last = r->count - 1;
    const int64_t places[] = {0, last < 1 ? last : 1, last, data_between(seed, 0, 0, last < 0 ? 0 : last),
                              data_between(seed, 1, 0, last < 0 ? 0 : last)};
    const int64_t begin = span->begin < 0 ? r->begin : span->begin + r->begin; /* flat: from this rank's first token */
    for (size_t i = 0; i < sizeof places / sizeof places[0] && r->count; i++)
        if (trope_index_in_sequence(s, span, begin + places[i]) != r->first + places[i] * r->stride)
            return 0;
    return 1;
}

static work work_of(const run *r)
{
    const work n = (work)r->count;
    return n ? n * (work)(r->first + 1) + (work)r->stride * (n * (n - 1) / 2) : 0;
}

/* Checks that the runs of all ranks partition the sequence: each chunk of `unit` tokens, or each residue, occurs once. */
typedef struct partition {
    unsigned char *seen;
    int64_t parts, unit; /* unit = 0: residues */
    int holds;
} partition;

static void mark_run(partition *p, const run *r)
{
    const int64_t part = p->unit ? r->first / p->unit : r->first;
    if (p->unit && (r->first % p->unit || r->count != p->unit || r->stride != 1))
        p->holds = 0;
    if (!p->unit && r->stride != p->parts)
        p->holds = 0;
    if (part < 0 || part >= p->parts || p->seen[part])
        p->holds = 0;
    else
        p->seen[part] = 1;
}

static partition start_partition(int32_t layout, int64_t ranks, int64_t local)
{
    const int64_t parts = layout == TROPE_CP_ZIGZAG ? 2 * ranks : ranks;
    const int64_t unit = layout == TROPE_CP_STRIPED ? 0 : layout == TROPE_CP_ZIGZAG ? local / 2 : local;
    return (partition){calloc((size_t)parts, 1), parts, unit, 1};
}

static int end_partition(partition *p)
{
    for (int64_t i = 0; i < p->parts; i++)
        p->holds &= p->seen[i];
    free(p->seen);
    return p->holds;
}

static trope_position_source dense(int32_t layout, int64_t ranks, int64_t rank, int64_t local)
{
    return (trope_position_source){
        .tokens = local, .position_axes = 1, .cp = trope_plan_cp(layout, (int32_t)ranks, (int32_t)rank, local)};
}

/* The sum over the ranks must be the work of the whole. Zigzag gives all ranks the same work. In striped, each rank has one
 * key more per token than the rank before it. */
static int work_is_right(int32_t layout, int64_t ranks, int64_t n, const work extremes[3])
{
    const work least = extremes[0], most = extremes[1], sum = extremes[2];
    if (sum != (work)n * (work)(n + 1) / 2)
        return 0;
    if (layout == TROPE_CP_ZIGZAG)
        return least == most;
    return layout != TROPE_CP_STRIPED || most - least == (work)(ranks - 1) * (work)(n / ranks);
}

static void add_rank(work of_rank, work extremes[3])
{
    extremes[0] = of_rank < extremes[0] ? of_rank : extremes[0];
    extremes[1] = of_rank > extremes[1] ? of_rank : extremes[1];
    extremes[2] += of_rank;
}

static double imbalance(const work extremes[3], int64_t ranks)
{
    return extremes[2] ? (double)extremes[1] * (double)ranks / (double)extremes[2] : 1;
}

simulation simulate_sequence(int32_t layout, int64_t ranks, int64_t n)
{
    const int64_t local = n / ranks;
    partition p = start_partition(layout, ranks, local);
    work extremes[3] = {~(work)0, 0, 0};
    int right = p.seen != NULL;
    for (int64_t rank = 0; rank < ranks && right; rank++) {
        const trope_position_source s = dense(layout, ranks, rank, local);
        const trope_span span = trope_dense_span(&s, 0);
        run runs[2];
        work of_rank = 0;
        const int count = make_runs(layout, ranks, rank, local, runs);
        for (int i = 0; i < count; i++) {
            right &= is_run(&s, &span, &runs[i]);
            mark_run(&p, &runs[i]);
            of_rank += work_of(&runs[i]);
        }
        add_rank(of_rank, extremes);
    }
    right &= end_partition(&p) && work_is_right(layout, ranks, n, extremes);
    return (simulation){right, imbalance(extremes, ranks), local};
}

simulation simulate_every_position(int32_t layout, int64_t ranks, int64_t n)
{
    const int64_t local = n / ranks;
    unsigned char *seen = calloc((size_t)n, 1);
    work extremes[3] = {~(work)0, 0, 0};
    int right = seen != NULL;
    for (int64_t rank = 0; rank < ranks && right; rank++) {
        const trope_position_source s = dense(layout, ranks, rank, local);
        const trope_span span = trope_dense_span(&s, 0);
        run runs[2];
        work of_rank = 0;
        const int count = make_runs(layout, ranks, rank, local, runs);
        for (int i = 0; i < count; i++)
            for (int64_t k = 0; k < runs[i].count && right; k++) {
                const int64_t position = trope_index_in_sequence(&s, &span, runs[i].begin + k);
                right = position >= 0 && position < n && !seen[position] && position == runs[i].first + k * runs[i].stride;
                if (right)
                    seen[position] = 1;
                of_rank += (work)(position + 1);
            }
        add_rank(of_rank, extremes);
    }
    for (int64_t i = 0; i < n && right; i++)
        right = seen[i];
    free(seen);
    right = right && work_is_right(layout, ranks, n, extremes);
    return (simulation){right, imbalance(extremes, ranks), local};
}

/* ---- packed ---- */

enum { SEQUENCES = 600 };

/* Makes boundaries of sequences with Pareto lengths: many short, few long, some empty. The stream ends with its last
 * sequence. */
static void make_boundaries(int64_t ranks, int64_t n, int64_t *boundary)
{
    const uint64_t seed = data_seed(11, (uint64_t)n);
    const int64_t unit = 2 * ranks;
    boundary[0] = 0;
    for (int64_t i = 0; i < SEQUENCES; i++) {
        const double u = (data_real(seed, (uint64_t)i, 1) + 1.001) / 2.001;
        const double length = (double)n / SEQUENCES / 5 / u;
        const int64_t units = i % 50 == 0 ? 0 : (int64_t)(length / (double)unit);
        boundary[i + 1] = boundary[i] + units * unit;
    }
}

static trope_position_source packed(int32_t layout, int64_t ranks, int64_t rank, const int64_t *boundary)
{
    trope_position_source s = dense(layout, ranks, rank, boundary[SEQUENCES] / ranks);
    s.boundaries = s.unpadded = boundary;
    s.count = SEQUENCES;
    s.boundaries_64 = 1;
    return s;
}

/* Each sequence is split over all ranks, so each sequence has its own partition. */
static int split_sequences(int32_t layout, int64_t ranks, const int64_t *boundary, work *of_rank)
{
    int right = 1;
    for (int64_t q = 0; q < SEQUENCES && right; q++) {
        const int64_t local = (boundary[q + 1] - boundary[q]) / ranks;
        partition p = start_partition(layout, ranks, local);
        for (int64_t rank = 0; rank < ranks && local && p.seen; rank++) {
            const trope_position_source s = packed(layout, ranks, rank, boundary);
            const trope_span span = trope_sequence_span(&s, q);
            run runs[2];
            const int count = make_runs(layout, ranks, rank, local, runs);
            right &= span.end - span.begin == local && !trope_check_sequence(&s, q);
            for (int i = 0; i < count; i++) {
                right &= is_run(&s, &span, &runs[i]);
                mark_run(&p, &runs[i]);
                of_rank[rank] += work_of(&runs[i]);
            }
        }
        right &= p.seen != NULL;
        if (local)
            right &= end_partition(&p);
        else
            free(p.seen);
    }
    return right;
}

/* The ranks have consecutive parts of the stream: each sequence continues where the rank before stopped. */
static int cut_stream(int64_t ranks, const int64_t *boundary, work *of_rank)
{
    int64_t *next = calloc(SEQUENCES, sizeof *next);
    int right = next != NULL;
    for (int64_t rank = 0; rank < ranks && right; rank++) {
        const trope_position_source s = packed(TROPE_CP_FLAT, ranks, rank, boundary);
        for (int64_t token = 0; token < s.tokens && right;) {
            const trope_span span = trope_find_span(&s, 0, token);
            const int64_t end = span.end < s.tokens ? span.end : s.tokens,
                          first = trope_index_in_sequence(&s, &span, token);
            right = span.sequence >= 0 && first == next[span.sequence] && end > token &&
                    trope_index_in_sequence(&s, &span, end - 1) == first + end - 1 - token;
            const run piece = {token, first, 1, end - token};
            of_rank[rank] += work_of(&piece);
            if (right)
                next[span.sequence] += end - token;
            token = end;
        }
    }
    for (int64_t q = 0; q < SEQUENCES && right; q++)
        right = next[q] == boundary[q + 1] - boundary[q];
    free(next);
    return right;
}

simulation simulate_stream(int32_t layout, int64_t ranks, int64_t n)
{
    int64_t boundary[SEQUENCES + 1];
    work extremes[3] = {~(work)0, 0, 0}, sum = 0, *of_rank = calloc((size_t)ranks, sizeof *of_rank);
    make_boundaries(ranks, n, boundary);
    int right = of_rank && (layout == TROPE_CP_FLAT && ranks > 1 ? cut_stream(ranks, boundary, of_rank)
                                                                 : split_sequences(layout, ranks, boundary, of_rank));
    for (int64_t rank = 0; rank < ranks && of_rank; rank++)
        add_rank(of_rank[rank], extremes);
    for (int64_t q = 0; q < SEQUENCES; q++) {
        const work length = (work)(boundary[q + 1] - boundary[q]);
        sum += length * (length + 1) / 2;
    }
    right = right && sum == extremes[2] && (layout != TROPE_CP_ZIGZAG || extremes[0] == extremes[1]);
    free(of_rank);
    return (simulation){right, imbalance(extremes, ranks), boundary[SEQUENCES] / ranks};
}
