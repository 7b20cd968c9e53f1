/* trope bench: times each case and copies of the same number of bytes alternately, in one run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "call_options.h"
#include "command.h"
#include "output.h"

#define ROUNDS      15
#define CUDA_ROUNDS 20

static const char usage[] =
    "usage: trope bench [--device cpu|cuda] [OPTION...]\n\n"
    "Times calls of the library and copies of the same number of bytes on the same threads or GPU, and compares each\n"
    "result bitwise with the portable code on one thread, or a GPU's result with the CPU's. docs/performance.md\n"
    "explains the columns.\n";

typedef struct bench_options {
    machine_options machine;
    const char *only, *save, *call;
    bench_sizes sizes;
    int32_t repeat, list, json, cases;
    int32_t has_bytes; /* sizes.least is not the default */
    bench_case given;  /* the case of `call` */
} bench_options;

/* The tables of cases. */
enum { CASES_CPU = 1, CASES_CUDA, CASES_CROSS };
static const choice cases_choices[] = {{"cpu", CASES_CPU}, {"cuda", CASES_CUDA}, {"cross", CASES_CROSS}, {NULL, 0}};

static const option_spec bench_specs[] = {
    {"only", 0, OPTION_TEXT, offsetof(bench_options, only),
     .help = "run only cases whose name (case/dtype) contains this text"},
    {"call", 0, OPTION_TEXT, offsetof(bench_options, call),
     .help = "run only the call of this text, as TROPE_LOG=calls prints it"},
    {"list", 0, OPTION_FLAG, offsetof(bench_options, list), .help = "print the names of the cases"},
    {"json", 0, OPTION_FLAG, offsetof(bench_options, json), .help = "print JSON"},
    {"save", 0, OPTION_TEXT, offsetof(bench_options, save), .help = "also write JSON to this file"},
    {"cases", 0, OPTION_CHOICE, offsetof(bench_options, cases), .choices = cases_choices,
     .help = "table of cases: for the CPU, for CUDA, or combinations of options; default: that of the device"},
    {"repeat", 0, OPTION_INT32, offsetof(bench_options, repeat), .low = 1, .high = 100000,
     .help = "number of rounds, default 15 (CUDA: 20)"},
    {"bytes", 0, OPTION_NONZERO, offsetof(bench_options, sizes.least),
     .help = "minimum number of bytes that a case moves, default 134217728"},
    {"at-most", 0, OPTION_NONZERO, offsetof(bench_options, sizes.most),
     .help = "maximum number of bytes that a case moves; reduces the tokens"},
    {.name = NULL}};

typedef struct bench_command {
    const bench_options *options;
    bench_run run;
    int sized_by_bytes; /* number of cases without a size of their own */
} bench_command;

typedef int (*visit_case)(bench_command *command, const bench_case *c, int32_t dtype);

static int visit_chosen(bench_command *command, const bench_table *table, visit_case visit)
{
    char name[64];
    int chosen = 0;
    for (int i = 0; i < table->count; i++) {
        for (int32_t dtype = TROPE_F32; dtype <= TROPE_F64; dtype++) {
            if (!(table->cases[i].dtypes & BENCH_TYPE(dtype)))
                continue;
            bench_name(&table->cases[i], dtype, name, sizeof name);
            if (command->options->only && !strstr(name, command->options->only))
                continue;
            const int result = visit(command, &table->cases[i], dtype);
            if (result)
                return result;
            chosen++;
        }
    }
    return chosen ? 0 : complain("--only: no case has '%.64s' in its name; --list prints them", command->options->only);
}

static bench_table chosen_table(const bench_command *command)
{
    if (command->options->call)
        return (bench_table){&command->options->given, 1};
    switch (command->options->cases) {
    case CASES_CPU:
        return bench_cpu_cases();
    case CASES_CUDA:
        return bench_cuda_cases();
    default:
        return bench_cross_cases();
    }
}

/* Calls `visit` for each chosen case and dtype, and stops at the first nonzero result. Complains if no case is chosen. */
static int for_each_case(bench_command *command, visit_case visit)
{
    const bench_table table = chosen_table(command);
    return table.count ? visit_chosen(command, &table, visit) : complain("out of memory");
}

static int visit_list(bench_command *command, const bench_case *c, int32_t dtype)
{
    char name[64];
    (void)command;
    bench_name(c, dtype, name, sizeof name);
    printf("%s\n", name);
    return 0;
}

/* Reserves memory for the largest case, before the first case runs. */
static int visit_reserve(bench_command *command, const bench_case *c, int32_t dtype)
{
    bench_problem p;
    if (bench_plan(&p, c, dtype, &command->options->sizes))
        return RESULT_REFUSED;
    command->sized_by_bytes += !c->tokens;
    return bench_reserve(&command->run, &p);
}

static int visit_run(bench_command *command, const bench_case *c, int32_t dtype)
{
    bench_problem p;
    return bench_plan(&p, c, dtype, &command->options->sizes) ? RESULT_REFUSED : bench_run_problem(&command->run, &p);
}

static int run_cases(bench_command *command)
{
    if (for_each_case(command, visit_reserve))
        return RESULT_REFUSED;
    if (command->options->has_bytes && !command->sized_by_bytes)
        return complain(
            "--bytes: has no effect: each of these cases has a fixed size of its own, which --at-most can reduce");
    if (bench_begin(&command->run))
        return RESULT_REFUSED;
    bench_print_header(&command->run.report);
    if (for_each_case(command, visit_run))
        return RESULT_REFUSED;
    if (!command->run.report.count)
        return complain("%s", trope_last_error()); /* the library's refusal of the last case */
    bench_print_summary(&command->run.report);
    return command->run.report.wrong ? RESULT_DIFFERS : RESULT_OK;
}

/* Makes a case of --call. */
static int read_call(bench_options *options)
{
    bench_text text;
    options->given = (bench_case){.name = "call", .call = options->call};
    if (bench_read_text("--call", options->call, &text))
        return RESULT_REFUSED;
    options->given.dtypes = BENCH_TYPE(text.args.dtype);
    options->given.tokens = text.args.tokens;
    return RESULT_OK;
}

/* Refuses options that contradict each other or have no effect. */
static int check_options(bench_options *options, const option_group *groups)
{
    static const char *const of_list[] = {"only", "cases", "device", NULL};
    if (options_refuse_beside(groups, "list", of_list))
        return RESULT_REFUSED;
    if (options->list && options->cases && options_given(groups, "device"))
        return complain("--device: has no effect with --list and --cases");
    if (options->save && options->json)
        return complain("--save: contradicts --json, which prints the same JSON to standard output");
    if (options->save && !strcmp(options->save, "-"))
        return complain("--save: must be a file; use --json to print to standard output");
    if (!(options->sizes.least >= 1 && options->sizes.least <= 0x1p40))
        return complain("--bytes: must be in [1, 2^40]");
    if (options_given(groups, "at-most") && !(options->sizes.most >= 1))
        return complain("--at-most: must be at least 1");
    static const char *const of_call[] = {"json", "save", "repeat", "at-most", "device", "threads", "isa", NULL};
    if (options_refuse_beside(groups, "call", of_call) || (options->call && read_call(options)))
        return RESULT_REFUSED;
    options->has_bytes = options_given(groups, "bytes");
    if (options_given(groups, "at-most") && options->has_bytes && options->sizes.most < options->sizes.least)
        return complain("--at-most: must not be less than --bytes");
    return RESULT_OK;
}

/* Returns RESULT_OK, OPTIONS_HELP, or RESULT_REFUSED after a complaint. */
static int parse_options(int argc, char **argv, bench_options *options)
{
    option_group groups[] = {
        {.specs = bench_specs, .target = options}, {.specs = machine_specs, .target = &options->machine}, {.specs = NULL}};
    const int first = options_parse(argc, argv, groups, usage);
    if (first < 0)
        return first == OPTIONS_HELP ? OPTIONS_HELP : RESULT_REFUSED;
    if (first != argc)
        return complain("takes no file, got '%.64s'", argv[first]);
    return check_options(options, groups);
}

static bench_run make_run(const bench_options *options, const tool_device *device)
{
    bench_run run = {.machine = &options->machine, .device = device, .repeat = options->repeat};
    if (run.repeat == 0)
        run.repeat = device->id == TROPE_DEVICE_CUDA ? CUDA_ROUNDS : ROUNDS;
    run.report = (bench_report){.device = device,
                                .threads = device->threads(options->machine.threads),
                                .isa = options->machine.isa,
                                .repeat = run.repeat,
                                .json = options->json ? stdout : NULL,
                                .has_text = !options->json};
    return run;
}

/* The JSON file appears only when it is complete. */
static int run_and_write(bench_command *command, output *out)
{
    char *text = NULL;
    size_t size = 0;
    bench_report *report = &command->run.report;
    report->json = open_memstream(&text, &size);
    if (!report->json)
        return complain("out of memory");
    int result = run_cases(command);
    if (fclose(report->json))
        result = complain("out of memory");
    if (result != RESULT_REFUSED && (output_write(out, text, size) || output_commit(out)))
        result = RESULT_REFUSED;
    free(text);
    return result;
}

/* Checks that the file can be written before anything is timed. */
static int run_and_save(bench_command *command)
{
    output out;
    if (!command->options->save)
        return run_cases(command);
    const int failed = output_open(&out, command->options->save);
    const int result = failed ? RESULT_REFUSED : run_and_write(command, &out);
    output_close(&out);
    return result;
}

int command_bench(int argc, char **argv)
{
    char *given[64] = {0}; /* getopt reorders the arguments */
    const int count = argc < 64 ? argc : 64;
    memcpy(given, argv, (size_t)count * sizeof *given);
    bench_options options = {.machine = {MACHINE_DEFAULTS}, .sizes = {.least = 134217728}};
    const int parsed = parse_options(argc, argv, &options);
    if (parsed)
        return parsed == OPTIONS_HELP ? RESULT_OK : parsed;
    /* Names can be listed without a device. */
    const int is_listed_cuda = options.list && options.machine.device == TROPE_DEVICE_CUDA;
    const tool_device *device =
        device_find(is_listed_cuda ? TROPE_DEVICE_CPU : options.machine.device, options.machine.isa);
    if (!device)
        return RESULT_REFUSED;
    if (!options.cases)
        options.cases = is_listed_cuda || device->id == TROPE_DEVICE_CUDA ? CASES_CUDA : CASES_CPU;
    bench_command command = {.options = &options, .run = make_run(&options, device)};
    command.run.report.argc = count;
    command.run.report.argv = given;
    if (options.list)
        return for_each_case(&command, visit_list);
    const int result = run_and_save(&command);
    bench_release(&command.run);
    return result;
}
