#include "api/plan.h"

#include <string.h>

#include "bwd/transpose.h"
#include "core/element.h"
#include "core/phase.h"
#include "varlen/position_source.h"

/* A call that writes at least this many bytes uses stores that bypass the caches. The limit is above one core's share of
 * the last-level cache of today's servers. A store that bypasses the caches costs one transfer of a cache line. A normal
 * store costs two, because it reads the line first. */
#define STREAM_BYTES 0x1p23

/* Copies the strides of a tensor. A dimension of size 1 gets stride 0, or 1 if it is the element dimension. */
static void plan_strides(const trope_tensor *t, int64_t *stride)
{
    for (int d = 0; d < TROPE_MAX_DIMS; d++)
        stride[d] = t->size[d] > 1 ? t->stride[d] : d == TROPE_DIM_ELEMENT;
}

static trope_plan_norm plan_norm(const trope_args *a, int i, int backward)
{
    const trope_norm *norm = trope_norm_of(a, i);
    trope_plan_norm p;
    memset(&p, 0, sizeof p);
    if (!norm)
        return p;
    p.is_given = 1;
    p.weight = norm->weight;
    p.weight_dtype = norm->weight_dtype;
    p.weight_of_head = norm->weight_per_head ? a->operands[i].head_dim : 0;
    p.plus_one = norm->weight_plus_one;
    p.is_after = norm->order == TROPE_NORM_AFTER;
    p.is_token = norm->scope == TROPE_NORM_TOKEN;
    p.sums = norm->token_sums;
    p.sums_read = norm->heads_of_all_ranks;
    p.elements = a->operands[i].head_dim;
    if (p.is_token)
        p.elements *= p.sums_read ? p.sums_read : trope_count_heads(&a->operands[i]);
    /* Without a weight, TWICE and PRODUCT are the same single rounding. */
    p.rounding = norm->weight || a->rounding == TROPE_ROUND_ONCE ? norm->rounding : TROPE_NORM_ROUND_PRODUCT;
    p.eps = norm->eps;
    p.rstd = norm->rstd;
    p.reads_rstd = norm->rstd_use == TROPE_RSTD_READ;
    p.is_backward = backward;
    p.d_weight = norm->d_weight;
    return p;
}

static trope_plan_operand plan_operand(const trope_args *a, int i, int backward)
{
    const trope_operand *o = &a->operands[i];
    int64_t *strides[3];
    trope_plan_operand p;
    memset(&p, 0, sizeof p);
    p.src = o->src;
    p.dst = o->dst;
    p.forward_src = o->forward_src;
    strides[TROPE_TENSOR_SRC] = p.src_stride;
    strides[TROPE_TENSOR_DST] = p.dst_stride;
    strides[TROPE_TENSOR_FORWARD_SRC] = p.forward_src_stride;
    for (int role = TROPE_TENSOR_SRC; role <= TROPE_TENSOR_FORWARD_SRC; role++) {
        const trope_tensor t = trope_tensor_of(a, i, (trope_tensor_role)role, backward);
        plan_strides(&t, strides[role]);
    }
    p.groups = o->groups;
    p.heads_per_group = o->heads_per_group;
    p.head_dim = o->head_dim;
    p.rotary_dim = o->rotary_dim == TROPE_COPY ? 0 : o->rotary_dim;
    p.rotary_offset = o->rotary_offset;
    p.part_pairs = p.rotary_dim / 2 / a->parts;
    p.in_place = trope_operand_is_in_place(a, i, backward);
    p.summed_heads = backward ? o->shared_heads : TROPE_SHARED_NONE;
    p.accumulate = o->accumulate;
    p.norm = plan_norm(a, i, backward);
    return p;
}

static void plan_operands(const trope_args *a, int backward, trope_plan *plan)
{
    plan->operand_count = a->operand_count;
    plan->batch = a->batch;
    plan->tokens = a->tokens;
    for (int i = 0; i < a->operand_count; i++) {
        const trope_operand *o = &a->operands[i];
        plan->operands[i] = plan_operand(a, i, backward);
        plan->bytes_written +=
            (double)(a->batch * a->tokens) * o->groups * o->heads_per_group * o->head_dim * plan->element_size;
    }
    plan->pairs = trope_widest_pairs(a);
    plan->stream_stores = plan->bytes_written >= STREAM_BYTES;
    const int64_t *strides = plan->operands[0].src_stride;
    plan->batch_outermost = plan->batch == 1 || strides[TROPE_DIM_BATCH] >= strides[TROPE_DIM_TOKEN];
}

static trope_table_stride plan_table_stride(const int64_t *stride)
{
    return (trope_table_stride){stride[0], stride[1], stride[2], stride[3]};
}

/* The maximum number of pairs whose steps a thread caches. The cache takes 1 KB of the thread's stack. */
#define REMEMBERED_PAIRS 64

/* Computes the phase steps of inv_freq. 64 of them take 0.3 us, and a training loop passes the same frequencies in every
 * call. So each thread caches the last ones. */
static void plan_steps(const double *inv_freq, int32_t pairs, uint64_t *step)
{
    static _Thread_local struct {
        int32_t pairs;
        double inv_freq[REMEMBERED_PAIRS];
        uint64_t step[REMEMBERED_PAIRS];
    } last;
    const size_t bytes = (size_t)pairs * sizeof *step;
    if (pairs <= last.pairs && !memcmp(inv_freq, last.inv_freq, bytes)) {
        memcpy(step, last.step, bytes);
        return;
    }
    for (int i = 0; i < pairs; i++)
        step[i] = trope_phase_step(inv_freq[i]);
    if (pairs > REMEMBERED_PAIRS)
        return;
    memcpy(last.inv_freq, inv_freq, bytes);
    memcpy(last.step, step, bytes);
    last.pairs = pairs;
}

static void plan_angles(const trope_args *a, trope_planned_call *planned)
{
    trope_plan *plan = &planned->plan;
    trope_plan_angles *angles = &plan->angles;
    angles->freqs = a->freqs;
    angles->cos = a->cos;
    angles->sin = a->sin;
    angles->rows = a->angle_rows;
    angles->stride = plan_table_stride(a->angle_stride);
    angles->dtype = a->angle_dtype;
    angles->out_of_range = a->out_of_range;
    angles->per_element = trope_has_table(a) && a->angle_columns != TROPE_COLUMNS_PAIR;
    angles->source = a->freqs                       ? TROPE_ANGLES_FREQS
                     : a->cos                       ? TROPE_ANGLES_TABLE
                     : a->inv_freq || a->phase_step ? TROPE_ANGLES_PHASE
                                                    : TROPE_ANGLES_NONE;
    plan->step = planned->step;
    if (a->inv_freq)
        plan_steps(a->inv_freq, plan->pairs, planned->step);
    if (a->phase_step)
        memcpy(planned->step, a->phase_step, (size_t)plan->pairs * sizeof *planned->step);
}

/* Finds the axes that pairs use. An axis of position_ids that no pair uses is not read. */
static void plan_axes(const trope_args *a, trope_plan *plan)
{
    plan->planes = trope_count_planes(a);
    plan->pair_axes = a->position_axes > 1 ? a->position_axes : 1;
    plan->used_axes = plan->planes == 1;
    for (int pair = 0; plan->planes > 1 && pair < plan->pairs; pair++) {
        plan->axis_bits[pair / 16] |= (uint32_t)trope_specified_axis(a, plan->pairs, pair) << (2 * (pair % 16));
        plan->used_axes |= 1u << trope_pair_axis(plan, pair);
    }
    while (!(plan->used_axes >> (plan->pair_axes - 1)))
        plan->pair_axes--;
}

static void plan_pairing(const trope_args *a, int backward, trope_plan *plan)
{
    const int32_t in = a->pairing == TROPE_PAIRING_INTERLEAVED, out = a->pairing_out == TROPE_PAIRING_INTERLEAVED;
    plan->interleaved_src = backward ? out : in;
    plan->interleaved_dst = backward ? in : out;
    plan->interleaved_forward_src = in;
    plan->interleaved_columns = a->angle_columns == TROPE_COLUMNS_INTERLEAVED;
    plan->parts = a->parts;
    plan->mscale = a->mscale;
    plan->inverse = a->inverse;
    trope_set_direction(plan, backward);
}

static void plan_positions(const trope_args *a, trope_plan *plan)
{
    const int from_tokens = !a->cu_seqlens && !a->position_ids && !a->start_positions;
    plan->position_source = trope_plan_position_source(a);
    plan->same_angles_in_batch = !a->cu_seqlens && !a->start_positions &&
                                 (!trope_has_table(a) || a->angle_stride[1] == 0) &&
                                 (!a->position_ids || a->ids_stride[1] == 0);
    plan->position_is_token =
        from_tokens && plan->position_source.cp.size == 1 && (!trope_has_table(a) || plan->tokens <= plan->angles.rows);
}

void trope_make_plan(const trope_call *call, int backward, trope_planned_call *planned)
{
    const trope_args *a = &call->args;
    trope_plan *plan = &planned->plan;
    memset(plan, 0, sizeof *plan);
    plan->operands = planned->operands;
    plan->dtype = a->dtype;
    plan->element_size = trope_element_size(a->dtype);
    plan->rounding = a->rounding;
    plan->device = a->device;
    plan->threads = a->threads;
    plan->isa = a->isa;
    plan->stream = a->stream;
    plan->status = a->status;
    plan_operands(a, backward, plan);
    plan_angles(a, planned);
    plan_axes(a, plan);
    plan_pairing(a, backward, plan);
    plan_positions(a, plan);
    if (backward) {
        plan->d_freqs = a->d_freqs;
        plan->d_freqs_stride = plan_table_stride(a->d_freqs_stride);
        plan->d_inv_freq = a->d_inv_freq;
        plan->workspace = a->workspace;
        plan->workspace_size = a->workspace_size;
    }
}
