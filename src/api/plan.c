#include "core/plan.h"

#include <string.h>

#include "api/args.h"
#include "core/phase.h"

/* Written bytes from which on stores bypass the caches: more than a core's share of the last level of today's servers, so
 * that a store costs one transfer and not two (the line would first be read). */
#define STREAM_BYTES ((int64_t)8 << 20)

static const int32_t element_sizes[] = {[TROPE_F32] = 4, [TROPE_F16] = 2, [TROPE_BF16] = 2, [TROPE_F64] = 8};

void trope_set_direction(trope_plan *plan, int transposed)
{
    plan->cosine_scale = plan->mscale;
    plan->sine_scale = !transposed == !plan->inverse ? plan->mscale : -plan->mscale;
    plan->swap_sines = transposed;
}

trope_sequences trope_plan_sequences(const trope_args *args)
{
    trope_sequences s;
    memset(&s, 0, sizeof s);
    s.boundaries = args->cu_seqlens_padded ? args->cu_seqlens_padded : args->cu_seqlens;
    s.real = args->cu_seqlens;
    s.boundaries_64 = args->cu_seqlens_dtype == TROPE_I64;
    s.count = args->sequences;
    s.tokens = args->tokens;
    s.starts = args->start_positions;
    s.starts_64 = args->position_dtype == TROPE_I64;
    s.ids = args->position_ids;
    s.ids_64 = args->position_dtype == TROPE_I64;
    s.id_axis_stride = args->position_axis_stride;
    s.id_batch_stride = args->position_batch_stride;
    s.id_token_stride = args->position_token_stride;
    s.padding = args->padding;
    s.axes = args->position_axes;
    s.packed = args->packed_positions;
    s.cp_size = args->cp_size;
    s.cp_rank = args->cp_rank;
    s.cp_layout = args->cp_size > 1 ? args->cp_layout : TROPE_CP_NONE;
    return s;
}

static int same_strides(const trope_args *args, const trope_operand *o)
{
    const int64_t size[] = {args->batch, args->tokens, o->groups, o->heads_per_group, o->head_dim};
    for (int d = 0; d < TROPE_MAX_DIMS; d++)
        if (size[d] > 1 && o->src_stride[d] != o->dst_stride[d])
            return 0;
    return 1;
}

static trope_plan_operand plan_operand(const trope_args *args, const trope_operand *o)
{
    trope_plan_operand p;
    memset(&p, 0, sizeof p);
    p.src = o->src;
    p.dst = o->dst;
    p.input = o->input;
    memcpy(p.src_stride, o->src_stride, sizeof p.src_stride);
    memcpy(p.dst_stride, o->dst_stride, sizeof p.dst_stride);
    memcpy(p.input_stride, o->input_stride, sizeof p.input_stride);
    p.groups = o->groups;
    p.heads_per_group = o->heads_per_group;
    p.head_dim = o->head_dim;
    p.rotary_dim = o->rotary_dim;
    p.rotary_offset = o->rotary_offset;
    p.window_pairs = o->rotary_dim / 2 / args->windows;
    p.in_place = o->src == o->dst && same_strides(args, o);
    return p;
}

static void plan_operands(const trope_args *args, trope_plan *plan)
{
    plan->operand_count = args->operand_count;
    plan->batch = args->batch;
    plan->tokens = args->tokens;
    int64_t written = 0;
    for (int i = 0; i < args->operand_count; i++) {
        const trope_operand *o = &args->operands[i];
        plan->operands[i] = plan_operand(args, o);
        plan->pairs = o->rotary_dim / 2 > plan->pairs ? o->rotary_dim / 2 : plan->pairs;
        written += args->batch * args->tokens * o->groups * o->heads_per_group * o->head_dim * plan->element_size;
    }
    plan->stream_stores = written >= STREAM_BYTES;
    const int64_t *strides = args->operands[0].src_stride;
    plan->batch_outermost = plan->batch == 1 || strides[TROPE_DIM_BATCH] >= strides[TROPE_DIM_TOKEN];
}

/* The steps of the pairs. A training loop has the same frequencies in every call, and on CUDA finding their steps anew
 * would be a tenth of what a call costs the host: a thread keeps those it found last. */
static void plan_steps(const double *inv_freq, int32_t pairs, uint64_t *step)
{
    static _Thread_local double known[TROPE_MAX_PAIRS];
    static _Thread_local uint64_t found[TROPE_MAX_PAIRS];
    static _Thread_local int32_t count;
    if (pairs != count || memcmp(inv_freq, known, (size_t)pairs * sizeof *known)) {
        for (int i = 0; i < pairs; i++)
            found[i] = trope_phase_step(inv_freq[i]);
        memcpy(known, inv_freq, (size_t)pairs * sizeof *known);
        count = pairs;
    }
    memcpy(step, found, (size_t)pairs * sizeof *step);
}

static void plan_angles(const trope_args *args, trope_plan *plan)
{
    trope_plan_angles *a = &plan->angles;
    a->freqs = args->freqs;
    a->cos = args->cos;
    a->sin = args->sin;
    a->rows = args->angle_rows;
    a->row_stride = args->angle_row_stride;
    a->batch_stride = args->angle_batch_stride;
    a->dtype = args->angle_dtype;
    a->out_of_range = args->out_of_range;
    a->per_element = args->angle_cols == 2 * plan->pairs;
    a->source = plan->pairs == 0 ? TROPE_ANGLES_NONE
                : args->freqs    ? TROPE_ANGLES_FREQS
                : args->cos      ? TROPE_ANGLES_TABLE
                                 : TROPE_ANGLES_PHASE;
    if (a->source == TROPE_ANGLES_PHASE)
        plan_steps(args->inv_freq, plan->pairs, plan->step);
}

/* Finds the axes that pairs use. An axis of position_ids that drives no pair is not read. */
static void plan_axes(int32_t position_axes, trope_plan *plan)
{
    plan->axes = position_axes; /* trope_pair_axis asks for it */
    plan->used_axes = plan->pairs ? 0 : 1;
    for (int pair = 0; pair < plan->pairs; pair++)
        plan->used_axes |= 1u << trope_pair_axis(plan, pair);
    while (!(plan->used_axes >> (plan->axes - 1)))
        plan->axes--;
}

trope_status trope_make_plan(const char *function, const trope_args *caller_args, int backward, trope_planned_call *call)
{
    trope_args args;
    trope_status status = trope_copy_struct(function, &args, sizeof args, caller_args);
    if (status)
        return status;
    trope_fill_defaults(&args);
    status = trope_validate(function, &args, backward);
    if (status)
        return status;

    trope_plan *plan = &call->plan;
    memset(plan, 0, sizeof *plan);
    plan->operands = call->operands;
    plan->step = call->step;
    plan->dtype = args.dtype;
    plan->element_size = element_sizes[args.dtype];
    plan->rounding = args.rounding;
    plan->device = args.device;
    plan->threads = args.threads;
    plan->isa = args.isa;
    plan->stream = args.stream;
    plan->status = args.status;
    plan_operands(&args, plan);

    const int32_t in = args.pairing == TROPE_PAIRING_INTERLEAVED, out = args.pairing_out == TROPE_PAIRING_INTERLEAVED;
    plan->interleaved_src = backward ? out : in;
    plan->interleaved_dst = backward ? in : out;
    plan->interleaved_input = in;
    plan->interleaved_columns = out;
    plan->windows = args.windows;
    plan->mscale = args.mscale;
    plan->inverse = args.inverse;
    trope_set_direction(plan, backward);
    plan_angles(&args, plan);

    plan->sequences = trope_plan_sequences(&args);
    plan->axis_map = args.axis_map;
    memcpy(plan->axis_sections, args.axis_sections, sizeof plan->axis_sections);
    plan_axes(args.position_axes, plan);
    plan->angles_shared = !args.cu_seqlens && !args.start_positions && args.angle_batch_stride == 0 &&
                          (!args.position_ids || args.position_batch_stride == 0);
    plan->position_is_token = !args.cu_seqlens && !args.position_ids && !args.start_positions &&
                              plan->sequences.cp_layout == TROPE_CP_NONE &&
                              (plan->angles.source == TROPE_ANGLES_PHASE || plan->angles.source == TROPE_ANGLES_NONE ||
                               plan->tokens <= plan->angles.rows);
    if (backward) {
        plan->d_freqs = args.d_freqs;
        plan->d_inv_freq = args.d_inv_freq;
        plan->workspace = args.workspace;
        plan->workspace_size = args.workspace_size;
    }
    return TROPE_OK;
}
