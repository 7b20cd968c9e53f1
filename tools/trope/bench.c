/* trope bench: each case beside a copy of the same bytes, in the same run, in turn. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "call_options.h"
#include "command.h"
#include "value.h"

static const char usage[] =
    "usage: trope bench [--device cpu] [OPTION...]\n\n"
    "Times calls of the library beside a copy of as many bytes on the same threads, and compares each result bitwise with\n"
    "that of the portable code on one thread. docs/bench.md explains the columns.\n";

typedef struct bench_options {
    machine_options machine;
    const char *only;
    double bytes;
    int32_t repeat, list, json;
} bench_options;

static const option_spec bench_specs[] = {
    {"only", 0, OPTION_TEXT, offsetof(bench_options, only), .help = "run the cases whose name (case/dtype) contains this"},
    {"list", 0, OPTION_FLAG, offsetof(bench_options, list), .help = "print the names of the cases"},
    {"json", 0, OPTION_FLAG, offsetof(bench_options, json), .help = "print JSON"},
    {"repeat", 0, OPTION_INT32, offsetof(bench_options, repeat), .low = 1, .high = 100000, .help = "rounds, default 15"},
    {"bytes", 0, OPTION_REAL, offsetof(bench_options, bytes), .help = "bytes to move at least, default 134217728"},
    {.name = NULL}};

/* Everything that a run of several cases needs at a time. */
typedef struct bench_run {
    const bench_options *options;
    const tool_device *device;
    bench_memory on_device, on_host;
    void *downloaded; /* of result_size bytes */
    size_t result_size;
    double *seconds; /* of the call, then of the copy */
    bench_report report;
} bench_run;

/* What is timed */

typedef struct call_context {
    trope_args args;
    int backward;
} call_context;

static int run_call(void *context, void *stream)
{
    call_context *call = context;
    call->args.stream = stream;
    if (call->backward ? trope_backward(&call->args) : trope_forward(&call->args))
        return complain("%s", trope_last_error());
    return 0;
}

typedef struct copy_context {
    const tool_device *device;
    void *to;
    const void *from;
    size_t bytes;
    int32_t threads;
} copy_context;

static int run_copy(void *context, void *stream)
{
    const copy_context *copy = context;
    return copy->device->copy(copy->to, copy->from, copy->bytes, copy->threads, stream);
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

static int time_case(bench_run *run, const bench_problem *p, call_context *call, bench_result *result)
{
    const int32_t repeat = run->options->repeat;
    copy_context copy = {.device = run->device,
                         .to = run->on_device.area[AREA_DST],
                         .from = run->on_device.area[AREA_SRC],
                         .bytes = (size_t)(p->moved / 2),
                         .threads = run->options->machine.threads};
    const device_work works[2] = {{run_call, call}, {run_copy, &copy}};
    if (run->device->measure(works, 2, repeat, run->seconds))
        return RESULT_REFUSED;
    result->seconds = median(run->seconds, repeat);
    result->copy_seconds = median(run->seconds + repeat, repeat);
    result->fastest = run->seconds[0];
    result->copy_fastest = run->seconds[repeat];
    result->ratio = result->copy_seconds / result->seconds;
    return 0;
}

/* Whether it is right */

static int64_t count_wrong(const void *got, const void *expected, size_t bytes, size_t size)
{
    int64_t wrong = 0;
    if (!memcmp(got, expected, bytes))
        return 0;
    for (size_t at = 0; at + size <= bytes; at += size)
        wrong += memcmp((const char *)got + at, (const char *)expected + at, size) != 0;
    return wrong;
}

static int compare_area(bench_run *run, const bench_problem *p, int area, size_t size, bench_result *result)
{
    const size_t bytes = p->size[area];
    if (run->device->download(run->downloaded, run->on_device.area[area], bytes))
        return RESULT_REFUSED;
    result->wrong += count_wrong(run->downloaded, run->on_host.area[area], bytes, size);
    return 0;
}

/* Runs the call once on the device, once by the portable code on one thread of the host, and compares what they wrote. */
static int verify_case(bench_run *run, const bench_problem *p, call_context *call, bench_result *result)
{
    call_context reference = {.backward = call->backward};
    bench_bind(p, run->on_host.area, &reference.args);
    reference.args.device = TROPE_DEVICE_CPU;
    reference.args.isa = TROPE_ISA_PORTABLE;
    reference.args.threads = 1;
    for (int i = 0; i < AREA_COUNT; i++)
        if (i != AREA_WORKSPACE && run->device->upload(run->on_device.area[i], run->on_host.area[i], p->size[i]))
            return RESULT_REFUSED;
    if (run_call(call, NULL) || run_call(&reference, NULL))
        return RESULT_REFUSED;
    if (compare_area(run, p, bench_output_area(p), (size_t)value_size(p->dtype), result))
        return RESULT_REFUSED;
    const size_t gradient_size = p->cols ? sizeof(float) : sizeof(double);
    return p->c->angle_gradient ? compare_area(run, p, AREA_D_ANGLES, gradient_size, result) : 0;
}

/* Memory */

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

static int reserve_areas(bench_run *run, const bench_problem *p)
{
    const int32_t threads = run->options->machine.threads;
    for (int i = 0; i < AREA_COUNT; i++) {
        run->result_size = p->size[i] > run->result_size ? p->size[i] : run->result_size;
        if (reserve(&run->on_device, run->device, i, p->size[i], threads) ||
            reserve(&run->on_host, &device_cpu, i, p->size[i], threads))
            return RESULT_REFUSED;
    }
    return 0;
}

static void release_all(bench_run *run)
{
    for (int i = 0; i < AREA_COUNT; i++) {
        run->device->release(run->on_device.area[i], run->on_device.size[i]);
        device_cpu.release(run->on_host.area[i], run->on_host.size[i]);
    }
    free(run->downloaded);
    free(run->seconds);
}

static int reserve_workspace(bench_run *run, bench_problem *p, call_context *call)
{
    uint64_t size;
    if (trope_workspace_size(&call->args, &size))
        return complain("%s", trope_last_error());
    p->size[AREA_WORKSPACE] = (size_t)size;
    return reserve_areas(run, p);
}

/* Cases */

static void name_of(const bench_case *c, int32_t dtype, char *name, size_t size)
{
    snprintf(name, size, "%s/%s", c->name, choice_name(dtype_choices, dtype));
}

static void bind_call(const bench_run *run, const bench_problem *p, call_context *call)
{
    call->backward = p->c->backward;
    bench_bind(p, run->on_device.area, &call->args);
    call->args.device = run->device->id;
    call->args.threads = run->options->machine.threads;
    call->args.isa = run->options->machine.isa;
}

static int run_problem(bench_run *run, bench_problem *p)
{
    bench_result result = {0};
    call_context call;
    name_of(p->c, p->dtype, result.name, sizeof result.name);
    bind_call(run, p, &call);
    if (p->c->angle_gradient && reserve_workspace(run, p, &call))
        return RESULT_REFUSED;
    bind_call(run, p, &call);
    if (trope_kernel_name(&call.args, call.backward, result.kernel, sizeof result.kernel))
        return complain("%s: %s", result.name, trope_last_error());
    bench_fill(p, run->on_host.area, run->options->machine.threads);
    if (verify_case(run, p, &call, &result) || time_case(run, p, &call, &result))
        return RESULT_REFUSED;
    bench_print_result(&run->report, p, &result);
    return 0;
}

/* Calls `visit` for each case and dtype that was chosen; stops at the first nonzero result. */
typedef int (*visit_case)(bench_run *run, const bench_case *c, int32_t dtype);

static int for_each_case(bench_run *run, visit_case visit)
{
    static const int32_t order[] = {TROPE_F32, TROPE_F16, TROPE_BF16, TROPE_F64};
    char name[64];
    for (int i = 0; i < bench_case_count; i++) {
        for (int j = 0; j < 4; j++) {
            if (!(bench_cases[i].dtypes & BENCH_TYPE(order[j])))
                continue;
            name_of(&bench_cases[i], order[j], name, sizeof name);
            if (run->options->only && !strstr(name, run->options->only))
                continue;
            const int result = visit(run, &bench_cases[i], order[j]);
            if (result)
                return result;
        }
    }
    return 0;
}

static int visit_list(bench_run *run, const bench_case *c, int32_t dtype)
{
    char name[64];
    (void)run;
    name_of(c, dtype, name, sizeof name);
    printf("%s\n", name);
    return 0;
}

/* All memory is reserved before the first case, for the largest one. */
static int visit_reserve(bench_run *run, const bench_case *c, int32_t dtype)
{
    bench_problem p;
    run->report.count++;
    if (bench_plan(&p, c, dtype, run->options->bytes))
        return RESULT_REFUSED;
    return reserve_areas(run, &p);
}

static int visit_run(bench_run *run, const bench_case *c, int32_t dtype)
{
    bench_problem p;
    return bench_plan(&p, c, dtype, run->options->bytes) ? RESULT_REFUSED : run_problem(run, &p);
}

static int run_cases(bench_run *run)
{
    if (for_each_case(run, visit_reserve))
        return RESULT_REFUSED;
    if (!run->report.count)
        return complain("--only: no case has '%.64s' in its name; --list prints them", run->options->only);
    run->downloaded = device_cpu.allocate(run->result_size, run->options->machine.threads);
    run->seconds = malloc(2 * (size_t)run->options->repeat * sizeof *run->seconds);
    if (!run->downloaded || !run->seconds)
        return complain("out of memory; --bytes asks for less");
    run->report.count = 0;
    bench_print_header(&run->report);
    if (for_each_case(run, visit_run))
        return RESULT_REFUSED;
    bench_print_summary(&run->report);
    return run->report.wrong ? RESULT_DIFFERS : RESULT_OK;
}

int command_bench(int argc, char **argv)
{
    char *given[64] = {0}; /* getopt reorders the arguments */
    const int count = argc < 64 ? argc : 64;
    memcpy(given, argv, (size_t)count * sizeof *given);
    bench_options options = {.repeat = 15, .bytes = 134217728};
    const option_group groups[] = {{bench_specs, &options}, {machine_specs, &options.machine}, {NULL, NULL}};
    const int first = options_parse(argc, argv, groups, usage);
    if (first < 0)
        return first == OPTIONS_HELP ? RESULT_OK : RESULT_REFUSED;
    if (first != argc)
        return complain("takes no file, got '%.64s'", argv[first]);
    if (!(options.bytes >= 1 && options.bytes <= 0x1p40))
        return complain("--bytes: must be in [1, 2^40]");
    bench_run run = {.options = &options, .device = device_find(options.machine.device)};
    if (!run.device)
        return RESULT_REFUSED;
    if (options.list)
        return for_each_case(&run, visit_list);
    run.report = (bench_report){.device = run.device,
                                .threads = run.device->threads(options.machine.threads),
                                .isa = options.machine.isa,
                                .repeat = options.repeat,
                                .json = options.json,
                                .argc = count,
                                .argv = given};
    const int result = run_cases(&run);
    release_all(&run);
    return result;
}
