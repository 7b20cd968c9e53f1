/* What the CPU does and CUDA does not: each is refused, by every function that is asked, with words that name the field,
 * and nothing is written; the same call without it is taken. Nothing is run: the addresses are the host's. */
#include "api/valid_call.h"
#include "cuda/device_call.h"
#include "support/check.h"

typedef struct row {
    const char *what;
    call *(*base)(void); /* what CUDA takes */
    void (*change)(call *c);
    const char *argument; /* what the refusal names */
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
    {"the sum of the heads of a group", dense, share_of_group, "operands[0].shared_heads", 1},
    {"the sum of all heads", dense, share_of_all, "operands[1].shared_heads", 1},
    {"a sum with dst", dense, accumulate, "operands[1].accumulate", 1},
    {"five operands", dense, add_three, "operand_count", 0},
    {"a rounding for each operation", dense, round_each, "rounding", 0},
    {"four parts", dense, cut_four, "parts", 0},
    {"four axes", axes, use_four, "position_axes", 0},
    {"freqs of f16", dense, narrow_f16, "angle_dtype", 0},
    {"tables of bf16", table, narrow_bf16, "angle_dtype", 1},
    {"freqs and operands of bf16", dense, narrow_all, "angle_dtype", 0},
    {"a plane for each axis", axes, have_planes, "angle_layout", 0},
    {"planes in strides", axes, stride_planes, "angle_layout", 1},
    {"columns that are apart", table, stride_columns, "angle_layout", 0},
    {"columns of another order", dense, interleave_columns, "angle_columns", 0},
    {"columns in the order of the input", dense, interleave_output, "angle_columns", 0},
    {"a gradient for each batch entry", gradient, sum_batch_apart, "d_freqs_layout", 1},
    {"a gradient summed over rows", gradient, sum_rows, "d_freqs_layout", 1},
    {"sequences without a padding policy", packed_zero, have_no_padding, "padding", 0},
};

/* As far as the call is looked at. */
static trope_status ask_for_name(const trope_args *args, int backward)
{
    char name[64];
    return trope_kernel_name(args, backward, name, sizeof name);
}

static trope_status ask_for_size(const trope_args *args, int backward)
{
    uint64_t bytes;
    return backward ? trope_workspace_size(args, &bytes) : ask_for_name(args, backward);
}

static trope_status run(const trope_args *args, int backward)
{
    return backward ? trope_backward(args) : trope_forward(args);
}

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
    trope_status (*const entries[])(const trope_args *, int) = {ask_for_name, ask_for_size, run};
    call *base = r->base();
    base->args.device = TROPE_DEVICE_CUDA;
    CHECK_MESSAGE(ask_for_name(call_args(base), r->backward) == TROPE_OK, "%s: without it: %s", r->what,
                  trope_last_error());
    CHECK_MESSAGE(run(make_call(r, TROPE_DEVICE_CPU), r->backward) == TROPE_OK, "%s: on the CPU: %s", r->what,
                  trope_last_error());
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        const trope_status status = entries[i](make_call(r, TROPE_DEVICE_CUDA), r->backward);
        CHECK_MESSAGE(status == TROPE_ERROR_UNSUPPORTED, "%s: %s", r->what, trope_status_name(status));
        CHECK_MESSAGE(!strcmp(trope_last_error_argument(), r->argument), "%s: names '%s': %s", r->what,
                      trope_last_error_argument(), trope_last_error());
        CHECK_MESSAGE(strstr(trope_last_error(), "CUDA"), "%s: does not say on what: %s", r->what, trope_last_error());
        CHECK_MESSAGE(outputs_are_untouched(), "%s: something was written", r->what);
    }
}

int main(void)
{
    device_require();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        check_row(&rows[i]);
    return check_result();
}
