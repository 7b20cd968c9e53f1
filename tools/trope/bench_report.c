/* The text output of trope bench: a table. bench_json.c writes JSON. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "bench_problem.h"
#include "call_options.h"
#include "command.h"

/* Writes the device's own name, or else the processor in /proc/cpuinfo, or else the architecture. */
static void machine_name(const bench_report *report, char *name, size_t size)
{
    struct utsname system;
    char line[256];
    if (report->device->describe) {
        report->device->describe(name, size);
        return;
    }
    snprintf(name, size, "%s", uname(&system) ? "unknown" : system.machine);
    FILE *info = fopen("/proc/cpuinfo", "r");
    if (!info)
        return;
    while (fgets(line, sizeof line, info)) {
        const char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) || !value)
            continue;
        value += strspn(value, ": \t");
        snprintf(name, size, "%.*s", (int)strcspn(value, "\n"), value);
        break;
    }
    fclose(info);
}

const char *bench_layout_name(const bench_case *c)
{
    if (bench_is_qkv(c))
        return "packed";
    if (c->form == BENCH_MLA_KV)
        return "mla";
    if (c->layout == TROPE_STRIDED)
        return "strided";
    return c->form == BENCH_STRIDED ? "sbdh" : choice_name(layout_choices, bench_layout(c));
}

/* Writes the value of the first `name: value` line about a name in trope_info(), or "". */
static void info_value(const char *name, char *value, size_t size)
{
    const size_t length = strlen(name);
    value[0] = 0;
    for (const char *line = trope_info(); *line;) {
        const size_t end = strcspn(line, "\n");
        if (!strncmp(line, name, length) && line[length] == ':') {
            const size_t skip = length + 1 + strspn(line + length + 1, " ");
            snprintf(value, size, "%.*s", (int)(end - skip), line + skip);
            return;
        }
        line += end + (line[end] == '\n');
    }
}

static void print_command(const bench_report *report)
{
    printf("# command: trope");
    for (int i = 0; i < report->argc; i++)
        printf(" %s", report->argv[i]);
    printf("\n");
}

static void print_text_header(const bench_report *report, const char *machine, const char *isas)
{
    printf("# trope %s, device %s\n", trope_version(), report->device->name);
    printf("# machine: %s\n", machine);
    if (report->device->has_goals)
        printf("# rounds: %d; each replays a CUDA graph of many calls\n", report->repeat);
    else
        printf("# isa: %s%s%s%s, threads: %d, rounds: %d\n", choice_name(isa_choices, report->isa), *isas ? " of (" : "",
               isas, *isas ? ")" : "", report->threads, report->repeat);
    print_command(report);
    printf("# %-*s %-5s %-6s %9s %5s %4s %-3s %8s %10s ", report->device->has_goals ? 40 : 24, "case", "dtype", "layout",
           "tokens", "heads", "dim", "dir", "MB", "time us");
    if (report->device->has_goals)
        printf("%7s %10s %-16s %6s %8s %7s %8s %6s\n", "TB/s", "copy us", "copy", "ratio", "at least", "of move", "over us",
               "#wrong");
    else
        printf("%7s %10s %6s %6s\n", "GB/s", "copy us", "ratio", "#wrong");
}

void bench_print_header(const bench_report *report)
{
    char machine[256], isas[256];
    machine_name(report, machine, sizeof machine);
    info_value("instruction sets", isas, sizeof isas);
    if (report->json)
        bench_json_header(report, machine);
    if (report->has_text)
        print_text_header(report, machine, isas);
    fflush(stdout);
}

static void print_goal_columns(const bench_result *r)
{
    char goal[16] = "-", of_move[16] = "-", over[16] = "-";
    if (r->at_least > 0)
        snprintf(goal, sizeof goal, "%.2f%s", r->at_least, bench_is_missed(r) ? "!" : " ");
    if (r->of_move > 0)
        snprintf(of_move, sizeof of_move, "%.3f", r->of_move);
    if (r->host.call > 0)
        snprintf(over, sizeof over, "%.2f", r->host.over * 1e6);
    printf("%-16s %6.3f %8s %7s %8s", r->copy.name, r->ratio, goal, of_move, over);
}

static void print_text_result(const bench_report *report, const bench_problem *p, const bench_result *r)
{
    const int goals = report->device->has_goals;
    printf("%-*s %-5s %-6s %9" PRId64 " %5d %4d %-3s %8.2f %10.1f %7.*f %10.1f ", goals ? 42 : 26, p->c->name,
           choice_name(dtype_choices, p->dtype), bench_layout_name(p->c), bench_all_tokens(p), p->c->heads,
           bench_head_dim(p->c), p->c->backward ? "bwd" : "fwd", p->moved * 1e-6, r->seconds * 1e6, goals ? 3 : 2,
           p->moved / r->seconds * (goals ? 1e-12 : 1e-9), r->copy.seconds * 1e6);
    if (goals)
        print_goal_columns(r);
    else
        printf("%6.3f", r->ratio);
    printf(" %6" PRId64 "\n", r->wrong);
}

static int keep_result(bench_report *report, const bench_result *result)
{
    if (report->count % 64 == 0) {
        bench_result *more = realloc(report->results, ((size_t)report->count + 64) * sizeof *more);
        if (!more)
            return complain("out of memory");
        report->results = more;
    }
    report->results[report->count] = *result;
    return 0;
}

int bench_print_result(bench_report *report, const bench_problem *p, bench_result *result)
{
    if (keep_result(report, result))
        return RESULT_REFUSED;
    if (report->json)
        bench_json_result(report, p, result);
    if (report->has_text)
        print_text_result(report, p, result);
    fflush(stdout);
    if (!report->count || result->ratio < report->worst_ratio) {
        report->worst_ratio = result->ratio;
        memcpy(report->worst, result->name, sizeof report->worst);
    }
    if (result->wrong && !report->wrong)
        memcpy(report->first_wrong, result->name, sizeof report->first_wrong);
    report->noisy += result->is_noisy;
    report->wrong += result->wrong;
    report->count++;
    return 0;
}

void bench_print_refusal(bench_report *report, const bench_result *result)
{
    report->refused++;
    if (report->has_text)
        printf("# refused: %s: %s\n", result->name, trope_last_error());
}

/* Prints the total time of all cases, and the slowest case. */
static void print_durations(const bench_report *report)
{
    const bench_result *longest = report->results;
    double sum = 0;
    for (int i = 0; i < report->count; i++) {
        sum += report->results[i].took;
        longest = report->results[i].took > longest->took ? &report->results[i] : longest;
    }
    if (report->count)
        printf("# %.0f s, of which %s took %.2f\n", sum, longest->name, longest->took);
}

void bench_print_summary(const bench_report *report)
{
    const char *against = report->device->has_goals ? "the CPU" : "the portable code on one thread";
    if (report->json)
        bench_json_summary(report);
    if (!report->has_text)
        return;
    printf("# %d cases, lowest ratio %.3f (%s)\n", report->count, report->worst_ratio, report->worst);
    print_durations(report);
    if (report->refused)
        printf("# %d cases were refused by the library\n", report->refused);
    if (report->noisy)
        printf("# noisy: in %d cases, half of the copies took far longer than the fastest copy; run again on a quiet "
               "machine\n",
               report->noisy);
    if (report->device->has_goals)
        bench_print_goals(report, "# ");
    if (report->wrong)
        printf("# WRONG: %" PRId64 " elements differ from %s, first in %s\n", report->wrong, against, report->first_wrong);
    else
        printf("# ok: every result is bitwise equal to that of %s\n", against);
}
