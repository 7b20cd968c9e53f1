/* From the tensors of a file, by name and shape, to the arguments of a call. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apply.h"
#include "command.h"

static const char *const operand_names[APPLY_TENSORS] = {"q", "k", "x", "v"};
static const char *const input_names[] = {
    "freqs", "cos", "sin", "inv_freq", "cu_seqlens", "cu_seqlens_padded", "start_positions", "position_ids"};
enum { INPUT_COUNT = sizeof input_names / sizeof input_names[0] };

#define ALL_NAMES "q, k, x, v, freqs, cos, sin, inv_freq, cu_seqlens, cu_seqlens_padded, start_positions, position_ids"

static int is_in(const char *name, const char *const *names, int count)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(name, names[i]))
            return 1;
    return 0;
}

int apply_check_names(const safetensors *file)
{
    int operands = 0;
    for (int32_t i = 0; i < file->count; i++) {
        const char *name = file->tensors[i].name;
        const int is_operand = is_in(name, operand_names, APPLY_TENSORS);
        if (!is_operand && !is_in(name, input_names, INPUT_COUNT))
            return complain_about(file->path, name, "unknown name, must be one of " ALL_NAMES);
        operands += is_operand;
    }
    return operands ? 0 : complain_about(file->path, NULL, "must hold at least one of the tensors q, k, x, v");
}

static int refuse(const apply_call *call, const safetensor *tensor, const char *rule)
{
    char text[SAFETENSORS_TEXT];
    return complain_about(call->file->path, tensor->name, "%s %s", safetensor_describe(tensor, text), rule);
}

/* Operands */

/* Where each layout has its dimensions: batch (-1 = none), tokens, heads, head_dim. */
typedef struct layout_dims {
    const char *rule;
    int rank, batch, tokens, heads, head_dim;
} layout_dims;

static const layout_dims layouts[] = {
    [TROPE_SBHD] = {"must have 4 dims, [s, b, h, d], with --layout sbhd", 4, 1, 0, 2, 3},
    [TROPE_BSHD] = {"must have 4 dims, [b, s, h, d], with --layout bshd", 4, 0, 1, 2, 3},
    [TROPE_BHSD] = {"must have 4 dims, [b, h, s, d], with --layout bhsd", 4, 0, 2, 1, 3},
    [TROPE_THD] = {"must have 3 dims, [t, h, d], with --layout thd", 3, -1, 0, 1, 2},
};

static int add_operand(apply_call *call, const safetensor *tensor)
{
    trope_args *args = &call->args;
    const int32_t asked = call->options->rotation.layout;
    const int32_t layout = asked ? asked : tensor->rank == 3 ? TROPE_THD : TROPE_SBHD;
    const layout_dims *dims = &layouts[layout];
    if (!value_is_real(tensor->type))
        return refuse(call, tensor, "must have dtype F32, F16, BF16 or F64");
    if (tensor->rank != dims->rank)
        return refuse(call, tensor, asked ? dims->rule : "must have 4 dims, or 3 for thd");
    const int64_t heads = tensor->shape[dims->heads], head_dim = tensor->shape[dims->head_dim];
    const int64_t batch = dims->batch < 0 ? 1 : tensor->shape[dims->batch], tokens = tensor->shape[dims->tokens];
    if (heads < 1 || heads > INT32_MAX || head_dim < 1 || head_dim > INT32_MAX)
        return refuse(call, tensor, "must have from 1 to 2^31 - 1 heads, and elements in a head");
    if (!call->count) {
        args->dtype = tensor->type;
        args->batch = batch;
        args->tokens = tokens;
    }
    if (tensor->type != args->dtype || batch != args->batch || tokens != args->tokens) {
        char rule[128];
        snprintf(rule, sizeof rule, "must have the dtype, batch and tokens of '%s'", call->sources[0]->name);
        return refuse(call, tensor, rule);
    }
    trope_operand *o = &call->operands[call->count];
    call->sources[call->count++] = tensor;
    if (trope_fill_operand(o, tensor->data, layout, (int32_t)heads, (int32_t)head_dim, TROPE_COPY))
        return complain_about(call->file->path, tensor->name, "%s", trope_last_error());
    return 0;
}

static int add_operands(apply_call *call)
{
    for (int i = 0; i < APPLY_TENSORS; i++) {
        const safetensor *tensor = safetensors_find(call->file, operand_names[i]);
        if (tensor && add_operand(call, tensor))
            return RESULT_REFUSED;
    }
    return 0;
}

/* Angles */

/* [rows, cols]; [1 or batch, rows, cols] (Hugging Face); [rows, 1, 1, cols] (TransformerEngine); [1 or batch, 1, rows,
 * cols] or [1 or batch, rows, 1, cols] (Hugging Face, made ready to broadcast). */
static int read_table_shape(apply_call *call, const safetensor *table)
{
    trope_args *args = &call->args;
    const int64_t *shape = table->shape;
    int64_t batch = 1, rows = 0;
    if (table->rank == 2) {
        rows = shape[0];
    } else if (table->rank == 3) {
        batch = shape[0];
        rows = shape[1];
    } else if (table->rank == 4 && shape[1] == 1 && shape[2] == 1) {
        rows = shape[0];
    } else if (table->rank == 4 && (shape[1] == 1 || shape[2] == 1)) {
        batch = shape[0];
        rows = shape[1] == 1 ? shape[2] : shape[1];
    } else {
        return refuse(call, table, "must be [rows, cols], [batch, rows, cols], or one of these with dims of 1 between");
    }
    const int64_t cols = shape[table->rank - 1];
    if (batch != 1 && batch != args->batch)
        return refuse(call, table, "must have a batch of 1 or that of the operands");
    if (cols < 1 || cols > TROPE_MAX_ROTARY_DIM)
        return refuse(call, table, "must have from 1 to 1024 columns");
    call->angle_cols = (int32_t)cols;
    args->angle_rows = rows;
    args->angle_layout = batch == 1 ? TROPE_TABLE_ROWS : TROPE_TABLE_BATCH_ROWS;
    args->angle_dtype = table->type;
    args->out_of_range =
        call->options->sequence.out_of_range < 0 ? TROPE_RANGE_POISON : call->options->sequence.out_of_range;
    return 0;
}

static int read_freqs(apply_call *call, const safetensor *freqs)
{
    if (freqs->type != TROPE_F32 && !(freqs->type == TROPE_F64 && call->args.dtype == TROPE_F64))
        return refuse(call, freqs, "must have dtype F32, or F64 with F64 operands");
    call->args.freqs = freqs->data;
    return read_table_shape(call, freqs);
}

static int read_cos_sin(apply_call *call, const safetensor *cosine, const safetensor *sine)
{
    if (!cosine || !sine)
        return complain_about(call->file->path, cosine ? "cos" : "sin", "needs '%s' beside it", cosine ? "sin" : "cos");
    if (cosine->type != TROPE_F32 && cosine->type != call->args.dtype)
        return refuse(call, cosine, "must have dtype F32 or that of the operands");
    if (sine->type != cosine->type || sine->rank != cosine->rank ||
        memcmp(sine->shape, cosine->shape, (size_t)sine->rank * sizeof *sine->shape))
        return refuse(call, sine, "must have the dtype and shape of 'cos'");
    call->args.cos = cosine->data;
    call->args.sin = sine->data;
    return read_table_shape(call, cosine);
}

static int read_inv_freq(apply_call *call, const safetensor *inv_freq)
{
    if (inv_freq->type != TROPE_F32 && inv_freq->type != TROPE_F64)
        return refuse(call, inv_freq, "must have dtype F32 or F64");
    if (inv_freq->rank != 1)
        return refuse(call, inv_freq, "must be [rotary_dim / 2]");
    if (inv_freq->elements < 1 || inv_freq->elements > TROPE_MAX_ROTARY_DIM / 2)
        return refuse(call, inv_freq, "must have from 1 to 512 elements");
    for (uint64_t i = 0; i < inv_freq->elements; i++)
        call->inv_freq[i] = value_load(inv_freq->type, inv_freq->data, (int64_t)i);
    call->args.inv_freq = call->inv_freq;
    return 0;
}

/* Finds the one source of angles in the file, if it has any. */
static int read_angles(apply_call *call)
{
    const safetensors *file = call->file;
    const rotation_options *rotation = &call->options->rotation;
    const safetensor *freqs = safetensors_find(file, "freqs"), *inv_freq = safetensors_find(file, "inv_freq");
    const safetensor *cosine = safetensors_find(file, "cos"), *sine = safetensors_find(file, "sin");
    const safetensor *table = cosine ? cosine : sine;
    if ((freqs != NULL) + (table != NULL) + (inv_freq != NULL) > 1)
        return complain_about(file->path, freqs ? "freqs" : table->name,
                              "angles must come from one of freqs, cos with sin, and inv_freq, but '%s' is there too",
                              inv_freq ? "inv_freq" : table->name);
    call->angles = freqs ? freqs : table ? table : inv_freq;
    if (call->angles && (rotation->base != 0 || rotation->scaling))
        return complain_about(file->path, call->angles->name, "gives the angles, so --base and --scaling must be left out");
    if (freqs)
        return read_freqs(call, freqs);
    if (table)
        return read_cos_sin(call, cosine, sine);
    return inv_freq ? read_inv_freq(call, inv_freq) : 0;
}

/* The rotary window. Unless it is given, inv_freq has an element for each pair and a table of 3 or 4 dims a column for each
 * element, as those who dump them have; otherwise all of the head from rotary_offset on is rotated. */
static int32_t default_rotary_dim(const apply_call *call, const trope_operand *o)
{
    if (call->options->rotation.rotary_dim >= 0)
        return call->options->rotation.rotary_dim;
    if (call->args.inv_freq)
        return 2 * (int32_t)call->angles->elements;
    if (call->angles && call->angles->rank > 2)
        return call->angle_cols;
    return o->head_dim - call->options->rotation.rotary_offset;
}

static int set_window(apply_call *call, int operand)
{
    trope_operand *o = &call->operands[operand];
    const int32_t offset = call->options->rotation.rotary_offset, rotary_dim = default_rotary_dim(call, o);
    const int32_t parts = call->options->rotation.parts;
    char rule[160];
    if (offset > o->head_dim || rotary_dim > o->head_dim - offset) {
        snprintf(rule, sizeof rule, "must have heads of at least rotary_offset + rotary_dim (%d + %d) elements", offset,
                 rotary_dim);
        return refuse(call, call->sources[operand], rule);
    }
    if (rotary_dim > TROPE_MAX_ROTARY_DIM || rotary_dim % (2 * parts)) {
        snprintf(rule, sizeof rule, "cannot rotate %d elements: rotary_dim must be divisible by 2 * parts (%d), at most %d",
                 rotary_dim, 2 * parts, TROPE_MAX_ROTARY_DIM);
        return refuse(call, call->sources[operand], rule);
    }
    o->rotary_dim = rotary_dim ? rotary_dim : TROPE_COPY;
    o->rotary_offset = rotary_dim ? offset : 0;
    call->widest = rotary_dim > call->widest ? rotary_dim : call->widest;
    return 0;
}

static int set_angle_columns(apply_call *call)
{
    char rule[128];
    if (call->angle_cols && call->angle_cols != call->widest && 2 * call->angle_cols != call->widest) {
        snprintf(rule, sizeof rule, "must have rotary_dim (%d) columns, or half as many", call->widest);
        return refuse(call, call->angles, rule);
    }
    if (call->args.inv_freq && 2 * call->angles->elements != (uint64_t)call->widest) {
        snprintf(rule, sizeof rule, "must have rotary_dim / 2 (%d) elements", call->widest / 2);
        return refuse(call, call->angles, rule);
    }
    if (call->angle_cols)
        call->args.angle_columns = columns_of_table(&call->args, call->angle_cols == call->widest);
    return 0;
}

/* Where no tensor rotates, which the library refuses, an operand that is in no file does, by no angle: so padding is still
 * written and indices are still checked. */
static int add_unseen_operand(apply_call *call)
{
    trope_args *args = &call->args;
    const int32_t width = 2 * args->parts;
    call->unseen = calloc((size_t)(args->batch * args->tokens * width) + 1, (size_t)value_size(args->dtype));
    if (!call->unseen)
        return complain("out of memory");
    args->freqs = args->cos = args->sin = NULL;
    args->angle_rows = 0;
    args->angle_layout = args->angle_dtype = args->out_of_range = 0;
    args->inv_freq = memset(call->inv_freq, 0, sizeof call->inv_freq);
    const int32_t layout = call->operands[0].src_layout;
    if (trope_fill_operand(&call->operands[call->count], call->unseen, layout, 1, width, width))
        return complain("%s", trope_last_error());
    args->operand_count++;
    return 0;
}

static int add_rotation(apply_call *call)
{
    if (read_angles(call))
        return RESULT_REFUSED;
    for (int32_t i = 0; i < call->count; i++)
        if (strcmp(call->sources[i]->name, "v") && set_window(call, i))
            return RESULT_REFUSED;
    call->args.operand_count = call->count;
    if (!call->widest)
        return add_unseen_operand(call);
    if (call->angles)
        return set_angle_columns(call);
    call->args.inv_freq = call->inv_freq;
    return frequencies_by_rule(&call->options->rotation, call->widest, call->inv_freq, &call->args.mscale);
}

/* Positions */

static int read_index_type(const apply_call *call, const safetensor *tensor, int32_t *type)
{
    if (tensor->type != VALUE_I32 && tensor->type != VALUE_I64)
        return refuse(call, tensor, "must have dtype I32 or I64");
    *type = tensor->type == VALUE_I64 ? TROPE_I64 : TROPE_I32;
    return 0;
}

static int read_cu_seqlens(apply_call *call)
{
    trope_args *args = &call->args;
    const safetensor *real = safetensors_find(call->file, "cu_seqlens");
    const safetensor *padded = safetensors_find(call->file, "cu_seqlens_padded");
    if (padded && !real)
        return refuse(call, padded, "needs 'cu_seqlens' beside it");
    if (!real)
        return 0;
    if (read_index_type(call, real, &args->cu_seqlens_dtype))
        return RESULT_REFUSED;
    if (real->rank != 1 || real->elements < 1)
        return refuse(call, real, "must be [sequences + 1]");
    if (padded && (padded->type != real->type || padded->rank != 1 || padded->elements != real->elements))
        return refuse(call, padded, "must have the dtype and shape of 'cu_seqlens'");
    args->cu_seqlens = real->data;
    args->cu_seqlens_padded = padded ? padded->data : NULL;
    args->sequences = real->shape[0] - 1;
    args->padding = call->options->sequence.padding;
    return 0;
}

static int read_start_positions(apply_call *call)
{
    trope_args *args = &call->args;
    const safetensor *starts = safetensors_find(call->file, "start_positions");
    if (!starts)
        return 0;
    if (read_index_type(call, starts, &args->position_dtype))
        return RESULT_REFUSED;
    const int64_t count = args->cu_seqlens ? args->sequences : args->batch;
    if (starts->rank != 1 || starts->shape[0] != count)
        return refuse(call, starts, args->cu_seqlens ? "must be [sequences]" : "must be [batch]");
    args->start_positions = starts->data;
    return 0;
}

/* [tokens], [1 or batch, tokens] or [axes, 1 or batch, tokens]. */
static int read_position_ids(apply_call *call)
{
    trope_args *args = &call->args;
    const safetensor *ids = safetensors_find(call->file, "position_ids");
    if (!ids)
        return 0;
    if (read_index_type(call, ids, &args->position_dtype))
        return RESULT_REFUSED;
    if (ids->rank < 1 || ids->rank > 3)
        return refuse(call, ids, "must be [tokens], [batch, tokens] or [axes, batch, tokens]");
    const int64_t tokens = ids->shape[ids->rank - 1];
    const int64_t batch = ids->rank > 1 ? ids->shape[ids->rank - 2] : 1;
    const int64_t axes = ids->rank > 2 ? ids->shape[0] : 1;
    if (tokens != args->tokens || (batch != 1 && batch != args->batch))
        return refuse(call, ids, "must have the tokens of the operands, and their batch or 1");
    if (axes < 1 || axes > CALL_MAX_AXES)
        return refuse(call, ids, "must have from 1 to 3 axes");
    args->position_ids = ids->data;
    args->position_axes = (int32_t)axes;
    args->ids_layout = TROPE_IDS_STRIDED;
    args->ids_stride[0] = axes == 1 ? 0 : batch * tokens;
    args->ids_stride[1] = batch == 1 ? 0 : tokens;
    args->ids_stride[2] = 1;
    return 0;
}

static int add_positions(apply_call *call)
{
    if (safetensors_find(call->file, "start_positions") && safetensors_find(call->file, "position_ids"))
        return complain_about(call->file->path, "start_positions", "must not be given together with 'position_ids'");
    return read_cu_seqlens(call) || read_start_positions(call) || read_position_ids(call) ? RESULT_REFUSED : 0;
}

/* A batch of 0, which the library refuses, is said as a batch of 1 without tokens, for which it does nothing.
 * start_positions, of which there are none, go. */
static void say_empty(trope_args *args)
{
    args->batch = 1;
    args->tokens = 0;
    args->start_positions = NULL;
    if (!args->position_ids)
        args->position_dtype = 0;
}

int apply_inputs(const safetensors *file, const apply_options *options, apply_call *call)
{
    memset(call, 0, sizeof *call);
    call->file = file;
    call->options = options;
    call->args.struct_size = sizeof call->args;
    call->args.device = options->device->id;
    call->args.threads = options->machine.threads;
    call->args.isa = options->machine.isa;
    call->args.operands = call->operands;
    call->args.operand_size = sizeof call->operands[0];
    rotation_to_args(&options->rotation, &call->args);
    sequence_to_args(&options->sequence, &call->args);
    /* A GPU reports here what the CPU refuses. */
    if (options->sequence.out_of_range == TROPE_RANGE_POISON || options->device->id == TROPE_DEVICE_CUDA)
        call->args.status = &call->status;
    if (add_operands(call) || add_rotation(call) || add_positions(call))
        return RESULT_REFUSED;
    if (call->widest && axes_to_args(&options->sequence, call->widest / 2, call->pair_axis, &call->args))
        return RESULT_REFUSED;
    if (!call->args.batch)
        say_empty(&call->args);
    return 0;
}

void apply_release(apply_call *call)
{
    free(call->unseen);
}

size_t apply_operand_bytes(const apply_call *call, int32_t i)
{
    if (i < call->count)
        return (size_t)(call->sources[i]->end - call->sources[i]->begin);
    const trope_operand *o = &call->operands[i];
    return (size_t)(call->args.batch * call->args.tokens * o->head_dim * value_size(call->args.dtype));
}

/* Which tensor a word of a message speaks of, with the longer words first. */
const char *apply_blamed_tensor(const apply_call *call, const char *message)
{
    static const struct {
        const char *word, *tensor;
    } words[] = {{"cu_seqlens_padded", "cu_seqlens_padded"},
                 {"cu_seqlens", "cu_seqlens"},
                 {"sequence", "cu_seqlens"},
                 {"start_positions", "start_positions"},
                 {"position", "position_ids"},
                 {"position", "start_positions"},
                 {"inv_freq", "inv_freq"}};
    const char *operand = strstr(message, "operands[");
    if (operand && operand[9] >= '0' && operand[9] < '0' + call->count)
        return call->sources[operand[9] - '0']->name;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strstr(message, words[i].word) && safetensors_find(call->file, words[i].tensor))
            return words[i].tensor;
    if (call->angles && (strstr(message, "angle_") || strstr(message, "freqs")))
        return call->angles->name;
    return call->sources[0]->name;
}
