/* trope_multigpu: checks that the ranks of a split batch together hold exactly the bits that one device computes. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "call_options.h"
#include "command.h"
#include "launch.h"
#include "output.h"
#include "report.h"
#include "simulate.h"

/* Every case can be split over this number of ranks. */
enum { ANY_RANKS = 8 };
/* Number of ranks without a GPU and without a launcher. */
enum { CPU_RANKS = 4 };
/* Bytes that a rank moves in a timed call: more than a GPU's cache holds; little for the CPU, which several ranks share. */
#define CUDA_BYTES   268435456.0
#define CPU_BYTES    4194304.0
#define SPEED_BYTES  134217728.0
#define CUDA_REPEAT  7
#define CPU_REPEAT   3
#define SPEED_REPEAT 300 /* long enough for all ranks to run at the same time */
/* Fraction by which a GPU that runs beside others may be slower than it is alone. */
#define SLOWER_AT_MOST 0.02
/* GPU memory that is allocated at the start. */
#define RESERVED ((size_t)1536 << 20)

static const char usage[] =
    "usage: trope_multigpu [OPTION...]                        all visible GPUs in one process, or CPU threads\n"
    "       mpirun -n N trope_multigpu [OPTION...]            one process for each rank\n"
    "       torchrun --no-python ... trope_multigpu ...       one process for each rank\n\n"
    "Splits a batch over ranks in every way that the library supports, gathers the results in global order, and compares\n"
    "them with one device's run. docs/multigpu.md explains the columns and the failures. Exit status: 0 all bits are "
    "right,\n"
    "1 some bits are wrong, 2 refused, or a rank died, hung or failed; standard error names the reason and the rank.\n";

typedef struct multigpu_options {
    option_texts only;
    const char *save, *fail;
    int32_t list, json, ranks, launch, device, threads, repeat, broken, speed, simulate;
    int64_t tokens, timeout, seed;
    double bytes;
    verify_options verify;
} multigpu_options;

static const choice launch_choices[] = {
    {"auto", LAUNCH_AUTO}, {"process", LAUNCH_PROCESS}, {"mpi", LAUNCH_MPI}, {"torchrun", LAUNCH_TORCHRUN}, {NULL, 0}};

#define IN(field) .offset = offsetof(multigpu_options, field)

static const option_spec specs[] = {
    {"only", 0, OPTION_TEXTS, IN(only),
     .help = "run only cases whose name (split/variant/dtype) contains this text; may be repeated"},
    {"list", 0, OPTION_FLAG, IN(list), .help = "print the names of the cases"},
    {"json", 0, OPTION_FLAG, IN(json), .help = "print JSON"},
    {"save", 0, OPTION_TEXT, IN(save), .help = "also write JSON to this file"},
    {"launch", 0, OPTION_CHOICE, IN(launch), .choices = launch_choices, .help = "how the ranks were started"},
    {"ranks", 0, OPTION_INT32, IN(ranks), .low = 1, .high = 1024,
     .help = "number of ranks in one process, default all GPUs (CPU: 4)"},
    {"device", 0, OPTION_CHOICE, IN(device), .choices = device_choices, .help = "device of the ranks"},
    {"threads", 0, OPTION_INT32, IN(threads), .low = 1, .high = 4096, .help = "CPU threads of each rank, default 1"},
    {"tokens", 0, OPTION_INT64, IN(tokens), .low = 1, .high = 1 << 24,
     .help = "number of tokens of the whole batch, default 768"},
    {"seed", 0, OPTION_INT64, IN(seed), .low = 0, .high = INT64_MAX, .help = "seed of all data, default 1"},
    {"bytes", 0, OPTION_REAL, IN(bytes), .help = "bytes that a timed rank moves, 0 = do not time"},
    {"repeat", 0, OPTION_INT32, IN(repeat), .low = 1, .high = 1000, .help = "number of times that a call is timed"},
    {"speed", 0, OPTION_FLAG, IN(speed), .help = "only time each rank alone and all ranks together"},
    {"timeout", 0, OPTION_INT64, IN(timeout), .low = 2, .high = 3600,
     .help = "seconds in one phase after which a rank hangs, default 30"},
    {"break", 0, OPTION_CHOICE, IN(broken), .choices = mistake_choices, .help = "make this mistake on purpose"},
    {"fail", 0, OPTION_TEXT, IN(fail), .help = "die@R, hang@R or no-device@R: make rank R fail on purpose"},
    {"simulate", 0, OPTION_FLAG, IN(simulate), .help = "check the position maps of 1 to 4096 ranks, without tensors"},
    {.name = NULL}};

/* Data that the ranks of this process share. */
typedef struct run_context {
    const multigpu_options *options;
    const launch *launch;
} run_context;

static const int32_t dtypes[] = {TROPE_BF16, TROPE_F16, TROPE_F32};
enum { DTYPES = sizeof dtypes / sizeof dtypes[0] };

static int is_chosen(const multigpu_options *options, const split_case *c, int32_t dtype)
{
    char name[96];
    int found = !options->only.count;
    case_name(c, dtype, name, sizeof name);
    for (int32_t i = 0; i < options->only.count; i++)
        found |= strstr(name, options->only.texts[i]) != NULL;
    return found;
}

/* ---- a rank ---- */

static int choose_gpu(rank_context *r, const launch *l, const rank_card *cards, int fails, gpu_description *gpu)
{
    const int count = fails ? 0 : gpu_count();
    int index = 0;
    for (int32_t i = 0; i < r->rank; i++)
        index += !strcmp(cards[i].host, cards[r->rank].host);
    if (l->kind != LAUNCH_PROCESS && l->local_rank >= 0)
        index = l->local_rank;
    if (l->kind != LAUNCH_PROCESS && count == 1) /* the launcher shows each process only its own GPU */
        index = 0;
    if (index >= count)
        return watch_fail(r->watch, WATCH_CAUSE, "rank %d (%s) has no device: it needs GPU %d, and there are %d", r->rank,
                          cards[r->rank].host, index, count);
    const char *error = gpu_open(index, gpu);
    if (error)
        return watch_fail(r->watch, WATCH_CAUSE, "rank %d (%s) cannot use GPU %d: %s", r->rank, cards[r->rank].host, index,
                          error);
    return 0;
}

/* Checks that all ranks have the same kind of device, and that each has its own GPU. */
static int check_cards(rank_context *r, const rank_card *cards)
{
    for (int32_t i = 0; i < r->size; i++) {
        if (cards[i].device != cards[0].device)
            return watch_fail(r->watch, WATCH_CAUSE, "rank %d (%s) has no device: it has %s, rank 0 has %s", i,
                              cards[i].host, choice_name(device_choices, cards[i].device),
                              choice_name(device_choices, cards[0].device));
        for (int32_t j = 0; j < i && cards[i].gpu.id[0]; j++)
            if (!strcmp(cards[i].host, cards[j].host) && !strcmp(cards[i].gpu.id, cards[j].gpu.id))
                return watch_fail(r->watch, WATCH_CAUSE, "rank %d has no device of its own: it shares %s with rank %d", i,
                                  cards[i].gpu.id, j);
    }
    return 0;
}

static int introduce(rank_context *r, const rank_card *mine, rank_card *cards)
{
    watch_phase(r->watch, r->rank, "introducing the ranks");
    return r->host->all_gather(r->host, mine, cards, sizeof *mine);
}

static int open_device(rank_context *r, const run_context *run, rank_card *cards)
{
    const verify_options *v = &run->options->verify;
    const int fails = v->failure == FAILURE_NO_DEVICE && v->failing_rank == r->rank;
    rank_card mine;
    memset(&mine, 0, sizeof mine);
    (void)gethostname(mine.host, sizeof mine.host - 1);
    mine.pid = (int32_t)getpid();
    mine.device = r->device->id;
    if (introduce(r, &mine, cards) || check_cards(r, cards))
        return 1;
    watch_phase(r->watch, r->rank, "opening the device");
    if (r->device->id == TROPE_DEVICE_CUDA
            ? choose_gpu(r, run->launch, cards, fails, &mine.gpu)
            : fails && watch_fail(r->watch, WATCH_CAUSE, "rank %d (%s) has no device", r->rank, mine.host))
        return 1;
    return introduce(r, &mine, cards) || check_cards(r, cards);
}

static int connect_devices(rank_context *r)
{
    r->data = r->host;
#ifdef TROPE_MULTIGPU_HAS_NCCL
    if (r->device->id == TROPE_DEVICE_CUDA) {
        /* Allocate all memory before any device waits for another. */
        const arena_mark mark = rank_mark(r);
        if (!rank_take(r, RESERVED))
            return 1;
        rank_give_back(r, mark);
        watch_phase(r->watch, r->rank, "connecting the devices");
        r->data = communicator_nccl(r->host);
    }
#endif
    return !r->data;
}

static double timed_bytes(const rank_context *r, const multigpu_options *options)
{
    if (options->bytes >= 0)
        return options->bytes;
    return r->device->id == TROPE_DEVICE_CUDA ? CUDA_BYTES : CPU_BYTES;
}

static int32_t repeats(const rank_context *r, const multigpu_options *options, int32_t on_cuda)
{
    return options->repeat ? options->repeat : r->device->id == TROPE_DEVICE_CUDA ? on_cuda : CPU_REPEAT;
}

static int run_case(rank_context *r, const multigpu_options *options, const problem_choice *chosen, report *to)
{
    problem p;
    case_result result;
    watch_phase(r->watch, r->rank, chosen->c->variant);
    int failed = problem_make(&p, chosen, options->tokens);
    if (failed)
        (void)watch_fail(r->watch, WATCH_CAUSE, "rank %d is out of memory", r->rank);
    failed = failed || verify_case(r, &p, &options->verify, &result) ||
             timing_case(r, chosen, timed_bytes(r, options), repeats(r, options, CUDA_REPEAT), &result);
    if (!failed && r->rank == 0)
        report_case(to, r, &p, &result);
    problem_free(&p);
    return failed;
}

/* Runs a case in each chosen dtype. */
static int run_dtypes(rank_context *r, const multigpu_options *options, const split_case *c, report *to)
{
    problem_choice chosen = {.c = c, .seed = (uint64_t)options->seed};
    const int does_not_fit = case_grid(c, r->size, &chosen.grid);
    for (int d = 0; d < DTYPES; d++) {
        chosen.dtype = dtypes[d];
        if (!is_chosen(options, c, dtypes[d]))
            continue;
        to->skipped += does_not_fit;
        if (!does_not_fit && run_case(r, options, &chosen, to))
            return 1;
    }
    return 0;
}

static int run_cases(rank_context *r, const multigpu_options *options, report *to)
{
    split_case cases[CASES_MAX];
    const int count = cases_list(cases);
    for (int i = 0; i < count; i++)
        if (run_dtypes(r, options, &cases[i], to))
            return 1;
    return 0;
}

static int run_speed(rank_context *r, const multigpu_options *options, report *to)
{
    const double bytes = options->bytes > 0 ? options->bytes : r->device->id == TROPE_DEVICE_CUDA ? SPEED_BYTES : CPU_BYTES;
    speed_result result = {.rows = NULL};
    const int failed = timing_speed(r, bytes, repeats(r, options, SPEED_REPEAT), &result);
    if (!failed && r->rank == 0) /* ranks on the CPU share its memory, so their slowdown is only reported */
        report_speed(to, r, &result, r->device->id == TROPE_DEVICE_CUDA ? SLOWER_AT_MOST : 0);
    free(result.rows);
    return failed;
}

static int run_all(rank_context *r, const run_context *run, const rank_card *cards, report *to)
{
    const double bytes = timed_bytes(r, run->options);
    double link = 0;
    if (r->rank == 0)
        report_header(to, r, cards, run->launch->text);
    if (bytes > 0 && (timing_copy(r, bytes, repeats(r, run->options, CUDA_REPEAT)) || timing_link(r, &link)))
        return 1;
    if (r->rank == 0)
        report_link(to, r, link, bytes);
    return run->options->speed ? run_speed(r, run->options, to) : run_cases(r, run->options, to);
}

/* Sends rank 0's verdict to all ranks, so that every process exits with it. */
static int share_verdict(rank_context *r, report *to, int *verdict)
{
    int32_t mine = 0, *all = rank_malloc(r, sizeof *all * (size_t)r->size);
    if (!all)
        return 1;
    if (r->rank == 0)
        mine = report_end(to) ? RESULT_REFUSED : to->failed || to->missed_speed ? RESULT_DIFFERS : RESULT_OK;
    watch_phase(r->watch, r->rank, "sharing the verdict");
    const int failed = r->host->all_gather(r->host, &mine, all, sizeof mine);
    *verdict = failed ? WATCH_EXIT : all[0];
    free(all);
    return failed;
}

static int run_rank(void *context, communicator *host)
{
    const run_context *run = context;
    const multigpu_options *o = run->options;
    rank_context r = {.rank = host->rank, .size = host->size, .watch = host->watch, .host = host, .threads = o->threads};
    rank_card *cards = calloc((size_t)host->size, sizeof *cards);
    report to = {.run = 0};
    int verdict = WATCH_EXIT;
    if (o->device != TROPE_DEVICE_CUDA || gpu_count()) /* otherwise every rank would print device_find's complaint */
        r.device = device_find(o->device, TROPE_ISA_AUTO);
    int failed = 0;
    if (!cards)
        failed = watch_fail(host->watch, WATCH_CAUSE, "rank %d is out of memory", host->rank);
    else if (!r.device)
        failed = watch_fail(host->watch, WATCH_CAUSE, "rank %d has no device: no CUDA device was found for --device cuda",
                            host->rank);
    if (!failed && host->rank == 0)
        failed = report_begin(&to, o->json, o->save) && watch_fail(host->watch, WATCH_CAUSE, "rank 0 cannot report");
    failed = failed || open_device(&r, run, cards) || connect_devices(&r) || run_all(&r, run, cards, &to);
    failed = failed || share_verdict(&r, &to, &verdict);
    if (r.data && r.data != r.host)
        r.data->close(r.data);
    if (r.device)
        rank_release(&r);
    if (!failed)
        watch_done(host->watch, host->rank);
    free(cards);
    return verdict;
}

/* ---- the command ---- */

static int list_cases(const multigpu_options *options)
{
    split_case cases[CASES_MAX];
    const int count = cases_list(cases);
    char name[96];
    for (int i = 0; i < count; i++)
        for (int d = 0; d < DTYPES; d++)
            if (is_chosen(options, &cases[i], dtypes[d])) {
                case_name(&cases[i], dtypes[d], name, sizeof name);
                printf("%s\n", name);
            }
    return RESULT_OK;
}

/* Returns whether `ranks` can be split for any of the chosen cases. */
static int has_any_case(const multigpu_options *options, int32_t ranks)
{
    split_case cases[CASES_MAX];
    rank_grid grid;
    const int count = cases_list(cases);
    for (int i = 0; i < count; i++)
        for (int d = 0; d < DTYPES; d++)
            if (is_chosen(options, &cases[i], dtypes[d]) && !case_grid(&cases[i], ranks, &grid))
                return 1;
    return 0;
}

/* Checks that each --only selects a case. */
static int check_only(const multigpu_options *options)
{
    for (int32_t i = 0; i < options->only.count; i++) {
        const multigpu_options one = {.only = {1, {options->only.texts[i]}}};
        if (!has_any_case(&one, ANY_RANKS))
            return complain("--only: no case has '%.64s' in its name, such as cp/zigzag-packed/bf16; splits: dp, tp, cp, "
                            "dp-x-tp, dp-x-cp, tp-x-cp, dp-x-tp-x-cp; dtypes: bf16, f16, f32; --list prints all",
                            options->only.texts[i]);
    }
    return 0;
}

/* Refuses options that contradict each other or have no effect. */
static int check_effects(const multigpu_options *options, const option_group *groups)
{
    static const char *const of_list[] = {"only", NULL}, *const of_simulation[] = {"json", "save", NULL};
    static const char *const not_of_speed[] = {"only", "tokens", "break", "seed"};
    if (options_refuse_beside(groups, "list", of_list) || options_refuse_beside(groups, "simulate", of_simulation))
        return RESULT_REFUSED;
    for (size_t i = 0; options->speed && i < sizeof not_of_speed / sizeof not_of_speed[0]; i++)
        if (options_given(groups, not_of_speed[i]))
            return complain("--%s: has no effect with --speed", not_of_speed[i]);
    if (options_given(groups, "bytes") && options->bytes < 0)
        return complain("--bytes: %g must be at least 0", options->bytes);
    if (options->speed && options->bytes == 0)
        return complain("--bytes: 0 leaves --speed nothing to time");
    if (options->repeat && options->bytes == 0)
        return complain("--repeat: has no effect with --bytes 0");
    if (options->save && options->json)
        return complain("--save: contradicts --json, which prints the same JSON to standard output");
    return options->save && !strcmp(options->save, "-")
               ? complain("--save: must be a file; use --json to print to standard output")
               : 0;
}

static int parse_failure(const char *text, verify_options *verify)
{
    static const choice failures[] = {
        {"die", FAILURE_DIE}, {"hang", FAILURE_HANG}, {"no-device", FAILURE_NO_DEVICE}, {NULL, 0}};
    char kind[16] = "";
    const char *at = strchr(text, '@');
    int32_t value = 0;
    int64_t rank = 0;
    if (!at || (size_t)(at - text) >= sizeof kind)
        return complain("--fail: '%.64s' is not die@R, hang@R or no-device@R", text);
    memcpy(kind, text, (size_t)(at - text));
    if (parse_choice("--fail", kind, failures, &value) || parse_integer("--fail", at + 1, 0, INT32_MAX, &rank))
        return RESULT_REFUSED;
    verify->failure = (failure_kind)value;
    verify->failing_rank = (int32_t)rank;
    return 0;
}

static int parse_options(int argc, char **argv, multigpu_options *options)
{
    option_group groups[] = {{.specs = specs, .target = options}, {.specs = NULL}};
    const int first = options_parse(argc, argv, groups, usage);
    if (first < 0)
        return first == OPTIONS_HELP ? OPTIONS_HELP : RESULT_REFUSED;
    if (first != argc)
        return complain("takes no file, got '%.64s'", argv[first]);
    if (check_effects(options, groups) || check_only(options))
        return RESULT_REFUSED;
#ifndef TROPE_MULTIGPU_HAS_JSON
    if (options->save || options->json)
        return complain("this build has no JSON, because cJSON was not found when it was configured");
#endif
#ifndef TROPE_MULTIGPU_HAS_NCCL
    if (options->device == TROPE_DEVICE_CUDA)
        return complain("--device cuda: this program was built without CUDA or NCCL");
    options->device = TROPE_DEVICE_CPU;
#endif
    options->verify.broken = (mistake_kind)options->broken;
    return options->fail ? parse_failure(options->fail, &options->verify) : RESULT_OK;
}

static int32_t default_ranks(const multigpu_options *options)
{
    const int32_t count = options->device == TROPE_DEVICE_CPU ? 0 : gpu_count();
    if (options->ranks)
        return options->ranks;
    return count ? count : CPU_RANKS;
}

static int run(int argc, char **argv)
{
    multigpu_options options = {
        .device = TROPE_DEVICE_AUTO, .bytes = -1, .threads = 1, .tokens = 768, .timeout = 30, .seed = 1};
    launch l;
    complain_as("trope_multigpu");
    const int parsed = parse_options(argc, argv, &options);
    if (parsed)
        return parsed == OPTIONS_HELP ? RESULT_OK : parsed;
    if (options.list)
        return list_cases(&options);
    if (options.simulate)
        return simulate(options.json, options.save);
    if (launch_find(&l, options.launch, default_ranks(&options), &argc, &argv))
        return RESULT_REFUSED;
    if (l.kind == LAUNCH_PROCESS && options.device == TROPE_DEVICE_CUDA && !gpu_count())
        return complain("--device cuda: no CUDA device was found");
    if (l.kind != LAUNCH_PROCESS && options.ranks) {
        launch_cancel(&l);
        return l.rank ? RESULT_REFUSED
                      : complain("--ranks: has no effect, because a launcher has started %d ranks", l.size);
    }
    if (!options.speed && !has_any_case(&options, l.size)) {
        launch_cancel(&l);
        return l.rank ? RESULT_REFUSED
                      : complain("--only: %d ranks cannot be split for any of these cases, which need a number with two "
                                 "factors, such as 4, or three, such as 8",
                                 l.size);
    }
    run_context context = {&options, &l};
    return launch_run(&l, (double)options.timeout, run_rank, &context);
}

int main(int argc, char **argv)
{
    return run_program(run, argc, argv);
}
