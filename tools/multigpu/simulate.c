#include "simulate.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "output.h"
#include "seconds.h"
#include "trope/trope.h"

#ifdef TROPE_MULTIGPU_HAS_JSON
#include <cjson/cJSON.h>
#endif

/* Lengths that are tested with every number of ranks, and the index of the one that is plotted. */
static const int64_t lengths[] = {(int64_t)1 << 16, (int64_t)1 << 20, (int64_t)1 << 31};
enum { LENGTHS = sizeof lengths / sizeof lengths[0], DRAWN = 1 };
/* Approximate length of the sequences whose positions are all checked. */
#define SHORT_LENGTH 8192
/* Memory use is that of Q and K of Llama 3 70B in bf16 (64 and 8 heads of 128), and of a table of fp32 angles for it. */
#define BYTES_PER_TOKEN ((64 + 8) * 128 * 2.0)
#define BYTES_PER_ROW   (64 * 4.0)

static const char *const names[SIMULATE_LAYOUTS] = {"zigzag", "contiguous", "striped", "flat"};

typedef struct totals {
    int64_t maps; /* number of splits that were checked */
    int64_t wrong;
    char first_wrong[128];
} totals;

static int64_t rounded(int64_t n, int64_t ranks)
{
    const int64_t unit = 2 * ranks;
    return n < unit ? unit : n / unit * unit;
}

static void count(totals *t, const simulation *s, int layout, int64_t ranks, int64_t n)
{
    t->maps++;
    if (!s->holds && !t->wrong++)
        snprintf(t->first_wrong, sizeof t->first_wrong, "%s, %" PRId64 " ranks, %" PRId64 " tokens", names[layout], ranks,
                 n);
}

static void check_ranks(totals *t, int64_t ranks)
{
    for (int layout = 0; layout < SIMULATE_LAYOUTS; layout++) {
        const int64_t few = rounded(SHORT_LENGTH, ranks);
        const simulation every = simulate_every_position(simulate_layouts[layout], ranks, few);
        count(t, &every, layout, ranks, few);
        for (int i = 0; i < LENGTHS; i++) {
            const int64_t n = rounded(lengths[i], ranks);
            const simulation s = simulate_sequence(simulate_layouts[layout], ranks, n);
            count(t, &s, layout, ranks, n);
        }
    }
}

/* A line of the table, and a point of the plot. */
typedef struct balance {
    int64_t ranks;
    double sequence[SIMULATE_LAYOUTS], stream[SIMULATE_LAYOUTS];
    double bytes, table_bytes; /* per rank */
} balance;

static void draw_balance(totals *t, int64_t ranks, balance *b)
{
    const int64_t n = rounded(lengths[DRAWN], ranks);
    *b = (balance){.ranks = ranks, .table_bytes = (double)n * BYTES_PER_ROW};
    for (int layout = 0; layout < SIMULATE_LAYOUTS; layout++) {
        const simulation s = simulate_sequence(simulate_layouts[layout], ranks, n);
        const simulation small = simulate_stream(simulate_layouts[layout], ranks, 16 * n);
        const simulation large = simulate_stream(simulate_layouts[layout], ranks, lengths[LENGTHS - 1]);
        count(t, &s, layout, ranks, n);
        count(t, &small, layout, ranks, 16 * n);
        count(t, &large, layout, ranks, lengths[LENGTHS - 1]);
        b->sequence[layout] = s.imbalance;
        b->stream[layout] = small.imbalance;
        b->bytes = (double)s.tokens * BYTES_PER_TOKEN;
    }
}

/* ---- output ---- */

static void print_heading(void)
{
    printf("# trope_multigpu %s: work of the busiest rank over the mean, causal attention\n", trope_version());
    printf("# one sequence of %" PRId64 " tokens, and (stream) 600 sequences of Pareto lengths\n", lengths[DRAWN]);
    printf("# memory of a rank: Q and K of 64 and 8 heads of 128 in bf16; table: fp32 angles of all positions\n");
    printf("# %5s %10s %10s %10s %10s %12s %12s %10s %10s\n", "ranks", names[0], names[1], names[2], names[3],
           "zigzag str.", "flat stream", "MiB/rank", "table MiB");
}

static void print_balance(const balance *b)
{
    printf("  %5" PRId64 " %10.6f %10.6f %10.6f %10.6f %12.6f %12.6f %10.1f %10.1f\n", b->ranks, b->sequence[0],
           b->sequence[1], b->sequence[2], b->sequence[3], b->stream[0], b->stream[3], b->bytes / 0x1p20,
           b->table_bytes / 0x1p20);
}

#ifdef TROPE_MULTIGPU_HAS_JSON
static void add_balance(cJSON *list, const balance *b)
{
    cJSON *item = cJSON_CreateObject();
    cJSON_AddItemToArray(list, item);
    cJSON_AddNumberToObject(item, "ranks", (double)b->ranks);
    cJSON_AddNumberToObject(item, "bytes", b->bytes);
    cJSON_AddNumberToObject(item, "table_bytes", b->table_bytes);
    for (int i = 0; i < SIMULATE_LAYOUTS; i++) {
        char name[32];
        cJSON_AddNumberToObject(item, names[i], b->sequence[i]);
        snprintf(name, sizeof name, "stream_%s", names[i]);
        cJSON_AddNumberToObject(item, name, b->stream[i]);
    }
}

static int write_json(const balance *rows, int count_of_rows, const totals *t, const char *path)
{
    cJSON *json = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(json, "balance");
    cJSON_AddStringToObject(json, "trope", trope_version());
    cJSON_AddNumberToObject(json, "tokens", (double)lengths[DRAWN]);
    cJSON_AddNumberToObject(json, "maps", (double)t->maps);
    cJSON_AddNumberToObject(json, "wrong", (double)t->wrong);
    for (int i = 0; i < count_of_rows; i++)
        add_balance(list, &rows[i]);
    char *text = cJSON_Print(json);
    const int failed = text ? output_line(path, text) : complain("out of memory");
    free(text);
    cJSON_Delete(json);
    return failed;
}
#else
static int write_json(const balance *rows, int count_of_rows, const totals *t, const char *path)
{
    (void)rows, (void)count_of_rows, (void)t, (void)path;
    return RESULT_REFUSED;
}
#endif

int simulate(int json, const char *path)
{
    balance rows[32];
    int row_count = 0;
    totals t = {0, 0, ""};
    const double begin = seconds_now();
    if (path && output_is_refused(path))
        return RESULT_REFUSED;
    if (!json)
        print_heading();
    for (int64_t ranks = 1; ranks <= SIMULATE_RANKS; ranks *= 2) {
        draw_balance(&t, ranks, &rows[row_count++]);
        if (!json)
            print_balance(&rows[row_count - 1]);
    }
    for (int64_t ranks = 1; ranks <= SIMULATE_RANKS; ranks++)
        check_ranks(&t, ranks);
    if (!json) {
        printf("# %" PRId64 " splits of 1 to %d ranks and up to 2^31 tokens, %" PRId64 " wrong, in %.1f s\n", t.maps,
               SIMULATE_RANKS, t.wrong, seconds_now() - begin);
        if (t.wrong)
            printf("# first: %s\n", t.first_wrong);
    }
    if ((json || path) && write_json(rows, row_count, &t, path))
        return RESULT_REFUSED;
    return t.wrong ? RESULT_DIFFERS : RESULT_OK;
}
