#include "timing.h"

#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "seconds.h"
#include "value.h"

enum { LINK_TIMES = 5, SPEED_ROUNDS = 1000 };
/* Gap between tensors, so that reads and writes are not a power of two apart and do not hit the same memory banks. */
#define SPEED_GAP ((size_t)17 << 16)
#define PATTERN   ((size_t)1 << 20)

/* Writes the smallest median of the works to *seconds. Returns nonzero after watch_fail. */
static int measure(rank_context *r, const device_work *works, int count, double bytes, double *seconds, int32_t repeat)
{
    double *all = rank_malloc(r, sizeof *all * (size_t)(count * repeat));
    device_timing t = {.works = works, .count = count, .repeat = repeat, .sets = 1, .bytes = bytes, .seconds = all};
    if (!all)
        return 1;
    const int failed = r->device->measure(&t);
    for (int w = 0; w < count && !failed; w++) {
        const double m = seconds_median(all + w * repeat, repeat);
        *seconds = w == 0 || m < *seconds ? m : *seconds;
    }
    free(all);
    return failed ? watch_fail(r->watch, WATCH_CAUSE, "rank %d: its device cannot be timed", r->rank) : 0;
}

/* Sends a number from every rank to all ranks. */
static int share_number(rank_context *r, double mine, double *all)
{
    return r->host->all_gather(r->host, &mine, all, sizeof mine);
}

static int fill(rank_context *r, char *device, size_t bytes)
{
    char *host = rank_malloc(r, PATTERN);
    int failed = !host;
    for (int64_t i = 0; i < (int64_t)PATTERN / value_size(TROPE_BF16) && !failed; i++)
        value_store(TROPE_BF16, host, i, data_real(2, (uint64_t)i, 2));
    for (size_t at = 0; at < bytes && !failed; at += PATTERN)
        failed = rank_upload(r, device + at, host, bytes - at < PATTERN ? bytes - at : PATTERN);
    free(host);
    return failed;
}

/* ---- copies ---- */

typedef struct copy_work {
    rank_context *r;
    int way;
    char *to, *from;
    size_t bytes;
} copy_work;

static int run_copy(void *context, int set, void *stream)
{
    const copy_work *c = context;
    (void)set;
    return c->r->device->copy(c->way, c->to, c->from, c->bytes, c->r->threads, stream);
}

static int time_copies(rank_context *r, double bytes, int32_t repeat, double *speed)
{
    const arena_mark mark = rank_mark(r);
    const size_t half = (size_t)(bytes / 2) / 256 * 256 + 256;
    char *from = rank_take(r, half), *to = rank_take(r, half);
    copy_work copies[DEVICE_MAX_WAYS];
    device_work works[DEVICE_MAX_WAYS];
    double seconds = 0;
    for (int i = 0; i < r->device->copies; i++) {
        copies[i] = (copy_work){r, i, to, from, half};
        works[i] = (device_work){run_copy, &copies[i]};
    }
    const int failed =
        !from || !to || fill(r, from, half) || measure(r, works, r->device->copies, 2.0 * (double)half, &seconds, repeat);
    *speed = failed ? 0 : 2.0 * (double)half / seconds;
    rank_give_back(r, mark);
    return failed;
}

int timing_copy(rank_context *r, double bytes, int32_t repeat)
{
    double mine = 0, *all = rank_malloc(r, sizeof *all * (size_t)r->size);
    watch_phase(r->watch, r->rank, "one device's copy");
    int failed = !all || (r->rank == 0 && time_copies(r, bytes, repeat, &mine));
    watch_phase(r->watch, r->rank, "the figure of the copy");
    failed = failed || share_number(r, mine, all);
    if (!failed)
        r->copy_speed = all[0];
    free(all);
    return failed;
}

/* ---- the link ---- */

int timing_link(rank_context *r, double *speed)
{
    const arena_mark mark = rank_mark(r);
    const size_t bytes = r->device->id == TROPE_DEVICE_CUDA ? (size_t)256 << 20 : (size_t)1 << 20;
    char *out = rank_take(r, bytes), *in = rank_take(r, bytes);
    const ring_step step = {out, in, bytes, (r->rank + 1) % r->size, (r->rank + r->size - 1) % r->size};
    int failed = !out || !in || fill(r, out, bytes);
    double best = 0;
    for (int i = 0; i < LINK_TIMES && r->size > 1 && !failed; i++) {
        watch_phase(r->watch, r->rank, "timing the link");
        failed = communicator_barrier(r->host);
        const double begin = seconds_now();
        failed = failed || r->data->ring(r->data, &step);
        const double seconds = seconds_now() - begin;
        best = best > 0 && best < seconds ? best : seconds;
    }
    *speed = best > 0 ? (double)bytes / best : 0;
    rank_give_back(r, mark);
    return failed;
}

/* ---- cases ---- */

static int run_forward(void *context, int set, void *stream)
{
    (void)set;
    return call_queue_forward(context, stream);
}

/* Returns how many tokens the whole must have so that a rank moves about this many bytes. */
static int64_t tokens_for(const problem *small, double bytes)
{
    const int32_t heads = small->heads[PROBLEM_Q] / small->grid.tp +
                          (small->heads[PROBLEM_K] > small->grid.tp ? small->heads[PROBLEM_K] / small->grid.tp : 1);
    const double per_token = 2.0 * heads * small->head_dim * value_size(small->dtype);
    const double tokens = bytes / per_token * small->grid.dp * small->grid.cp;
    return tokens < 0x1p30 ? (int64_t)tokens : (int64_t)1 << 30;
}

static int make_large(const problem_choice *choice, double bytes, problem *large)
{
    problem small;
    int failed = problem_make(&small, choice, 64);
    const int64_t tokens = failed ? 0 : tokens_for(&small, bytes);
    problem_free(&small);
    memset(large, 0, sizeof *large);
    return failed || problem_make(large, choice, tokens);
}

static int time_forward(rank_context *r, const problem *large, int32_t repeat, case_result *result)
{
    const rank_place place = problem_place(large, r->rank);
    double mine = 0, *all = rank_malloc(r, sizeof *all * (size_t)r->size);
    call c;
    int failed = !all || call_open_for_time(&c, r, large, &place);
    const device_work work = {run_forward, &c};
    watch_phase(r->watch, r->rank, "before timing");
    failed = failed || communicator_barrier(r->host);
    watch_phase(r->watch, r->rank, "timing");
    failed = failed || measure(r, &work, 1, call_traffic(&c), &mine, repeat);
    watch_phase(r->watch, r->rank, "gathering times");
    failed = failed || share_number(r, mine, all);
    result->seconds = 0;
    for (int32_t i = 0; i < r->size && !failed; i++)
        result->seconds = all[i] > result->seconds ? all[i] : result->seconds;
    if (!failed) {
        result->bytes = call_traffic(&c);
        call_close(&c);
    }
    free(all);
    return failed;
}

int timing_case(rank_context *r, const problem_choice *choice, double bytes, int32_t repeat, case_result *result)
{
    problem large;
    if (bytes <= 0)
        return 0;
    watch_phase(r->watch, r->rank, "preparing to time");
    int failed = make_large(choice, bytes, &large);
    if (failed)
        (void)watch_fail(r->watch, WATCH_CAUSE, "rank %d is out of memory", r->rank);
    failed = failed || time_forward(r, &large, repeat, result);
    problem_free(&large);
    return failed;
}

/* ---- alone and together ---- */

typedef struct speed_work {
    request q;
    double inv_freq[SPEED_DIM / 2];
    char *memory; /* sets of src and dst */
    size_t tensor;
} speed_work;

static int run_speed(void *context, int set, void *stream)
{
    const speed_work *w = context;
    request q = w->q;
    char *src = w->memory + (size_t)(2 * set) * w->tensor;
    request_tensors(&q, 0, src, src + w->tensor, NULL);
    q.args.stream = stream;
    return trope_forward(request_args(&q)) != TROPE_OK;
}

static int make_speed(rank_context *r, int64_t tokens, int set_count, speed_work *w)
{
    const trope_frequency_args rule = {
        .struct_size = sizeof rule, .rule = TROPE_RULE_DEFAULT, .rotary_dim = SPEED_DIM, .base = 10000};
    w->q = request_make(TROPE_BF16, 1, tokens);
    w->q.args.device = r->device->id;
    w->q.args.threads = r->threads;
    w->q.args.inv_freq = w->inv_freq;
    request_add(&w->q, SPEED_HEADS, SPEED_DIM, SPEED_DIM);
    w->tensor = (size_t)tokens * SPEED_HEADS * SPEED_DIM * 2 + SPEED_GAP;
    w->memory = rank_take(r, 2 * (size_t)set_count * w->tensor);
    if (trope_frequencies(&rule, w->inv_freq, &w->q.args.mscale))
        return watch_fail(r->watch, WATCH_CAUSE, "rank %d: %s", r->rank, trope_last_error());
    return !w->memory || fill(r, w->memory, 2 * (size_t)set_count * w->tensor);
}

/* Keeps the smaller of two times. 0 means none. */
static void keep_least(double *least, double seconds)
{
    *least = *least > 0 && *least < seconds ? *least : seconds;
}

static int time_speed(rank_context *r, const device_timing *t, speed_row *mine)
{
    int failed = 0;
    for (int time = 0; time < 2; time++) {
        for (int32_t turn = 0; turn <= r->size && !failed; turn++) {
            watch_phase(r->watch, r->rank, turn < r->size ? "one rank at a time" : "all ranks at once");
            failed = communicator_barrier(r->host);
            if (failed || (turn < r->size && turn != r->rank))
                continue;
            if (r->device->measure(t))
                return watch_fail(r->watch, WATCH_CAUSE, "rank %d: its device cannot be timed", r->rank);
            keep_least(turn < r->size ? &mine->alone : &mine->together, seconds_median(t->seconds, t->repeat));
        }
    }
    return failed;
}

int timing_speed(rank_context *r, double bytes, int32_t repeat, speed_result *result)
{
    const arena_mark mark = rank_mark(r);
    const double per_token = 2.0 * SPEED_HEADS * SPEED_DIM * 2;
    const int64_t tokens = bytes > per_token ? (int64_t)(bytes / per_token) : 1;
    const int set_count = r->device->sets((double)tokens * per_token / 2);
    speed_work w;
    speed_row mine = {0, 0};
    double seconds[SPEED_ROUNDS];
    const device_work work = {run_speed, &w};
    const device_timing t = {
        &work, 1, repeat < SPEED_ROUNDS ? repeat : SPEED_ROUNDS, set_count, (double)tokens * per_token, seconds};
    result->tokens = tokens;
    result->bytes = (double)tokens * per_token;
    result->rows = rank_malloc(r, sizeof *result->rows * (size_t)r->size);
    watch_phase(r->watch, r->rank, "preparing to time ranks alone");
    int failed = !result->rows || make_speed(r, tokens, set_count, &w) || time_speed(r, &t, &mine);
    watch_phase(r->watch, r->rank, "gathering times");
    failed = failed || r->host->all_gather(r->host, &mine, result->rows, sizeof mine);
    rank_give_back(r, mark);
    return failed;
}
