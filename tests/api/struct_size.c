/* A larger struct, from a newer caller, is accepted if the bytes that this library does not know are 0, and refused if one
 * of them is not 0. Smaller structs and structs of 0.1 are refused. The only exception is the args of 0.2, which are
 * smaller and accepted. Args and operands are copied into allocations of exactly their size, so that a sanitizer sees any
 * read beyond them. */
#include <stddef.h>

#include "api/valid_call.h"
#include "support/check.h"

/* The result with the structs of this version. The other results are compared with it. */
static double expected[Q_COUNT + 16];

static void fill_inputs(void)
{
    float *x = (float *)in.q, *angle = (float *)in.freqs;
    for (int i = 0; i < Q_COUNT; i++)
        x[i] = (float)(i % 37) - 18;
    for (int i = 0; i < TOKENS * PAIRS; i++)
        angle[i] = (float)i;
}

static call *filled(void)
{
    call *c = dense();
    fill_inputs();
    call_args(c);
    return c;
}

/* Copies an object of `known` bytes to an allocation of `size` bytes. The rest of the allocation is 0. */
__attribute__((noinline)) static unsigned char *copy_of(const void *from, size_t known, size_t size)
{
    unsigned char *copy = calloc(1, size);
    memcpy(copy, from, known < size ? known : size);
    return copy;
}

static trope_status forward_with_size(const trope_args *args, size_t size, size_t nonzero_byte)
{
    unsigned char *copy = copy_of(args, sizeof *args, size);
    const uint64_t struct_size = size;
    memcpy(copy, &struct_size, sizeof struct_size);
    if (nonzero_byte)
        copy[nonzero_byte] = 1;
    const trope_status status = trope_forward((const trope_args *)(const void *)copy);
    free(copy);
    return status;
}

static void check_accepted(trope_status status, const char *what, size_t size)
{
    CHECK_MESSAGE(status == TROPE_OK, "%s %zu: %s", what, size, trope_last_error());
    CHECK_MESSAGE(memcmp(out.q, expected, sizeof out.q) == 0, "%s %zu: the result differs", what, size);
}

static void check_refused(trope_status status, const char *argument, size_t size)
{
    CHECK_MESSAGE(status == TROPE_ERROR_ARGUMENT, "%s %zu: the status is %s", argument, size, trope_status_name(status));
    CHECK_MESSAGE(strcmp(trope_last_error_argument(), argument) == 0, "%s %zu: %s", argument, size, trope_last_error());
    CHECK_MESSAGE(outputs_are_untouched(), "%s %zu: something was written", argument, size);
}

/* Every size below the size of this version, except the size of 0.2. Some of these sizes cut a pointer in two. */
static void smaller_args_are_refused(void)
{
    for (size_t size = sizeof(uint64_t); size < sizeof(trope_args); size++)
        if (size != offsetof(trope_args, norms))
            check_refused(forward_with_size(&filled()->args, size, 0), "struct_size", size);
}

/* The args of 0.2 end before norms. The library does not read the memory behind them. */
static void args_of_0_2_are_accepted(void)
{
    const size_t size = offsetof(trope_args, norms);
    _Alignas(8) unsigned char copy[sizeof(trope_args)];
    const uint64_t struct_size = size;
    check_accepted(forward_with_size(&filled()->args, size, 0), "struct_size", size);
    memcpy(copy, &filled()->args, size);
    memcpy(copy, &struct_size, sizeof struct_size);
    memset(copy + size, 0xee, sizeof copy - size);
    check_accepted(trope_forward((const trope_args *)(const void *)copy),
                   "with nonzero bytes behind the struct, struct_size", size);
}

static void larger_args(void)
{
    const size_t sizes[] = {sizeof(trope_args) + 1, sizeof(trope_args) + 8, sizeof(trope_args) + 4096};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        check_accepted(forward_with_size(&filled()->args, sizes[i], 0), "struct_size", sizes[i]);
        check_refused(forward_with_size(&filled()->args, sizes[i], sizes[i] - 1), "struct_size", sizes[i]);
        check_refused(forward_with_size(&filled()->args, sizes[i], sizeof(trope_args)), "struct_size", sizes[i]);
    }
}

static trope_status forward_with_operand_size(call *c, size_t size, size_t nonzero_byte)
{
    unsigned char *copy = calloc(2, size);
    for (int i = 0; i < 2; i++)
        memcpy(copy + i * size, &c->operands[i], size < sizeof c->operands[i] ? size : sizeof c->operands[i]);
    if (nonzero_byte)
        copy[size + nonzero_byte] = 1;
    c->args.operands = (const trope_operand *)(const void *)copy;
    c->args.operand_size = size;
    const trope_status status = trope_forward(&c->args);
    free(copy);
    return status;
}

static void operands_of_other_sizes(void)
{
    const size_t sizes[] = {sizeof(trope_operand) + 8, sizeof(trope_operand) + 64, sizeof(trope_operand) + 4096};
    for (size_t size = 1; size < sizeof(trope_operand); size++)
        check_refused(forward_with_operand_size(filled(), size, 0), "operand_size", size);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        check_accepted(forward_with_operand_size(filled(), sizes[i], 0), "operand_size", sizes[i]);
        check_refused(forward_with_operand_size(filled(), sizes[i], sizes[i] - 1), "operand_size", sizes[i]);
        check_refused(forward_with_operand_size(filled(), sizes[i], sizeof(trope_operand)), "operand_size", sizes[i]);
    }
}

/* The structs of version 0.1. The args contained the operands, and enums began at 0. */
typedef struct old_operand {
    const void *src;
    void *dst;
    const void *input;
    int32_t groups, heads_per_group, head_dim, rotary_dim, rotary_offset, reserved;
    int64_t src_stride[5], dst_stride[5], input_stride[5];
} old_operand;

typedef struct old_args {
    uint64_t struct_size;
    void *stream;
    int32_t device, threads, isa, dtype, rounding, operand_count;
    int64_t batch, tokens;
    old_operand operands[4];
    int32_t pairing, pairing_out, windows, axis_map, axis_sections[3], inverse;
    double mscale;
    const void *freqs, *cos, *sin;
    const double *inv_freq;
    int32_t angle_dtype, angle_cols;
    int64_t angle_rows, angle_row_stride, angle_batch_stride;
    int32_t out_of_range, position_dtype;
    const void *start_positions, *position_ids;
    int64_t position_axis_stride, position_batch_stride, position_token_stride;
    int32_t position_axes, packed_positions;
    const void *cu_seqlens, *cu_seqlens_padded;
    int64_t sequences;
    int32_t cu_seqlens_dtype, padding, cp_size, cp_rank, cp_layout, reserved;
    int32_t *status;
    void *d_freqs;
    double *d_inv_freq;
    void *workspace;
    uint64_t workspace_size;
} old_args;

static old_args old_call(void)
{
    filled();
    old_args old = {
        .struct_size = sizeof old, .device = TROPE_DEVICE_CPU, .operand_count = 1, .batch = BATCH, .tokens = TOKENS};
    old_operand *o = &old.operands[0];
    o->src = in.q;
    o->dst = out.q;
    o->heads_per_group = Q_HEADS;
    o->head_dim = Q_DIM;
    o->rotary_dim = ROTARY;
    trope_fill_strides(o->src_stride, TROPE_BSHD, BATCH, TOKENS, Q_HEADS, Q_DIM);
    memcpy(o->dst_stride, o->src_stride, sizeof o->dst_stride);
    return old;
}

static void check_old(const old_args *old, const char *what)
{
    unsigned char *copy = copy_of(old, sizeof *old, sizeof *old);
    const trope_args *args = (const trope_args *)(const void *)copy;
    CHECK_MESSAGE(trope_forward(args) == TROPE_ERROR_ARGUMENT, "%s: %s", what, trope_last_error());
    CHECK_MESSAGE(strcmp(trope_last_error_argument(), "struct_size") == 0, "%s: %s", what, trope_last_error());
    CHECK_MESSAGE(trope_backward(args) == TROPE_ERROR_ARGUMENT, "%s: %s", what, trope_last_error());
    CHECK_MESSAGE(trope_positions(args, (int64_t *)out.d_freqs, NULL) == TROPE_ERROR_ARGUMENT, "%s: %s", what,
                  trope_last_error());
    CHECK_MESSAGE(outputs_are_untouched(), "%s: something was written", what);
    free(copy);
}

static void callers_of_0_1_are_refused(void)
{
    old_args old = old_call();
    old.inv_freq = in.inv_freq;
    check_old(&old, "inv_freq");
    old = old_call();
    old.freqs = in.freqs;
    old.angle_cols = PAIRS;
    old.angle_rows = TOKENS;
    check_old(&old, "freqs");
    old.cu_seqlens = in.cu_seqlens;
    old.sequences = SEQUENCES;
    old.batch = 1;
    check_old(&old, "packed sequences");
}

static void frequency_args(void)
{
    struct {
        trope_frequency_args known;
        uint64_t newer;
    } args = {.known = {.rule = TROPE_RULE_DEFAULT, .rotary_dim = 8, .base = 10000}};
    double inv_freq[4] = {7, 7, 7, 7}, attention_factor;
    for (size_t size = 0; size < sizeof args.known; size++) {
        args.known.struct_size = size;
        CHECK(trope_frequencies(&args.known, inv_freq, &attention_factor) == TROPE_ERROR_ARGUMENT);
        CHECK(strcmp(trope_last_error_argument(), "struct_size") == 0 && inv_freq[0] == 7);
    }
    args.known.struct_size = sizeof args;
    CHECK(trope_frequencies(&args.known, inv_freq, &attention_factor) == TROPE_OK && inv_freq[0] == 1);
    args.newer = 1;
    CHECK(trope_frequencies(&args.known, inv_freq, &attention_factor) == TROPE_ERROR_ARGUMENT);
    CHECK_MESSAGE(strstr(trope_last_error(), "trope_frequencies: struct_size"), "%s", trope_last_error());
}

static void qkv(void)
{
    struct {
        trope_qkv known;
        uint64_t newer;
    } args = {.known = {.buffer = out.workspace, .batch = 1, .tokens = 4, .layout = TROPE_SBHD, .order = TROPE_QKV_PARTS}};
    trope_operand o;
    args.known.dtype = TROPE_F32;
    args.known.q_heads = args.known.kv_heads = 2;
    args.known.head_dim = args.known.rotary_dim = 8;
    args.known.struct_size = sizeof args;
    CHECK_MESSAGE(trope_fill_qkv(&o, &args.known, TROPE_Q) == TROPE_OK, "%s", trope_last_error());
    args.newer = 1;
    CHECK(trope_fill_qkv(&o, &args.known, TROPE_Q) == TROPE_ERROR_ARGUMENT);
    CHECK(strcmp(trope_last_error_argument(), "struct_size") == 0);
}

int main(void)
{
    CHECK_MESSAGE(trope_forward(&filled()->args) == TROPE_OK, "%s", trope_last_error());
    memcpy(expected, out.q, sizeof expected);
    smaller_args_are_refused();
    args_of_0_2_are_accepted();
    larger_args();
    operands_of_other_sizes();
    callers_of_0_1_are_refused();
    frequency_args();
    qkv();
    return check_result();
}
