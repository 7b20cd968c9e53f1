/* Runs problems one after the other: reserves memory, checks one call, then times calls and copies. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_problem.h"
#include "command.h"
#include "seconds.h"
#include "value.h"

/* Number of calls whose time on the host is measured. */
#define HOST_CALLS 200
/* A case is noisy if half of its copies took at least this many times as long as the fastest one. */
#define NOISY 1.25
/* One ulp of the largest element. Elements are below 2 in magnitude; rotating an f64 pair can have this error. */
#define LARGEST_ULP 0x1p-51

/* Memory. A device may have several sets, so that no call finds data of an earlier call in a cache. */

static int set_count(const bench_run *run, const bench_problem *p)
{
    return run->device->sets(p->moved / 2);
}

/* Distance in bytes between the sets of an area. */
static size_t set_stride(const bench_problem *p, int area)
{
    return (p->size[area] + 4095) / 4096 * 4096;
}

static void find_set(const bench_run *run, const bench_problem *p, int set, void *area[AREA_COUNT])
{
    for (int i = 0; i < AREA_COUNT; i++)
        area[i] = (char *)run->on_device.area[i] + (size_t)set * set_stride(p, i);
}

static int reserve(bench_memory *memory, const tool_device *device, int area, size_t size, int32_t threads)
{
    if (memory->area[area] && size <= memory->size[area])
        return 0;
    if (memory->area[area])
        device->release(memory->area[area], memory->size[area]);
    memory->area[area] = device->allocate(size, threads);
    memory->size[area] = size;
    return memory->area[area] ? 0 : complain("out of memory for %zu bytes; a smaller --bytes needs less", size);
}

int bench_reserve(bench_run *run, const bench_problem *p)
{
    const int32_t threads = run->machine->threads;
    const size_t others = (size_t)set_count(run, p) - 1;
    for (int i = 0; i < AREA_COUNT; i++) {
        if (reserve(&run->on_device, run->device, i, others * set_stride(p, i) + p->size[i], threads) ||
            reserve(&run->on_host, &device_cpu, i, p->size[i], threads))
            return RESULT_REFUSED;
    }
    return 0;
}

void bench_release(bench_run *run)
{
    for (int i = 0; i < AREA_COUNT; i++) {
        run->device->release(run->on_device.area[i], run->on_device.size[i]);
        device_cpu.release(run->on_host.area[i], run->on_host.size[i]);
    }
    free(run->downloaded);
    free(run->seconds);
    free(run->host_seconds);
    free(run->report.results);
    free(run->standards.all);
}

/* Uploads the host's data to all sets. */
static int upload(bench_run *run, const bench_problem *p)
{
    void *first[AREA_COUNT], *area[AREA_COUNT];
    find_set(run, p, 0, first);
    for (int set = 0; set < set_count(run, p); set++) {
        find_set(run, p, set, area);
        for (int i = 0; i < AREA_COUNT; i++) {
            if (i == AREA_WORKSPACE || (i == AREA_DST && p->c->in_place) || p->size[i] == 0)
                continue;
            if (set ? run->device->copy(0, area[i], first[i], p->size[i], run->machine->threads, NULL)
                    : run->device->upload(area[i], run->on_host.area[i], p->size[i]))
                return RESULT_REFUSED;
        }
    }
    return 0;
}

/* Timed work */

typedef struct call_context {
    bench_call *calls; /* for each set */
    int backward;
} call_context;

static int run_call(void *context, int set, void *stream)
{
    call_context *call = context;
    trope_args *args = &call->calls[set].args;
    args->stream = stream;
    if (call->backward ? trope_backward(args) : trope_forward(args))
        return complain("%s", trope_last_error());
    return 0;
}

/* A way to copy or to move. */
typedef struct way_context {
    const bench_run *run;
    const bench_problem *p;
    int way;
} way_context;

static int run_copy(void *context, int set, void *stream)
{
    const way_context *copy = context;
    void *area[AREA_COUNT];
    find_set(copy->run, copy->p, set, area);
    return copy->run->device->copy(copy->way, area[AREA_DST], area[AREA_SRC], (size_t)(copy->p->moved / 2),
                                   copy->run->machine->threads, stream);
}

static int run_move(void *context, int set, void *stream)
{
    const way_context *move = context;
    void *area[AREA_COUNT];
    find_set(move->run, move->p, set, area);
    return move->run->device->move(move->way, area[AREA_SRC], &move->p->runs, stream);
}

static int time_host(bench_run *run, call_context *call, bench_result *result)
{
    const device_work work = {run_call, call};
    double *seconds = run->host_seconds, *empty_seconds = seconds + HOST_CALLS;
    if (!run->device->measure_host)
        return 0;
    if (run->device->measure_host(&work, result->sets, HOST_CALLS, seconds, empty_seconds))
        return RESULT_REFUSED;
    for (int i = 0; i < HOST_CALLS; i++)
        empty_seconds[i] = seconds[i] - empty_seconds[i];
    result->host = (bench_host){seconds_median(seconds, HOST_CALLS), seconds_median(empty_seconds, HOST_CALLS)};
    return 0;
}

/* The ways to copy or to move that are timed beside a case. */
typedef struct timed_ways {
    int standard; /* index in bench_run.standards */
    const char *const *names;
    int all, count;
    int ways[DEVICE_MAX_WAYS];
    double bytes;
    double *seconds; /* the times of the first way in all rounds, then those of the next way */
} timed_ways;

static int choose_ways(bench_run *run, const bench_problem *p, int are_moves, timed_ways *w)
{
    static const device_runs none = {0};
    const device_runs *runs = are_moves ? &p->runs : &none;
    *w = (timed_ways){.names = are_moves ? run->device->move_names : run->device->copy_names,
                      .all = are_moves ? run->device->moves : run->device->copies,
                      .bytes = are_moves ? 2.0 * (double)runs->bytes * (double)runs->count : p->moved};
    if (are_moves && (!runs->count || !w->all))
        return 0;
    w->standard = bench_find_standard(&run->standards, runs, w->bytes);
    if (w->standard < 0)
        return RESULT_REFUSED;
    w->count = bench_choose_ways(&run->standards.all[w->standard], w->all, w->ways);
    return 0;
}

/* Records the times, and returns the best way so far. */
static bench_yardstick judge_ways(const bench_run *run, timed_ways *w)
{
    if (!w->count)
        return (bench_yardstick){0};
    bench_standard *standard = &run->standards.all[w->standard];
    for (int i = 0; i < w->count; i++)
        bench_keep_time(standard, w->ways[i], w->bytes, seconds_median(w->seconds + i * run->repeat, run->repeat));
    return bench_best_way(standard, w->names, w->all, w->bytes);
}

/* judge_ways must have sorted the times. */
static int is_noisy(const bench_run *run, const timed_ways *w)
{
    return w->seconds[run->repeat / 2] > NOISY * w->seconds[0];
}

/* Times the call, the copies and the moves alternately. */
static int measure_ways(bench_run *run, const bench_problem *p, call_context *call, bench_result *result,
                        timed_ways ways[2])
{
    way_context contexts[2 * DEVICE_MAX_WAYS];
    device_work works[1 + 2 * DEVICE_MAX_WAYS] = {{run_call, call}};
    device_timing timing = {works, 1, run->repeat, result->sets, p->moved, run->seconds};
    for (int kind = 0; kind < 2; kind++) {
        ways[kind].seconds = run->seconds + timing.count * run->repeat;
        for (int i = 0; i < ways[kind].count; i++) {
            way_context *context = &contexts[timing.count - 1];
            *context = (way_context){run, p, ways[kind].ways[i]};
            works[timing.count++] = (device_work){kind ? run_move : run_copy, context};
        }
    }
    return run->device->measure(&timing);
}

static int time_case(bench_run *run, const bench_problem *p, call_context *call, bench_result *result)
{
    timed_ways ways[2];
    if (!run->device->is_steady)
        run->standards.count = 0;
    if (choose_ways(run, p, 0, &ways[0]) || choose_ways(run, p, 1, &ways[1]))
        return RESULT_REFUSED;
    if (run->device->begin_range)
        run->device->begin_range(result->name);
    const int failed = measure_ways(run, p, call, result, ways) || time_host(run, call, result);
    if (run->device->end_range)
        run->device->end_range();
    if (failed)
        return RESULT_REFUSED;
    result->seconds = seconds_median(run->seconds, run->repeat);
    result->fastest = run->seconds[0];
    result->copy = judge_ways(run, &ways[0]);
    result->move = judge_ways(run, &ways[1]);
    result->is_noisy = is_noisy(run, &ways[0]);
    result->ratio = result->copy.seconds / result->seconds;
    result->of_move = result->move.seconds / result->seconds;
    return 0;
}

/* Correctness */

/* An element is wrong if it differs in any bit (is_exact), or else by more than two ulp and more than the slack. */
typedef struct tolerance {
    int32_t type;
    int is_exact;
    double slack;
} tolerance;

static int is_wrong(const tolerance *t, const void *got, const void *expected, int64_t i)
{
    const size_t size = (size_t)value_size(t->type);
    if (!memcmp((const char *)got + (size_t)i * size, (const char *)expected + (size_t)i * size, size))
        return 0;
    return t->is_exact || (value_ulp(t->type, got, expected, i) > 2 &&
                           !(fabs(value_load(t->type, got, i) - value_load(t->type, expected, i)) <= t->slack));
}

static int compare_area(bench_run *run, const bench_problem *p, int area, const tolerance *t, bench_result *result)
{
    const size_t bytes = p->size[area], size = (size_t)value_size(t->type);
    if (run->device->download(run->downloaded, run->on_device.area[area], bytes))
        return RESULT_REFUSED;
    if (!memcmp(run->downloaded, run->on_host.area[area], bytes))
        return 0;
    for (int64_t i = 0; i < (int64_t)(bytes / size); i++)
        result->wrong += is_wrong(t, run->downloaded, run->on_host.area[area], i);
    return 0;
}

/* Makes the host's reference call: portable code on one thread to check the CPU, the fastest code to check a GPU. */
static int bind_reference(const bench_run *run, const bench_problem *p, bench_call *call)
{
    const int is_cpu = run->device == &device_cpu;
    if (bench_bind(p, run->on_host.area, call))
        return RESULT_REFUSED;
    call->args.device = TROPE_DEVICE_CPU;
    call->args.isa = is_cpu ? TROPE_ISA_PORTABLE : TROPE_ISA_AUTO;
    call->args.threads = is_cpu ? 1 : 0;
    return 0;
}

/* Runs the call once on the device and once on the host, and compares the outputs. */
static int verify_case(bench_run *run, const bench_problem *p, call_context *call, bench_result *result)
{
    bench_call host_call;
    call_context reference = {&host_call, call->backward};
    if (bind_reference(run, p, &host_call) || upload(run, p) || run_call(call, 0, NULL) || run_call(&reference, 0, NULL))
        return RESULT_REFUSED;
    const int is_cpu = run->device == &device_cpu;
    const tolerance elements = {p->dtype, is_cpu || p->dtype != TROPE_F64, 2 * LARGEST_ULP};
    const tolerance sums = {p->cols ? bench_weight_gradient_dtype(p) : TROPE_F64, is_cpu, p->sum_slack};
    for (int area = 0; area < AREA_COUNT; area++)
        if (bench_writes_area(p, area) && compare_area(run, p, area, &elements, result))
            return RESULT_REFUSED;
    const tolerance roots = {bench_weight_gradient_dtype(p), 1, 0};
    if (p->size[AREA_RSTD] && compare_area(run, p, AREA_RSTD, &roots, result))
        return RESULT_REFUSED;
    const tolerance weights = {bench_weight_gradient_dtype(p), is_cpu, p->weight_slack};
    if (p->c->norm && p->c->backward && compare_area(run, p, AREA_D_WEIGHT, &weights, result))
        return RESULT_REFUSED;
    return p->c->angle_gradient ? compare_area(run, p, AREA_D_ANGLES, &sums, result) : 0;
}

/* Reserves workspaces. The host's call may need another size than the device's. */
static int reserve_workspace(bench_run *run, bench_problem *p, const trope_args *args)
{
    bench_call host_call;
    uint64_t size, host_size;
    if (bind_reference(run, p, &host_call))
        return RESULT_REFUSED;
    if (trope_workspace_size(args, &size) || trope_workspace_size(&host_call.args, &host_size))
        return complain("%s", trope_last_error());
    p->size[AREA_WORKSPACE] = (size_t)(size > host_size ? size : host_size);
    return bench_reserve(run, p);
}

/* Cases */

static int bind_call(const bench_run *run, const bench_problem *p, int set, bench_call *call)
{
    void *area[AREA_COUNT];
    find_set(run, p, set, area);
    if (bench_bind(p, area, call))
        return RESULT_REFUSED;
    call->args.device = run->device->id;
    call->args.threads = run->machine->threads;
    call->args.isa = run->machine->isa;
    return 0;
}

/* Finds out whether the device supports the call. Returns the status, after a complaint if the bench cannot go on. */
static trope_status find_kernel(const call_context *call, bench_result *result)
{
    const trope_status status =
        trope_kernel_name(&call->calls[0].args, call->backward, result->kernel, sizeof result->kernel);
    if (status && status != TROPE_ERROR_UNSUPPORTED)
        complain("%s: %s", result->name, trope_last_error());
    return status;
}

static int run_sets(bench_run *run, bench_problem *p, call_context *call, bench_result *result)
{
    if (bench_reads_forward(p->c) && reserve_workspace(run, p, &call->calls[0].args))
        return RESULT_REFUSED;
    for (int set = 0; set < result->sets; set++)
        if (bind_call(run, p, set, &call->calls[set]))
            return RESULT_REFUSED;
    bench_fill(p, run->on_host.area, run->machine->threads);
    return verify_case(run, p, call, result) || time_case(run, p, call, result);
}

static int run_calls(bench_run *run, bench_problem *p, call_context *call, bench_result *result)
{
    const double begin = seconds_now();
    if (bind_call(run, p, 0, &call->calls[0]))
        return RESULT_REFUSED;
    const trope_status status = find_kernel(call, result);
    if (status == TROPE_ERROR_UNSUPPORTED) {
        bench_print_refusal(&run->report, result);
        return 0;
    }
    if (status || run_sets(run, p, call, result))
        return RESULT_REFUSED;
    result->is_one_launch = !bench_reads_forward(p->c) && !(p->c->backward && p->c->form == BENCH_MLA_KV);
    result->at_least = run->device->has_goals ? bench_goal(p) : 0;
    result->took = seconds_now() - begin;
    return bench_print_result(&run->report, p, result);
}

int bench_run_problem(bench_run *run, bench_problem *p)
{
    bench_result result = {.sets = set_count(run, p)};
    call_context call = {calloc((size_t)result.sets, sizeof *call.calls), p->c->backward};
    bench_name(p->c, p->dtype, result.name, sizeof result.name);
    const int failed = call.calls ? run_calls(run, p, &call, &result) : complain("out of memory");
    free(call.calls);
    return failed ? RESULT_REFUSED : 0;
}

/* Allocates memory that is the same for all cases. */
int bench_begin(bench_run *run)
{
    size_t largest = 0;
    for (int i = 0; i < AREA_COUNT; i++)
        largest = run->on_host.size[i] > largest ? run->on_host.size[i] : largest;
    run->downloaded = device_cpu.allocate(largest, run->machine->threads);
    run->seconds =
        malloc((size_t)(1 + run->device->copies + run->device->moves) * (size_t)run->repeat * sizeof *run->seconds);
    run->host_seconds = malloc(2 * HOST_CALLS * sizeof *run->host_seconds);
    return run->downloaded && run->seconds && run->host_seconds ? 0
                                                                : complain("out of memory; a smaller --bytes needs less");
}
