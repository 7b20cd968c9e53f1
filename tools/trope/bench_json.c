/* The JSON output of trope bench. */
#include <inttypes.h>
#include <stdio.h>

#include "bench_problem.h"
#include "call_options.h"

static void print_string(FILE *json, const char *text)
{
    putc('"', json);
    for (const char *c = text; *c; c++) {
        if (*c == '"' || *c == '\\')
            fprintf(json, "\\%c", *c);
        else if ((unsigned char)*c < 0x20)
            fprintf(json, "\\u%04x", (unsigned)*c);
        else
            putc(*c, json);
    }
    putc('"', json);
}

void bench_json_header(const bench_report *report, const char *machine)
{
    FILE *json = report->json;
    fprintf(json, "{\"trope\": \"%s\", \"device\": \"%s\", \"machine\": ", trope_version(), report->device->name);
    print_string(json, machine);
    fprintf(json, ", \"isa\": \"%s\", \"threads\": %d, \"rounds\": %d, \"command\": [\"trope\"",
            choice_name(isa_choices, report->isa), report->threads, report->repeat);
    for (int i = 0; i < report->argc; i++) {
        fprintf(json, ", ");
        print_string(json, report->argv[i]);
    }
    fprintf(json, "],\n \"cases\": [");
}

void bench_json_result(const bench_report *report, const bench_problem *p, const bench_result *r)
{
    FILE *json = report->json;
    fprintf(json,
            "%s\n  {\"case\": \"%s\", \"dtype\": \"%s\", \"layout\": \"%s\", \"tokens\": %" PRId64
            ", \"heads\": %d, \"dim\": %d, ",
            report->count ? "," : "", p->c->name, choice_name(dtype_choices, p->dtype), bench_layout_name(p->c),
            bench_all_tokens(p), p->c->heads, bench_head_dim(p->c));
    fprintf(json, "\"direction\": \"%s\", \"kernel\": \"%s\", \"bytes\": %.0f, \"time_us\": %.3f, \"fastest_us\": %.3f, ",
            p->c->backward ? "bwd" : "fwd", r->kernel, p->moved, r->seconds * 1e6, r->fastest * 1e6);
    fprintf(json, "\"GB_per_s\": %.4f, \"copy_us\": %.3f, \"ratio\": %.4f, \"wrong\": %" PRId64,
            p->moved / r->seconds * 1e-9, r->copy.seconds * 1e6, r->ratio, r->wrong);
    fprintf(json, ", \"copy\": \"%s\", \"sets\": %d", r->copy.name, r->sets);
    if (r->move.name)
        fprintf(json, ", \"move_us\": %.3f, \"move\": \"%s\", \"of_move\": %.4f", r->move.seconds * 1e6, r->move.name,
                r->of_move);
    if (r->host.call > 0)
        fprintf(json, ", \"host_us\": %.3f, \"host_over_us\": %.3f", r->host.call * 1e6, r->host.over * 1e6);
    if (r->at_least > 0)
        fprintf(json, ", \"at_least\": %.2f", r->at_least);
    fprintf(json, ", \"took_s\": %.3f}", r->took);
}

void bench_json_summary(const bench_report *report)
{
    FILE *json = report->json;
    fprintf(json, "\n ],\n \"lowest_ratio\": %.4f, \"lowest_ratio_case\": \"%s\", \"noisy\": %d, \"wrong\": %" PRId64,
            report->worst_ratio, report->worst, report->noisy, report->wrong);
    if (report->device->has_goals) {
        const bench_verdict v = bench_judge(report);
        fprintf(json, ",\n \"refused\": %d, \"host_over_us\": %.3f, \"goals\": %d, \"goals_missed\": %d", report->refused,
                v.host_median * 1e6, v.goals, v.missed);
    }
    fprintf(json, "}\n");
}
