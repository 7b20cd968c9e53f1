/* The layout and the positions of a call, from the tensors of a group. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apply.h"
#include "command.h"

int apply_refuse(const apply_call *call, const safetensor *tensor, const char *format, ...)
{
    char shape[SAFETENSORS_TEXT], text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return complain_about(call->file->path, tensor->name, "%s %s", safetensor_describe(tensor, shape), text);
}

/* The layout */

/* Where each layout has its dimensions: batch (-1 = none), tokens, heads, head_dim. */
typedef struct layout_dims {
    const char *text;
    int rank, batch, tokens, heads, head_dim;
} layout_dims;

static const layout_dims layouts[] = {
    [TROPE_SBHD] = {"4 dims, [s, b, h, d]", 4, 1, 0, 2, 3},
    [TROPE_BSHD] = {"4 dims, [b, s, h, d]", 4, 0, 1, 2, 3},
    [TROPE_BHSD] = {"4 dims, [b, h, s, d]", 4, 0, 2, 1, 3},
    [TROPE_THD] = {"3 dims, [t, h, d]", 3, -1, 0, 1, 2},
};

typedef struct operand_shape {
    int64_t batch, tokens, heads, head_dim;
} operand_shape;

/* Returns nonzero if the tensor cannot have this layout. With --head-dim the last of 3 dims may hold all heads. */
static int shape_in(const apply_call *call, const safetensor *tensor, int32_t layout, operand_shape *shape)
{
    const layout_dims *dims = &layouts[layout];
    const int64_t head_dim = call->options->head_dim, *n = tensor->shape;
    if (tensor->rank == 3 && dims->rank == 4 && dims->heads == 2 && head_dim) {
        *shape = (operand_shape){n[dims->batch], n[dims->tokens], n[2] / head_dim, head_dim};
        return n[2] % head_dim != 0;
    }
    if (tensor->rank != dims->rank)
        return 1;
    *shape = (operand_shape){dims->batch < 0 ? 1 : n[dims->batch], n[dims->tokens], n[dims->heads], n[dims->head_dim]};
    return 0;
}

static const safetensor *first_operand(const apply_call *call)
{
    int role = 0;
    while (!call->group->tensors[role])
        role++;
    return call->group->tensors[role];
}

/* Whether position_ids, start_positions, cu_seqlens and tables can be those of so many tokens. */
static int others_fit(const apply_call *call, int64_t batch, int64_t tokens)
{
    const safetensor *const *tensors = call->group->tensors;
    const safetensor *ids = tensors[APPLY_POSITION_IDS], *starts = tensors[APPLY_START_POSITIONS];
    const safetensor *ends = tensors[APPLY_CU_SEQLENS];
    if (ids && ids->rank > 0 && ids->shape[ids->rank - 1] != tokens)
        return 0;
    if (ids && ids->rank > 1 && ids->shape[ids->rank - 2] != 1 && ids->shape[ids->rank - 2] != batch)
        return 0;
    if (starts && !ends && starts->elements != (uint64_t)batch)
        return 0;
    if (ends && ends->elements) {
        const int64_t ranks = cp_ranks(&call->options->sequence);
        if (batch != 1 || value_load(ends->type, ends->data, (int64_t)ends->elements - 1) > (double)(tokens * ranks))
            return 0;
    }
    return apply_table_fits(call, batch, tokens);
}

static int layout_fits(const apply_call *call, int32_t layout)
{
    operand_shape first, other;
    if (shape_in(call, first_operand(call), layout, &first))
        return 0;
    for (int role = 0; role < APPLY_OPERANDS; role++) {
        const safetensor *tensor = call->group->tensors[role];
        if (tensor &&
            (shape_in(call, tensor, layout, &other) || other.batch != first.batch || other.tokens != first.tokens))
            return 0;
    }
    return others_fit(call, first.batch, first.tokens);
}

/* --layout, or else the only one that fits. 3 dims without cu_seqlens may be [batch, tokens, hidden] as well as thd. */
static int choose_layout(apply_call *call)
{
    const safetensor *first = first_operand(call);
    char fitting[64] = "";
    int count = 0;
    call->layout = call->options->rotation.layout;
    if (call->layout)
        return 0;
    if (first->rank != 4 && first->rank != 3)
        return apply_refuse(call, first, "must have 4 dims, or 3 for thd");
    if (first->rank == 3 && call->group->tensors[APPLY_CU_SEQLENS] && !call->options->head_dim) {
        call->layout = TROPE_THD; /* nothing else has sequences: what does not fit is said in the words of thd */
        return 0;
    }
    for (int32_t layout = TROPE_SBHD; layout <= TROPE_THD; layout++) {
        if (!layout_fits(call, layout))
            continue;
        const size_t used = strlen(fitting);
        snprintf(fitting + used, sizeof fitting - used, "%s%s", used ? " or " : "", choice_name(layout_choices, layout));
        call->layout = layout;
        count++;
    }
    if (count == 1 && call->layout == TROPE_THD && !call->group->tensors[APPLY_CU_SEQLENS])
        return apply_refuse(call, first,
                            "may be thd, or [batch, tokens, hidden]: --layout thd says the one, --layout bshd (or sbhd) "
                            "with --head-dim the other");
    if (count > 1)
        return apply_refuse(call, first, "may be %s: --layout says which", fitting);
    if (!count)
        return apply_refuse(call, first,
                            "has no layout that fits the other tensors: --layout says which is meant, and then what does "
                            "not fit");
    return 0;
}

static int check_operand(apply_call *call, const safetensor *tensor)
{
    trope_args *args = &call->args;
    const safetensor *first = first_operand(call);
    operand_shape shape;
    if (!value_is_real(tensor->type))
        return apply_refuse(call, tensor, "must have dtype F32, F16, BF16 or F64");
    if (shape_in(call, tensor, call->layout, &shape))
        return apply_refuse(call, tensor, "must have %s, with --layout %s%s", layouts[call->layout].text,
                            choice_name(layout_choices, call->layout),
                            tensor->rank != 3         ? ""
                            : call->options->head_dim ? ", or [.., hidden] with heads of --head-dim"
                                                      : ", or [.., hidden] with --head-dim");
    if (shape.heads < 1 || shape.heads > INT32_MAX || shape.head_dim < 1 || shape.head_dim > INT32_MAX)
        return apply_refuse(call, tensor, "must have from 1 to 2^31 - 1 heads, and elements in a head");
    if (tensor == first) {
        args->dtype = tensor->type;
        args->batch = shape.batch;
        args->tokens = shape.tokens;
    }
    if (tensor->type != args->dtype || shape.batch != args->batch || shape.tokens != args->tokens)
        return apply_refuse(call, tensor, "must have the dtype, batch and tokens of '%.64s' (as %s)", first->name,
                            choice_name(layout_choices, call->layout));
    if (call->options->head_dim && tensor != call->group->tensors[APPLY_V] && shape.head_dim != call->options->head_dim)
        return apply_refuse(call, tensor, "must have heads of --head-dim (%d) elements", call->options->head_dim);
    return 0;
}

static int read_operands(apply_call *call)
{
    if (choose_layout(call))
        return RESULT_REFUSED;
    for (int role = 0; role < APPLY_OPERANDS; role++)
        if (call->group->tensors[role] && check_operand(call, call->group->tensors[role]))
            return RESULT_REFUSED;
    return 0;
}

int apply_fill_operand(const apply_call *call, const safetensor *tensor, trope_operand *operand)
{
    operand_shape shape;
    if (shape_in(call, tensor, call->layout, &shape) ||
        trope_fill_operand(operand, tensor->data, call->layout, (int32_t)shape.heads, (int32_t)shape.head_dim, TROPE_COPY))
        return complain_about(call->file->path, tensor->name, "%s", trope_last_error());
    if (apply_rotates(call, tensor)) {
        operand->rotary_dim = call->rotary_dim;
        operand->rotary_offset = rotary_offset_in(&call->options->rotation, operand->head_dim);
    }
    return 0;
}

int apply_rotates(const apply_call *call, const safetensor *tensor)
{
    return call->rotary_dim && tensor != call->group->tensors[APPLY_V];
}

/* Positions */

static int read_index_type(const apply_call *call, const safetensor *tensor, int32_t *type)
{
    if (tensor->type != VALUE_I32 && tensor->type != VALUE_I64)
        return apply_refuse(call, tensor, "must have dtype I32 or I64");
    *type = tensor->type == VALUE_I64 ? TROPE_I64 : TROPE_I32;
    return 0;
}

static double index_at(const safetensor *tensor, uint64_t i)
{
    return value_load(tensor->type, tensor->data, (int64_t)i);
}

/* Tokens of all ranks. */
static double tokens_of_stream(const apply_call *call)
{
    return (double)call->args.tokens * (double)cp_ranks(&call->options->sequence);
}

/* Boundaries begin with 0. Lengths, which are mistaken for them, mostly do not. */
static int check_boundaries(const apply_call *call, const safetensor *tensor)
{
    double sum = 0;
    for (uint64_t i = 0; i < tensor->elements; i++)
        sum += index_at(tensor, i);
    if (index_at(tensor, 0) == 0)
        return 0;
    return apply_refuse(call, tensor, "must be boundaries that begin with 0, not with %g%s", index_at(tensor, 0),
                        sum == tokens_of_stream(call) ? "; these are lengths" : "");
}

static int read_cu_seqlens(apply_call *call)
{
    trope_args *args = &call->args;
    const safetensor *real = call->group->tensors[APPLY_CU_SEQLENS];
    const safetensor *padded = call->group->tensors[APPLY_CU_SEQLENS_PADDED];
    if (padded && !real)
        return apply_refuse(call, padded, "needs 'cu_seqlens' beside it");
    if (!real && (call->options->sequence.padding || args->stream_positions))
        return complain("%s: has no effect without a tensor cu_seqlens",
                        args->stream_positions ? "--packed-positions" : "--padding");
    if (!real)
        return 0;
    if (read_index_type(call, real, &args->cu_seqlens_dtype))
        return RESULT_REFUSED;
    if (real->rank != 1 || real->elements < 1)
        return apply_refuse(call, real, "must be [sequences + 1]");
    if (padded && (padded->type != real->type || padded->rank != 1 || padded->elements != real->elements))
        return apply_refuse(call, padded, "must have the dtype and shape of 'cu_seqlens'");
    if (check_boundaries(call, real) || (padded && check_boundaries(call, padded)))
        return RESULT_REFUSED;
    const double end = index_at(real, real->elements - 1);
    const double stream = tokens_of_stream(call);
    if (!padded && end < stream && !call->options->sequence.padding)
        return apply_refuse(call, real,
                            "ends at %.0f, before the last of %.0f tokens: --padding says what tokens of no "
                            "sequence become",
                            end, stream);
    args->cu_seqlens = real->data;
    args->cu_seqlens_padded = padded ? padded->data : NULL;
    args->sequences = real->shape[0] - 1;
    args->padding = call->options->sequence.padding;
    return 0;
}

static int read_start_positions(apply_call *call)
{
    trope_args *args = &call->args;
    const safetensor *starts = call->group->tensors[APPLY_START_POSITIONS];
    if (!starts)
        return 0;
    if (call->group->tensors[APPLY_POSITION_IDS])
        return apply_refuse(call, starts, "must not be given together with 'position_ids'");
    if (read_index_type(call, starts, &args->position_dtype))
        return RESULT_REFUSED;
    const int64_t count = args->cu_seqlens ? args->sequences : args->batch;
    if (starts->rank != 1 || starts->shape[0] != count)
        return apply_refuse(call, starts, args->cu_seqlens ? "must be [sequences]" : "must be [batch]");
    args->start_positions = starts->data;
    return 0;
}

/* Axes of ids that say the same, as those of plain text do, are one. */
static int axes_are_equal(const safetensor *ids)
{
    const size_t plane = safetensor_bytes(ids) / (size_t)ids->shape[0];
    for (int64_t axis = 1; axis < ids->shape[0]; axis++)
        if (memcmp(ids->data, (const char *)ids->data + (size_t)axis * plane, plane))
            return 0;
    return 1;
}

/* [tokens], [1 or batch, tokens] or [axes, 1 or batch, tokens]. */
static int read_position_ids(apply_call *call)
{
    trope_args *args = &call->args;
    const safetensor *ids = call->group->tensors[APPLY_POSITION_IDS];
    if (!ids)
        return 0;
    if (read_index_type(call, ids, &args->position_dtype))
        return RESULT_REFUSED;
    if (ids->rank < 1 || ids->rank > 3)
        return apply_refuse(call, ids, "must be [tokens], [batch, tokens] or [axes, batch, tokens]");
    const int64_t tokens = ids->shape[ids->rank - 1];
    const int64_t batch = ids->rank > 1 ? ids->shape[ids->rank - 2] : 1;
    const int64_t axes = ids->rank > 2 ? ids->shape[0] : 1;
    if (tokens != args->tokens || (batch != 1 && batch != args->batch))
        return apply_refuse(call, ids,
                            "must have the tokens of the operands (%" PRId64 "), and their batch (%" PRId64 ") or 1",
                            args->tokens, args->batch);
    if (axes < 1 || axes > CALL_MAX_AXES)
        return apply_refuse(call, ids, "must be [axes, batch, tokens] with from 1 to %d axes", CALL_MAX_AXES);
    if (args->cp_size && !args->cu_seqlens)
        return apply_refuse(call, ids, "are taken as they are on every rank: --cp-size has no effect");
    const int one = axes == 1 || (!call->options->sequence.axis_map && args->parts == 1 && axes_are_equal(ids));
    if (!one && !call->options->sequence.axis_map && args->parts != axes)
        return apply_refuse(call, ids,
                            "has %" PRId64 " axes that differ: --axis-map and --axis-sections say which pairs each of them "
                            "drives, or --windows %" PRId64,
                            axes, axes);
    args->position_ids = ids->data;
    args->position_axes = one ? 1 : (int32_t)axes;
    args->ids_layout = TROPE_IDS_STRIDED;
    args->ids_stride[0] = one ? 0 : batch * tokens;
    args->ids_stride[1] = batch > 1 ? tokens : 0;
    args->ids_stride[2] = 1;
    return 0;
}

/* The tensor that a message of the library about positions speaks of. */
static const safetensor *blamed_index(const apply_call *call, const char *message)
{
    static const struct {
        const char *word;
        apply_role role;
    } words[] = {{"cu_seqlens_padded", APPLY_CU_SEQLENS_PADDED},
                 {"cu_seqlens", APPLY_CU_SEQLENS},
                 {"sequence", APPLY_CU_SEQLENS},
                 {"start_positions", APPLY_START_POSITIONS},
                 {"position", APPLY_POSITION_IDS},
                 {"position", APPLY_START_POSITIONS}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strstr(message, words[i].word) && call->group->tensors[words[i].role])
            return call->group->tensors[words[i].role];
    return NULL;
}

static int refuse_positions(const apply_call *call)
{
    char text[1024];
    const safetensor *tensor = blamed_index(call, trope_last_error());
    library_words(trope_last_error(), text, sizeof text);
    return tensor ? complain_about(call->file->path, tensor->name, "%s", text) : complain("%s", text);
}

static void note_positions(apply_call *call, const int64_t *positions, const int32_t *sequences)
{
    const trope_args *args = &call->args;
    const int64_t count = args->batch * args->tokens, axes = args->position_axes ? args->position_axes : 1;
    int none = 1;
    call->counts_tokens = axes == 1;
    for (int64_t i = 0; i < count; i++) {
        call->padding += sequences[i] < 0;
        if (sequences[i] < 0 && args->padding != TROPE_PADDING_ROTATE)
            continue;
        call->is_origin[i] = 1;
        for (int64_t axis = 0; axis < axes; axis++) {
            const int64_t position = positions[axis * count + i];
            call->is_origin[i] &= position == 0;
            call->first_position = none || position < call->first_position ? position : call->first_position;
            call->last_position = none || position > call->last_position ? position : call->last_position;
            call->counts_tokens &= position == i % args->tokens;
            none = 0;
        }
    }
}

/* The positions that the call will have, as the library computes them on the host, which also checks the indices. */
static int find_positions(apply_call *call)
{
    trope_args args = call->args;
    const int64_t count = args.batch * args.tokens, axes = args.position_axes ? args.position_axes : 1;
    int64_t *positions = malloc((size_t)(axes * count + 1) * sizeof *positions);
    int32_t *sequences = malloc((size_t)(count + 1) * sizeof *sequences);
    int result = 0;
    call->is_origin = calloc((size_t)count + 1, 1);
    if (!positions || !sequences || !call->is_origin)
        result = complain("out of memory for the positions of %" PRId64 " tokens", count);
    else if (trope_positions(&args, positions, sequences))
        result = refuse_positions(call);
    else
        note_positions(call, positions, sequences);
    free(positions);
    free(sequences);
    return result;
}

/* The call */

/* Options that say how something is rotated, where nothing is. */
static int refuse_without_rotation(const apply_call *call)
{
    const rotation_options *r = &call->options->rotation;
    const struct {
        int given;
        const char *option;
    } options[] = {{r->pairing_out, "--pairing-out"}, {r->pairing, "--pairing"},
                   {r->parts > 1, "--windows"},       {r->inverse, "--inverse"},
                   {r->mscale != 0, "--mscale"},      {r->rope_theta != 0, "--rope-theta"},
                   {r->scaling != NULL, "--scaling"}, {r->rotary_offset != ROTARY_OFFSET_NONE, "--rotary-offset"}};
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++)
        if (options[i].given)
            return complain("%s: has no effect, as nothing is rotated", options[i].option);
    return 0;
}

/* Each axis of ids or of a table drives pairs, or a section of 0 says that it does not; and each that drives pairs is there,
 * or memory behind a table would be read. */
static int check_axes(const apply_call *call, const safetensor *tensor, int64_t axes)
{
    const sequence_options *sequence = &call->options->sequence;
    const int listed = sequence->axis_map ? list_length(sequence->axis_sections) : call->args.parts;
    const char *option = sequence->axis_map ? "--axis-sections has" : "--windows is";
    int used = sequence->axis_map ? 1 : call->args.parts;
    for (int32_t i = 0; sequence->axis_map && i < call->rotary_dim / 2; i++)
        used = call->pair_axis[i] >= used ? call->pair_axis[i] + 1 : used;
    if (axes > listed)
        return apply_refuse(call, tensor, "has %" PRId64 " axes, and %s %d%s", axes, option, listed,
                            axes == 4 && listed == 3
                                ? ": transformers puts a row of text positions in front: drop it (position_ids[1:]), or "
                                  "give 0 to an axis that drives no pair"
                            : sequence->axis_map ? ": 0 is the section of an axis that drives no pair"
                                                 : "");
    if (axes > 1 && axes < used)
        return apply_refuse(call, tensor, "has %" PRId64 " axes, and %s %d: pairs use %d axes", axes, option, listed, used);
    return 0;
}

static int read_axes(apply_call *call)
{
    const sequence_options *sequence = &call->options->sequence;
    const int has_axes = call->args.position_axes > 1 || call->table.axes > 1;
    if (!has_axes && !sequence->axis_map && !sequence->axis_sections)
        return 0;
    if (axes_to_args(sequence, call->rotary_dim / 2, call->pair_axis, &call->args))
        return RESULT_REFUSED;
    if (call->args.position_axes > 1 &&
        check_axes(call, call->group->tensors[APPLY_POSITION_IDS], call->args.position_axes))
        return RESULT_REFUSED;
    if (call->table.axes > 1 && check_axes(call, call->angles, call->table.axes))
        return RESULT_REFUSED;
    return has_axes || call->options->config
               ? 0
               : complain("--axis-map: has no effect without position_ids or a table of several axes");
}

int apply_prepare(const safetensors *file, const apply_group *group, const apply_options *options, apply_call *call)
{
    trope_args *args = &call->args;
    memset(call, 0, sizeof *call);
    call->file = file;
    call->options = options;
    call->group = group;
    args->struct_size = sizeof *args;
    args->device = options->device->id;
    args->threads = options->machine.threads;
    args->isa = options->machine.isa;
    rotation_to_args(&options->rotation, args);
    if (sequence_to_args(&options->sequence, args) || read_operands(call))
        return RESULT_REFUSED;
    if (read_cu_seqlens(call) || read_start_positions(call) || read_position_ids(call))
        return RESULT_REFUSED;
    if (!args->batch || !args->tokens)
        return 0;
    /* A GPU reports here what the CPU refuses. */
    if (options->sequence.out_of_range == TROPE_RANGE_POISON || options->device->id == TROPE_DEVICE_CUDA)
        args->status = &call->status;
    if (find_positions(call) || apply_angles(call))
        return RESULT_REFUSED;
    if (!call->rotary_dim)
        return refuse_without_rotation(call);
    if (!args->pairing)
        return complain("--pairing: is missing: half (Llama in Hugging Face, GPT-NeoX) or interleaved (GPT-J, RoFormer)");
    return read_axes(call);
}

void apply_release(apply_call *call)
{
    free(call->token_ids);
    free(call->is_origin);
}

/* What was understood */

static void explain_operand(const apply_call *call, const safetensor *tensor)
{
    operand_shape shape;
    shape_in(call, tensor, call->layout, &shape);
    fprintf(stderr, "%.64s: %s, batch %" PRId64 ", %" PRId64 " tokens, %" PRId64 " heads of %" PRId64, tensor->name,
            choice_name(layout_choices, call->layout), shape.batch, shape.tokens, shape.heads, shape.head_dim);
    if (call->padding)
        fprintf(stderr, "; %" PRId64 " tokens are padding", call->padding);
    if (!shape.batch || !shape.tokens || !apply_rotates(call, tensor)) {
        fprintf(stderr, "; copied\n");
        return;
    }
    const int32_t offset = rotary_offset_in(&call->options->rotation, (int32_t)shape.head_dim);
    fprintf(stderr, "; %s pairs of elements %d to %d, ", choice_name(pairing_choices, call->args.pairing), offset,
            offset + call->rotary_dim - 1);
    if (call->args.pairing_out && call->args.pairing_out != call->args.pairing)
        fprintf(stderr, "written as %s, ", choice_name(pairing_choices, call->args.pairing_out));
    if (call->table.by_token)
        fprintf(stderr, "each token by its own row\n");
    else
        fprintf(stderr, "positions %" PRId64 " to %" PRId64 "\n", call->first_position, call->last_position);
}

static void explain_table(const apply_call *call)
{
    static const char *const forms[] = {
        [TROPE_COLUMNS_PAIR] = "one a pair",
        [TROPE_COLUMNS_HALF] = "one an element, by halves",
        [TROPE_COLUMNS_INTERLEAVED] = "one an element, by neighbours",
    };
    const apply_table *table = &call->table;
    fprintf(stderr, "%.64s: ", call->angles->name);
    if (table->axes > 1)
        fprintf(stderr, "%" PRId64 " axes, ", table->axes);
    fprintf(stderr, "batch %" PRId64 ", a row for each of %" PRId64 " %s, %d columns, %s\n", table->batch, table->rows,
            table->by_token ? "tokens" : "positions", table->columns, forms[table->column_form]);
}

void apply_explain(const apply_call *call)
{
    const safetensor *const *tensors = call->group->tensors;
    for (int role = 0; role < APPLY_OPERANDS; role++)
        if (tensors[role])
            explain_operand(call, tensors[role]);
    if (!call->rotary_dim)
        return;
    if (call->table.columns)
        explain_table(call);
    else if (call->angles)
        fprintf(stderr, "%.64s: %d frequencies\n", call->angles->name, call->rotary_dim / 2);
    else
        fprintf(stderr, "angles: --rope-theta %g, --scaling %.200s, %d frequencies, factor %g\n",
                call->options->rotation.rope_theta,
                call->options->rotation.scaling ? call->options->rotation.scaling : "default", call->rotary_dim / 2,
                call->args.mscale);
    if (call->args.cu_seqlens)
        fprintf(stderr, "%.64s: %" PRId64 " sequences\n", tensors[APPLY_CU_SEQLENS]->name, call->args.sequences);
    if (tensors[APPLY_POSITION_IDS] && call->args.position_ids)
        fprintf(stderr, "%.64s: %s\n", tensors[APPLY_POSITION_IDS]->name,
                call->table.by_token           ? "not used, as the rows of the table are those of tokens"
                : call->args.position_axes > 1 ? "an axis for each of several"
                                               : "one axis");
}
