/* Rank 0's output: a header, a line for each case, and a summary, as text or as JSON. */
#ifndef TESTS_MULTIGPU_REPORT_H
#define TESTS_MULTIGPU_REPORT_H

#include "gpu.h"
#include "options.h"
#include "timing.h"
#include "verify.h"

typedef struct cJSON cJSON;

/* The names of mistakes, for --break and for the causes of errors. */
extern const choice mistake_choices[];

/* A rank's entry in the header. */
typedef struct rank_card {
    char host[SOCKET_HOST];
    int32_t pid;
    int32_t device; /* TROPE_DEVICE_... */
    gpu_description gpu;
} rank_card;

typedef struct report {
    int has_text;
    int has_json;
    const char *save;    /* file for the JSON; NULL = standard output */
    cJSON *json, *cases; /* NULL = no JSON */
    int run, failed, skipped;
    int64_t wrong, scores_wrong;
    double worst_angle, worst_sum;
    int angles_wrong, sums_wrong; /* number of cases with errors above their bound */
    int missed_speed;             /* number of ranks that were slower when the others ran too */
    int caught;                   /* number of cases whose deliberate mistake was found */
    int broken;                   /* number of cases with a deliberate mistake */
} report;

/* Prints text, or JSON, or both if the JSON goes to the file `save`. Returns nonzero after a complaint. */
int report_begin(report *p, int has_json, const char *save);

void report_header(report *p, const rank_context *r, const rank_card *cards, const char *launch);
void report_link(report *p, const rank_context *r, double link_speed, double copy_bytes);
void report_case(report *p, const rank_context *r, const problem *of, const case_result *result);
/* A rank counts as missed if it is slower by more than slower_at_most. 0 = no rank counts. */
void report_speed(report *p, const rank_context *r, const speed_result *speed, double slower_at_most);
/* Returns nonzero after a complaint. */
int report_end(report *p);

#endif
