/* Small valid calls. The tests of the API change them, so each function makes its call from scratch. It also fills all
 * outputs with 0xFF. */
#ifndef TESTS_API_VALID_CALL_H
#define TESTS_API_VALID_CALL_H

#include "support/call.h"

enum {
    BATCH = 2,
    TOKENS = 8,
    Q_HEADS = 2,
    Q_DIM = 16,
    K_DIM = 8,
    ROTARY = 8,
    PAIRS = ROTARY / 2,
    SEQUENCES = 4,
    Q_COUNT = BATCH * TOKENS * Q_HEADS * Q_DIM,
    K_COUNT = BATCH * TOKENS * K_DIM,
    TABLE = TROPE_MAX_AXES * BATCH * TOKENS * ROTARY,
    WORKSPACE = 1 << 14
};

/* All arrays are large enough for f64, for int64 and for four axes. */
static struct {
    double q[Q_COUNT], k[K_COUNT], q_forward[Q_COUNT], k_forward[K_COUNT];
    double freqs[TABLE], cos[TABLE], sin[TABLE], inv_freq[PAIRS];
    uint64_t phase_step[PAIRS];
    _Alignas(8) int32_t cu_seqlens[2 * (SEQUENCES + 1)];
    _Alignas(8) int32_t cu_seqlens_padded[2 * (SEQUENCES + 1)];
    _Alignas(8) int32_t starts[2 * SEQUENCES];
    _Alignas(8) int32_t ids[2 * TROPE_MAX_AXES * BATCH * TOKENS];
    uint8_t pair_axis[PAIRS];
    double weight[Q_HEADS * Q_DIM], sums[2 * Q_HEADS * BATCH * TOKENS];
} in;

static struct {
    double q[Q_COUNT + 16], k[K_COUNT + 16], d_freqs[TABLE + 16], d_inv_freq[PAIRS];
    double rstd[BATCH * TOKENS * Q_HEADS], d_weight[Q_HEADS * Q_DIM];
    _Alignas(16) char workspace[WORKSPACE];
} out;

__attribute__((unused)) static int outputs_are_untouched(void)
{
    const unsigned char *bytes = (const unsigned char *)&out;
    for (size_t i = 0; i < sizeof out; i++)
        if (bytes[i] != 0xff)
            return 0;
    return 1;
}

/* q [2, 8, 2, 16] and k [2, 8, 1, 8] in f32, out of place, without angles. */
static call *without_angles(void)
{
    static call c;
    memset(&out, 0xff, sizeof out);
    memset(&in, 0, sizeof in);
    c = call_make(TROPE_F32, BATCH, TOKENS);
    trope_operand *q = call_add(&c, out.q, TROPE_BSHD, Q_HEADS, Q_DIM, ROTARY);
    q->src = in.q;
    q->rotary_offset = 4;
    call_add(&c, out.k, TROPE_BSHD, 1, K_DIM, ROTARY)->src = in.k;
    return &c;
}

/* The same call with freqs [8, 4]. */
static call *dense(void)
{
    call *c = without_angles();
    call_freqs(c, in.freqs, TROPE_COLUMNS_PAIR, TOKENS);
    return c;
}

/* The same call with strides instead of layouts. */
__attribute__((unused)) static call *strided(void)
{
    call *c = dense();
    for (int i = 0; i < 2; i++) {
        trope_operand *o = &c->operands[i];
        trope_fill_strides(o->src_stride, TROPE_BSHD, BATCH, TOKENS, o->heads_per_group, o->head_dim);
        memcpy(o->dst_stride, o->src_stride, sizeof o->dst_stride);
        o->src_layout = o->dst_layout = TROPE_STRIDED;
    }
    return c;
}

__attribute__((unused)) static call *table(void)
{
    call *c = without_angles();
    call_tables(c, in.cos, in.sin, TROPE_F32, TROPE_COLUMNS_PAIR, TOKENS);
    return c;
}

/* The dense call, with strides for freqs [8, 4]. */
__attribute__((unused)) static call *strided_table(void)
{
    call *c = dense();
    c->args.angle_layout = TROPE_TABLE_STRIDED;
    c->args.angle_stride[2] = PAIRS;
    c->args.angle_stride[3] = 1;
    return c;
}

__attribute__((unused)) static call *phase(void)
{
    call *c = without_angles();
    c->args.inv_freq = in.inv_freq;
    return c;
}

__attribute__((unused)) static call *steps(void)
{
    call *c = without_angles();
    c->args.phase_step = in.phase_step;
    return c;
}

/* Ids [2, 8] with one axis. */
__attribute__((unused)) static call *ids(void)
{
    call *c = dense();
    c->args.position_ids = in.ids;
    c->args.position_dtype = TROPE_I32;
    c->args.ids_layout = TROPE_IDS_BATCH_TOKENS;
    return c;
}

/* Ids [3, 2, 8] with three axes. The four pairs use axes 0, 1, 1 and 2. */
__attribute__((unused)) static call *axes(void)
{
    call *c = ids();
    c->args.ids_layout = TROPE_IDS_AXES_BATCH_TOKENS;
    c->args.position_axes = 3;
    c->args.pair_axis = in.pair_axis;
    in.pair_axis[1] = in.pair_axis[2] = 1;
    in.pair_axis[3] = 2;
    return c;
}

/* The same ids with strides. */
__attribute__((unused)) static call *strided_ids(void)
{
    call *c = axes();
    c->args.ids_layout = TROPE_IDS_STRIDED;
    c->args.ids_stride[0] = BATCH * TOKENS;
    c->args.ids_stride[1] = TOKENS;
    c->args.ids_stride[2] = 1;
    return c;
}

__attribute__((unused)) static call *starts(void)
{
    call *c = dense();
    c->args.start_positions = in.starts;
    c->args.position_dtype = TROPE_I32;
    return c;
}

/* Batch 1 with the sequences [0, 4), [4, 4), [4, 6) and [6, 8). */
__attribute__((unused)) static call *packed(void)
{
    static const int32_t boundaries[SEQUENCES + 1] = {0, 4, 4, 6, 8};
    call *c = dense();
    memcpy(in.cu_seqlens, boundaries, sizeof boundaries);
    memcpy(in.cu_seqlens_padded, boundaries, sizeof boundaries);
    c->args.batch = 1;
    call_cu_seqlens(c, in.cu_seqlens, TROPE_I32, SEQUENCES);
    return c;
}

/* The same sequences, with cu_seqlens_padded. The call writes zeros to padding. */
__attribute__((unused)) static call *padded(void)
{
    call *c = packed();
    c->args.cu_seqlens_padded = in.cu_seqlens_padded;
    c->args.padding = TROPE_PADDING_ZERO;
    return c;
}

/* This rank is the second of two zigzag ranks. */
__attribute__((unused)) static call *zigzag(void)
{
    call *c = dense();
    c->args.cp_size = 2;
    c->args.cp_rank = 1;
    c->args.cp_layout = TROPE_CP_ZIGZAG;
    c->args.angle_rows = BATCH * TOKENS;
    return c;
}

/* Adds the q and k of the forward call, and a workspace. */
static call *with_forward(call *c)
{
    const double *forward[] = {in.q_forward, in.k_forward};
    for (int i = 0; i < 2; i++) {
        trope_operand *o = &c->operands[i];
        o->forward_src = forward[i];
        o->forward_src_layout = o->src_layout;
        memcpy(o->forward_src_stride, o->src_stride, sizeof o->src_stride);
    }
    c->args.workspace = out.workspace;
    c->args.workspace_size = WORKSPACE;
    return c;
}

static call *with_d_freqs(call *c)
{
    with_forward(c)->args.d_freqs = out.d_freqs;
    c->args.d_freqs_layout = TROPE_TABLE_ROWS;
    return c;
}

__attribute__((unused)) static call *gradient(void)
{
    return with_d_freqs(dense());
}

__attribute__((unused)) static call *strided_gradient(void)
{
    return with_d_freqs(strided());
}

__attribute__((unused)) static call *phase_gradient(void)
{
    call *c = with_forward(phase());
    c->args.d_inv_freq = out.d_inv_freq;
    return c;
}

/* In the calls below, q has this norm and k has none. */
static trope_norm norm_of_q;
static const trope_norm *norms_of_call[2];

/* q has a norm, and the call stores its rstd. */
__attribute__((unused)) static call *normed(void)
{
    call *c = dense();
    norm_of_q = (trope_norm){.struct_size = sizeof norm_of_q, .weight = in.weight, .weight_dtype = TROPE_F32};
    norm_of_q.scope = TROPE_NORM_HEAD;
    norm_of_q.order = TROPE_NORM_BEFORE;
    norm_of_q.eps = 1e-6;
    norm_of_q.rstd = out.rstd;
    norm_of_q.rstd_use = TROPE_RSTD_WRITE;
    norms_of_call[0] = &norm_of_q;
    norms_of_call[1] = NULL;
    c->args.norms = norms_of_call;
    return c;
}

/* The backward call, with the gradient of the weight. It computes rstd again. */
__attribute__((unused)) static call *norm_gradient(void)
{
    call *c = normed();
    norm_of_q.rstd = NULL;
    norm_of_q.rstd_use = 0;
    norm_of_q.d_weight = out.d_weight;
    c->operands[0].forward_src = in.q_forward;
    c->operands[0].forward_src_layout = TROPE_BSHD;
    c->args.workspace = out.workspace;
    c->args.workspace_size = WORKSPACE;
    return c;
}

/* The norm covers all heads of a token, and q has half of them. */
__attribute__((unused)) static call *norm_of_ranks(void)
{
    call *c = normed();
    norm_of_q.scope = TROPE_NORM_TOKEN;
    norm_of_q.token_sums = in.sums;
    norm_of_q.token_sums_use = TROPE_SUMS_READ;
    norm_of_q.heads_of_all_ranks = 2 * Q_HEADS;
    return c;
}

/* The call that writes the sums of q's heads. */
__attribute__((unused)) static call *sums_of_ranks(void)
{
    call *c = normed();
    norm_of_q.scope = TROPE_NORM_TOKEN;
    norm_of_q.rstd = NULL;
    norm_of_q.rstd_use = 0;
    norm_of_q.token_sums = out.rstd;
    norm_of_q.token_sums_use = TROPE_SUMS_WRITE;
    c->operands[0].dst = NULL;
    c->operands[0].dst_layout = 0;
    return c;
}

/* q has a norm, and no operand rotates. */
__attribute__((unused)) static call *only_norm(void)
{
    call *c = normed();
    c->args.pairing = 0;
    c->args.freqs = NULL;
    c->args.angle_dtype = c->args.angle_columns = c->args.angle_layout = 0;
    c->args.angle_rows = 0;
    for (int i = 0; i < 2; i++) {
        c->operands[i].rotary_dim = TROPE_COPY;
        c->operands[i].rotary_offset = 0;
    }
    return c;
}

__attribute__((unused)) static char *plus(const void *pointer, int64_t bytes)
{
    return (char *)(uintptr_t)pointer + bytes;
}

/* An address without memory, for arrays that must not be read. */
__attribute__((unused)) static void *far_away(void)
{
    return (void *)((uintptr_t)1 << 62);
}

#endif
