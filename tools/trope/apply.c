/* trope apply IN.safetensors -o OUT.safetensors: rotates tensors that were dumped from a real run. */
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "apply.h"
#include "command.h"
#include "compare.h"
#include "device_mirror.h"

static const char usage[] =
    "usage: trope apply IN.safetensors [-o OUT.safetensors] [--expect FILE.safetensors] [OPTION...]\n\n"
    "Rotates the tensors q, k and x of a file, copies v, and writes those to OUT, or compares them with those of FILE, or\n"
    "both. Exit status: 0; 1 if an element is more than --ulp apart; 2, and no OUT, if anything is refused.\n\n"
    "  q, k, x, v          F64, F32, F16 or BF16, 4 dims in the order of --layout, or 3 for thd\n"
    "  freqs               or cos and sin: [rows, cols], [batch, rows, cols] or [rows, 1, 1, cols]; cols is rotary_dim,\n"
    "                      or half of it. inv_freq: [rotary_dim / 2]. None of them: --base and --scaling.\n"
    "  cu_seqlens          and cu_seqlens_padded: [sequences + 1]. start_positions: [sequences], or [batch].\n"
    "  position_ids        [tokens], [batch, tokens] or [axes, batch, tokens]\n\n"
    "--rotary-dim is as wide as inv_freq asks, or a table of 3 or 4 dims with a column per element, unless it is given; "
    "for\n"
    "a table of 2 dims, or none, it is all of the head from --rotary-offset on. --device is where the call is made: the\n"
    "tensors are copied there and back.\n";

static const option_spec apply_specs[] = {
    {"output", 'o', OPTION_TEXT, offsetof(apply_options, output), .help = "the file to write"},
    {"expect", 0, OPTION_TEXT, offsetof(apply_options, expect), .help = "another's result to compare with"},
    {"ulp", 0, OPTION_INT64, offsetof(apply_options, ulp), .high = INT64_MAX,
     .help = "how far apart elements may be, default 0"},
    {"backward", 0, OPTION_FLAG, offsetof(apply_options, backward), .help = "q, k, x and v are gradients of the outputs"},
    {"in-place", 0, OPTION_FLAG, offsetof(apply_options, in_place), .help = "let the call overwrite its input"},
    {.name = NULL}};

/* The result's tensors: those of the call's operands, with memory of their own unless the call is in place. */
static int make_result(apply_call *call, safetensors *result)
{
    const int32_t count = call->count;
    memset(result, 0, sizeof *result);
    result->path = call->options->output;
    result->tensors = calloc((size_t)count, sizeof *result->tensors);
    if (!result->tensors)
        return complain("out of memory");
    for (int32_t i = 0; i < count; i++) {
        const safetensor *source = call->sources[i];
        safetensor *tensor = &result->tensors[i];
        *tensor = *source;
        tensor->data = aligned_bytes(source->end - source->begin);
        tensor->name = strdup(source->name);
        result->count++;
        if (!tensor->name || !tensor->data)
            return complain_about(call->file->path, source->name, "out of memory for its result");
        if (call->options->in_place) {
            memcpy(tensor->data, source->data, (size_t)(source->end - source->begin));
            call->operands[i].src = tensor->data;
        }
        call->operands[i].dst = tensor->data;
    }
    if (call->file->metadata)
        result->metadata = strdup(call->file->metadata);
    return 0;
}

static int refuse(const apply_call *call, const char *message)
{
    return complain_about(call->file->path, apply_blamed_tensor(call, message), "%s", message);
}

/* Data that the CPU would have refused is refused here, too: nothing is written. */
static int judge_status(const apply_call *call)
{
    if (call->status & TROPE_STATUS_CU_SEQLENS)
        return refuse(call, "cu_seqlens decrease, or do not fit the operands or cu_seqlens_padded");
    if (call->status & TROPE_STATUS_CP_LENGTH)
        return refuse(call, "cu_seqlens have a sequence that cp_layout and cp_size cannot share");
    if (call->status & TROPE_STATUS_POSITION && call->options->sequence.out_of_range != TROPE_RANGE_POISON)
        return refuse(call, "a position is not in 0 to angle_rows - 1");
    if (call->status & TROPE_STATUS_POSITION)
        fprintf(stderr, "trope apply: %s: positions outside the angle rows were made NaN\n", call->file->path);
    return 0;
}

/* Angles and positions, to which `args` then points. inv_freq and pair_axis stay on the host. */
static int upload_inputs(const apply_call *call, device_mirror *mirror, trope_args *args)
{
    const struct {
        const void **pointer;
        const char *tensor;
    } inputs[] = {{&args->freqs, "freqs"},
                  {&args->cos, "cos"},
                  {&args->sin, "sin"},
                  {&args->cu_seqlens, "cu_seqlens"},
                  {&args->cu_seqlens_padded, "cu_seqlens_padded"},
                  {&args->start_positions, "start_positions"},
                  {&args->position_ids, "position_ids"}};
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++) {
        if (!*inputs[i].pointer)
            continue;
        const safetensor *tensor = safetensors_find(call->file, inputs[i].tensor);
        *inputs[i].pointer = mirror_upload(mirror, tensor->data, (size_t)(tensor->end - tensor->begin));
        if (!*inputs[i].pointer)
            return RESULT_REFUSED;
    }
    return 0;
}

/* The tensors and room for their results, to which the operands then point. */
static int upload_operands(const apply_call *call, device_mirror *mirror, trope_operand *operands)
{
    for (int32_t i = 0; i < call->args.operand_count; i++) {
        trope_operand *o = &operands[i];
        const size_t bytes = apply_operand_bytes(call, i);
        o->src = mirror_upload(mirror, o->src, bytes);
        o->dst = mirror_reserve(mirror, o->dst, bytes);
        if (!o->src || !o->dst)
            return RESULT_REFUSED;
    }
    return 0;
}

static int download_results(const apply_call *call, const device_mirror *mirror)
{
    for (int32_t i = 0; i < call->count; i++)
        if (mirror_download(mirror, call->operands[i].dst))
            return RESULT_REFUSED;
    return call->args.status && mirror_download(mirror, call->args.status) ? RESULT_REFUSED : 0;
}

static int rotate_in(const apply_call *call, device_mirror *mirror)
{
    trope_args args = call->args;
    trope_operand operands[APPLY_OPERANDS];
    const char *refused;
    memcpy(operands, call->operands, sizeof operands);
    args.operands = operands;
    if (upload_inputs(call, mirror, &args) || upload_operands(call, mirror, operands))
        return RESULT_REFUSED;
    if (args.status && !(args.status = mirror_upload(mirror, args.status, sizeof *args.status)))
        return RESULT_REFUSED;
    const int failed = mirror_run(mirror, &args, call->options->backward, &refused);
    if (refused)
        return refuse(call, refused);
    return failed || download_results(call, mirror) ? RESULT_REFUSED : judge_status(call);
}

static int rotate(const apply_call *call)
{
    device_mirror mirror = {.device = call->options->device, .threads = call->args.threads};
    const int outcome = rotate_in(call, &mirror);
    mirror_release(&mirror);
    return outcome;
}

/* From a loaded file to its result, compared and written. */
static int apply_to(const safetensors *file, const apply_options *options, const safetensors *expected)
{
    apply_call call;
    safetensors result = {0};
    int outcome = apply_inputs(file, options, &call);
    if (!outcome)
        outcome = make_result(&call, &result);
    if (!outcome && options->expect)
        outcome = compare_headers(&result, expected);
    if (!outcome)
        outcome = rotate(&call);
    if (!outcome && options->output)
        outcome = safetensors_write(&result);
    if (!outcome && options->expect)
        outcome = compare_files(&result, expected, (uint64_t)options->ulp);
    safetensors_free(&result);
    apply_release(&call);
    return outcome;
}

static int open_and_load(const char *path, safetensors *file)
{
    int outcome = safetensors_open(path, file);
    if (!outcome)
        outcome = apply_check_names(file);
    return outcome ? outcome : safetensors_load(file);
}

int command_apply(int argc, char **argv)
{
    apply_options options = {
        .rotation = {ROTATION_DEFAULTS}, .sequence = {SEQUENCE_DEFAULTS}, .machine = {MACHINE_DEFAULTS}};
    const option_group groups[] = {{apply_specs, &options},
                                   {rotation_specs, &options.rotation},
                                   {sequence_specs, &options.sequence},
                                   {machine_specs, &options.machine},
                                   {NULL, NULL}};
    const int first = options_parse(argc, argv, groups, usage);
    if (first < 0)
        return first == OPTIONS_HELP ? RESULT_OK : RESULT_REFUSED;
    if (first != argc - 1)
        return complain("needs one input file, got %d; --help lists the options", argc - first);
    if (!options.output && !options.expect)
        return complain("needs -o OUT or --expect FILE");
    options.device = device_find(options.machine.device);
    if (!options.device)
        return RESULT_REFUSED;
    safetensors file = {0}, expected = {0};
    int outcome = open_and_load(argv[first], &file);
    if (!outcome && options.expect)
        outcome = open_and_load(options.expect, &expected);
    if (!outcome)
        outcome = apply_to(&file, &options, &expected);
    safetensors_free(&file);
    safetensors_free(&expected);
    return outcome;
}
