/* trope apply IN.safetensors -o OUT.safetensors: rotates tensors that were dumped from a real run. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "apply.h"
#include "command.h"
#include "compare.h"
#include "config.h"
#include "device_mirror.h"
#include "output.h"

static const char usage[] =
    "usage: trope apply IN.safetensors [-o OUT.safetensors] [--expect FILE.safetensors] [OPTION...]\n\n"
    "Rotates the tensors q, k and x of a file, copies all others, and writes those to OUT, or compares q, k, x and v with\n"
    "those of FILE, or both. Exit status: 0; 1 if an element is more than --ulp apart; 2, and no OUT, if anything is\n"
    "refused. What is neither said nor seen in the data is refused; what was understood goes to standard error.\n"
    "docs/command-line.md has the whole table.\n\n"
    "  q, k, x, v          F64, F32, F16 or BF16, 4 dims in the order of --layout, 3 for thd. A name may have a prefix\n"
    "                      (model.layers.3.q): a call for each prefix\n"
    "  freqs               or cos and sin, or freqs_cis (complex): rows and columns, with batch or axes in front; see\n"
    "                      --table-layout. inv_freq: [rotary_dim / 2]. None of them: --rope-theta and --scaling\n"
    "  cu_seqlens          and cu_seqlens_padded: [sequences + 1]. start_positions: [sequences], or [batch]\n"
    "  position_ids        [tokens], [batch, tokens] or [axes, batch, tokens]\n\n"
    "--rotary-dim is what inv_freq or the columns of a table show; by --rope-theta it is all of the head from\n"
    "--rotary-offset on. --device is where the calls are made: tensors are copied there and back, one at a time.\n";

static const option_spec apply_specs[] = {
    {"output", 'o', OPTION_TEXT, offsetof(apply_options, output), .help = "the file to write, or - for standard output"},
    {"expect", 0, OPTION_TEXT, offsetof(apply_options, expect), .help = "another's result to compare with"},
    {"ulp", 0, OPTION_INT64, offsetof(apply_options, ulp), .high = INT64_MAX,
     .help = "how far apart elements may be, default 0"},
    {"config", 0, OPTION_TEXT, offsetof(apply_options, config),
     .help = "a Hugging Face config.json, whose keys are options"},
    {"layer-type", 0, OPTION_TEXT, offsetof(apply_options, layer_type),
     .help = "of the layers in the file, where --config has several"},
    {"quiet", 0, OPTION_FLAG, offsetof(apply_options, quiet), .help = "do not say what was understood"},
    {"backward", 0, OPTION_FLAG, offsetof(apply_options, backward), .help = "q, k, x and v are gradients of the outputs"},
    {"in-place", 0, OPTION_FLAG, offsetof(apply_options, in_place), .help = "let the call overwrite its input"},
    {"head-dim", 0, OPTION_INT32, offsetof(apply_options, head_dim), .low = 1, .high = INT32_MAX,
     .help = "elements of a head, where a last dim holds all heads"},
    {"columns", 0, OPTION_CHOICE, offsetof(apply_options, columns), .choices = column_choices,
     .help = "of a table: one a pair, or one an element, paired so"},
    {"table-layout", 0, OPTION_CHOICE, offsetof(apply_options, table_layout), .choices = table_layout_choices,
     .help = "dims of a table: a axes, b batch, s rows, d columns"},
    {"table-rows", 0, OPTION_CHOICE, offsetof(apply_options, table_rows), .choices = table_row_choices,
     .help = "whose the rows of a table are"},
    {.name = NULL}};

/* One run of the command. */
typedef struct apply_run {
    apply_options *options;
    option_group *option_groups; /* of options */
    config_texts texts;          /* that options point to */
    safetensors file, expected;
    apply_groups groups;
    apply_call *calls; /* one a group */
    output out;
    void *source, *result; /* memory for the largest tensor */
    comparisons found;
    int poisoned;
} apply_run;

/* A call */

static int refuse(const apply_call *call, const safetensor *tensor, const char *message)
{
    char text[1024];
    return complain_about(call->file->path, tensor->name, "%s", library_words(message, text, sizeof text));
}

/* Data that the CPU would have refused is refused here, too: nothing is written. */
static int judge_status(const apply_call *call, const safetensor *tensor)
{
    if (call->status & TROPE_STATUS_CU_SEQLENS)
        return refuse(call, tensor, "cu_seqlens decrease, or do not fit the operands or cu_seqlens_padded");
    if (call->status & TROPE_STATUS_CP_LENGTH)
        return refuse(call, tensor, "cu_seqlens have a sequence that --cp-layout and --cp-size cannot share");
    if (call->status & TROPE_STATUS_PADDING)
        return refuse(call, tensor, "tokens are of no sequence: --padding says what becomes of them");
    if (call->status & TROPE_STATUS_POSITION && call->options->sequence.out_of_range != TROPE_RANGE_POISON)
        return refuse(call, tensor, "a position is not in the rows of the table");
    return 0;
}

/* Where a device finds what is at `host`: the CPU there, another one in a copy. NULL after a complaint. */
static const void *uploaded(device_mirror *mirror, const void *host, size_t bytes)
{
    return mirror->device->id == TROPE_DEVICE_CPU ? host : mirror_upload(mirror, host, bytes);
}

/* Angles and positions, to which `args` then points. inv_freq and pair_axis stay on the host. */
static int upload_inputs(const apply_call *call, device_mirror *mirror, trope_args *args)
{
    const safetensor *const *t = call->group->tensors;
    const struct {
        const void **pointer;
        const safetensor *tensor;
    } inputs[] = {{&args->freqs, t[APPLY_FREQS]},
                  {&args->cos, t[APPLY_COS]},
                  {&args->sin, t[APPLY_SIN]},
                  {&args->cu_seqlens, t[APPLY_CU_SEQLENS]},
                  {&args->cu_seqlens_padded, t[APPLY_CU_SEQLENS_PADDED]},
                  {&args->start_positions, t[APPLY_START_POSITIONS]},
                  {&args->position_ids, t[APPLY_POSITION_IDS]}};
    if (call->token_ids && args->position_ids) {
        args->position_ids = uploaded(mirror, call->token_ids, (size_t)args->tokens * sizeof *call->token_ids);
        if (!args->position_ids)
            return RESULT_REFUSED;
    }
    if (t[APPLY_FREQS_CIS] && args->cos) {
        const size_t part = (size_t)((const char *)args->sin - (const char *)args->cos);
        args->cos = uploaded(mirror, t[APPLY_FREQS_CIS]->data, (size_t)safetensor_bytes(t[APPLY_FREQS_CIS]));
        args->sin = args->cos ? (const char *)args->cos + part : NULL;
        if (!args->cos)
            return RESULT_REFUSED;
    }
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++) {
        if (!*inputs[i].pointer || !inputs[i].tensor || *inputs[i].pointer != inputs[i].tensor->data)
            continue;
        *inputs[i].pointer = uploaded(mirror, inputs[i].tensor->data, (size_t)safetensor_bytes(inputs[i].tensor));
        if (!*inputs[i].pointer)
            return RESULT_REFUSED;
    }
    return 0;
}

/* Of one head of two elements for each token. */
static size_t bytes_of_unseen(const trope_args *args)
{
    return (size_t)(args->batch * args->tokens * 2 * value_size(args->dtype));
}

/* A tensor that is only copied, in a call in which, as the library demands it, something rotates: a tensor that is in no
 * file, by no angle. So its padding is written as elsewhere. Returns its memory, NULL after a complaint. */
static void *add_unseen_operand(const apply_call *call, trope_args *args, trope_operand *operand, double *zero)
{
    void *memory = calloc(bytes_of_unseen(args) + 1, 1);
    if (!memory || trope_fill_operand(operand, memory, call->layout, 1, 2, 2)) {
        complain("out of memory");
        free(memory);
        return NULL;
    }
    args->freqs = args->cos = args->sin = args->position_ids = args->start_positions = NULL;
    args->angle_dtype = args->angle_columns = args->angle_layout = args->out_of_range = 0;
    args->angle_rows = args->stream_positions = 0;
    memset(args->angle_stride, 0, sizeof args->angle_stride);
    args->position_dtype = args->ids_layout = args->position_axes = 0;
    memset(args->ids_stride, 0, sizeof args->ids_stride);
    args->pairing = args->pairing ? args->pairing : TROPE_PAIRING_HALF;
    args->parts = 1;
    args->pair_axis = NULL;
    args->inv_freq = zero;
    args->operand_count = 2;
    return memory;
}

static int run_call(apply_call *call, const safetensor *tensor, device_mirror *mirror, trope_args *args)
{
    trope_operand *operands = (trope_operand *)(uintptr_t)args->operands;
    const char *refused;
    const int on_cpu = mirror->device->id == TROPE_DEVICE_CPU;
    void *results[2] = {operands[0].dst, operands[1].dst};
    if (upload_inputs(call, mirror, args))
        return RESULT_REFUSED;
    for (int32_t i = 0; i < args->operand_count && !on_cpu; i++) {
        const size_t bytes = i ? bytes_of_unseen(args) : (size_t)safetensor_bytes(tensor);
        operands[i].src = mirror_upload(mirror, operands[i].src, bytes);
        operands[i].dst = mirror_reserve(mirror, operands[i].dst, bytes);
        if (!operands[i].src || !operands[i].dst)
            return RESULT_REFUSED;
    }
    call->status = 0;
    if (args->status && !on_cpu && !(args->status = mirror_upload(mirror, args->status, sizeof *args->status)))
        return RESULT_REFUSED;
    const int failed = mirror_run(mirror, args, call->options->backward, &refused);
    if (refused)
        return refuse(call, tensor, refused);
    if (failed)
        return RESULT_REFUSED;
    if (!on_cpu && (mirror_download(mirror, results[0]) || (args->status && mirror_download(mirror, call->args.status))))
        return RESULT_REFUSED;
    return judge_status(call, tensor);
}

/* Rotates or copies `source` to `result`, as padding says where there are sequences. The two may be one. */
static int turn(apply_call *call, const safetensor *tensor, void *source, void *result)
{
    trope_args args = call->args;
    trope_operand operands[2] = {{0}};
    double zero = 0;
    void *unseen = NULL;
    if (!call->args.batch || !call->args.tokens)
        return 0;
    if (!apply_rotates(call, tensor) && !args.cu_seqlens) {
        memmove(result, source, (size_t)safetensor_bytes(tensor));
        return 0;
    }
    if (apply_fill_operand(call, tensor, &operands[0]))
        return RESULT_REFUSED;
    operands[0].src = source;
    operands[0].dst = result;
    args.operands = operands;
    args.operand_size = sizeof operands[0];
    args.operand_count = 1;
    if (!apply_rotates(call, tensor) && !(unseen = add_unseen_operand(call, &args, &operands[1], &zero)))
        return RESULT_REFUSED;
    device_mirror mirror = {.device = call->options->device, .threads = args.threads};
    const int outcome = run_call(call, tensor, &mirror, &args);
    mirror_release(&mirror);
    free(unseen);
    return outcome;
}

/* The file, tensor by tensor */

/* The call whose operand the tensor is. */
static apply_call *call_of(apply_run *run, const safetensor *tensor)
{
    for (int32_t i = 0; i < run->groups.count; i++)
        for (int role = 0; role < APPLY_OPERANDS; role++)
            if (run->groups.groups[i].tensors[role] == tensor)
                return &run->calls[i];
    return NULL;
}

static int compare_with_expected(apply_run *run, const safetensor *tensor, void *result)
{
    safetensor found = *tensor, *expected = safetensors_find(&run->expected, tensor->name);
    found.data = result;
    if (safetensors_load(&run->expected, expected))
        return RESULT_REFUSED;
    compare_pair(&found, expected, (uint64_t)run->options->ulp, run->options->machine.threads, &run->found);
    free(expected->data);
    expected->data = NULL;
    return 0;
}

static int do_operand(apply_run *run, apply_call *call, const safetensor *tensor)
{
    void *result = run->options->in_place ? run->source : run->result;
    if (safetensors_read(&run->file, tensor, run->source) || turn(call, tensor, run->source, result))
        return RESULT_REFUSED;
    run->poisoned |= call->status & TROPE_STATUS_POSITION;
    if (run->options->expect && compare_with_expected(run, tensor, result))
        return RESULT_REFUSED;
    return run->options->output ? output_write(&run->out, result, (size_t)safetensor_bytes(tensor)) : 0;
}

/* On a terminal, what has been done; with the last tensor the line goes. */
static void show_progress(const apply_run *run, int32_t done)
{
    if (run->options->quiet || run->file.count < 3 || !isatty(STDERR_FILENO))
        return;
    fprintf(stderr, done < run->file.count ? "\r%d of %d tensors" : "\r                                \r", done,
            run->file.count);
}

static int do_tensor(apply_run *run, const safetensor *tensor)
{
    apply_call *call = call_of(run, tensor);
    if (call)
        return do_operand(run, call, tensor);
    return run->options->output ? output_write(&run->out, tensor->data, (size_t)safetensor_bytes(tensor)) : 0;
}

static int do_tensors(apply_run *run)
{
    int failed = 0;
    for (int32_t i = 0; i < run->file.count && !failed; i++) {
        show_progress(run, i);
        failed = do_tensor(run, &run->file.tensors[i]);
    }
    show_progress(run, run->file.count);
    return failed;
}

static int write_header(apply_run *run)
{
    size_t size;
    char *header = safetensors_header(&run->file, &size);
    const int failed = header ? output_write(&run->out, header, size) : complain("out of memory");
    free(header);
    return failed;
}

static int allocate(apply_run *run)
{
    uint64_t largest = 0;
    for (int32_t i = 0; i < run->file.count; i++) {
        const safetensor *tensor = &run->file.tensors[i];
        if (call_of(run, tensor) && safetensor_bytes(tensor) > largest)
            largest = safetensor_bytes(tensor);
    }
    run->source = aligned_bytes(largest);
    run->result = run->options->in_place ? NULL : aligned_bytes(largest);
    return run->source && (run->result || run->options->in_place)
               ? 0
               : complain("out of memory for a tensor of %" PRIu64 " bytes%s", largest,
                          run->options->in_place ? "" : "; --in-place needs half");
}

static int prepare_calls(apply_run *run)
{
    run->calls = calloc((size_t)run->groups.count, sizeof *run->calls);
    if (!run->calls)
        return complain("out of memory");
    for (int32_t i = 0; i < run->groups.count; i++)
        if (apply_prepare(&run->file, &run->groups.groups[i], run->options, &run->calls[i]))
            return RESULT_REFUSED;
    return 0;
}

/* Two files of one call agree on what goes with its operands. */
static int check_same(apply_run *run, const safetensor *tensor, safetensor *expected)
{
    if (compare_headers(tensor, &run->expected) || safetensors_load(&run->expected, expected))
        return RESULT_REFUSED;
    const int differs = memcmp(tensor->data, expected->data, (size_t)safetensor_bytes(tensor)) != 0;
    free(expected->data);
    expected->data = NULL;
    return differs ? complain_about(run->expected.path, tensor->name,
                                    "is not that of %.256s: the two are of different calls", run->file.path)
                   : 0;
}

/* Each operand has the expected tensor of its name; no tensor is in the expected file alone. */
static int check_expected(apply_run *run)
{
    for (int32_t i = 0; i < run->file.count; i++)
        if (call_of(run, &run->file.tensors[i]) && compare_headers(&run->file.tensors[i], &run->expected))
            return RESULT_REFUSED;
    for (int32_t i = 0; i < run->expected.count; i++) {
        safetensor *expected = &run->expected.tensors[i];
        const safetensor *tensor = safetensors_find(&run->file, expected->name);
        if (!tensor)
            return complain_about(run->expected.path, expected->name,
                                  "is not in %.256s, so that nothing is compared with it", run->file.path);
        if (!call_of(run, tensor) && check_same(run, tensor, expected))
            return RESULT_REFUSED;
    }
    return 0;
}

static void explain(const apply_run *run)
{
    for (int32_t i = 0; i < run->groups.count && !run->options->quiet; i++)
        apply_explain(&run->calls[i]);
    if (run->poisoned)
        fprintf(stderr, "trope apply: %s: positions outside the angle rows were made NaN\n", run->file.path);
}

/* What a config is needed for. */
static config_use use_of_config(const apply_run *run)
{
    config_use use = {.frequencies = 1};
    for (int32_t i = 0; i < run->groups.count; i++) {
        const safetensor *const *t = run->groups.groups[i].tensors;
        const safetensor *ids = t[APPLY_POSITION_IDS], *table = t[APPLY_COS] ? t[APPLY_COS] : t[APPLY_FREQS];
        if (t[APPLY_FREQS] || t[APPLY_FREQS_CIS] || t[APPLY_COS] || t[APPLY_INV_FREQ])
            use.frequencies = 0;
        use.axes |= (ids && ids->rank == 3 && ids->shape[0] > 1) || (table && table->rank == 4 && table->shape[0] == 3);
    }
    return use;
}

static int read_config(apply_run *run)
{
    const apply_options *options = run->options;
    const config_use use = use_of_config(run);
    if (options->config)
        return config_apply(options->config, options->layer_type, &use, run->option_groups, &run->texts);
    return options->layer_type ? complain("--layer-type: has no effect without --config") : 0;
}

/* All that can be refused is refused before the first tensor is read, but for what a GPU finds. */
static int do_run(apply_run *run, const char *input)
{
    const apply_options *options = run->options;
    if (safetensors_open(input, &run->file) || apply_find_groups(&run->file, &run->groups) || read_config(run))
        return RESULT_REFUSED;
    if (check_rotation(&options->rotation) || prepare_calls(run))
        return RESULT_REFUSED;
    if (options->expect && (safetensors_open(options->expect, &run->expected) || check_expected(run)))
        return RESULT_REFUSED;
    if (allocate(run))
        return RESULT_REFUSED;
    if (options->output && (output_open(&run->out, options->output) || write_header(run)))
        return RESULT_REFUSED;
    if (do_tensors(run))
        return RESULT_REFUSED;
    const int verdict = options->expect ? compare_verdict(&run->found, (uint64_t)options->ulp) : RESULT_OK;
    if (verdict == RESULT_REFUSED)
        return verdict;
    /* What fails leaves no output, so the comparison has to be out before that. */
    if (fflush(stdout) || ferror(stdout))
        return complain("cannot write to standard output");
    if (options->output && output_commit(&run->out))
        return RESULT_REFUSED;
    explain(run);
    return verdict;
}

static void release(apply_run *run)
{
    for (int32_t i = 0; run->calls && i < run->groups.count; i++)
        apply_release(&run->calls[i]);
    output_close(&run->out);
    safetensors_free(&run->file);
    safetensors_free(&run->expected);
    free(run->groups.groups);
    free(run->calls);
    free(run->source);
    free(run->result);
    config_release(&run->texts);
}

/* What contradicts or has no effect before any file is read. */
static int check_options(apply_options *options)
{
    if (!options->output && !options->expect)
        return complain("needs -o OUT or --expect FILE");
    if (options->ulp >= 0 && !options->expect)
        return complain("--ulp: has no effect without --expect");
    if (options->output && options->expect && output_is_same(options->output, options->expect))
        return complain("-o and --expect are the same file, which would be compared and replaced");
    if (options->output && options->expect && !strcmp(options->output, "-"))
        return complain("-o -: standard output is for the comparison of --expect");
    options->ulp = options->ulp < 0 ? 0 : options->ulp;
    options->device = device_find(options->machine.device, options->machine.isa);
    return options->device ? 0 : RESULT_REFUSED;
}

int command_apply(int argc, char **argv)
{
    apply_options options = {
        .rotation = {ROTATION_DEFAULTS}, .sequence = {SEQUENCE_DEFAULTS}, .machine = {MACHINE_DEFAULTS}, .ulp = -1};
    option_group groups[] = {
        {.specs = apply_specs, .target = &options},           {.specs = rotation_specs, .target = &options.rotation},
        {.specs = id_specs, .target = &options.sequence},     {.specs = sequence_specs, .target = &options.sequence},
        {.specs = machine_specs, .target = &options.machine}, {.specs = NULL}};
    const int first = options_parse(argc, argv, groups, usage);
    if (first < 0)
        return first == OPTIONS_HELP ? RESULT_OK : RESULT_REFUSED;
    if (first != argc - 1)
        return complain("needs one input file, got %d; --help lists the options", argc - first);
    if (check_options(&options))
        return RESULT_REFUSED;
    apply_run run = {.options = &options, .option_groups = groups, .out.descriptor = -1};
    const int outcome = do_run(&run, argv[first]);
    release(&run);
    return outcome;
}
