/* Refused values of angle sources, tables and the gradient of the angles. */
#include <math.h>

#include "api/refused.h"

static void sources(void)
{
    ROW(without_angles(), (void)a, IS_NULL, "freqs", "inv_freq");
    ROW(dense(), a->freqs = NULL, IS_NULL, "freqs", "inv_freq");
    ROW(phase(), a->freqs = in.freqs, ARGUMENT, "inv_freq", "one of");
    ROW(table(), a->freqs = in.freqs, ARGUMENT, "cos", "one of");
    ROW(table(), a->inv_freq = in.inv_freq, ARGUMENT, "inv_freq", "one of");
    ROW(phase(), a->phase_step = in.phase_step, ARGUMENT, "phase_step", "one of");
    ROW(dense(), a->phase_step = in.phase_step, ARGUMENT, "phase_step", "one of");
    ROW(table(), a->sin = NULL, IS_NULL, "sin", "sin is NULL and cos is not");
    ROW(table(), a->cos = NULL, IS_NULL, "cos", "cos is NULL and sin is not");
    ROW(dense(), a->freqs = plus(in.freqs, 2), ARGUMENT, "freqs", "aligned to 4 bytes");
    ROW(table(), a->sin = plus(in.sin, 1), ARGUMENT, "sin", "aligned to 4 bytes");
    ROW(table(), (a->angle_dtype = TROPE_BF16, a->cos = plus(in.cos, 1)), ARGUMENT, "cos", "aligned to 2 bytes");
    ROW(phase(), a->inv_freq = (double *)(void *)plus(in.inv_freq, 4), ARGUMENT, "inv_freq", "aligned to 8 bytes");
    ROW(steps(), a->phase_step = (uint64_t *)(void *)plus(in.phase_step, 4), ARGUMENT, "phase_step", "aligned to 8 bytes");
    ROW(phase(), in.inv_freq[3] = NAN, ARGUMENT, "inv_freq[3]", "(nan)");
    ROW(phase(), in.inv_freq[0] = INFINITY, ARGUMENT, "inv_freq[0]", "(inf)");
    ROW(phase(), in.inv_freq[1] = 0x1p64, ARGUMENT, "inv_freq[1]", "2^64");
}

static void dtypes(void)
{
    VALUES(dense(), a->angle_dtype, 0, 5, -1);
    ROW(table(), (a->angle_dtype = 0, a->dtype = TROPE_F16), ARGUMENT, "angle_dtype", "(0)");
    ROW(table(), (a->angle_dtype = 0, a->dtype = TROPE_F64), ARGUMENT, "angle_dtype", "(0)");
    ROW(dense(), a->angle_dtype = TROPE_F64, ARGUMENT, "angle_dtype", "(TROPE_F64)");
    ROW(table(), a->angle_dtype = TROPE_F64, ARGUMENT, "angle_dtype", "(TROPE_F64)");
    ROW(table(), (a->dtype = TROPE_BF16, a->angle_dtype = TROPE_F64), ARGUMENT, "angle_dtype", "(TROPE_F64)");
}

/* freqs has one row for all positions, and d_freqs has a row for each position. */
static call *strided_table_gradient(void)
{
    call *c = with_d_freqs(strided_table());
    c->args.angle_stride[2] = 0;
    c->args.d_freqs = far_away();
    return c;
}

static void rows_and_columns(void)
{
    VALUES(dense(), a->angle_columns, 0, 4);
    ROW(table(), a->angle_columns = -1, ARGUMENT, "angle_columns", "(-1)");
    VALUES(dense(), a->angle_rows, 0, -1);
    ROW(strided_table(), (a->angle_rows = 0, a->angle_stride[2] = 0), ARGUMENT, "angle_rows", "(0)");
    ROW(dense(), a->angle_rows = TOKENS - 1, ARGUMENT, "angle_rows",
        "(7) must be more than the highest position of this call (7)");
    ROW(strided_table(), (a->angle_rows = TOKENS - 1, a->angle_stride[2] = 0), ARGUMENT, "angle_rows", "(7)");
    /* With a row stride of 0, one row serves all positions, and angle_rows may be up to 2^60. Contiguous rows need memory,
     * so their limit is lower. */
    ROW(strided_table(), (a->angle_rows = ((int64_t)1 << 60) + 1, a->angle_stride[2] = 0), TOO_LARGE, "angle_rows",
        "(1152921504606846977) must be at most 2^60");
    ROW(dense(), (a->freqs = far_away(), a->angle_rows = ((int64_t)1 << 57) / PAIRS + 1), TOO_LARGE, "angle_rows",
        "1 batch entries and 4 columns of the table must be at most 2^57");
    ROW(dense(),
        (a->freqs = far_away(), a->angle_layout = TROPE_TABLE_BATCH_ROWS,
         a->angle_rows = ((int64_t)1 << 57) / PAIRS / BATCH + 1),
        TOO_LARGE, "angle_rows", "2 batch entries");
    ROW(dense(),
        (a->freqs = far_away(), a->parts = 2, a->angle_layout = TROPE_TABLE_AXES_BATCH_ROWS,
         a->angle_rows = ((int64_t)1 << 57) / PAIRS / BATCH / 4 + 1),
        TOO_LARGE, "angle_rows", "4 axes");
    BACKWARD_ROW(strided_table_gradient(), a->angle_rows = ((int64_t)1 << 57) / PAIRS + 1, TOO_LARGE, "angle_rows",
                 "of d_freqs must be at most 2^57");
    ROW(zigzag(), a->angle_rows = 11, ARGUMENT, "angle_rows", "(11)");
    ROW(zigzag(), (a->cp_rank = 0, a->angle_rows = 15), ARGUMENT, "angle_rows", "(15)");
    ROW(zigzag(), (a->cp_layout = TROPE_CP_STRIPED, a->angle_rows = 15), ARGUMENT, "angle_rows", "(15)");
    ROW(zigzag(), (a->cp_layout = TROPE_CP_CONTIGUOUS, a->angle_rows = 15), ARGUMENT, "angle_rows", "(15)");
    ROW(zigzag(), (a->cp_layout = TROPE_CP_FLAT, a->angle_rows = 15), ARGUMENT, "angle_rows", "(15)");
    VALUES(dense(), a->out_of_range, 2, -1);
}

static void layouts(void)
{
    VALUES(dense(), a->angle_layout, 0, 5);
    ROW(table(), a->angle_layout = -1, ARGUMENT, "angle_layout", "(-1)");
    ROW(strided_table(), a->angle_layout = 0, ARGUMENT, "angle_layout", "has no default");
    ROW(strided_table(), a->angle_layout = TROPE_TABLE_ROWS, ARGUMENT, "angle_stride[2]", "TROPE_TABLE_STRIDED");
    for (int d = 0; d < 4; d++) {
        ROW(dense(), a->angle_stride[d] = 1, ARGUMENT, at("angle_stride", d), "(1)");
        ROW(strided_table(), a->angle_stride[d] = -1, ARGUMENT, at("angle_stride", d), "(-1)");
    }
    /* The table has a plane for each axis, but neither pair_axis nor parts assigns the pairs to axes. */
    ROW(dense(), a->angle_layout = TROPE_TABLE_AXES_BATCH_ROWS, ARGUMENT, "angle_layout", "pair_axis");
    ROW(strided_table(), a->angle_stride[0] = TOKENS * PAIRS, ARGUMENT, "angle_stride[0]",
        "(32) must be 0 unless pair_axis");
    ROW(strided_table(), (a->angle_rows = (int64_t)1 << 40, a->angle_stride[2] = (int64_t)1 << 40), TOO_LARGE,
        "angle_stride[2]", "(1099511627776) times the size of its dimension (1099511627776) must be at most 2^57");
    ROW(strided_table(), a->angle_stride[1] = INT64_MAX, TOO_LARGE, "angle_stride[1]", "");
    ROW(strided_table(), a->angle_stride[3] = INT64_MAX, TOO_LARGE, "angle_stride[3]", "");
    ROW(strided_table(), (a->pair_axis = in.pair_axis, in.pair_axis[1] = 3, a->angle_stride[0] = INT64_MAX / 2), TOO_LARGE,
        "angle_stride[0]", "");
    ROW(dense(), (a->angle_layout = TROPE_TABLE_BATCH_ROWS, a->angle_rows = INT64_MAX / 4), TOO_LARGE, "angle_rows", "");
}

/* inv_freq and phase_step have no table. */
static void without_a_table(void)
{
    call *(*const valid[])(void) = {phase, steps};
    for (int i = 0; i < 2; i++) {
        ROW(valid[i](), a->angle_dtype = TROPE_F32, ARGUMENT, "angle_dtype", "(1) must be 0");
        ROW(valid[i](), a->angle_columns = TROPE_COLUMNS_PAIR, ARGUMENT, "angle_columns", "(1) must be 0");
        ROW(valid[i](), a->angle_layout = TROPE_TABLE_ROWS, ARGUMENT, "angle_layout", "(1) must be 0");
        ROW(valid[i](), a->out_of_range = TROPE_RANGE_CLAMP, ARGUMENT, "out_of_range", "(1) must be 0");
        ROW(valid[i](), a->angle_rows = TOKENS, ARGUMENT, "angle_rows", "(8) must be 0");
        ROW(valid[i](), a->angle_stride[2] = PAIRS, ARGUMENT, "angle_stride[2]", "(4) must be 0");
    }
}

static void forward_src(void)
{
    BACKWARD_ROW(gradient(), (q->forward_src = NULL, q->forward_src_layout = 0), IS_NULL, "operands[0].forward_src",
                 "NULL");
    BACKWARD_ROW(phase_gradient(), (k->forward_src = NULL, k->forward_src_layout = 0), IS_NULL, "operands[1].forward_src",
                 "NULL");
    BACKWARD_ROW(gradient(), q->forward_src = NULL, IS_NULL, "operands[0].forward_src", "d_freqs needs it");
    BACKWARD_ROW(gradient(), (k->rotary_dim = TROPE_COPY, k->forward_src = NULL), ARGUMENT,
                 "operands[1].forward_src_layout", "forward_src is NULL");
    BACKWARD_ROW(gradient(), k->rotary_dim = TROPE_COPY, ARGUMENT, "operands[1].forward_src", "must be NULL");
    BACKWARD_ROW(gradient(), k->forward_src = plus(in.k, 2), ARGUMENT, "operands[1].forward_src", "aligned to 4 bytes");
    BACKWARD_VALUES(gradient(), q->forward_src_layout, 0, 6);
    BACKWARD_ROW(strided_gradient(), q->forward_src_layout = 0, ARGUMENT, "operands[0].forward_src_layout", "STRIDED");
    BACKWARD_ROW(gradient(), k->forward_src_stride[3] = 8, ARGUMENT, "operands[1].forward_src_stride[3]", "(8)");
    /* Without a gradient of the angles, forward_src must not be set. */
    ROW(dense(), (q->forward_src = in.q_forward, q->forward_src_layout = TROPE_BSHD), ARGUMENT, "operands[0].forward_src",
        "");
    ROW(dense(), q->forward_src_layout = TROPE_BSHD, ARGUMENT, "operands[0].forward_src_layout", "");
    ROW(dense(), k->forward_src_stride[0] = 1, ARGUMENT, "operands[1].forward_src_stride[0]", "");
    FORWARD_ROW(gradient(), q->forward_src = NULL, ARGUMENT, "operands[0].forward_src_layout", "");
}

static void gradient_of_angles(void)
{
    BACKWARD_ROW(phase_gradient(), (a->d_freqs = out.d_freqs, a->d_freqs_layout = TROPE_TABLE_ROWS), ARGUMENT, "d_freqs",
                 "freqs");
    BACKWARD_ROW(gradient(), a->d_inv_freq = out.d_inv_freq, ARGUMENT, "d_inv_freq", "inv_freq");
    BACKWARD_ROW(gradient(), a->d_freqs = plus(out.d_freqs, 2), ARGUMENT, "d_freqs", "aligned to 4 bytes");
    BACKWARD_ROW(gradient(), (a->dtype = TROPE_F64, a->angle_dtype = TROPE_F64, a->d_freqs = plus(out.d_freqs, 4)),
                 ARGUMENT, "d_freqs", "aligned to 8 bytes");
    BACKWARD_ROW(phase_gradient(), a->d_inv_freq = (double *)(void *)plus(out.d_inv_freq, 4), ARGUMENT, "d_inv_freq",
                 "aligned to 8 bytes");
    BACKWARD_VALUES(gradient(), a->d_freqs_layout, 0, 5, -1);
    ROW(dense(), a->d_freqs_layout = TROPE_TABLE_ROWS, ARGUMENT, "d_freqs_layout", "(1) must be 0");
    BACKWARD_ROW(phase_gradient(), a->d_freqs_layout = TROPE_TABLE_ROWS, ARGUMENT, "d_freqs_layout", "(1) must be 0");
    ROW(dense(), a->d_freqs_stride[2] = 4, ARGUMENT, "d_freqs_stride[2]", "(4) must be 0");
    BACKWARD_ROW(gradient(), a->d_freqs_stride[2] = PAIRS, ARGUMENT, "d_freqs_stride[2]", "(4)");
    BACKWARD_ROW(gradient(), a->d_freqs_layout = TROPE_TABLE_AXES_BATCH_ROWS, ARGUMENT, "d_freqs_layout", "pair_axis");
    /* Gradients of the angles are refused in forward, also without forward_src. */
    FORWARD_ROW(gradient(), (q->forward_src = k->forward_src = NULL, q->forward_src_layout = k->forward_src_layout = 0),
                ARGUMENT, "d_freqs", "in forward");
    FORWARD_ROW(phase_gradient(),
                (q->forward_src = k->forward_src = NULL, q->forward_src_layout = k->forward_src_layout = 0), ARGUMENT,
                "d_inv_freq", "in forward");
}

static void set_d_freqs_stride(int64_t axis, int64_t batch, int64_t row, int64_t column)
{
    const int64_t stride[] = {axis, batch, row, column};
    a->d_freqs_layout = TROPE_TABLE_STRIDED;
    memcpy(a->d_freqs_stride, stride, sizeof stride);
}

/* A stride of 0 sums over its dimension (columns cannot be summed). Other strides must keep the elements apart. */
static void d_freqs_overlaps_itself(void)
{
    BACKWARD_ROW(gradient(), set_d_freqs_stride(0, 0, PAIRS - 1, 1), OVERLAP, "d_freqs_stride", "overlaps itself");
    BACKWARD_ROW(gradient(), set_d_freqs_stride(0, PAIRS, PAIRS, 1), OVERLAP, "d_freqs_stride", "overlaps itself");
    BACKWARD_ROW(gradient(), set_d_freqs_stride(0, 0, 1, 1), OVERLAP, "d_freqs_stride", "overlaps itself");
    BACKWARD_ROW(gradient(), set_d_freqs_stride(0, 0, PAIRS, 0), ARGUMENT, "d_freqs_stride[3]", "(0)");
    BACKWARD_ROW(gradient(), set_d_freqs_stride(TOKENS * PAIRS, 0, PAIRS, 1), ARGUMENT, "d_freqs_stride[0]", "pair_axis");
    BACKWARD_ROW(gradient(), set_d_freqs_stride(0, -PAIRS, PAIRS, 1), ARGUMENT, "d_freqs_stride[1]", "(-4)");
    BACKWARD_ROW(gradient(), set_d_freqs_stride(0, 0, PAIRS, -1), ARGUMENT, "d_freqs_stride[3]", "(-1)");
    BACKWARD_ROW(gradient(), set_d_freqs_stride(0, INT64_MAX / 2, PAIRS, 1), TOO_LARGE, "d_freqs_stride[1]", "");
}

static void workspace(void)
{
    ROW_FOR(BACKWARD, gradient(), a->workspace = NULL, IS_NULL, "workspace", "trope_workspace_size");
    ROW_FOR(BACKWARD, phase_gradient(), a->workspace = NULL, IS_NULL, "workspace", "trope_workspace_size");
    ROW_FOR(BACKWARD, gradient(), a->workspace_size = 1, ARGUMENT, "workspace_size", "(1)");
    ROW_FOR(BACKWARD, gradient(), a->workspace_size = 0, ARGUMENT, "workspace_size", "(0)");
    BACKWARD_ROW(gradient(), a->workspace = out.workspace + 8, ARGUMENT, "workspace", "aligned to 16 bytes");
    BACKWARD_ROW(gradient(), a->workspace_size = UINT64_MAX, TOO_LARGE, "workspace_size",
                 "(18446744073709551615) must be at most 2^60");
    BACKWARD_ROW(gradient(), a->workspace_size = ((uint64_t)1 << 60) + 1, TOO_LARGE, "workspace_size",
                 "(1152921504606846977)");
    /* The workspace begins before d_freqs, and is so large that it reaches it. */
    BACKWARD_ROW(gradient(), (a->d_freqs = out.workspace + 4096, a->workspace_size = 8192), OVERLAP, "workspace_size",
                 "(8192): workspace overlaps d_freqs: memory that the call writes");
}

/* Memory that the gradient writes overlaps other memory of the call. */
static void overlap(void)
{
    BACKWARD_ROW(gradient(), q->forward_src = out.q, OVERLAP, "operands[0].dst", "overlaps operands[0].forward_src");
    BACKWARD_ROW(gradient(), k->forward_src = plus(out.q, 4), OVERLAP, "operands[0].dst",
                 "overlaps operands[1].forward_src");
    BACKWARD_ROW(gradient(), a->d_freqs = out.q, OVERLAP, "operands[0].dst", "overlaps d_freqs");
    BACKWARD_ROW(gradient(), a->d_freqs = in.k, OVERLAP, "d_freqs", "overlaps operands[1].src");
    BACKWARD_ROW(gradient(), a->d_freqs = in.k_forward, OVERLAP, "d_freqs", "overlaps operands[1].forward_src");
    BACKWARD_ROW(gradient(), a->d_freqs = in.freqs, OVERLAP, "d_freqs", "overlaps freqs");
    BACKWARD_ROW(gradient(), a->d_freqs = a->status = (int32_t *)out.d_freqs, OVERLAP, "status", "overlaps d_freqs");
    BACKWARD_ROW(phase_gradient(), a->d_inv_freq = out.k, OVERLAP, "operands[1].dst", "overlaps d_inv_freq");
    BACKWARD_ROW(phase_gradient(), a->d_inv_freq = in.inv_freq, OVERLAP, "d_inv_freq", "overlaps inv_freq");
    BACKWARD_ROW(phase_gradient(), a->d_inv_freq = (double *)(void *)q, OVERLAP, "d_inv_freq", "overlaps operands");
    BACKWARD_ROW(gradient(), a->workspace = plus(out.q, -(intptr_t)out.q & 15), OVERLAP, "operands[0].dst",
                 "overlaps workspace");
    BACKWARD_ROW(gradient(), a->workspace = a->d_freqs = out.workspace, OVERLAP, "d_freqs", "overlaps workspace");
    BACKWARD_ROW(phase_gradient(), (a->workspace = plus(in.inv_freq, -(intptr_t)in.inv_freq & 15), a->workspace_size = 16),
                 OVERLAP, "workspace", "overlaps inv_freq");
    BACKWARD_ROW(phase_gradient(), (a->workspace = plus(a, -(intptr_t)a & 15), a->workspace_size = 64), OVERLAP,
                 "workspace", "overlaps args");
}

int main(void)
{
    sources();
    dtypes();
    rows_and_columns();
    layouts();
    without_a_table();
    forward_src();
    gradient_of_angles();
    d_freqs_overlaps_itself();
    workspace();
    overlap();
    return refused_result();
}
