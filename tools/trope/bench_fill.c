/* The contents of a problem's memory before its call. */
#include <math.h>
#include <string.h>

#include "bench_problem.h"
#include "parallel.h"
#include "random_bits.h"
#include "value.h"

/* Random numbers from 1/8 to 2 with both signs: random bits, with all bits of the exponent fixed except the last two. */
typedef struct pattern {
    uint64_t *words;
    uint64_t seed, random, fixed;
} pattern;

static void fill_words(void *context, size_t begin, size_t end)
{
    const pattern *w = context;
    for (size_t i = begin / 8; i < end / 8; i++)
        w->words[i] = (random_bits(w->seed, i) & w->random) | w->fixed;
}

static void fill_values(const bench_problem *p, void *area, size_t size, uint64_t seed, int32_t threads)
{
    pattern w = {.words = area, .seed = seed};
    if (p->dtype == TROPE_F16)
        w.random = 0x8fff8fff8fff8fffu, w.fixed = 0x3000300030003000u;
    else if (p->dtype == TROPE_BF16)
        w.random = 0x81ff81ff81ff81ffu, w.fixed = 0x3e003e003e003e00u;
    else if (p->dtype == TROPE_F32)
        w.random = 0x81ffffff81ffffffu, w.fixed = 0x3e0000003e000000u;
    else
        w.random = 0x803fffffffffffffu, w.fixed = 0x3fc0000000000000u;
    parallel_bytes(fill_words, &w, size / 8 * 8, threads);
}

typedef struct angle_job {
    const bench_problem *p;
    void *const *area;
} angle_job;

/* Fills rows `begin` to `end` of all tables. Each row has different angles. parallel_bytes calls this with one byte per
 * row. */
static void fill_rows(void *context, size_t begin, size_t end)
{
    const angle_job *job = context;
    const bench_problem *p = job->p;
    const int32_t pairs = bench_rotary_dim(p->c) / 2, type = bench_angle_dtype(p);
    const int64_t rows = bench_table_rows(p), has_two = bench_has_cos_and_sin(p->c);
    for (size_t row = begin; row < end; row++) {
        for (int32_t i = 0; i < p->cols; i++) {
            const double angle = (double)((int64_t)row % rows + (int64_t)row / rows) * p->inv_freq[i % pairs];
            const int64_t at = (int64_t)row * p->cols + i;
            value_store(type, job->area[AREA_COS], at, has_two ? cos(angle) : angle);
            if (has_two)
                value_store(type, job->area[AREA_SIN], at, sin(angle));
        }
    }
}

void bench_fill(const bench_problem *p, void *const *area, int32_t threads)
{
    angle_job job = {p, area};
    fill_values(p, area[AREA_SRC], p->size[AREA_SRC], 1, threads);
    fill_values(p, area[AREA_FORWARD_SRC], p->size[AREA_FORWARD_SRC], 2, threads);
    if (p->c->accumulate)
        fill_values(p, area[AREA_DST], p->size[AREA_DST], 3, threads);
    else if (!p->c->in_place)
        memset(area[AREA_DST], 0xff, p->size[AREA_DST]);
    fill_values(p, area[AREA_WEIGHT], p->size[AREA_WEIGHT], 4, threads);
    for (int i = 0; i < BENCH_TEXT_AREAS; i++)
        fill_values(p, area[AREA_TENSORS + i], p->size[AREA_TENSORS + i], 6 + (uint64_t)i, threads);
    memset(area[AREA_D_ANGLES], 0xff, p->size[AREA_D_ANGLES]);
    memset(area[AREA_D_WEIGHT], 0xff, p->size[AREA_D_WEIGHT]);
    if (p->c->call) {
        bench_fill_text(p, area);
        return;
    }
    if (p->cols)
        parallel_bytes(fill_rows, &job, (size_t)(bench_table_rows(p) * bench_tables(p->c)), threads);
    bench_write_indices(p, area);
}
