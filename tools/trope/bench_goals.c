/* What a result has to reach, and whether it has. The figures are those of docs/bench.md. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

#define MIB          1048576.0
#define LARGE        0.97 /* 64 MiB or more */
#define MEDIUM       0.93 /* 16 MiB or more */
#define HOST_SECONDS 4e-6
#define FEWEST_HEADS 8

static int has_rule(const bench_problem *p)
{
    const bench_case *c = p->c;
    const int is_table = c->angles == BENCH_TABLE_HALF || c->angles == BENCH_TABLE_FULL || c->angles == BENCH_TABLE_OWN;
    return c->heads >= FEWEST_HEADS && (c->form == BENCH_PLAIN || c->form == BENCH_Q_AND_K) && p->dtype != TROPE_F64 &&
           !c->angle_gradient && !is_table && c->rounding == TROPE_ROUND_ONCE;
}

double bench_goal(const bench_problem *p)
{
    if (p->c->at_least > 0)
        return p->c->at_least;
    if (!has_rule(p))
        return 0;
    return p->moved >= 64 * MIB ? LARGE : p->moved >= 16 * MIB ? MEDIUM : 0;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static int host_times(const bench_report *report, double *seconds)
{
    int count = 0;
    for (int i = 0; i < report->count; i++)
        if (report->results[i].is_plain_forward && report->results[i].host_seconds > 0)
            seconds[count++] = report->results[i].host_seconds;
    qsort(seconds, (size_t)count, sizeof *seconds, by_value);
    return count;
}

static int is_missed(const bench_result *r)
{
    return r->at_least > 0 && r->reached > 0 && r->reached < r->at_least;
}

bench_verdict bench_judge(const bench_report *report)
{
    bench_verdict v = {0};
    double *seconds = malloc((size_t)report->count * sizeof *seconds + 1);
    const int count = seconds ? host_times(report, seconds) : 0;
    if (count) {
        v.host_median = seconds[count / 2];
        v.host_worst = seconds[count - 1];
        v.goals++;
        v.missed += v.host_median > HOST_SECONDS;
    }
    free(seconds);
    for (int i = 0; i < report->count; i++) {
        v.goals += report->results[i].at_least > 0 && report->results[i].reached > 0;
        v.missed += is_missed(&report->results[i]);
    }
    return v;
}

void bench_print_goals(const bench_report *report, const char *mark)
{
    const bench_verdict v = bench_judge(report);
    if (v.host_median > 0)
        printf("%shost time of a forward call with one operand: median %.2f us, in the slowest case %.2f us; at most %.0f: "
               "%s\n",
               mark, v.host_median * 1e6, v.host_worst * 1e6, HOST_SECONDS * 1e6,
               v.host_median > HOST_SECONDS ? "MISSED" : "ok");
    for (int i = 0; i < report->count; i++) {
        const bench_result *r = &report->results[i];
        if (r->beside && r->reached > 0)
            printf("%s%s: %.3f of the speed of %s; at least %.2f: %s\n", mark, r->name, r->reached, r->beside, r->at_least,
                   is_missed(r) ? "MISSED" : "ok");
        else if (is_missed(r) && r->of_move > 0)
            printf("%sMISSED: %s %.3f, at least %.2f; of a mere move of the same bytes %.3f\n", mark, r->name, r->reached,
                   r->at_least, r->of_move);
        else if (is_missed(r))
            printf("%sMISSED: %s %.3f, at least %.2f\n", mark, r->name, r->reached, r->at_least);
    }
    printf("%s%d of %d goals reached\n", mark, v.goals - v.missed, v.goals);
}
