/* One problem after another: memory for it, the call once to see that it is right, then its time beside that of copies. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "command.h"
#include "value.h"

/* Calls whose time on the host is taken. */
#define HOST_CALLS 600
/* An ulp of the largest element, which is below 2 in magnitude, as a pair of f64 rotated by it may have. */
#define LARGEST_ULP 0x1p-51

/* Memory. A device may have several sets of it, so that a call finds nothing in a cache that an earlier one left there. */

static int set_count(const bench_run *run, const bench_problem *p)
{
    return run->device->sets(p->moved / 2);
}

/* Bytes from an area of one set to that of the next. */
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
    return memory->area[area] ? 0 : complain("out of memory for %zu bytes; --bytes asks for less", size);
}

int bench_reserve(bench_run *run, const bench_problem *p)
{
    const int32_t threads = run->machine->threads;
    const size_t others = (size_t)set_count(run, p) - 1;
    for (int i = 0; i < AREA_COUNT; i++) {
        run->result_size = p->size[i] > run->result_size ? p->size[i] : run->result_size;
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
}

/* The host's data goes to all sets. */
static int upload(bench_run *run, const bench_problem *p)
{
    void *first[AREA_COUNT], *area[AREA_COUNT];
    find_set(run, p, 0, first);
    for (int set = 0; set < set_count(run, p); set++) {
        find_set(run, p, set, area);
        for (int i = 0; i < AREA_COUNT; i++) {
            if (i == AREA_WORKSPACE || p->size[i] == 0)
                continue;
            if (set ? run->device->copy(0, area[i], first[i], p->size[i], run->machine->threads, NULL)
                    : run->device->upload(area[i], run->on_host.area[i], p->size[i]))
                return RESULT_REFUSED;
        }
    }
    return 0;
}

/* What is timed */

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

/* A way to copy, or to move. */
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

static int count_moves(const bench_run *run, const bench_problem *p)
{
    return p->runs.count ? run->device->moves : 0;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Sorts, too. */
static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, by_value);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

/* The best of `count` ways, each of which took `repeat` times. */
static bench_yardstick choose_way(const char *const *names, int count, double *seconds, int32_t repeat)
{
    bench_yardstick best = {0};
    for (int way = 0; way < count; way++, seconds += repeat) {
        const double middle = median(seconds, repeat);
        if (!best.name || middle < best.seconds)
            best = (bench_yardstick){names[way], middle, seconds[0]};
    }
    return best;
}

static int time_host(bench_run *run, call_context *call, bench_result *result)
{
    const device_work work = {run_call, call};
    if (!run->device->measure_host)
        return 0;
    if (run->device->measure_host(&work, result->sets, HOST_CALLS, run->host_seconds))
        return RESULT_REFUSED;
    result->host_seconds = median(run->host_seconds, HOST_CALLS);
    return 0;
}

static int time_case(bench_run *run, const bench_problem *p, call_context *call, bench_result *result)
{
    const int32_t repeat = run->repeat;
    const int copies = run->device->copies, moves = count_moves(run, p);
    way_context ways[DEVICE_MAX_COPIES + DEVICE_MAX_MOVES];
    device_work works[1 + DEVICE_MAX_COPIES + DEVICE_MAX_MOVES] = {{run_call, call}};
    device_timing timing = {works, 1 + copies + moves, repeat, result->sets, p->moved, run->seconds};
    for (int i = 0; i < copies + moves; i++) {
        ways[i] = (way_context){run, p, i < copies ? i : i - copies};
        works[1 + i] = (device_work){i < copies ? run_copy : run_move, &ways[i]};
    }
    if (run->device->begin_range)
        run->device->begin_range(result->name);
    const int failed = run->device->measure(&timing) || time_host(run, call, result);
    if (run->device->end_range)
        run->device->end_range();
    if (failed)
        return RESULT_REFUSED;
    result->seconds = median(run->seconds, repeat);
    result->fastest = run->seconds[0];
    result->copy = choose_way(run->device->copy_names, copies, run->seconds + repeat, repeat);
    result->move = choose_way(run->device->move_names, moves, run->seconds + (1 + copies) * repeat, repeat);
    result->ratio = result->copy.seconds / result->seconds;
    result->of_move = result->move.seconds / result->seconds;
    return 0;
}

/* Whether it is right */

/* Elements that differ in any bit or, with a slack, in more than two ulp and by more than that. */
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

/* The host's way to the same result: on the CPU the plainest one; for another device the fastest. */
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

/* Runs the call once on the device, once on the host, and compares what they wrote. */
static int verify_case(bench_run *run, const bench_problem *p, call_context *call, bench_result *result)
{
    bench_call host_call;
    call_context reference = {&host_call, call->backward};
    if (bind_reference(run, p, &host_call) || upload(run, p) || run_call(call, 0, NULL) || run_call(&reference, 0, NULL))
        return RESULT_REFUSED;
    const int is_cpu = run->device == &device_cpu;
    const tolerance elements = {p->dtype, is_cpu || p->dtype != TROPE_F64, 2 * LARGEST_ULP};
    const tolerance sums = {p->cols ? TROPE_F32 : TROPE_F64, is_cpu, p->sum_slack};
    if (compare_area(run, p, bench_output_area(p), &elements, result))
        return RESULT_REFUSED;
    return p->c->angle_gradient ? compare_area(run, p, AREA_D_ANGLES, &sums, result) : 0;
}

/* Scratch, of which the host's call may need another amount than the device's. */
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

/* The name of another case of the same dtype, and the goal in its terms. */
static void judge(const bench_run *run, const bench_problem *p, bench_result *result)
{
    char other[64];
    result->is_plain_forward = p->c->form == BENCH_PLAIN && !p->c->backward;
    if (!run->device->has_goals)
        return;
    result->at_least = bench_goal(p);
    result->beside = p->c->beside;
    result->reached = p->c->beside ? 0 : result->ratio;
    snprintf(other, sizeof other, "%s/%s", p->c->beside ? p->c->beside : "", choice_name(dtype_choices, p->dtype));
    for (int i = 0; i < run->report.count && p->c->beside; i++)
        if (!strcmp(run->report.results[i].name, other))
            result->reached = run->report.results[i].seconds / result->seconds;
}

static int run_sets(bench_run *run, bench_problem *p, call_context *call, bench_result *result)
{
    if (bind_call(run, p, 0, &call->calls[0]))
        return RESULT_REFUSED;
    if (p->c->angle_gradient && reserve_workspace(run, p, &call->calls[0].args))
        return RESULT_REFUSED;
    for (int set = 0; set < result->sets; set++)
        if (bind_call(run, p, set, &call->calls[set]))
            return RESULT_REFUSED;
    if (trope_kernel_name(&call->calls[0].args, call->backward, result->kernel, sizeof result->kernel))
        return complain("%s: %s", result->name, trope_last_error());
    bench_fill(p, run->on_host.area, run->machine->threads);
    return verify_case(run, p, call, result) || time_case(run, p, call, result);
}

int bench_run_problem(bench_run *run, bench_problem *p)
{
    bench_result result = {.sets = set_count(run, p)};
    call_context call = {calloc((size_t)result.sets, sizeof *call.calls), p->c->backward};
    bench_name(p->c, p->dtype, result.name, sizeof result.name);
    const int failed = call.calls ? run_sets(run, p, &call, &result) : complain("out of memory");
    free(call.calls);
    if (failed)
        return RESULT_REFUSED;
    judge(run, p, &result);
    return bench_print_result(&run->report, p, &result);
}

/* Memory that no case changes. */
int bench_begin(bench_run *run)
{
    run->downloaded = device_cpu.allocate(run->result_size, run->machine->threads);
    run->seconds =
        malloc((size_t)(1 + run->device->copies + run->device->moves) * (size_t)run->repeat * sizeof *run->seconds);
    run->host_seconds = malloc(HOST_CALLS * sizeof *run->host_seconds);
    return run->downloaded && run->seconds && run->host_seconds ? 0 : complain("out of memory; --bytes asks for less");
}
