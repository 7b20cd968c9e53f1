/* What looks unusual and is nevertheless right is not refused. The results themselves are other tests' business. */
#include <stdio.h>

#include "api/valid_call.h"
#include "support/check.h"

static trope_args *a;
static trope_operand *q, *k;

static void begin(trope_args *args)
{
    a = args;
    q = &args->operands[0];
    k = &args->operands[1];
}

#define ACCEPTED_BACKWARD(valid, change)                                                                                   \
    do {                                                                                                                   \
        begin(valid);                                                                                                      \
        change;                                                                                                            \
        CHECK_MESSAGE(trope_backward(a) == TROPE_OK, #valid ", " #change ": %s", trope_last_error());                      \
    } while (0)
#define ACCEPTED(valid, change)                                                                                            \
    do {                                                                                                                   \
        ACCEPTED_BACKWARD(valid, change);                                                                                  \
        CHECK_MESSAGE(trope_forward(a) == TROPE_OK, #valid ", " #change ": %s", trope_last_error());                       \
    } while (0)

static char *plus(const void *pointer, int64_t bytes)
{
    return (char *)(uintptr_t)pointer + bytes;
}

/* q, k and v of a Megatron packed QKV buffer [s, b, groups, (q_per_group + 2) * d], in place. */
static void use_packed_qkv(void)
{
    enum { GROUPS = 2, Q_PER_GROUP = 3, DIM = 8, GROUP = (Q_PER_GROUP + 2) * DIM };
    const int64_t stride[TROPE_MAX_DIMS] = {GROUPS * GROUP, BATCH * GROUPS * GROUP, GROUP, DIM, 1};
    const int first[] = {0, Q_PER_GROUP * DIM, (Q_PER_GROUP + 1) * DIM};
    a->operand_count = 3;
    for (int i = 0; i < 3; i++) {
        trope_operand *o = &a->operands[i];
        *o = (trope_operand){.heads_per_group = i == 0 ? Q_PER_GROUP : 1, .groups = GROUPS, .head_dim = DIM};
        o->rotary_dim = i == 2 ? 0 : DIM;
        o->dst = plus(out.workspace, first[i] * (int64_t)sizeof(float));
        o->src = o->dst;
        memcpy(o->src_stride, stride, sizeof stride);
        memcpy(o->dst_stride, stride, sizeof stride);
    }
}

static void sources(void)
{
    ACCEPTED(dense(), (void)q);
    ACCEPTED(dense(), q->src_stride[TROPE_DIM_HEAD] = 0);
    ACCEPTED(dense(), memset(k->src_stride, 0, sizeof k->src_stride));
    ACCEPTED(dense(), (q->src = plus(in.q, 15 * 4), q->src_stride[TROPE_DIM_ELEMENT] = -1));
    ACCEPTED(dense(), (k->src = in.q, q->src = in.q));
    ACCEPTED(dense(), (q->src = q->dst));
    ACCEPTED(dense(), (q->src = q->dst, q->src_stride[TROPE_DIM_GROUP] = 12345)); /* there is one group */
    ACCEPTED(dense(), q->src_stride[TROPE_DIM_GROUP] = INT64_MAX);
    ACCEPTED(dense(), k->src_stride[TROPE_DIM_HEAD] = INT64_MIN); /* there is one head */
    ACCEPTED(dense(), (q->src = q->dst, a->pairing_out = TROPE_PAIRING_INTERLEAVED));
    ACCEPTED(dense(), q->src = in.freqs);                                         /* read twice */
    ACCEPTED(dense(), (a->operands[2].src = NULL, a->operands[3].head_dim = -3)); /* beyond operand_count */
    ACCEPTED(dense(), use_packed_qkv());
}

static void destinations(void)
{
    ACCEPTED(dense(), (q->dst = plus(out.q, 64 * 15), q->dst_stride[TROPE_DIM_TOKEN] = -2 * Q_DIM,
                       q->dst_stride[TROPE_DIM_BATCH] = TOKENS * 2 * Q_DIM));
    ACCEPTED(dense(),
             (q->dst_stride[TROPE_DIM_HEAD] = 1, q->dst_stride[TROPE_DIM_ELEMENT] = Q_HEADS)); /* heads interleaved */
    ACCEPTED(dense(),
             (k->dst = plus(out.workspace, Q_DIM * 4), q->dst = out.workspace, q->dst_stride[TROPE_DIM_HEAD] = 2 * Q_DIM,
              q->dst_stride[TROPE_DIM_TOKEN] = 4 * Q_DIM, q->dst_stride[TROPE_DIM_BATCH] = 4 * Q_DIM * TOKENS,
              k->dst_stride[TROPE_DIM_TOKEN] = 4 * Q_DIM, k->dst_stride[TROPE_DIM_BATCH] = 4 * Q_DIM * TOKENS));
    ACCEPTED(dense(), q->dst = plus(out.q, 4)); /* aligned to an element, no more */
}

static void angles(void)
{
    ACCEPTED(dense(), (a->angle_cols = ROTARY));
    ACCEPTED(dense(), a->angle_row_stride = ROTARY + 3);
    ACCEPTED(dense(), a->angle_batch_stride = TOKENS * PAIRS);
    ACCEPTED(dense(), (a->dtype = TROPE_F64, a->angle_dtype = TROPE_F64));
    ACCEPTED(dense(), a->dtype = TROPE_F64);
    ACCEPTED(table(), (a->dtype = TROPE_BF16, a->angle_dtype = TROPE_BF16));
    ACCEPTED(table(), (a->dtype = TROPE_F16, a->angle_dtype = TROPE_F16));
    ACCEPTED(table(), (a->dtype = TROPE_F64, a->angle_dtype = TROPE_F64));
    ACCEPTED(table(), a->sin = a->cos);
    ACCEPTED(dense(), k->rotary_dim = 4);
    ACCEPTED(dense(), (a->angle_rows = 1, a->out_of_range = TROPE_RANGE_CLAMP));
    ACCEPTED(phase(), in.inv_freq[0] = -2.5);
    ACCEPTED(dense(), a->mscale = -0.5);
    ACCEPTED(dense(), a->windows = 2);
}

static void positions(void)
{
    int32_t word = 0;
    ACCEPTED(ids(),
             (a->position_axes = 3, a->axis_map = TROPE_AXES_SECTIONS, a->axis_sections[0] = 2, a->axis_sections[1] = 2));
    ACCEPTED(ids(), (a->axis_map = TROPE_AXES_INTERLEAVED, a->axis_sections[0] = 2,
                     a->axis_sections[1] = a->axis_sections[2] = 1));
    ACCEPTED(ids(), (a->windows = 2, a->position_axes = 2, a->position_axis_stride = BATCH * TOKENS));
    ACCEPTED(ids(), (in.ids[3] = 8, a->out_of_range = TROPE_RANGE_CLAMP));
    ACCEPTED(ids(), (in.ids[3] = 8, a->status = &word));
    CHECK(word == TROPE_STATUS_POSITION);
    ACCEPTED(packed(), a->packed_positions = 1);
    ACCEPTED(packed(), (a->cu_seqlens_padded = in.cu_seqlens_padded, in.cu_seqlens[3] = in.cu_seqlens[4] = 5));
    ACCEPTED(packed(), (in.cu_seqlens[4] = 6));        /* the last two tokens belong to no sequence */
    ACCEPTED(packed(), (in.cu_seqlens[0] = 2));        /* nor do the first two */
    ACCEPTED(dense(), a->cp_layout = TROPE_CP_ZIGZAG); /* one rank, whatever the layout */
    ACCEPTED(zigzag(), (void)q);
}

static void gradients(void)
{
    ACCEPTED_BACKWARD(gradient(), q->dst = NULL);
    ACCEPTED_BACKWARD(gradient(), (q->dst = NULL, k->dst = NULL));
    ACCEPTED_BACKWARD(gradient(), (k->rotary_dim = 0, k->input = NULL));
    ACCEPTED_BACKWARD(gradient(), q->input = q->src);
    ACCEPTED_BACKWARD(gradient(), memset(q->input_stride, 0, sizeof q->input_stride));
    ACCEPTED_BACKWARD(phase_gradient(), (void)q);
}

int main(void)
{
    sources();
    destinations();
    angles();
    positions();
    gradients();
    return check_result();
}
