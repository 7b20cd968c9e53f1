/* What 0.1 refused on CUDA is accepted there as on the CPU, by every function that can be asked without running it. (That
 * it is right as well is parity.c's matter. Nothing is run on a device: the addresses are the host's.) */
#include "api/valid_call.h"
#include "cuda/device_call.h"
#include "support/check.h"

typedef struct row {
    const char *what;
    call *(*base)(void);
    void (*change)(call *c);
    int backward;
} row;

/* ---- operands ---- */

static void share_of_group(call *c)
{
    c->operands[0].shared_heads = TROPE_SHARED_GROUP;
}

static void share_of_all(call *c)
{
    c->operands[1].shared_heads = TROPE_SHARED_ALL;
}

static void accumulate(call *c)
{
    c->operands[1].accumulate = 1;
}

static void add_three(call *c)
{
    for (int i = 0; i < 3; i++)
        call_add(c, plus(out.d_freqs, i * K_COUNT * 4), TROPE_BSHD, 1, K_DIM, i ? TROPE_COPY : ROTARY);
}

static void round_each(call *c)
{
    c->args.rounding = TROPE_ROUND_NATIVE_F32;
}

/* ---- parts and axes ---- */

static void cut_four(call *c)
{
    c->args.parts = 4;
}

static void use_four(call *c)
{
    c->args.position_axes = 4;
    in.pair_axis[3] = 3;
}

/* ---- tables ---- */

static void narrow_f16(call *c)
{
    c->args.angle_dtype = TROPE_F16;
}

static void narrow_bf16(call *c)
{
    c->args.angle_dtype = TROPE_BF16;
}

/* The operands' dtype is no matter of freqs. */
static void narrow_all(call *c)
{
    c->args.dtype = c->args.angle_dtype = TROPE_BF16;
}

static void have_planes(call *c)
{
    c->args.angle_layout = TROPE_TABLE_AXES_BATCH_ROWS;
}

static void stride_planes(call *c)
{
    c->args.angle_layout = TROPE_TABLE_STRIDED;
    memcpy(c->args.angle_stride, (const int64_t[]){TOKENS * PAIRS, 0, PAIRS, 1}, sizeof c->args.angle_stride);
}

static void stride_columns(call *c)
{
    c->args.angle_layout = TROPE_TABLE_STRIDED;
    memcpy(c->args.angle_stride, (const int64_t[]){0, 0, 2 * PAIRS, 2}, sizeof c->args.angle_stride);
}

static void interleave_columns(call *c)
{
    c->args.angle_columns = TROPE_COLUMNS_INTERLEAVED;
}

static void interleave_output(call *c)
{
    c->args.angle_columns = TROPE_COLUMNS_HALF;
    c->args.pairing_out = TROPE_PAIRING_INTERLEAVED;
}

static void sum_batch_apart(call *c)
{
    c->args.d_freqs_layout = TROPE_TABLE_BATCH_ROWS;
}

static void sum_rows(call *c)
{
    c->args.d_freqs_layout = TROPE_TABLE_STRIDED;
    c->args.d_freqs_stride[3] = 1;
}

/* ---- sequences ---- */

static call *packed_zero(void)
{
    call *c = packed();
    c->args.padding = TROPE_PADDING_ZERO;
    return c;
}

static void have_no_padding(call *c)
{
    c->args.padding = 0;
}

/* ---- all of them ---- */

static const row rows[] = {
    {"the sum of the heads of a group", dense, share_of_group, 1},
    {"the sum of all heads", dense, share_of_all, 1},
    {"a sum with dst", dense, accumulate, 1},
    {"five operands", dense, add_three, 0},
    {"a rounding for each operation", dense, round_each, 0},
    {"four parts", dense, cut_four, 0},
    {"four axes", axes, use_four, 0},
    {"freqs of f16", dense, narrow_f16, 0},
    {"tables of bf16", table, narrow_bf16, 1},
    {"freqs and operands of bf16", dense, narrow_all, 0},
    {"a plane for each axis", axes, have_planes, 0},
    {"planes in strides", axes, stride_planes, 1},
    {"columns that are apart", table, stride_columns, 0},
    {"columns of another order", dense, interleave_columns, 0},
    {"columns in the order of the input", dense, interleave_output, 0},
    {"a gradient for each batch entry", gradient, sum_batch_apart, 1},
    {"a gradient summed over rows", gradient, sum_rows, 1},
    {"sequences without a padding policy", packed_zero, have_no_padding, 0},
};

/* The row's call, on a device. */
static const trope_args *make_call(const row *r, int32_t device)
{
    call *c = r->base();
    r->change(c);
    c->args.device = device;
    return call_args(c);
}

static void check_row(const row *r)
{
    char name[64];
    uint64_t bytes;
    CHECK_MESSAGE((r->backward ? trope_backward : trope_forward)(make_call(r, TROPE_DEVICE_CPU)) == TROPE_OK,
                  "%s: on the CPU: %s", r->what, trope_last_error());
    CHECK_MESSAGE(trope_kernel_name(make_call(r, TROPE_DEVICE_CUDA), r->backward, name, sizeof name) == TROPE_OK, "%s: %s",
                  r->what, trope_last_error());
    CHECK_MESSAGE(!strncmp(name, "cuda-", 5), "%s: goes by %s", r->what, name);
    CHECK_MESSAGE(!r->backward || trope_workspace_size(make_call(r, TROPE_DEVICE_CUDA), &bytes) == TROPE_OK, "%s: %s",
                  r->what, trope_last_error());
}

int main(void)
{
    device_require();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        check_row(&rows[i]);
    return check_result();
}
