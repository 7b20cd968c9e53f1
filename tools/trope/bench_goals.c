/* The ratio that a result must reach, and whether it did. docs/performance.md explains the goals. */
#include <stdio.h>
#include <stdlib.h>

#include "bench_problem.h"
#include "seconds.h"

#define MB        1e6
#define HOST_OVER 1.5e-6 /* seconds of a call, minus the launch of an empty kernel */

/* The operation of a call on its tensors. */
typedef enum call_class {
    ONE_HEAD,
    ONE_OUT,    /* one operand out of place */
    QK_IN,      /* Q and K of one call in place */
    OTHER,      /* whole heads, or out of place */
    WINDOWS_IN, /* parts of heads in place */
    NATIVE,
    STRIDED,
    MLA_FORWARD,
    MLA_BACKWARD,
    ANGLE_GRADIENT,
    ACCUMULATE,
    NORM,
    NORM_BACKWARD
} call_class;

/* The source of a token's angles. */
typedef enum source_class {
    FROM_TOKENS,
    FREQS,
    TABLES, /* cos and sin */
    IDS,
    IDS_FREQS, /* ids and a table */
    IDS_DISTINCT_FREQS,
    AXES,
    SEARCHED,
    SEARCHED_FREQS, /* searched positions and a table */
    SOURCE_CLASSES
} source_class;

static call_class class_of_call(const bench_problem *p)
{
    const bench_case *c = p->c;
    const int is_one = c->form == BENCH_PLAIN;
    if (c->norm)
        return c->backward ? NORM_BACKWARD : NORM;
    if (c->form == BENCH_MLA_KV)
        return c->backward ? MLA_BACKWARD : MLA_FORWARD;
    if (c->form == BENCH_STRIDED)
        return STRIDED;
    if (c->angle_gradient || c->accumulate)
        return c->accumulate ? ACCUMULATE : ANGLE_GRADIENT;
    if (c->rounding != TROPE_ROUND_ONCE && !c->call)
        return NATIVE;
    if (is_one && c->heads == 1)
        return ONE_HEAD;
    if (c->in_place)
        return bench_rotary_dim(c) < bench_head_dim(c) ? WINDOWS_IN : c->form == BENCH_Q_AND_K ? QK_IN : OTHER;
    return is_one ? ONE_OUT : OTHER;
}

static source_class class_of_source(const bench_problem *p)
{
    const bench_source *source = &p->c->source;
    if (p->c->call) /* a program's call should be as fast as one from tokens, whatever its tables are */
        return source->lengths ? SEARCHED : FROM_TOKENS;
    if (source->lengths)
        return p->cols ? SEARCHED_FREQS : SEARCHED;
    if (bench_has_cos_and_sin(p->c))
        return TABLES;
    if (p->c->source.positions == BENCH_IDS_DISTINCT)
        return IDS_DISTINCT_FREQS;
    if (bench_id_axes(p->c))
        return bench_id_axes(p->c) > 1 ? AXES : p->cols ? IDS_FREQS : IDS;
    return p->cols ? FREQS : FROM_TOKENS;
}

typedef struct goal_rule {
    unsigned classes;         /* CLASS(...) of each call_class */
    double least_mb, most_mb; /* bytes moved in MB; least_mb is included, most_mb is not */
    int32_t least_heads, most_heads;
    double at_least[SOURCE_CLASSES]; /* 0 = no goal */
} goal_rule;

#define CLASS(c)    (1u << (c))
#define NO_LIMIT    1e9
#define FROM(heads) (heads), INT32_MAX

/* The first rule that fits applies. */
/* clang-format off */
#define ALL_SOURCES(x) {x, x, x, x, x, x, x, x, x}
static const goal_rule rules[] = {
    /* calls                                       MB              heads     tokens, freqs, tables, ids, ids + freqs, the same with distinct ids, axes, searched, searched + freqs */
    {CLASS(QK_IN),                                  128, NO_LIMIT,  10, 40,   {0.98, 0.98, 0, 0.98, 0.985, 0.965, 0.97, 0.98, 0.98}},
    {CLASS(QK_IN),                                  128, NO_LIMIT,  8, 9,     {0.98, 0.98, 0, 0.98, 0.98, 0.965, 0.97, 0.975, 0.98}},
    {CLASS(QK_IN),                                  128, NO_LIMIT,  4, 7,     {0.98, 0, 0, 0.98, 0.98, 0.965, 0.97, 0.975, 0.975}},
    {CLASS(ONE_OUT) | CLASS(QK_IN) | CLASS(OTHER),  128, NO_LIMIT,  FROM(8),  {0.98, 0.98, 0, 0.98, 0.98, 0, 0.97, 0.96, 0.96}},
    {CLASS(QK_IN),                                  34, 64,         10, 40,   {0.965, 0.95, 0, 0.95, 0.98, 0.965, 0.94, 0.955, 0.96}},
    {CLASS(QK_IN),                                  34, 64,         8, 9,     {0.95, 0.95, 0, 0.95, 0.985, 0.965, 0.94, 0.955, 0.965}},
    {CLASS(QK_IN),                                  34, 64,         4, 7,     {0.95, 0.94, 0, 0.95, 0.97, 0.965, 0.94, 0.955, 0.94}},
    {CLASS(QK_IN),                                  34, 64,         3, 3,     {0.95, 0.95, 0, 0.95, 0.945, 0.965, 0.94, 0.935, 0.91}},
    {CLASS(ONE_OUT),                                16.5, 64,       FROM(8),  {0.94, 0.94, 0, 0.94, 0.94, 0, 0.93, 0.91, 0.91}},
    {CLASS(ONE_HEAD),                               64, NO_LIMIT,   1, 1,     {0.95, 0.95, 0, 0.94, 0, 0, 0.90, 0, 0}},
    {CLASS(MLA_FORWARD),                            128, NO_LIMIT,  FROM(8),  ALL_SOURCES(0.97)},
    {CLASS(MLA_BACKWARD),                           128, NO_LIMIT,  FROM(8),  ALL_SOURCES(0.93)},
    {CLASS(ANGLE_GRADIENT),                         128, NO_LIMIT,  FROM(8),  {0.80, 0.90, 0, 0.80, 0.90, 0, 0.80, 0.80, 0.86}},
    {CLASS(ACCUMULATE),                             128, NO_LIMIT,  FROM(8),  ALL_SOURCES(0.95)},
    {CLASS(STRIDED),                                128, NO_LIMIT,  FROM(8),  ALL_SOURCES(0.75)},
    {CLASS(NATIVE),                                 128, NO_LIMIT,  FROM(8),  ALL_SOURCES(0.95)},
    {CLASS(NORM),                                   128, NO_LIMIT,  FROM(8),  ALL_SOURCES(0.98)},
    {CLASS(NORM),                                   34, 64,         FROM(8),  ALL_SOURCES(0.96)},
    /* The same numbers of tokens as in the forward rules. */
    {CLASS(NORM_BACKWARD),                          192, NO_LIMIT,  FROM(8),  ALL_SOURCES(0.93)},
    {CLASS(NORM_BACKWARD),                          51, 96,         FROM(8),  ALL_SOURCES(0.85)},
};
/* clang-format on */

/* Returns the MB that the rules compare. A program's call of any size up to the large ones counts as a short one. */
static double size_class(const bench_problem *p)
{
    const double large = p->c->norm && p->c->backward ? 192 : 128, mb = p->moved / MB;
    return p->c->call && mb >= 16.5 && mb < large ? large * 5 / 16 : mb;
}

static int fits(const goal_rule *rule, const bench_problem *p)
{
    const double mb = size_class(p);
    const int32_t heads = p->c->heads + p->c->groups;
    return (rule->classes & CLASS(class_of_call(p))) && mb >= rule->least_mb && mb < rule->most_mb &&
           heads >= rule->least_heads && heads <= rule->most_heads;
}

/* Returns how much lower the goal is for packed sequences of Q and K. It is not lower for the simplest form, which has one
 * array of int32, one rank and even lengths. */
static double allowance(const bench_problem *p)
{
    const bench_source *source = &p->c->source;
    if (class_of_call(p) != QK_IN || !source->lengths)
        return 0;
    if (source->lengths == BENCH_SEQS_16384) /* four tokens each */
        return 0.06;
    if (source->lengths == BENCH_SEQS_PARETO)
        return 0.03;
    return source->padded || source->positions == BENCH_STARTS || bench_ranks(p->c) > 1 ||
                   bench_index_dtype(p->c) == TROPE_I64
               ? 0.02
               : 0;
}

double bench_goal(const bench_problem *p)
{
    if (p->dtype == TROPE_F64)
        return 0;
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        if (fits(&rules[i], p)) {
            const double at_least = rules[i].at_least[class_of_source(p)];
            return at_least ? at_least - allowance(p) : 0;
        }
    return 0;
}

/* Results compared with the goals */

/* Collects the times of all calls that are a single launch, in ascending order. */
static int host_times(const bench_report *report, double *seconds)
{
    int count = 0;
    for (int i = 0; i < report->count; i++)
        if (report->results[i].is_one_launch && report->results[i].host.call > 0)
            seconds[count++] = report->results[i].host.over;
    seconds_sort(seconds, count);
    return count;
}

int bench_is_missed(const bench_result *r)
{
    return r->at_least > 0 && r->ratio < r->at_least;
}

bench_verdict bench_judge(const bench_report *report)
{
    bench_verdict v = {0};
    double *seconds = malloc((size_t)report->count * sizeof *seconds + 1);
    v.host_count = seconds ? host_times(report, seconds) : 0;
    if (v.host_count) {
        v.host_median = seconds[v.host_count / 2];
        v.host_worst = seconds[v.host_count - 1];
        v.goals++;
        v.missed += v.host_median > HOST_OVER;
    }
    free(seconds);
    for (int i = 0; i < report->count; i++) {
        v.goals += report->results[i].at_least > 0;
        v.missed += bench_is_missed(&report->results[i]);
    }
    return v;
}

void bench_print_goals(const bench_report *report, const char *mark)
{
    const bench_verdict v = bench_judge(report);
    if (v.host_count)
        printf("%shost time of a call beyond an empty kernel's launch: median of %d cases %.2f us, slowest case %.2f us; "
               "at most %.1f: %s\n",
               mark, v.host_count, v.host_median * 1e6, v.host_worst * 1e6, HOST_OVER * 1e6,
               v.host_median > HOST_OVER ? "MISSED" : "ok");
    for (int i = 0; i < report->count; i++) {
        const bench_result *r = &report->results[i];
        if (bench_is_missed(r) && r->of_move > 0)
            printf("%sMISSED: %s %.3f, goal at least %.2f; relative to a plain move of the same bytes %.3f\n", mark,
                   r->name, r->ratio, r->at_least, r->of_move);
        else if (bench_is_missed(r))
            printf("%sMISSED: %s %.3f, goal at least %.2f\n", mark, r->name, r->ratio, r->at_least);
    }
    printf("%s%d of %d goals reached\n", mark, v.goals - v.missed, v.goals);
}
