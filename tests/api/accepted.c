/* Calls that look unusual but are valid must be accepted. Other tests check their results. */
#include "api/row_call.h"
#include "support/check.h"

static void check_forward(const char *what)
{
    CHECK_MESSAGE(trope_forward(a) == TROPE_OK, "%s: %s", what, trope_last_error());
}

static void check_backward(const char *what)
{
    uint64_t bytes;
    CHECK_MESSAGE(trope_workspace_size(a, &bytes) == TROPE_OK, "%s: %s", what, trope_last_error());
    CHECK_MESSAGE(trope_backward(a) == TROPE_OK, "%s: %s", what, trope_last_error());
}

#define ACCEPTED_BACKWARD(valid, change)                                                                                   \
    do {                                                                                                                   \
        begin(valid);                                                                                                      \
        change;                                                                                                            \
        check_backward(#valid ", " #change);                                                                               \
    } while (0)
#define ACCEPTED_FORWARD(valid, change)                                                                                    \
    do {                                                                                                                   \
        begin(valid);                                                                                                      \
        change;                                                                                                            \
        check_forward(#valid ", " #change);                                                                                \
    } while (0)
#define ACCEPTED(valid, change)                                                                                            \
    do {                                                                                                                   \
        ACCEPTED_FORWARD(valid, change);                                                                                   \
        ACCEPTED_BACKWARD(valid, change);                                                                                  \
    } while (0)

static void structs(void)
{
    ACCEPTED(dense(), a->device = TROPE_DEVICE_CPU);
    ACCEPTED(dense(), a->threads = INT32_MAX);
    ACCEPTED(dense(), (a->operands[0].src == in.q ? a->operand_count = 1 : 0));
    ACCEPTED(dense(), (q[2].src = NULL, q[3].head_dim = -3)); /* beyond operand_count */
    ACCEPTED(dense(), a->tokens = 0);
    ACCEPTED(dense(), q->groups = 1);
    ACCEPTED(dense(), (q->groups = 2, q->heads_per_group = 1));
    ACCEPTED(dense(), a->operands = memcpy(out.workspace, q, 2 * sizeof *q)); /* operands may be anywhere in memory */
}

static void layouts(void)
{
    ACCEPTED(dense(), (void)q);
    ACCEPTED(dense(), (q->src_layout = TROPE_SBHD, k->dst_layout = TROPE_BHSD));
    ACCEPTED(dense(), (a->batch = 1, q->src_layout = q->dst_layout = TROPE_THD));
    ACCEPTED(strided(), (void)q);
    ACCEPTED(strided(), q->src_stride[TROPE_DIM_HEAD] = 0);
    ACCEPTED(strided(), memset(k->src_stride, 0, sizeof k->src_stride)); /* expanded, like the gradient of a sum */
    ACCEPTED(strided(), (q->src = plus(in.q, 15 * 4), q->src_stride[TROPE_DIM_ELEMENT] = -1));
    ACCEPTED(strided(), q->src_stride[TROPE_DIM_GROUP] = INT64_MAX); /* ignored: there is only one group */
    ACCEPTED(strided(), k->src_stride[TROPE_DIM_HEAD] = INT64_MIN);  /* ignored: there is only one head */
    ACCEPTED(strided(), k->dst_stride[TROPE_DIM_HEAD] = 0);
}

static void sources(void)
{
    ACCEPTED(dense(), (k->src = in.q, q->src = in.q));
    ACCEPTED(dense(), (q->src = q->dst));
    ACCEPTED(strided(), (q->src = q->dst, q->src_stride[TROPE_DIM_GROUP] = 12345));
    ACCEPTED(strided(), (q->src = q->dst, q->src_layout = TROPE_BSHD, memset(q->src_stride, 0, sizeof q->src_stride)));
    ACCEPTED(dense(), (q->src = q->dst, a->pairing_out = TROPE_PAIRING_INTERLEAVED));
    ACCEPTED(dense(), q->src = in.freqs); /* src and freqs may be the same memory */
    ACCEPTED(dense(), (k->rotary_dim = TROPE_COPY));
    ACCEPTED(dense(), (k->rotary_dim = TROPE_COPY, k->src = k->dst));
}

static void destinations(void)
{
    ACCEPTED(strided(), (q->dst = plus(out.q, 64 * 15), q->dst_stride[TROPE_DIM_TOKEN] = -2 * Q_DIM,
                         q->dst_stride[TROPE_DIM_BATCH] = TOKENS * 2 * Q_DIM));
    ACCEPTED(strided(),
             (q->dst_stride[TROPE_DIM_HEAD] = 1, q->dst_stride[TROPE_DIM_ELEMENT] = Q_HEADS)); /* heads interleaved */
    ACCEPTED(strided(),
             (k->dst = plus(out.workspace, Q_DIM * 4), q->dst = out.workspace, q->dst_stride[TROPE_DIM_HEAD] = 2 * Q_DIM,
              q->dst_stride[TROPE_DIM_TOKEN] = 4 * Q_DIM, q->dst_stride[TROPE_DIM_BATCH] = 4 * Q_DIM * TOKENS,
              k->dst_stride[TROPE_DIM_TOKEN] = 4 * Q_DIM, k->dst_stride[TROPE_DIM_BATCH] = 4 * Q_DIM * TOKENS));
    ACCEPTED(dense(), q->dst = plus(out.q, 4)); /* aligned only to an element */
}

static void shared_heads(void)
{
    ACCEPTED(dense(), q->shared_heads = TROPE_SHARED_ALL);
    ACCEPTED(dense(), (q->shared_heads = TROPE_SHARED_GROUP, q->groups = 2));
    ACCEPTED(dense(), k->shared_heads = TROPE_SHARED_ALL); /* k has only one head */
    ACCEPTED(dense(), (k->shared_heads = TROPE_SHARED_ALL, k->rotary_dim = TROPE_COPY));
    ACCEPTED_FORWARD(strided(), (q->shared_heads = TROPE_SHARED_ALL, q->src_stride[TROPE_DIM_HEAD] = 0,
                                 q->src_stride[TROPE_DIM_GROUP] = 0));
    ACCEPTED_BACKWARD(strided(), (q->shared_heads = TROPE_SHARED_ALL, q->dst_stride[TROPE_DIM_HEAD] = 0,
                                  q->dst_stride[TROPE_DIM_GROUP] = 0));
    ACCEPTED_BACKWARD(dense(), q->accumulate = 1);
    ACCEPTED_BACKWARD(dense(), (q->accumulate = 1, q->shared_heads = TROPE_SHARED_ALL));
    ACCEPTED_BACKWARD(gradient(), (q->accumulate = 1, q->shared_heads = TROPE_SHARED_ALL));
    ACCEPTED_BACKWARD(packed(), (k->accumulate = 1, k->rotary_dim = TROPE_COPY));
}

static void angles(void)
{
    ACCEPTED(dense(), a->angle_columns = TROPE_COLUMNS_HALF);
    ACCEPTED(dense(), a->angle_columns = TROPE_COLUMNS_INTERLEAVED);
    ACCEPTED(dense(), a->angle_layout = TROPE_TABLE_BATCH_ROWS);
    ACCEPTED(dense(), (a->dtype = TROPE_F64, a->angle_dtype = TROPE_F64));
    ACCEPTED(dense(), a->dtype = TROPE_F64);
    for (int32_t dtype = TROPE_F32; dtype <= TROPE_F64; dtype++)
        for (int32_t angle_dtype = TROPE_F32; angle_dtype <= TROPE_BF16; angle_dtype++) {
            ACCEPTED(dense(), (a->dtype = dtype, a->angle_dtype = angle_dtype));
            ACCEPTED(table(), (a->dtype = dtype, a->angle_dtype = angle_dtype));
        }
    ACCEPTED(table(), (a->dtype = TROPE_F64, a->angle_dtype = TROPE_F64));
    ACCEPTED(table(), a->sin = a->cos);
    ACCEPTED(dense(), k->rotary_dim = 4);
    ACCEPTED(dense(), (a->angle_rows = 1, a->out_of_range = TROPE_RANGE_CLAMP));
    ACCEPTED(phase(), in.inv_freq[0] = -2.5);
    ACCEPTED(phase(), (a->pair_axis = in.pair_axis));
    ACCEPTED(steps(), in.phase_step[0] = UINT64_MAX);
    ACCEPTED(dense(), a->mscale = -0.5);
    ACCEPTED(dense(), a->parts = 2);
    ACCEPTED(dense(), (a->parts = 2, a->angle_layout = TROPE_TABLE_AXES_BATCH_ROWS));
    ACCEPTED(dense(), (a->parts = 4));
}

static void strided_tables(void)
{
    ACCEPTED(strided_table(), (void)q);
    ACCEPTED(strided_table(), a->angle_stride[2] = PAIRS + 3);
    ACCEPTED(strided_table(), (a->angle_stride[2] = 0)); /* one row for all positions */
    ACCEPTED(strided_table(), (a->angle_stride[2] = 1, a->angle_stride[3] = TOKENS));
    ACCEPTED(strided_table(), (a->angle_stride[1] = TOKENS * PAIRS));
    ACCEPTED(strided_table(), (a->freqs = NULL, a->cos = in.cos, a->sin = plus(in.cos, 4), a->angle_stride[2] = 2 * PAIRS,
                               a->angle_stride[3] = 2)); /* complex64 */
    ACCEPTED(strided_table(), (a->pair_axis = in.pair_axis, in.pair_axis[3] = 3, a->angle_stride[0] = TOKENS * PAIRS));
    ACCEPTED(dense(), (a->pair_axis = in.pair_axis, in.pair_axis[3] = 3, a->angle_layout = TROPE_TABLE_AXES_BATCH_ROWS));
}

static void positions(void)
{
    int32_t word = 0;
    ACCEPTED(axes(), (void)q);
    ACCEPTED(strided_ids(), (void)q);
    ACCEPTED(ids(), a->position_axes = 1);
    ACCEPTED(dense(), a->position_axes = 1);
    ACCEPTED(ids(), a->ids_layout = TROPE_IDS_TOKENS);
    ACCEPTED(ids(), (a->ids_layout = TROPE_IDS_AXES_BATCH_TOKENS, a->position_axes = 1));
    ACCEPTED(ids(), (a->pair_axis = in.pair_axis, in.pair_axis[1] = 3)); /* all axes use the same ids */
    ACCEPTED(ids(), (a->parts = 2, a->position_axes = 2, a->ids_layout = TROPE_IDS_AXES_BATCH_TOKENS));
    ACCEPTED(ids(), (a->parts = 4, a->position_axes = 4, a->ids_layout = TROPE_IDS_AXES_BATCH_TOKENS));
    ACCEPTED(strided_ids(), a->ids_stride[2] = 0);
    ACCEPTED(strided_ids(), a->ids_stride[1] = 0);
    ACCEPTED(strided_ids(), (a->position_ids = in.ids + TOKENS - 1, a->ids_stride[2] = -1));
    ACCEPTED(ids(), (in.ids[3] = 8, a->out_of_range = TROPE_RANGE_CLAMP));
    ACCEPTED(ids(), (in.ids[3] = 8, a->status = &word));
    CHECK(word == TROPE_STATUS_POSITION);
    ACCEPTED(starts(), (void)q);
    ACCEPTED(starts(), a->status = &in.starts[BATCH]); /* the status word directly follows the start positions */
}

static void sequences(void)
{
    ACCEPTED(packed(), (void)q);
    ACCEPTED(packed(), a->stream_positions = 1);
    ACCEPTED(packed(), a->padding = TROPE_PADDING_COPY); /* although no token is padding */
    ACCEPTED(padded(), in.cu_seqlens[3] = in.cu_seqlens[4] = 5);
    for (int32_t policy = TROPE_PADDING_ZERO; policy <= TROPE_PADDING_ROTATE; policy++) {
        ACCEPTED(packed(), (a->padding = policy, in.cu_seqlens[4] = 6)); /* the last two tokens are in no sequence */
        ACCEPTED(packed(), (a->padding = policy, in.cu_seqlens[0] = 2)); /* the first two tokens are in no sequence */
    }
    ACCEPTED(dense(), a->cp_size = 1);
    ACCEPTED(dense(), (a->cp_size = 1 << 30, a->cp_rank = a->cp_size - 1, a->cp_layout = TROPE_CP_ZIGZAG,
                       a->out_of_range = TROPE_RANGE_CLAMP));
    for (int32_t layout = TROPE_CP_CONTIGUOUS; layout <= TROPE_CP_FLAT; layout++) { /* one rank holds whole sequences */
        ACCEPTED(dense(), (a->cp_size = 1, a->cp_layout = layout));
        ACCEPTED(dense(), (a->cp_size = 1, a->cp_layout = layout, a->tokens = 7));
        ACCEPTED(packed(), (a->cp_size = 1, a->cp_layout = layout, in.cu_seqlens[1] = in.cu_seqlens[2] = 3));
    }
    ACCEPTED(zigzag(), (void)q);
}

static void gradients(void)
{
    ACCEPTED_BACKWARD(gradient(), (q->dst = NULL, q->dst_layout = 0));
    ACCEPTED_BACKWARD(gradient(), (q->dst = k->dst = NULL, q->dst_layout = k->dst_layout = 0));
    ACCEPTED_BACKWARD(gradient(), (k->rotary_dim = TROPE_COPY, k->forward_src = NULL, k->forward_src_layout = 0));
    ACCEPTED_BACKWARD(gradient(), q->forward_src = q->src);
    ACCEPTED_BACKWARD(strided_gradient(), memset(q->forward_src_stride, 0, sizeof q->forward_src_stride));
    ACCEPTED_BACKWARD(gradient(), (a->d_freqs_layout = TROPE_TABLE_BATCH_ROWS));
    ACCEPTED_BACKWARD(gradient(),
                      (a->d_freqs_layout = TROPE_TABLE_STRIDED, a->d_freqs_stride[3] = 1)); /* summed over all rows */
    ACCEPTED_BACKWARD(gradient(), (a->angle_layout = TROPE_TABLE_BATCH_ROWS));
    ACCEPTED_BACKWARD(gradient(), (a->dtype = TROPE_BF16, a->angle_dtype = TROPE_BF16));
    ACCEPTED_BACKWARD(phase_gradient(), (void)q);
    ACCEPTED_BACKWARD(phase_gradient(), (a->inv_freq = NULL, a->phase_step = in.phase_step));
}

/* Calls the functions that read only the structs. The arrays with the largest counts therefore need no memory. */
static void check_shapes(const char *what)
{
    char name[64];
    uint64_t bytes;
    CHECK_MESSAGE(trope_kernel_name(a, 0, name, sizeof name) == TROPE_OK, "%s: %s", what, trope_last_error());
    CHECK_MESSAGE(trope_kernel_name(a, 1, name, sizeof name) == TROPE_OK, "%s: %s", what, trope_last_error());
    CHECK_MESSAGE(trope_workspace_size(a, &bytes) == TROPE_OK, "%s: %s", what, trope_last_error());
}

#define ACCEPTED_SHAPES(valid, change)                                                                                     \
    do {                                                                                                                   \
        begin(valid);                                                                                                      \
        change;                                                                                                            \
        check_shapes(#valid ", " #change);                                                                                 \
    } while (0)

static void largest_counts(void)
{
    const int64_t entries = (int64_t)1 << 57;
    static double expected[Q_COUNT];
    for (int32_t dtype = TROPE_I32; dtype <= TROPE_I64; dtype++) {
        ACCEPTED_SHAPES(packed(), (a->cu_seqlens = far_away(), a->cu_seqlens_dtype = dtype, a->sequences = entries - 1));
        ACCEPTED_SHAPES(packed(), (a->cu_seqlens = far_away(), a->cu_seqlens_dtype = dtype, a->sequences = entries - 2));
    }
    ACCEPTED_SHAPES(dense(), (a->freqs = far_away(), a->angle_rows = entries / PAIRS));
    ACCEPTED_SHAPES(dense(), (a->freqs = far_away(), a->angle_layout = TROPE_TABLE_BATCH_ROWS,
                              a->angle_rows = entries / PAIRS / BATCH));
    ACCEPTED_SHAPES(dense(), (a->freqs = far_away(), a->parts = 2, a->angle_layout = TROPE_TABLE_AXES_BATCH_ROWS,
                              a->angle_rows = entries / PAIRS / BATCH / 4));
    /* With a row stride of 0, all positions use the same row. So angle_rows and the positions do not change the result. */
    for (int power = 3; power <= 60; power++) {
        begin(strided_table());
        for (int i = 0; i < TABLE; i++)
            ((float *)in.freqs)[i] = (float)i + 0.5f;
        for (int i = 0; i < Q_COUNT; i++)
            ((float *)in.q)[i] = (float)i - 17;
        a->angle_stride[2] = 0;
        a->angle_rows = (int64_t)1 << power;
        check_forward("one row for all positions");
        if (power == 3)
            memcpy(expected, out.q, sizeof expected);
        CHECK_MESSAGE(!memcmp(expected, out.q, sizeof expected),
                      "with a row stride of 0, 2^%d rows give another result than 8 rows", power);
    }
    int64_t ids[TOKENS];
    for (int i = 0; i < TOKENS; i++)
        ids[i] = (((int64_t)1 << 60) - 1) >> i;
    a->position_ids = ids;
    a->position_dtype = TROPE_I64;
    a->ids_layout = TROPE_IDS_TOKENS;
    check_forward("positions below 2^60");
    CHECK_MESSAGE(!memcmp(expected, out.q, sizeof expected), "%s",
                  "positions below 2^60 give another result than small positions");
    ACCEPTED_BACKWARD(with_d_freqs(strided_table()), (a->angle_stride[2] = 0, a->angle_rows = (int64_t)1 << 60,
                                                      a->d_freqs_layout = TROPE_TABLE_STRIDED, a->d_freqs_stride[3] = 1));
}

/* trope_positions reads only batch, tokens, positions and sequences. The other fields may have any value. */
static void positions_ignore_other_fields(void)
{
    int64_t position[BATCH * TOKENS];
    trope_args args = {.struct_size = sizeof args, .batch = BATCH, .tokens = TOKENS};
    CHECK_MESSAGE(trope_positions(&args, position, NULL) == TROPE_OK, "%s", trope_last_error());
    args.device = args.dtype = args.operand_count = args.pairing = args.parts = args.angle_layout = 99;
    args.mscale = -1e300;
    CHECK_MESSAGE(trope_positions(&args, position, NULL) == TROPE_OK, "%s", trope_last_error());
}

static void norms(void)
{
    ACCEPTED_FORWARD(normed(), norm_of_q.eps = 1e-40); /* a subnormal in fp32 */
    for (double eps = 1e-300; eps <= 1e300; eps *= 1e300)
        ACCEPTED_FORWARD(normed(), (a->dtype = TROPE_F64, norm_of_q.eps = eps));
}

int main(void)
{
    structs();
    layouts();
    sources();
    destinations();
    shared_heads();
    angles();
    strided_tables();
    positions();
    sequences();
    gradients();
    norms();
    largest_counts();
    positions_ignore_other_fields();
    return check_result();
}
