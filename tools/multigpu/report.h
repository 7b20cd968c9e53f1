/* What rank 0 prints: a header, a row for each case, a summary; and the same as JSON. */
#ifndef TESTS_MULTIGPU_REPORT_H
#define TESTS_MULTIGPU_REPORT_H

#include "gpu.h"
#include "options.h"
#include "timing.h"
#include "verify.h"

typedef struct cJSON cJSON;

/* The names of mistakes, for --break and for causes. */
extern const choice mistake_choices[];

/* A rank as the header has it. */
typedef struct rank_card {
    char host[SOCKET_HOST];
    int32_t pid;
    int32_t device; /* TROPE_DEVICE_... */
    gpu_description gpu;
} rank_card;

typedef struct report {
    int has_text;
    int has_json;
    const char *save;    /* where JSON goes; NULL = to standard output */
    cJSON *json, *cases; /* NULL = none */
    int run, failed, skipped;
    int64_t wrong, scores_wrong;
    double worst_angle, worst_sum;
    int angles_wrong, sums_wrong; /* cases beyond their bounds */
    int missed_speed;             /* ranks that were slower beside others */
    int caught;                   /* cases with a mistake made on purpose that were found out */
    int broken;                   /* of so many */
} report;

/* Text, or JSON, or both where JSON goes to the file `save`. Returns nonzero after a complaint. */
int report_begin(report *p, int has_json, const char *save);

void report_header(report *p, const rank_context *r, const rank_card *cards, const char *launch);
void report_link(report *p, const rank_context *r, double link_speed, double copy_bytes);
void report_case(report *p, const rank_context *r, const problem *of, const case_result *result);
/* slower_at_most: what counts as missed, 0 = nothing. */
void report_speed(report *p, const rank_context *r, const speed_result *speed, double slower_at_most);
/* Returns nonzero after a complaint. */
int report_end(report *p);

#endif
