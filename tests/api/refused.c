/* Every wrong call is refused with its status and a message that names function, argument and value, and writes nothing.
 *
 * Each row is { the valid call it starts from, what is made wrong, status, words of the message } and goes through every
 * function that takes such args. */
#include <math.h>
#include <stdio.h>

#include "api/valid_call.h"
#include "support/check.h"

/* The functions that must refuse a row. */
enum {
    FORWARD = 1,
    BACKWARD = 2,
    NAME = 4, /* trope_kernel_name, for the directions among these */
    SIZE = 8  /* trope_workspace_size */
};
enum {
    IS_NULL = TROPE_ERROR_NULL,
    ARGUMENT = TROPE_ERROR_ARGUMENT,
    OVERLAP = TROPE_ERROR_OVERLAP,
    TOO_LARGE = TROPE_ERROR_OVERFLOW,
    UNSUPPORTED = TROPE_ERROR_UNSUPPORTED
};

static int row_count;
/* The call of the row, and its first two operands. */
static trope_args *a;
static trope_operand *q, *k;

static void begin(trope_args *args)
{
    a = args;
    q = &args->operands[0];
    k = &args->operands[1];
}

static void check_one(const char *what, const char *function, trope_status got, trope_status want, const char *words)
{
    const char *message = trope_last_error();
    const size_t length = strlen(function);
    if (!CHECK_MESSAGE(got == want, "%s: %s returned %s, not %s", what, function, trope_status_name(got),
                       trope_status_name(want)))
        return;
    CHECK_MESSAGE(strncmp(message, function, length) == 0 && strncmp(message + length, ": ", 2) == 0,
                  "%s: the message of %s does not begin with it: %s", what, function, message);
    CHECK_MESSAGE(strstr(message, words), "%s: the message of %s lacks \"%s\": %s", what, function, words, message);
    CHECK_MESSAGE(outputs_are_untouched(), "%s: %s wrote something", what, function);
}

static void check_refused(const char *what, int functions, trope_status status, const char *words)
{
    char name[64];
    uint64_t bytes;
    row_count++;
    if (functions & FORWARD)
        check_one(what, "trope_forward", trope_forward(a), status, words);
    if (functions & BACKWARD)
        check_one(what, "trope_backward", trope_backward(a), status, words);
    for (int backward = 0; backward < 2 && functions & NAME; backward++)
        if (functions & (backward ? BACKWARD : FORWARD))
            check_one(what, "trope_kernel_name", trope_kernel_name(a, backward, name, sizeof name), status, words);
    if (functions & SIZE)
        check_one(what, "trope_workspace_size", trope_workspace_size(a, &bytes), status, words);
}

#define ROW_FOR(functions, valid, change, status, words)                                                                   \
    do {                                                                                                                   \
        begin(valid);                                                                                                      \
        change;                                                                                                            \
        check_refused(#valid ", " #change, functions, status, words);                                                      \
    } while (0)
/* What is wrong with a call; with a backward call only; with data behind a pointer, which only the calls read. */
#define ROW(valid, change, status, words)          ROW_FOR(FORWARD | BACKWARD | NAME | SIZE, valid, change, status, words)
#define BACKWARD_ROW(valid, change, status, words) ROW_FOR(BACKWARD | NAME | SIZE, valid, change, status, words)
#define DATA_ROW(valid, change, words)             ROW_FOR(FORWARD | BACKWARD, valid, change, TROPE_ERROR_DATA, words)

static char *plus(const void *pointer, int64_t bytes)
{
    return (char *)(uintptr_t)pointer + bytes;
}

static void set_ids(int32_t value)
{
    in.ids[5] = value;
}

static void use_huge_start(int64_t start)
{
    static int64_t starts[BATCH];
    starts[0] = start;
    a->start_positions = starts;
    a->position_dtype = TROPE_I64;
}

static void set_boundaries(int32_t *array, int32_t first, int32_t second, int32_t third, int32_t fourth, int32_t fifth)
{
    const int32_t values[SEQUENCES + 1] = {first, second, third, fourth, fifth};
    memcpy(array, values, sizeof values);
}

static void structs_and_enums(void)
{
    ROW(dense(), a = NULL, IS_NULL, "args is NULL");
    ROW(dense(), a->struct_size = 0, ARGUMENT, "struct_size (0)");
    ROW(dense(), a->struct_size = 7, ARGUMENT, "struct_size (7)");
    ROW(dense(), a->struct_size = UINT64_MAX, ARGUMENT, "struct_size (18446744073709551615)");
    ROW(dense(), a->reserved = 1, ARGUMENT, "reserved (1) must be 0");
    ROW(dense(), k->reserved = -1, ARGUMENT, "operands[1].reserved (-1) must be 0");
    ROW(dense(), a->device = 3, ARGUMENT, "device (3)");
    ROW(dense(), a->device = -1, ARGUMENT, "device (-1)");
    ROW(dense(), a->threads = -1, ARGUMENT, "threads (-1)");
    ROW(dense(), a->isa = 4, ARGUMENT, "isa (4)");
    ROW(dense(), a->isa = -1, ARGUMENT, "isa (-1)");
    ROW(dense(), a->dtype = 4, ARGUMENT, "dtype (4)");
    ROW(dense(), a->dtype = -1, ARGUMENT, "dtype (-1)");
    ROW(dense(), a->rounding = 2, ARGUMENT, "rounding (2)");
    ROW(dense(), a->stream = &in, ARGUMENT, "stream");
}

static void shapes(void)
{
    ROW(dense(), a->operand_count = 0, ARGUMENT, "operand_count (0) must be 1 to 4");
    ROW(dense(), a->operand_count = 5, ARGUMENT, "operand_count (5)");
    ROW(dense(), a->operand_count = -1, ARGUMENT, "operand_count (-1)");
    ROW(dense(), a->batch = -1, ARGUMENT, "batch (-1)");
    ROW(dense(), a->tokens = -1, ARGUMENT, "tokens (-1)");
    ROW(dense(), q->groups = -1, ARGUMENT, "operands[0].groups (-1)");
    ROW(dense(), k->heads_per_group = 0, ARGUMENT, "operands[1].heads_per_group (0)");
    ROW(dense(), q->heads_per_group = -2, ARGUMENT, "operands[0].heads_per_group (-2)");
    ROW(dense(), q->head_dim = 0, ARGUMENT, "operands[0].head_dim (0)");
    ROW(dense(), k->head_dim = -8, ARGUMENT, "operands[1].head_dim (-8)");
    ROW(dense(), q->rotary_dim = 7, ARGUMENT, "operands[0].rotary_dim (7) must be even");
    ROW(dense(), q->rotary_dim = -2, ARGUMENT, "operands[0].rotary_dim (-2)");
    ROW(dense(), q->rotary_dim = 14, ARGUMENT,
        "operands[0].rotary_dim (14) must be even and at most head_dim - rotary_offset (12)");
    ROW(dense(), k->rotary_dim = 10, ARGUMENT, "operands[1].rotary_dim (10)");
    ROW(dense(), q->rotary_offset = -1, ARGUMENT, "operands[0].rotary_offset (-1)");
    ROW(dense(), q->rotary_offset = 17, ARGUMENT, "operands[0].rotary_offset (17)");
    ROW(dense(), k->rotary_offset = 2, ARGUMENT, "operands[1].rotary_dim (8)");
    ROW(dense(), (q->head_dim = 2048, q->rotary_dim = TROPE_MAX_ROTARY_DIM + 2), ARGUMENT,
        "rotary_dim (1026) must be at most 1024");
}

static void operand_pointers(void)
{
    ROW(dense(), q->src = NULL, IS_NULL, "operands[0].src is NULL");
    ROW(dense(), k->src = NULL, IS_NULL, "operands[1].src is NULL");
    ROW(dense(), q->dst = NULL, IS_NULL, "operands[0].dst is NULL");
    ROW(dense(), k->dst = NULL, IS_NULL, "operands[1].dst is NULL");
    ROW(dense(), (k->rotary_dim = 0, k->src = NULL), IS_NULL, "operands[1].src is NULL");
    ROW(dense(), q->src = plus(in.q, 2), ARGUMENT, "operands[0].src");
    ROW(dense(), k->dst = plus(out.k, 1), ARGUMENT, "operands[1].dst");
    ROW(dense(), (a->dtype = TROPE_BF16, k->src = plus(in.k, 1)), ARGUMENT, "operands[1].src");
    ROW(dense(), (a->dtype = TROPE_F64, q->dst = plus(out.q, 4)), ARGUMENT, "operands[0].dst");
}

static void overlap(void)
{
    ROW(dense(), q->dst_stride[TROPE_DIM_HEAD] = 0, OVERLAP, "operands[0].dst_stride");
    ROW(dense(), q->dst_stride[TROPE_DIM_HEAD] = Q_DIM - 1, OVERLAP, "operands[0].dst_stride");
    ROW(dense(), k->dst_stride[TROPE_DIM_BATCH] = 0, OVERLAP, "operands[1].dst_stride");
    ROW(dense(), k->dst_stride[TROPE_DIM_TOKEN] = 4, OVERLAP, "operands[1].dst_stride");
    ROW(dense(), q->dst_stride[TROPE_DIM_ELEMENT] = 0, OVERLAP, "operands[0].dst_stride");
    ROW(dense(), q->dst_stride[TROPE_DIM_TOKEN] = -Q_DIM, OVERLAP, "operands[0].dst_stride");
    ROW(dense(), q->src = plus(q->dst, 4), OVERLAP, "operands[0].dst overlaps operands[0].src");
    ROW(dense(), q->src = plus(q->dst, -4), OVERLAP, "operands[0].dst overlaps operands[0].src");
    ROW(dense(), (q->src = q->dst, q->src_stride[TROPE_DIM_HEAD] = 0), OVERLAP, "operands[0].dst overlaps operands[0].src");
    ROW(dense(), (q->src = q->dst, q->src_stride[TROPE_DIM_TOKEN] = Q_DIM), OVERLAP,
        "operands[0].dst overlaps operands[0].src");
    ROW(dense(), k->dst = plus(out.q, 64), OVERLAP, "operands[0].dst overlaps operands[1].dst");
    ROW(dense(), k->src = out.q, OVERLAP, "operands[0].dst overlaps operands[1].src");
    ROW(dense(), q->src = out.k, OVERLAP, "operands[1].dst overlaps operands[0].src");
    ROW(dense(), a->freqs = out.q, OVERLAP, "freqs");
    ROW(table(), a->cos = plus(out.k, 8), OVERLAP, "cos");
    ROW(table(), a->sin = out.q, OVERLAP, "sin");
    ROW(ids(), a->position_ids = out.q, OVERLAP, "position_ids");
    ROW(dense(), a->start_positions = out.q, OVERLAP, "start_positions");
    ROW(packed(), a->cu_seqlens = out.q, OVERLAP, "cu_seqlens");
    ROW(packed(), a->cu_seqlens_padded = out.k, OVERLAP, "cu_seqlens_padded");
    ROW(dense(), a->status = (int32_t *)out.q, OVERLAP, "status");
    ROW(dense(), a->status = (int32_t *)(void *)plus(in.ids, 2), ARGUMENT, "status");
    BACKWARD_ROW(gradient(), q->input = out.q, OVERLAP, "operands[0].input");
    BACKWARD_ROW(gradient(), k->input = plus(out.q, 4), OVERLAP, "operands[1].input");
    BACKWARD_ROW(gradient(), a->d_freqs = out.q, OVERLAP, "d_freqs");
    BACKWARD_ROW(gradient(), a->d_freqs = in.k, OVERLAP, "d_freqs");
    BACKWARD_ROW(gradient(), a->d_freqs = in.k_input, OVERLAP, "d_freqs");
    BACKWARD_ROW(gradient(), a->d_freqs = in.freqs, OVERLAP, "d_freqs");
    BACKWARD_ROW(phase_gradient(), a->d_inv_freq = out.k, OVERLAP, "d_inv_freq");
    BACKWARD_ROW(gradient(), a->workspace = plus(out.q, -(intptr_t)out.q & 15), OVERLAP, "workspace");
    BACKWARD_ROW(gradient(), a->workspace = a->d_freqs = out.workspace, OVERLAP, "workspace");
}

static void overflow(void)
{
    ROW(dense(), (a->batch = (int64_t)1 << 40, a->tokens = (int64_t)1 << 40), TOO_LARGE, "batch (1099511627776)");
    ROW(dense(), (a->batch = a->tokens = (int64_t)1 << 31), TOO_LARGE, "batch (2147483648) * tokens (2147483648)");
    ROW(dense(), q->src_stride[TROPE_DIM_TOKEN] = INT64_MAX, TOO_LARGE, "operands[0].src_stride");
    ROW(dense(), k->src_stride[TROPE_DIM_BATCH] = INT64_MIN, TOO_LARGE, "operands[1].src_stride");
    ROW(dense(), q->dst_stride[TROPE_DIM_HEAD] = INT64_MAX / 2, TOO_LARGE, "operands[0].dst_stride");
    ROW(dense(), k->dst_stride[TROPE_DIM_ELEMENT] = INT64_MAX / 8, TOO_LARGE, "operands[1].dst_stride");
    ROW(dense(), (q->groups = q->heads_per_group = q->head_dim = INT32_MAX), TOO_LARGE, "operands[0]");
    ROW(dense(), (a->tokens = (int64_t)1 << 59, q->src_stride[TROPE_DIM_TOKEN] = 0), TOO_LARGE, "operands[0]");
    ROW(dense(), (a->angle_rows = (int64_t)1 << 40, a->angle_row_stride = (int64_t)1 << 40), TOO_LARGE, "angle_row");
    ROW(dense(), a->angle_batch_stride = INT64_MAX, TOO_LARGE, "angle_batch_stride");
    ROW(ids(), a->position_token_stride = INT64_MAX, TOO_LARGE, "position_token_stride");
    ROW(ids(), a->position_batch_stride = INT64_MIN, TOO_LARGE, "position_batch_stride");
    ROW(ids(), (a->position_axes = 3, a->position_axis_stride = INT64_MAX / 2), TOO_LARGE, "position_axis_stride");
    ROW(zigzag(), (a->tokens = (int64_t)1 << 40, a->cp_size = INT32_MAX), TOO_LARGE, "cp_size (2147483647)");
    BACKWARD_ROW(gradient(), k->input_stride[TROPE_DIM_TOKEN] = INT64_MAX, TOO_LARGE, "operands[1].input_stride");
}

static void rotation(void)
{
    ROW(dense(), a->pairing = 3, ARGUMENT, "pairing (3)");
    ROW(dense(), a->pairing = -1, ARGUMENT, "pairing (-1)");
    ROW(dense(), a->pairing_out = 3, ARGUMENT, "pairing_out (3)");
    ROW(dense(), a->windows = 4, ARGUMENT, "windows (4)");
    ROW(dense(), a->windows = -1, ARGUMENT, "windows (-1)");
    ROW(dense(), a->windows = 3, ARGUMENT, "operands[0].rotary_dim (8) must be divisible by 2 * windows (6)");
    ROW(dense(), (a->windows = 2, k->rotary_dim = 4), ARGUMENT, "operands[1].rotary_dim (4)");
    ROW(dense(), (a->windows = 2, a->axis_map = TROPE_AXES_SECTIONS, a->axis_sections[0] = PAIRS), ARGUMENT,
        "axis_map (1)");
    ROW(dense(), a->axis_map = 3, ARGUMENT, "axis_map (3)");
    ROW(dense(), a->axis_map = -1, ARGUMENT, "axis_map (-1)");
    ROW(ids(), (a->axis_map = TROPE_AXES_SECTIONS, a->axis_sections[0] = 3), ARGUMENT, "axis_sections (3, 0, 0)");
    ROW(ids(), (a->axis_map = TROPE_AXES_SECTIONS, a->axis_sections[1] = 5), ARGUMENT, "axis_sections (0, 5, 0)");
    ROW(ids(), (a->axis_map = TROPE_AXES_SECTIONS, a->axis_sections[0] = 5, a->axis_sections[1] = -1), ARGUMENT,
        "axis_sections (5, -1, 0)");
    ROW(ids(), (a->axis_map = TROPE_AXES_INTERLEAVED, a->axis_sections[2] = 4), ARGUMENT, "axis_sections[2] (4)");
    ROW(ids(), a->axis_sections[0] = PAIRS, ARGUMENT, "axis_sections (4, 0, 0)");
    ROW(dense(), a->inverse = 2, ARGUMENT, "inverse (2)");
    ROW(dense(), a->inverse = -1, ARGUMENT, "inverse (-1)");
    ROW(dense(), a->mscale = NAN, ARGUMENT, "mscale (nan)");
    ROW(dense(), a->mscale = -INFINITY, ARGUMENT, "mscale (-inf)");
    ROW(dense(), a->mscale = 1e39, ARGUMENT, "mscale (1e+39)");  /* infinite in fp32 */
    ROW(dense(), a->mscale = 1e-60, ARGUMENT, "mscale (1e-60)"); /* 0 in fp32 */
}

static void angles(void)
{
    ROW(dense(), a->freqs = NULL, IS_NULL, "freqs, cos with sin, and inv_freq are all NULL");
    ROW(dense(), a->inv_freq = in.inv_freq, ARGUMENT, "exactly one of freqs, cos with sin, and inv_freq");
    ROW(table(), a->freqs = in.freqs, ARGUMENT, "exactly one of");
    ROW(table(), a->inv_freq = in.inv_freq, ARGUMENT, "exactly one of");
    ROW(table(), a->sin = NULL, IS_NULL, "sin is NULL and cos is not");
    ROW(table(), a->cos = NULL, IS_NULL, "cos is NULL and sin is not");
    ROW(dense(), a->freqs = plus(in.freqs, 2), ARGUMENT, "must be aligned to 4 bytes");
    ROW(table(), a->sin = plus(in.sin, 1), ARGUMENT, "sin (");
    ROW(phase(), a->inv_freq = (double *)(void *)plus(in.inv_freq, 4), ARGUMENT, "inv_freq");
    ROW(dense(), a->angle_dtype = 4, ARGUMENT, "angle_dtype (4)");
    ROW(dense(), a->angle_dtype = TROPE_F64, ARGUMENT, "angle_dtype (3)");
    ROW(dense(), (a->dtype = TROPE_BF16, a->angle_dtype = TROPE_BF16), ARGUMENT, "angle_dtype (2)");
    ROW(table(), (a->dtype = TROPE_BF16, a->angle_dtype = TROPE_F16), ARGUMENT, "angle_dtype (1)");
    ROW(table(), a->angle_dtype = TROPE_F64, ARGUMENT, "angle_dtype (3)");
    ROW(dense(), a->angle_cols = 0, ARGUMENT, "angle_cols (0)");
    ROW(dense(), a->angle_cols = 5, ARGUMENT, "angle_cols (5)");
    ROW(dense(), a->angle_cols = -4, ARGUMENT, "angle_cols (-4)");
    ROW(dense(), a->angle_rows = 0, ARGUMENT, "angle_rows (0)");
    ROW(dense(), a->angle_rows = -1, ARGUMENT, "angle_rows (-1)");
    ROW(dense(), a->angle_rows = TOKENS - 1, ARGUMENT,
        "angle_rows (7) must be more than the highest position of this call (7)");
    ROW(zigzag(), a->angle_rows = 11, ARGUMENT, "angle_rows (11)");
    ROW(zigzag(), (a->cp_rank = 0, a->angle_rows = 15), ARGUMENT, "angle_rows (15)");
    ROW(zigzag(), (a->cp_layout = TROPE_CP_STRIPED, a->angle_rows = 15), ARGUMENT, "angle_rows (15)");
    ROW(zigzag(), (a->cp_layout = TROPE_CP_CONTIGUOUS, a->angle_rows = 15), ARGUMENT, "angle_rows (15)");
    ROW(zigzag(), (a->cp_layout = TROPE_CP_FLAT, a->angle_rows = 15), ARGUMENT, "angle_rows (15)");
    ROW(dense(), a->angle_row_stride = PAIRS - 1, ARGUMENT, "angle_row_stride (3)");
    ROW(dense(), a->angle_row_stride = -PAIRS, ARGUMENT, "angle_row_stride (-4)");
    ROW(dense(), a->angle_batch_stride = -32, ARGUMENT, "angle_batch_stride (-32)");
    ROW(phase(), a->angle_rows = TOKENS, ARGUMENT, "angle_rows (8)");
    ROW(phase(), a->angle_cols = PAIRS, ARGUMENT, "angle_cols (4)");
    ROW(phase(), a->angle_row_stride = PAIRS, ARGUMENT, "angle strides must be 0 with inv_freq");
    ROW(phase(), a->angle_batch_stride = PAIRS, ARGUMENT, "angle strides must be 0 with inv_freq");
    ROW(phase(), in.inv_freq[3] = NAN, ARGUMENT, "inv_freq[3] (nan)");
    ROW(phase(), in.inv_freq[0] = INFINITY, ARGUMENT, "inv_freq[0] (inf)");
    ROW(phase(), in.inv_freq[1] = 0x1p70, ARGUMENT, "inv_freq[1]");
    ROW(dense(), a->out_of_range = 2, ARGUMENT, "out_of_range (2)");
}

static void positions(void)
{
    ROW(ids(), a->position_dtype = 2, ARGUMENT, "position_dtype (2)");
    ROW(ids(), a->position_axes = 4, ARGUMENT, "position_axes (4)");
    ROW(ids(), a->position_axes = -1, ARGUMENT, "position_axes (-1)");
    ROW(dense(), a->position_axes = 2, ARGUMENT, "position_axes (2) must be 1 without position_ids");
    ROW(ids(), (a->windows = 3, a->position_axes = 2, a->angle_cols = 3, q->rotary_dim = k->rotary_dim = 6), ARGUMENT,
        "position_axes (2)");
    ROW(ids(), (a->axis_map = TROPE_AXES_SECTIONS, a->axis_sections[2] = PAIRS, a->position_axes = 2), ARGUMENT,
        "position_axes (2)");
    ROW(ids(), a->start_positions = in.starts, ARGUMENT, "only one of position_ids, start_positions and packed_positions");
    ROW(ids(), a->position_ids = plus(in.ids, 2), ARGUMENT, "position_ids");
    ROW(ids(), (a->position_dtype = TROPE_I64, a->position_ids = plus(in.ids, -(intptr_t)in.ids & 7) + 4), ARGUMENT,
        "position_ids");
    ROW(dense(), a->start_positions = plus(in.starts, 1), ARGUMENT, "start_positions");
    ROW(dense(), a->packed_positions = 1, ARGUMENT, "packed_positions (1) needs cu_seqlens");
    ROW(packed(), a->packed_positions = 2, ARGUMENT, "packed_positions (2)");
    ROW(packed(), (a->packed_positions = 1, a->position_ids = in.ids), ARGUMENT, "only one of");
    ROW(packed(), (a->packed_positions = 1, a->start_positions = in.starts), ARGUMENT, "only one of");
    DATA_ROW(ids(), set_ids(TOKENS), "position 8 of batch entry 0, token 5");
    DATA_ROW(ids(), set_ids(-1), "position -1");
    DATA_ROW(ids(), set_ids(INT32_MIN), "position -2147483648");
    DATA_ROW(dense(), (a->start_positions = in.starts, in.starts[1] = 1), "position 8 of batch entry 1, token 7");
    DATA_ROW(dense(), (a->start_positions = in.starts, in.starts[0] = -1), "position -1 of batch entry 0, token 0");
    DATA_ROW(packed(), (a->start_positions = in.starts, in.starts[2] = 7), "position 8 of batch entry 0, token 5");
    DATA_ROW(packed(), (a->packed_positions = 1, a->angle_rows = 7), "position 7 of");
    DATA_ROW(packed(), a->angle_rows = 3, "position 3 of");
    DATA_ROW(dense(), use_huge_start(INT64_MAX), "position");
    DATA_ROW(dense(), use_huge_start(INT64_MIN), "position");
}

static void packing(void)
{
    ROW(packed(), a->cu_seqlens_dtype = 2, ARGUMENT, "cu_seqlens_dtype (2)");
    ROW(packed(), a->padding = 3, ARGUMENT, "padding (3)");
    ROW(packed(), a->batch = 2, ARGUMENT, "batch (2) must be 1 with cu_seqlens");
    ROW(packed(), a->sequences = -1, ARGUMENT, "sequences (-1)");
    ROW(packed(), a->sequences = INT64_MAX, ARGUMENT, "sequences (9223372036854775807)");
    ROW(packed(), a->cu_seqlens = NULL, ARGUMENT, "sequences (4) must be 0 without cu_seqlens");
    ROW(packed(), (a->cu_seqlens = NULL, a->cu_seqlens_padded = in.cu_seqlens), IS_NULL,
        "cu_seqlens is NULL and cu_seqlens_padded is not");
    ROW(packed(), a->cu_seqlens = plus(in.cu_seqlens, 1), ARGUMENT, "cu_seqlens");
    ROW(packed(), a->cu_seqlens_padded = plus(in.cu_seqlens, 2), ARGUMENT, "cu_seqlens");
    DATA_ROW(packed(), set_boundaries(in.cu_seqlens, 0, 4, 3, 6, 8), "cu_seqlens[2] (3)");
    DATA_ROW(packed(), set_boundaries(in.cu_seqlens, -1, 4, 4, 6, 8), "cu_seqlens[0] (-1)");
    DATA_ROW(packed(), set_boundaries(in.cu_seqlens, 0, 4, 4, 6, 9), "cu_seqlens[4] (9)");
    DATA_ROW(packed(), set_boundaries(in.cu_seqlens, 0, 4, 4, 6, INT32_MAX), "cu_seqlens[4] (2147483647)");
    DATA_ROW(packed(), (a->sequences = 0, in.cu_seqlens[0] = 9), "cu_seqlens[0] (9)");
    DATA_ROW(packed(), (a->cu_seqlens_padded = in.cu_seqlens_padded, set_boundaries(in.cu_seqlens_padded, 0, 4, 3, 6, 8)),
             "cu_seqlens_padded[2] (3)");
    DATA_ROW(packed(), (a->cu_seqlens_padded = in.cu_seqlens_padded, set_boundaries(in.cu_seqlens_padded, 0, 3, 4, 6, 8)),
             "cu_seqlens");
    DATA_ROW(packed(), (a->cu_seqlens_padded = in.cu_seqlens_padded, set_boundaries(in.cu_seqlens_padded, 0, 4, 4, 6, 9)),
             "cu_seqlens_padded[4] (9)");
    DATA_ROW(packed(), (a->cu_seqlens_padded = in.cu_seqlens_padded, set_boundaries(in.cu_seqlens, 0, 4, 2, 4, 6)),
             "cu_seqlens[2] (2)");
}

static void context_parallel(void)
{
    ROW(zigzag(), a->cp_size = -1, ARGUMENT, "cp_size (-1)");
    ROW(zigzag(), a->cp_rank = -1, ARGUMENT, "cp_rank (-1)");
    ROW(zigzag(), a->cp_rank = 2, ARGUMENT, "cp_rank (2)");
    ROW(dense(), a->cp_rank = 1, ARGUMENT, "cp_rank (1)");
    ROW(zigzag(), a->cp_layout = TROPE_CP_NONE, ARGUMENT, "cp_layout (0)");
    ROW(zigzag(), a->cp_layout = 5, ARGUMENT, "cp_layout (5)");
    ROW(zigzag(), a->cp_layout = -1, ARGUMENT, "cp_layout (-1)");
    ROW(zigzag(), a->tokens = 7, ARGUMENT, "tokens (7) * cp_size (2) must be divisible by 4");
    DATA_ROW(packed(), (a->cp_size = 2, a->cp_layout = TROPE_CP_STRIPED, set_boundaries(in.cu_seqlens, 1, 9, 9, 13, 15)),
             "cu_seqlens[0] (1)");
    DATA_ROW(packed(), (a->cp_size = 2, a->cp_layout = TROPE_CP_ZIGZAG, set_boundaries(in.cu_seqlens, 0, 8, 8, 14, 16)),
             "sequence 2");
    DATA_ROW(packed(), (a->cp_size = 3, a->cp_layout = TROPE_CP_STRIPED, set_boundaries(in.cu_seqlens, 0, 8, 8, 14, 24)),
             "sequence 0");
    DATA_ROW(packed(), (a->cp_size = 2, a->cp_layout = TROPE_CP_CONTIGUOUS, set_boundaries(in.cu_seqlens, 0, 8, 8, 11, 16)),
             "sequence 2");
    DATA_ROW(packed(), (a->cp_size = 2, a->cp_layout = TROPE_CP_CONTIGUOUS, set_boundaries(in.cu_seqlens, 0, 8, 8, 12, 18)),
             "cu_seqlens[4] (18)");
    DATA_ROW(packed(), (a->cp_size = 2, a->cp_layout = TROPE_CP_FLAT, set_boundaries(in.cu_seqlens, 0, 8, 8, 12, 17)),
             "cu_seqlens[4] (17)");
}

static void angle_gradient(void)
{
    BACKWARD_ROW(gradient(), q->input = NULL, IS_NULL, "operands[0].input is NULL");
    BACKWARD_ROW(gradient(), k->input = NULL, IS_NULL, "operands[1].input is NULL");
    BACKWARD_ROW(gradient(), k->input = plus(in.k, 2), ARGUMENT, "operands[1].input");
    BACKWARD_ROW(phase_gradient(), a->d_freqs = out.d_freqs, ARGUMENT, "d_freqs needs freqs, or cos and sin");
    BACKWARD_ROW(gradient(), a->d_inv_freq = out.d_inv_freq, ARGUMENT, "d_inv_freq needs inv_freq");
    BACKWARD_ROW(gradient(), q->rotary_dim = k->rotary_dim = 0, ARGUMENT, "d_freqs needs freqs");
    BACKWARD_ROW(phase_gradient(), q->rotary_dim = k->rotary_dim = 0, ARGUMENT, "d_inv_freq needs inv_freq");
    BACKWARD_ROW(gradient(), a->d_freqs = plus(out.d_freqs, 2), ARGUMENT, "d_freqs");
    BACKWARD_ROW(phase_gradient(), a->d_inv_freq = (double *)(void *)plus(out.d_inv_freq, 4), ARGUMENT, "d_inv_freq");
    BACKWARD_ROW(gradient(), (a->angle_batch_stride = PAIRS), OVERLAP, "angle_batch_stride (4)");
    ROW_FOR(BACKWARD, gradient(), a->workspace = NULL, IS_NULL, "workspace is NULL");
    ROW_FOR(BACKWARD, phase_gradient(), a->workspace = NULL, IS_NULL, "workspace is NULL");
    ROW_FOR(BACKWARD, gradient(), a->workspace_size = 1, ARGUMENT, "workspace_size (1)");
    BACKWARD_ROW(gradient(), a->workspace = out.workspace + 8, ARGUMENT, "workspace");
}

/* What this build or this machine lacks. */
static void unsupported(void)
{
    if (!strstr(trope_info(), "cuda"))
        ROW(dense(), a->device = TROPE_DEVICE_CUDA, UNSUPPORTED, "device (2)");
#if !defined(__x86_64__)
    ROW(dense(), a->isa = TROPE_ISA_AVX2, UNSUPPORTED, "isa (2)");
    ROW(dense(), a->isa = TROPE_ISA_AVX512, UNSUPPORTED, "isa (3)");
#elif defined(__GNUC__)
    if (!__builtin_cpu_supports("avx2"))
        ROW(dense(), a->isa = TROPE_ISA_AVX2, UNSUPPORTED, "isa (2)");
    if (!__builtin_cpu_supports("avx512f"))
        ROW(dense(), a->isa = TROPE_ISA_AVX512, UNSUPPORTED, "isa (3)");
#endif
}

/* Rows for the functions with arguments of their own. */
#define CALL_ROW(function, arguments, status, words)                                                                       \
    do {                                                                                                                   \
        row_count++;                                                                                                       \
        check_one(#function #arguments, #function, function arguments, status, words);                                     \
    } while (0)

static void kernel_name_and_workspace_size(void)
{
    char name[4] = "abc";
    begin(gradient());
    CALL_ROW(trope_workspace_size, (a, NULL), IS_NULL, "bytes is NULL");
    CALL_ROW(trope_kernel_name, (a, 0, NULL, 8), IS_NULL, "name is NULL");
    CALL_ROW(trope_kernel_name, (a, 2, name, sizeof name), ARGUMENT, "backward (2)");
    CALL_ROW(trope_kernel_name, (a, 0, name, 0), IS_NULL, "size (0)");
    CHECK(memcmp(name, "abc", 4) == 0);
}

#define POSITIONS_ROW(valid, change, status, words)                                                                        \
    do {                                                                                                                   \
        begin(valid);                                                                                                      \
        change;                                                                                                            \
        row_count++;                                                                                                       \
        check_one("" #valid ", " #change, "trope_positions", trope_positions(a, (int64_t *)out.q, (int32_t *)out.k),       \
                  status, words);                                                                                          \
    } while (0)

static void positions_query(void)
{
    begin(dense());
    CALL_ROW(trope_positions, (a, NULL, NULL), IS_NULL, "positions is NULL");
    POSITIONS_ROW(dense(), a = NULL, IS_NULL, "args is NULL");
    POSITIONS_ROW(dense(), a->struct_size = 1, ARGUMENT, "struct_size (1)");
    POSITIONS_ROW(dense(), a->batch = -1, ARGUMENT, "batch (-1)");
    POSITIONS_ROW(dense(), a->tokens = -5, ARGUMENT, "tokens (-5)");
    POSITIONS_ROW(dense(), a->batch = a->tokens = (int64_t)1 << 40, TOO_LARGE, "batch");
    POSITIONS_ROW(ids(), a->position_axes = 4, ARGUMENT, "position_axes (4)");
    POSITIONS_ROW(ids(), a->position_token_stride = INT64_MAX, TOO_LARGE, "position_token_stride");
    POSITIONS_ROW(ids(), a->position_ids = plus(in.ids, 2), ARGUMENT, "position_ids");
    POSITIONS_ROW(packed(), a->cu_seqlens = plus(in.cu_seqlens, 1), ARGUMENT, "cu_seqlens");
    POSITIONS_ROW(packed(), a->batch = 2, ARGUMENT, "batch (2)");
    POSITIONS_ROW(packed(), a->sequences = -1, ARGUMENT, "sequences (-1)");
    POSITIONS_ROW(packed(), set_boundaries(in.cu_seqlens, 0, 4, 3, 6, 8), TROPE_ERROR_DATA, "cu_seqlens[2] (3)");
    POSITIONS_ROW(packed(), set_boundaries(in.cu_seqlens, 0, 4, 4, 6, 9), TROPE_ERROR_DATA, "cu_seqlens[4] (9)");
    POSITIONS_ROW(packed(),
                  (a->cp_size = 2, a->cp_layout = TROPE_CP_ZIGZAG, set_boundaries(in.cu_seqlens, 0, 8, 8, 14, 16)),
                  TROPE_ERROR_DATA, "sequence 2");
    POSITIONS_ROW(zigzag(), a->tokens = 7, ARGUMENT, "tokens (7)");
    POSITIONS_ROW(zigzag(), a->cp_rank = 2, ARGUMENT, "cp_rank (2)");
}

static void fill_strides(void)
{
    int64_t stride[TROPE_MAX_DIMS] = {1, 2, 3, 4, 5};
    const int64_t before[TROPE_MAX_DIMS] = {1, 2, 3, 4, 5};
    memset(&out, 0xff, sizeof out);
    CALL_ROW(trope_fill_strides, (NULL, TROPE_BSHD, 2, 3, 4, 5), IS_NULL, "stride is NULL");
    CALL_ROW(trope_fill_strides, (stride, 0, 2, 3, 4, 5), ARGUMENT, "layout (0)");
    CALL_ROW(trope_fill_strides, (stride, 5, 2, 3, 4, 5), ARGUMENT, "layout (5)");
    CALL_ROW(trope_fill_strides, (stride, TROPE_THD, 2, 3, 4, 5), ARGUMENT, "batch (2)");
    CALL_ROW(trope_fill_strides, (stride, TROPE_BSHD, -1, 3, 4, 5), ARGUMENT, "batch (-1)");
    CALL_ROW(trope_fill_strides, (stride, TROPE_BSHD, 2, -1, 4, 5), ARGUMENT, "tokens (-1)");
    CALL_ROW(trope_fill_strides, (stride, TROPE_BSHD, 2, 3, 0, 5), ARGUMENT, "heads (0)");
    CALL_ROW(trope_fill_strides, (stride, TROPE_BSHD, 2, 3, 4, 0), ARGUMENT, "head_dim (0)");
    CALL_ROW(trope_fill_strides, (stride, TROPE_BSHD, 2, INT64_MAX / 2, 4, 5), TOO_LARGE, "tokens");
    CALL_ROW(trope_fill_strides, (stride, TROPE_SBHD, INT64_MAX / 2, 3, 4, 5), TOO_LARGE, "batch");
    CHECK(memcmp(stride, before, sizeof stride) == 0);
}

/* What forward does not look at, it does not refuse. */
static void forward_ignores_the_gradient(void)
{
    begin(gradient());
    q->input = k->input = plus(in.q, 1);
    a->d_inv_freq = out.d_inv_freq;
    a->workspace = NULL;
    CHECK_MESSAGE(trope_forward(a) == TROPE_OK, "%s", trope_last_error());
}

int main(void)
{
    structs_and_enums();
    shapes();
    operand_pointers();
    overlap();
    overflow();
    rotation();
    angles();
    positions();
    packing();
    context_parallel();
    angle_gradient();
    unsupported();
    kernel_name_and_workspace_size();
    positions_query();
    fill_strides();
    forward_ignores_the_gradient();
    printf("%d refused calls\n", row_count);
    return check_result();
}
