/* Finds out why a rank is wrong. Each common mistake gives particular bits. They are recomputed here on one device for the
 * wrong ranks, and compared with the bits that those ranks sent. This code does not use the --break option. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "call_options.h"
#include "value.h"
#include "verify.h"

/* Number of wrong ranks to examine, and number of other ranks whose positions are tried for each of them. */
enum { SUSPECTS = 4, TRIED_RANKS = 32 };

static const char *const layout_names[] = {"none", "contiguous", "zigzag", "striped", "flat"};

typedef struct finding {
    uint32_t kinds;   /* 1 << mistake_kind of each mistake that explains the rank */
    int32_t cp_rank;  /* the rank whose positions it used */
    uint32_t layouts; /* 1 << layout of each layout that it may have used */
} finding;

typedef struct inquiry {
    call *mine;
    const gathered *found;
    int backward;
    int32_t rank; /* the rank under examination */
} inquiry;

/* Checks whether a call with this mistake gives the rank's outcome: bits, status word and error message. */
static int explains(const inquiry *q, mistake m, int *is_same)
{
    rank_context *r = q->mine->r;
    const rank_place place = problem_place(q->mine->s.p, q->rank);
    call c;
    outcome o;
    const size_t bytes = q->mine->result_bytes;
    char *bits = rank_malloc(r, bytes);
    watch_note(r->watch, 0, "looking for the cause");
    int failed = !bits || call_open(&c, r, q->mine->s.p, &place, m);
    if (!failed) {
        failed = call_run_alone(&c, q->mine, q->backward, &o) || rank_download(r, bits, c.result[q->backward], bytes);
        call_close(&c);
    }
    if (!failed)
        *is_same = outcome_equal(&o, &q->found->outcomes[q->rank]) &&
                   !memcmp(bits, q->found->results + (size_t)q->rank * bytes, bytes);
    free(bits);
    return failed;
}

static int try_mistake(const inquiry *q, mistake m, finding *f)
{
    int is_same = 0;
    if (explains(q, m, &is_same))
        return 1;
    if (!is_same)
        return 0;
    f->kinds |= 1u << m.kind;
    if (m.kind == MISTAKE_RANK)
        f->cp_rank = m.value;
    if (m.kind == MISTAKE_LAYOUT)
        f->layouts |= 1u << m.value;
    return 0;
}

/* With many ranks, tries the neighbours first: most wrong ranks have a neighbour's positions. */
static int try_ranks(const inquiry *q, finding *f)
{
    const int32_t cp = q->mine->s.p->grid.cp, own = problem_place(q->mine->s.p, q->rank).cp;
    for (int32_t i = 1; i < cp && i <= TRIED_RANKS && !(f->kinds & 1u << MISTAKE_RANK); i++) {
        const int32_t step = i % 2 ? (i + 1) / 2 : cp - i / 2;
        if (try_mistake(q, (mistake){MISTAKE_RANK, (own + step) % cp}, f))
            return 1;
    }
    return 0;
}

static int try_layouts(const inquiry *q, finding *f)
{
    for (int32_t layout = TROPE_CP_CONTIGUOUS; layout <= TROPE_CP_FLAT; layout++)
        if (layout != q->mine->s.p->c->cp_layout && try_mistake(q, (mistake){MISTAKE_LAYOUT, layout}, f))
            return 1;
    return 0;
}

static int try_all(const inquiry *q, finding *f)
{
    static const mistake_kind plain[] = {MISTAKE_CHUNK, MISTAKE_SIN,    MISTAKE_CU_SEQLENS,
                                         MISTAKE_LOCAL, MISTAKE_GATHER, MISTAKE_AXIS};
    const problem *p = q->mine->s.p;
    const int32_t own = problem_place(p, q->rank).cp;
    *f = (finding){.cp_rank = -1};
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        const mistake m = mistake_of_rank(p, plain[i], own);
        if (m.kind != MISTAKE_NONE && try_mistake(q, m, f))
            return 1;
    }
    return p->grid.cp > 1 ? try_ranks(q, f) || try_layouts(q, f) : 0;
}

/* ---- words ---- */

__attribute__((format(printf, 2, 3))) static void say(case_result *result, const char *format, ...)
{
    const size_t used = strlen(result->cause);
    const char *joint = used ? "; or: " : "";
    va_list arguments;
    snprintf(result->cause + used, sizeof result->cause - used, "%s", joint);
    va_start(arguments, format);
    vsnprintf(result->cause + used + strlen(joint), sizeof result->cause - used - strlen(joint), format, arguments);
    va_end(arguments);
}

static void say_rank(const problem *p, const int32_t *suspects, const finding *f, int count, case_result *result)
{
    const int32_t cp = p->grid.cp, own = problem_place(p, suspects[0]).cp, shift = (f[0].cp_rank - own + cp) % cp;
    int same_shift = 1;
    for (int i = 1; i < count; i++)
        same_shift &= (f[i].cp_rank - problem_place(p, suspects[i]).cp + cp) % cp == shift;
    if (same_shift && (shift == 1 || shift == cp - 1))
        say(result, "rank: off by one, rank %d has the positions of cp_rank %d instead of %d", suspects[0], f[0].cp_rank,
            own);
    else
        say(result, "rank: rank %d has the positions of cp_rank %d instead of %d", suspects[0], f[0].cp_rank, own);
}

static void say_layout(const problem *p, uint32_t layouts, case_result *result)
{
    char names[64] = "";
    for (int32_t l = TROPE_CP_CONTIGUOUS; l <= TROPE_CP_FLAT; l++)
        if (layouts & 1u << l)
            snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", names[0] ? " or " : "", layout_names[l]);
    say(result, "layout: cp_layout is %s, but the layout of the data is %s", names, layout_names[p->c->cp_layout]);
}

static void say_causes(const problem *p, const int32_t *suspects, const finding *f, int count, case_result *result)
{
    uint32_t layouts = f[0].layouts;
    for (int i = 1; i < count; i++)
        layouts &= f[i].layouts;
    if (result->causes & 1u << MISTAKE_RANK)
        say_rank(p, suspects, f, count, result);
    if (result->causes & 1u << MISTAKE_LAYOUT)
        say_layout(p, layouts ? layouts : f[0].layouts, result);
    if (result->causes & 1u << MISTAKE_CHUNK)
        say(result, "chunk: the two zigzag chunks of each sequence lie in memory the wrong way round");
    if (result->causes & 1u << MISTAKE_SIN)
        say(result, "sin: the sine has the wrong sign");
    if (result->causes & 1u << MISTAKE_CU_SEQLENS)
        say(result, "cu_seqlens: the data is stored padded, but cu_seqlens_padded was not given");
    if (result->causes & 1u << MISTAKE_LOCAL)
        say(result, "local: every rank counts its positions from 0, cp_size was not given");
    if (result->causes & 1u << MISTAKE_GATHER)
        say(result, "gather: token_sums has the sums of one rank and zeros for the others: they were not gathered");
    if (result->causes & 1u << MISTAKE_AXIS)
        say(result, "axis: token_sums was gathered along the tokens, it must be along the heads");
}

/* Describes an error that no common mistake explains. The place of the first wrong element is then the best clue. */
static void say_first(const inquiry *q, const char *whole, case_result *result)
{
    const problem *p = q->mine->s.p;
    const outcome *o = &q->found->outcomes[q->rank];
    const char *bits = q->found->results + (size_t)q->rank * q->mine->result_bytes;
    int64_t first = -1;
    share s;
    if (o->status || o->flags) {
        say(result, "unknown: rank %d: %s, status word %d", q->rank, o->message, o->flags);
        return;
    }
    if (share_make(&s, p, problem_place(p, q->rank), (mistake){MISTAKE_NONE, 0}))
        return;
    const int64_t wrong = count_wrong(&s, q->backward, bits, whole, &first);
    const int operand = first >= share_elements(&s, PROBLEM_Q);
    const int64_t at = first - (operand ? share_elements(&s, PROBLEM_Q) : 0),
                  token = at / share_token_elements(&s, operand);
    if (first >= share_all_elements(&s))
        say(result, "unknown: rank %d, %lld wrong, first in rstd", q->rank, (long long)wrong);
    else if (first >= 0)
        say(result, "unknown: rank %d, %lld wrong, first in %s at token %lld (%lld of the whole), head element %lld: %g",
            q->rank, (long long)wrong, operand ? "K" : "Q", (long long)token, (long long)s.in_whole[token],
            (long long)(at % p->head_dim), value_load(p->dtype, bits, first));
    share_free(&s);
}

/* ---- suspects ---- */

/* Computes y or dx on one device and returns it in host memory. */
static char *run_whole(call *mine, int backward)
{
    rank_context *r = mine->r;
    call whole;
    outcome o;
    char *bits = NULL;
    if (call_open(&whole, r, mine->s.p, NULL, (mistake){MISTAKE_NONE, 0}))
        return NULL;
    if (!call_run_alone(&whole, mine, backward, &o) && (bits = rank_malloc(r, whole.result_bytes)) &&
        rank_download(r, bits, whole.result[backward], whole.result_bytes)) {
        free(bits);
        bits = NULL;
    }
    call_close(&whole);
    return bits;
}

static int find_suspects(const inquiry *q, const char *whole, int32_t *suspects)
{
    const rank_context *r = q->mine->r;
    int count = 0;
    for (int32_t rank = 0; rank < r->size && count < SUSPECTS; rank++) {
        int64_t first;
        share s;
        if (share_make(&s, q->mine->s.p, problem_place(q->mine->s.p, rank), (mistake){MISTAKE_NONE, 0}))
            continue;
        const outcome *o = &q->found->outcomes[rank];
        if (o->status || o->flags ||
            count_wrong(&s, q->backward, q->found->results + (size_t)rank * q->mine->result_bytes, whole, &first))
            suspects[count++] = rank;
        share_free(&s);
    }
    return count;
}

int diagnose(call *mine, const gathered *found, int backward, case_result *result)
{
    int32_t suspects[SUSPECTS];
    finding findings[SUSPECTS] = {{0, -1, 0}};
    inquiry q = {mine, found, backward, 0};
    char *whole = run_whole(mine, backward);
    if (!whole)
        return 1;
    const int count = find_suspects(&q, whole, suspects);
    int failed = 0;
    result->causes = count ? UINT32_MAX : 0;
    for (int i = 0; i < count && !failed; i++) {
        q.rank = suspects[i];
        failed = try_all(&q, &findings[i]);
        result->causes &= findings[i].kinds;
    }
    if (!failed && result->causes)
        say_causes(mine->s.p, suspects, findings, count, result);
    q.rank = count ? suspects[0] : 0;
    if (!failed && !result->causes)
        say_first(&q, whole, result);
    free(whole);
    return failed;
}
