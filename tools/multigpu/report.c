#include "report.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "call_options.h"
#include "command.h"
#include "output.h"
#include "trope/trope.h"

#ifdef TROPE_MULTIGPU_HAS_JSON
#include <cjson/cJSON.h>
#endif

enum { LISTED_RANKS = 16 };

/* ---- JSON ---- */

#ifdef TROPE_MULTIGPU_HAS_JSON
static void json_number(cJSON *object, const char *name, double value)
{
    cJSON_AddNumberToObject(object, name, value);
}

static void json_text(cJSON *object, const char *name, const char *value)
{
    cJSON_AddStringToObject(object, name, value);
}

static cJSON *json_list(cJSON *object, const char *name)
{
    return cJSON_AddArrayToObject(object, name);
}

static cJSON *json_item(cJSON *list)
{
    cJSON *item = cJSON_CreateObject();
    cJSON_AddItemToArray(list, item);
    return item;
}

static void json_append_text(cJSON *list, const char *text)
{
    cJSON_AddItemToArray(list, cJSON_CreateString(text));
}

static int json_start(report *p)
{
    p->json = p->has_json ? cJSON_CreateObject() : NULL;
    return p->save ? output_is_refused(p->save) : 0;
}

static int json_write(report *p)
{
    char *text = cJSON_Print(p->json);
    const int failed = text ? output_line(p->save, text) : complain("out of memory");
    free(text);
    cJSON_Delete(p->json);
    return failed;
}
#else
static void json_number(cJSON *object, const char *name, double value)
{
    (void)object, (void)name, (void)value;
}

static void json_text(cJSON *object, const char *name, const char *value)
{
    (void)object, (void)name, (void)value;
}

static cJSON *json_list(cJSON *object, const char *name)
{
    (void)object, (void)name;
    return NULL;
}

static cJSON *json_item(cJSON *list)
{
    return list;
}

static void json_append_text(cJSON *list, const char *text)
{
    (void)list, (void)text;
}

static int json_start(report *p)
{
    return p->has_json ? complain("this build has no JSON, because cJSON was not found when it was configured") : 0;
}

static int json_write(report *p)
{
    (void)p;
    return 0;
}
#endif

int report_begin(report *p, int has_json, const char *save)
{
    *p = (report){.has_text = !has_json, .has_json = has_json || save, .save = save};
    return json_start(p);
}

/* ---- header ---- */

static const char *device_text(const rank_card *card, char *text, size_t size)
{
    if (card->device == TROPE_DEVICE_CUDA)
        snprintf(text, size, "%s %s, peer access to %d of %d", card->gpu.name, card->gpu.id, card->gpu.peers,
                 card->gpu.others);
    else
        snprintf(text, size, "CPU");
    return text;
}

static void json_header(report *p, const rank_context *r, const rank_card *cards, const char *launch)
{
    char text[192];
    json_text(p->json, "trope", trope_version());
    json_text(p->json, "launch", launch);
    json_text(p->json, "device", r->device->name);
    json_number(p->json, "ranks", r->size);
    cJSON *list = json_list(p->json, "devices");
    for (int32_t i = 0; i < r->size; i++) {
        cJSON *item = json_item(list);
        json_text(item, "host", cards[i].host);
        json_text(item, "device", device_text(&cards[i], text, sizeof text));
    }
}

void report_header(report *p, const rank_context *r, const rank_card *cards, const char *launch)
{
    char text[192];
    if (p->json)
        json_header(p, r, cards, launch);
    if (!p->has_text)
        return;
    printf("# trope_multigpu %s, %d rank%s on %s, %s\n", trope_version(), r->size, r->size > 1 ? "s" : "", r->device->name,
           launch);
    for (int32_t i = 0; i < r->size && i < LISTED_RANKS; i++)
        printf("# rank %d: %s, process %d, %s\n", i, cards[i].host, cards[i].pid,
               device_text(&cards[i], text, sizeof text));
    if (r->size > LISTED_RANKS)
        printf("# ... and %d more\n", r->size - LISTED_RANKS);
}

void report_link(report *p, const rank_context *r, double link_speed, double copy_bytes)
{
    if (p->json) {
        json_text(p->json, "link", r->data->kind);
        json_number(p->json, "link_GB_per_s", link_speed * 1e-9);
        json_number(p->json, "copy_GB_per_s", r->copy_speed * 1e-9);
        p->cases = json_list(p->json, "cases");
    }
    if (!p->has_text)
        return;
    printf("# link: %s", r->data->kind);
    if (link_speed > 0)
        printf(", ring of all ranks %.2f GB/s for each rank", link_speed * 1e-9);
    printf("\n");
    if (r->copy_speed > 0)
        printf("# copy: rank 0 alone %.2f GB/s (%.1f MB moved)\n", r->copy_speed * 1e-9, copy_bytes * 1e-6);
    printf("#\n# %-12s %-32s %-5s %-8s %7s %5s %9s %8s %9s %9s %6s %7s %7s %7s %7s  %s\n", "split", "variant", "dtype",
           "dpxtpxcp", "tokens", "heads", "compared", "MB/rank", "time us", "GB/s", "ratio", "#wrong", "#scores", "angle",
           "sum", "verdict");
    fflush(stdout);
}

/* ---- rows ---- */

const choice mistake_choices[] = {{"rank", MISTAKE_RANK},
                                  {"layout", MISTAKE_LAYOUT},
                                  {"chunk", MISTAKE_CHUNK},
                                  {"sin", MISTAKE_SIN},
                                  {"local", MISTAKE_LOCAL},
                                  {"gather", MISTAKE_GATHER},
                                  {"axis", MISTAKE_AXIS},
                                  {"reduce", MISTAKE_REDUCE},
                                  {"cu_seqlens", MISTAKE_CU_SEQLENS},
                                  {"bit", MISTAKE_BIT},
                                  {NULL, 0}};

static void json_case(report *p, const problem *of, const case_result *result)
{
    const split_case *c = of->c;
    cJSON *item = json_item(p->cases);
    json_text(item, "split", c->split);
    json_text(item, "variant", c->variant);
    json_text(item, "dtype", choice_name(dtype_choices, of->dtype));
    json_number(item, "dp", of->grid.dp);
    json_number(item, "tp", of->grid.tp);
    json_number(item, "cp", of->grid.cp);
    json_number(item, "tokens", (double)of->tokens);
    json_number(item, "q_heads", of->heads[PROBLEM_Q]);
    json_number(item, "k_heads", of->heads[PROBLEM_K]);
    json_number(item, "compared", (double)result->compared);
    json_number(item, "wrong_forward", (double)result->wrong[0]);
    json_number(item, "wrong_backward", (double)result->wrong[1]);
    json_number(item, "scores", (double)result->scores);
    json_number(item, "wrong_scores", (double)result->scores_wrong);
    json_number(item, "angle_error_of_bound", result->angle_error);
    json_number(item, "angles_repeat", result->angles_repeat);
    json_number(item, "sum_error_of_bound", result->sum_error);
    json_number(item, "refused_ranks", result->refused);
    json_number(item, "bytes", result->bytes);
    json_number(item, "time_us", result->seconds * 1e6);
    json_number(item, "is_broken", result->is_broken);
    json_number(item, "ok", case_holds(result));
    cJSON *causes = json_list(item, "causes");
    for (const choice *m = mistake_choices; m->name; m++)
        if (result->causes & 1u << m->value)
            json_append_text(causes, m->name);
    json_text(item, "cause", result->cause);
}

/* Formats the largest error, relative to its bound, for a reader. */
static const char *of_bound(double error, char *text, size_t size)
{
    snprintf(text, size, error <= 1 ? "%.0f%%" : "WRONG", 100 * error);
    return text;
}

static void print_row(const rank_context *r, const problem *of, const case_result *result)
{
    const split_case *c = of->c;
    char grid[24], heads[16], angle[16], sum[16] = "-", timed[64] = "        -         -         -      -";
    snprintf(grid, sizeof grid, "%dx%dx%d", of->grid.dp, of->grid.tp, of->grid.cp);
    snprintf(heads, sizeof heads, "%d/%d", of->heads[PROBLEM_Q], of->heads[PROBLEM_K]);
    if (problem_split_operands(of, 1) < PROBLEM_OPERANDS || c->norm)
        of_bound(result->sum_error, sum, sizeof sum);
    if (result->seconds > 0) {
        const double speed = result->bytes / result->seconds;
        snprintf(timed, sizeof timed, "%8.1f %9.1f %9.2f %6.3f", result->bytes * 1e-6, result->seconds * 1e6, speed * 1e-9,
                 speed / r->copy_speed);
    }
    printf("  %-12s %-32s %-5s %-8s %7" PRId64 " %5s %9" PRId64 " %s %7" PRId64 " %7" PRId64 " %7s %7s  %s%s\n", c->split,
           c->variant, choice_name(dtype_choices, of->dtype), grid, of->batch * of->tokens * of->grid.dp, heads,
           result->compared, timed, result->wrong[0] + result->wrong[1], result->scores_wrong,
           of_bound(result->angle_error, angle, sizeof angle), sum,
           case_holds(result) ? "ok"
           : result->refused  ? "REFUSED"
                              : "WRONG",
           result->angles_repeat ? "" : ", the angles' gradient differs from run to run");
    if (result->cause[0])
        printf("#   cause: %s\n", result->cause);
    fflush(stdout);
}

void report_case(report *p, const rank_context *r, const problem *of, const case_result *result)
{
    const int holds = case_holds(result);
    p->run++;
    p->failed += !holds;
    p->broken += result->is_broken;
    p->caught += result->is_broken && !holds;
    p->wrong += result->wrong[0] + result->wrong[1];
    p->scores_wrong += result->scores_wrong;
    p->angles_wrong += result->angle_error > 1;
    p->sums_wrong += result->sum_error > 1;
    p->worst_angle = result->angle_error > p->worst_angle ? result->angle_error : p->worst_angle;
    p->worst_sum = result->sum_error > p->worst_sum ? result->sum_error : p->worst_sum;
    if (p->json)
        json_case(p, of, result);
    if (p->has_text)
        print_row(r, of, result);
}

/* ---- speed ---- */

void report_speed(report *p, const rank_context *r, const speed_result *speed, double slower_at_most)
{
    cJSON *list = p->json ? json_list(p->json, "speed") : NULL;
    if (p->has_text)
        printf("#\n# alone and together: bf16, %" PRId64 " tokens, %d heads of %d, %.1f MB moved by each rank\n"
               "# %4s %10s %12s %9s  %s\n",
               speed->tokens, SPEED_HEADS, SPEED_DIM, speed->bytes * 1e-6, "rank", "alone us", "together us", "slower",
               "verdict");
    for (int32_t i = 0; i < r->size; i++) {
        const speed_row *row = &speed->rows[i];
        const double slower = row->together / row->alone - 1;
        const int misses = slower_at_most > 0 && slower > slower_at_most;
        p->missed_speed += misses;
        if (p->has_text)
            printf("  %4d %10.2f %12.2f %8.2f%%  %s\n", i, row->alone * 1e6, row->together * 1e6, 100 * slower,
                   slower_at_most > 0 ? misses ? "SLOWER" : "ok" : "-");
        if (!p->json)
            continue;
        cJSON *item = json_item(list);
        json_number(item, "rank", i);
        json_number(item, "alone_us", row->alone * 1e6);
        json_number(item, "together_us", row->together * 1e6);
        json_number(item, "slower", slower);
    }
}

/* ---- summary ---- */

static void print_bound(const char *what, int wrong, double worst)
{
    if (wrong)
        printf("# %s: beyond the rounding bound in %d cases, so that terms are wrong or missing\n", what, wrong);
    else
        printf("# %s: at most %.2g%% of the largest possible rounding error\n", what, 100 * worst);
}

static void print_summary(const report *p)
{
    if (p->run) {
        printf("#\n# %d of %d cases hold, %" PRId64 " elements and %" PRId64 " scores are wrong\n", p->run - p->failed,
               p->run, p->wrong, p->scores_wrong);
        print_bound("error of the gradient of the angles", p->angles_wrong, p->worst_angle);
        if (p->worst_sum > 0)
            print_bound("error of the sums over heads and of d_weight", p->sums_wrong, p->worst_sum);
    }
    if (p->skipped)
        printf("# %d cases were not run: their splits need a number of ranks with two factors, such as 4, or three,"
               " such as 8\n",
               p->skipped);
    if (p->broken)
        printf("# %d of %d cases with a mistake made on purpose were caught\n", p->caught, p->broken);
    if (p->missed_speed)
        printf("# %d ranks were slower together with others\n", p->missed_speed);
}

int report_end(report *p)
{
    if (p->json) {
        json_number(p->json, "run", p->run);
        json_number(p->json, "skipped", p->skipped);
        json_number(p->json, "failed", p->failed);
        json_number(p->json, "wrong", (double)p->wrong);
        json_number(p->json, "wrong_scores", (double)p->scores_wrong);
        json_number(p->json, "worst_angle_of_bound", p->worst_angle);
        json_number(p->json, "worst_sum_of_bound", p->worst_sum);
    }
    if (p->has_text)
        print_summary(p);
    return (p->json && json_write(p)) || output_flush();
}
