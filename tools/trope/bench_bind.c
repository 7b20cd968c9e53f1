/* Makes the call of a problem: its fields, and the places of its tensors and arrays in the areas of memory. */
#include <string.h>

#include "bench_problem.h"
#include "call_options.h"
#include "command.h"
#include "value.h"

/* Operands */

static trope_operand *next_operand(bench_call *call)
{
    return &call->operands[call->args.operand_count++];
}

/* Sets the strides of [s, b, d, h] for input and output. */
static void say_strided(const bench_problem *p, trope_operand *o)
{
    const int64_t head = bench_head_dim(p->c), heads = o->heads_per_group;
    const int64_t stride[TROPE_MAX_DIMS] = {heads * head, heads * head * bench_batch(p->c), 0, 1, heads};
    o->src_layout = o->dst_layout = TROPE_STRIDED;
    memcpy(o->src_stride, stride, sizeof stride);
    memcpy(o->dst_stride, stride, sizeof stride);
}

/* Adds a separate tensor with this many heads. It follows a tensor of `skip` heads. */
static int bind_tensor(const bench_problem *p, void *const *area, bench_call *call, int32_t heads, int32_t skip)
{
    const bench_case *c = p->c;
    const int64_t before = bench_tensor_bytes(p, (int64_t)skip * bench_head_dim(c));
    trope_operand *o = next_operand(call);
    if (trope_fill_operand(o, (char *)area[AREA_SRC] + before, bench_layout(c), heads, bench_head_dim(c),
                           bench_rotary_dim(c)))
        return complain("%s: %s", c->name, trope_last_error());
    o->rotary_offset = c->rotary_offset;
    o->accumulate = c->accumulate;
    if (!c->in_place)
        o->dst = (char *)area[AREA_DST] + before;
    if (bench_reads_forward(c)) {
        o->forward_src = (char *)area[AREA_FORWARD_SRC] + before;
        o->forward_src_layout = bench_layout(c);
    }
    if (c->form == BENCH_STRIDED)
        say_strided(p, o);
    return 0;
}

/* Changes an operand that rotates in place inside a packed QKV tensor: forward writes to a separate tensor, and backward
 * reads from it. The tensor begins `before` bytes after the start of its area. */
static void take_apart(const bench_problem *p, void *const *area, trope_operand *o, int64_t before)
{
    if (p->c->backward) {
        o->src = (char *)area[AREA_SRC] + before;
        o->src_layout = bench_layout(p->c);
        memset(o->src_stride, 0, sizeof o->src_stride);
    } else {
        o->dst = (char *)area[AREA_DST] + before;
        o->dst_layout = bench_layout(p->c);
        memset(o->dst_stride, 0, sizeof o->dst_stride);
    }
}

/* Sets the forward input to the same place in another packed QKV tensor. */
static void find_forward(void *const *area, trope_operand *o, const void *buffer)
{
    o->forward_src = (char *)area[AREA_FORWARD_SRC] + ((const char *)o->src - (const char *)buffer);
    o->forward_src_layout = o->src_layout;
    memcpy(o->forward_src_stride, o->src_stride, sizeof o->src_stride);
}

/* Adds Q, K or V of packed QKV. The output is in place or in a separate tensor, which follows a tensor of `skip` heads.
 * Backward reads from that tensor. */
static int bind_part(const bench_problem *p, void *const *area, bench_call *call, int32_t which, int32_t skip)
{
    const bench_case *c = p->c;
    const trope_qkv qkv = {.struct_size = sizeof qkv,
                           .buffer = area[c->backward && !c->in_place ? AREA_DST : AREA_SRC],
                           .batch = bench_batch(c),
                           .tokens = p->tokens,
                           .layout = bench_layout(c),
                           .order = TROPE_QKV_GROUPS,
                           .dtype = p->dtype,
                           .q_heads = c->heads,
                           .kv_heads = c->groups,
                           .head_dim = bench_head_dim(c),
                           .rotary_dim = bench_rotary_dim(c)};
    trope_operand *o = next_operand(call);
    if (trope_fill_qkv(o, &qkv, which))
        return complain("%s: %s", c->name, trope_last_error());
    if (bench_reads_forward(c) && which != TROPE_V)
        find_forward(area, o, qkv.buffer);
    if (!c->in_place)
        take_apart(p, area, o, bench_tensor_bytes(p, (int64_t)skip * bench_head_dim(c)));
    return 0;
}

/* Part of each head of a tensor. Heads are `pitch` elements apart and tokens have no gap between them. */
typedef struct head_slice {
    char *first;
    int32_t heads, pitch;
} head_slice;

static int32_t say_slice(const bench_problem *p, const head_slice *slice, int32_t dim, int64_t *stride)
{
    if (slice->pitch == dim)
        return bench_layout(p->c);
    (void)trope_fill_strides(stride, bench_layout(p->c), bench_batch(p->c), p->tokens, slice->heads, slice->pitch);
    return TROPE_STRIDED;
}

/* Copies from one slice to the other. Backward goes from the second to the first. */
static int bind_slices(const bench_problem *p, bench_call *call, head_slice from, head_slice to, int32_t dim,
                       int32_t rotary)
{
    const head_slice src = p->c->backward ? to : from, dst = p->c->backward ? from : to;
    const int32_t heads = from.heads > to.heads ? from.heads : to.heads;
    trope_operand *o = next_operand(call);
    if (trope_fill_operand(o, src.first, bench_layout(p->c), heads, dim, rotary))
        return complain("%s: %s", p->c->name, trope_last_error());
    o->dst = dst.first;
    o->src_layout = say_slice(p, &src, dim, o->src_stride);
    o->dst_layout = say_slice(p, &dst, dim, o->dst_stride);
    o->shared_heads = from.heads == to.heads ? TROPE_SHARED_NONE : TROPE_SHARED_ALL;
    return 0;
}

static int bind_mla_kv(const bench_problem *p, void *const *area, bench_call *call)
{
    enum { KV = MLA_NOPE + MLA_V, KEY = MLA_NOPE + MLA_PE };
    const int64_t size = value_size(p->dtype);
    const int32_t heads = p->c->heads;
    char *kv = area[p->c->backward ? AREA_DST : AREA_SRC], *key = area[p->c->backward ? AREA_SRC : AREA_DST];
    char *k_pe = kv + bench_tensor_bytes(p, (int64_t)heads * KV),
         *value = key + bench_tensor_bytes(p, (int64_t)heads * KEY);
    const head_slice nope = {kv, heads, KV}, pe = {k_pe, 1, MLA_PE}, v = {kv + MLA_NOPE * size, heads, KV};
    const head_slice key_nope = {key, heads, KEY}, key_pe = {key + MLA_NOPE * size, heads, KEY};
    const head_slice v_out = {value, heads, MLA_V};
    return bind_slices(p, call, nope, key_nope, MLA_NOPE, TROPE_COPY) || bind_slices(p, call, pe, key_pe, MLA_PE, MLA_PE) ||
           bind_slices(p, call, v, v_out, MLA_V, TROPE_COPY);
}

static int bind_operands(const bench_problem *p, void *const *area, bench_call *call)
{
    const bench_case *c = p->c;
    switch (c->form) {
    case BENCH_QKV_SPLIT:
    case BENCH_QKV_INSIDE:
        return bind_part(p, area, call, TROPE_Q, 0) || bind_part(p, area, call, TROPE_K, c->heads) ||
               (c->form == BENCH_QKV_SPLIT && bind_part(p, area, call, TROPE_V, c->heads + c->groups));
    case BENCH_Q_AND_K:
        return bind_tensor(p, area, call, c->heads, 0) || bind_tensor(p, area, call, c->groups, c->heads);
    case BENCH_MLA_KV:
        return bind_mla_kv(p, area, call);
    default:
        return bind_tensor(p, area, call, c->heads, 0);
    }
}

/* Angles, positions, sequences */

static void bind_table(const bench_problem *p, void *const *area, trope_args *args)
{
    if (bench_has_cos_and_sin(p->c)) {
        args->cos = area[AREA_COS];
        args->sin = area[AREA_SIN];
    } else {
        args->freqs = area[AREA_COS];
    }
    args->angle_dtype = bench_angle_dtype(p);
    args->angle_columns = columns_of_table(args, p->cols == bench_rotary_dim(p->c));
    args->angle_layout = p->c->source.angles == BENCH_TABLE_OWN_AXES ? TROPE_TABLE_AXES_BATCH_ROWS : TROPE_TABLE_ROWS;
    args->angle_rows = bench_table_rows(p);
}

static void bind_angles(const bench_problem *p, void *const *area, trope_args *args)
{
    if (p->cols)
        bind_table(p, area, args);
    else if (p->c->source.angles == BENCH_PHASE_STEP)
        args->phase_step = p->phase_step;
    else
        args->inv_freq = p->inv_freq;
    if (p->c->source.angles == BENCH_TABLE_OWN_AXES || bench_id_axes(p->c) > 1)
        args->pair_axis = p->pair_axis;
}

static void bind_angle_gradient(const bench_problem *p, void *const *area, trope_args *args)
{
    args->d_freqs = p->cols ? area[AREA_D_ANGLES] : NULL;
    args->d_freqs_layout = p->cols ? TROPE_TABLE_ROWS : 0;
    args->d_inv_freq = p->cols ? NULL : area[AREA_D_ANGLES];
}

/* Sets the norms of the operands that rotate. V is only copied and has none. */
static void bind_norms(const bench_problem *p, void *const *area, bench_call *call)
{
    int64_t before = 0;
    for (int i = 0; i < call->args.operand_count; i++) {
        trope_norm *n = &call->norm[i];
        const trope_operand *o = &call->operands[i];
        if (o->rotary_dim == TROPE_COPY)
            continue;
        *n = (trope_norm){.struct_size = sizeof *n,
                          .weight = (char *)area[AREA_WEIGHT] + before * value_size(p->dtype),
                          .weight_dtype = p->dtype,
                          .weight_per_head = p->c->norm_token,
                          .scope = p->c->norm_token ? TROPE_NORM_TOKEN : TROPE_NORM_HEAD,
                          .order = p->c->norm,
                          .eps = 1e-6};
        if (p->c->backward)
            n->d_weight = (char *)area[AREA_D_WEIGHT] + before * value_size(bench_weight_gradient_dtype(p));
        call->norms[i] = n;
        before += o->head_dim * (p->c->norm_token ? (o->groups ? o->groups : 1) * (int64_t)o->heads_per_group : 1);
    }
    call->args.norms = call->norms;
}

static void bind_positions(const bench_problem *p, void *const *area, trope_args *args)
{
    const int32_t axes = bench_id_axes(p->c);
    if (p->c->source.positions == BENCH_INDEX)
        return;
    args->position_dtype = bench_index_dtype(p->c);
    if (axes) {
        args->position_ids = area[AREA_INDICES];
        args->position_axes = axes;
        args->ids_layout = axes > 1 ? TROPE_IDS_AXES_BATCH_TOKENS : TROPE_IDS_BATCH_TOKENS;
    } else {
        args->start_positions = area[AREA_INDICES];
    }
}

static void bind_sequences(const bench_problem *p, void *const *area, trope_args *args)
{
    const bench_source *source = &p->c->source;
    if (source->cp_size) {
        args->cp_size = source->cp_size;
        args->cp_rank = source->cp_size - 1;
        args->cp_layout = source->cp_layout ? source->cp_layout : TROPE_CP_ZIGZAG;
    }
    if (source->lengths) {
        args->cu_seqlens = area[AREA_CU_SEQLENS];
        args->cu_seqlens_padded = source->padded ? area[AREA_CU_SEQLENS_PADDED] : NULL;
        args->sequences = p->sequences;
        args->stream_positions = source->stream;
        args->cu_seqlens_dtype = bench_index_dtype(p->c);
        args->padding = TROPE_PADDING_ZERO; /* also without padding: CUDA requires an explicit value */
    }
}

int bench_bind(const bench_problem *p, void *const *area, bench_call *call)
{
    trope_args *args = &call->args;
    if (p->c->call) {
        bench_bind_text(p, area, call);
        return 0;
    }
    memset(call, 0, sizeof *call);
    args->struct_size = sizeof *args;
    args->dtype = p->dtype;
    args->rounding = p->c->rounding;
    args->operands = call->operands;
    args->operand_size = sizeof call->operands[0];
    args->batch = bench_batch(p->c);
    args->tokens = p->tokens;
    args->pairing = p->c->pairing ? p->c->pairing : TROPE_PAIRING_HALF;
    args->pairing_out = p->c->pairing_out;
    bind_angles(p, area, args);
    if (p->c->angle_gradient)
        bind_angle_gradient(p, area, args);
    if (bench_reads_forward(p->c)) {
        args->workspace = area[AREA_WORKSPACE];
        args->workspace_size = p->size[AREA_WORKSPACE];
    }
    bind_positions(p, area, args);
    bind_sequences(p, area, args);
    if (bind_operands(p, area, call))
        return RESULT_REFUSED;
    if (p->c->norm)
        bind_norms(p, area, call);
    return 0;
}
