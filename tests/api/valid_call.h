/* Small valid calls for the tests of the API to spoil, with every output filled with 0xFF. */
#ifndef TESTS_API_VALID_CALL_H
#define TESTS_API_VALID_CALL_H

#include <stdint.h>
#include <string.h>

#include "trope/trope.h"

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
    WORKSPACE = 1 << 20
};

/* Everything is large enough for f64. */
static struct {
    double q[Q_COUNT], k[K_COUNT], q_input[Q_COUNT], k_input[K_COUNT];
    double freqs[BATCH * TOKENS * ROTARY], cos[BATCH * TOKENS * ROTARY], sin[BATCH * TOKENS * ROTARY], inv_freq[PAIRS];
    int32_t cu_seqlens[SEQUENCES + 1], cu_seqlens_padded[SEQUENCES + 1];
    int32_t starts[SEQUENCES], ids[3 * BATCH * TOKENS];
} in;

static struct {
    double q[Q_COUNT + 16], k[K_COUNT + 16], d_freqs[BATCH * TOKENS * ROTARY + 16], d_inv_freq[PAIRS];
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

static void set_strides(int64_t *stride, int64_t heads, int64_t head_dim)
{
    const int64_t bshd[TROPE_MAX_DIMS] = {TOKENS * heads * head_dim, heads * head_dim, heads * head_dim, head_dim, 1};
    memcpy(stride, bshd, sizeof bshd);
}

static trope_operand make_operand(const void *src, void *dst, int32_t heads, int32_t head_dim)
{
    trope_operand o = {.src = src, .dst = dst, .heads_per_group = heads, .head_dim = head_dim, .rotary_dim = ROTARY};
    set_strides(o.src_stride, heads, head_dim);
    set_strides(o.dst_stride, heads, head_dim);
    set_strides(o.input_stride, heads, head_dim);
    return o;
}

/* q [2, 8, 2, 16] and k [2, 8, 1, 8] of f32 with freqs [8, 4]. */
static trope_args *dense(void)
{
    static trope_args a;
    memset(&out, 0xff, sizeof out);
    memset(&in, 0, sizeof in);
    a = (trope_args){
        .struct_size = sizeof a, .device = TROPE_DEVICE_CPU, .operand_count = 2, .batch = BATCH, .tokens = TOKENS};
    a.operands[0] = make_operand(in.q, out.q, Q_HEADS, Q_DIM);
    a.operands[0].rotary_offset = 4;
    a.operands[1] = make_operand(in.k, out.k, 1, K_DIM);
    a.freqs = in.freqs;
    a.angle_rows = TOKENS;
    a.angle_cols = PAIRS;
    return &a;
}

__attribute__((unused)) static trope_args *table(void)
{
    trope_args *a = dense();
    a->freqs = NULL;
    a->cos = in.cos;
    a->sin = in.sin;
    return a;
}

__attribute__((unused)) static trope_args *phase(void)
{
    trope_args *a = dense();
    a->freqs = NULL;
    a->angle_rows = a->angle_cols = 0;
    a->inv_freq = in.inv_freq;
    return a;
}

__attribute__((unused)) static trope_args *ids(void)
{
    trope_args *a = dense();
    a->position_ids = in.ids;
    a->position_batch_stride = TOKENS;
    return a;
}

/* Batch 1 with the sequences [0, 4), [4, 4), [4, 6) and [6, 8). */
__attribute__((unused)) static trope_args *packed(void)
{
    static const int32_t boundaries[SEQUENCES + 1] = {0, 4, 4, 6, 8};
    trope_args *a = dense();
    memcpy(in.cu_seqlens, boundaries, sizeof boundaries);
    memcpy(in.cu_seqlens_padded, boundaries, sizeof boundaries);
    a->batch = 1;
    a->cu_seqlens = in.cu_seqlens;
    a->sequences = SEQUENCES;
    return a;
}

/* The second of two zigzag ranks. */
__attribute__((unused)) static trope_args *zigzag(void)
{
    trope_args *a = dense();
    a->cp_size = 2;
    a->cp_rank = 1;
    a->cp_layout = TROPE_CP_ZIGZAG;
    a->angle_rows = BATCH * TOKENS;
    return a;
}

__attribute__((unused)) static trope_args *with_inputs(trope_args *a)
{
    a->operands[0].input = in.q_input;
    a->operands[1].input = in.k_input;
    a->workspace = out.workspace;
    a->workspace_size = WORKSPACE;
    return a;
}

__attribute__((unused)) static trope_args *gradient(void)
{
    trope_args *a = with_inputs(dense());
    a->d_freqs = out.d_freqs;
    return a;
}

__attribute__((unused)) static trope_args *phase_gradient(void)
{
    trope_args *a = with_inputs(phase());
    a->d_inv_freq = out.d_inv_freq;
    return a;
}

#endif
