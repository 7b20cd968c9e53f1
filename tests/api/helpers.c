/* The results of the helpers: strides and operands of contiguous layouts, the heads of a packed QKV buffer, and the axis of
 * each pair. refused_helpers.c tests what they refuse. Random calls (gradcheck_random, parity_memory) check that a layout
 * gives the same results as its strides, and that a pair_axis gives the same results as one call for each axis. */
#include "support/call.h"
#include "support/check.h"
#include "support/tensor.h"

enum { B = TROPE_DIM_BATCH, S = TROPE_DIM_TOKEN, G = TROPE_DIM_GROUP, H = TROPE_DIM_HEAD, D = TROPE_DIM_ELEMENT };

/* ---- Strides and operands ---- */

static void check_strides(int32_t layout, const int64_t *size)
{
    int64_t stride[TROPE_MAX_DIMS], expected[TROPE_MAX_DIMS];
    const trope_status status = trope_fill_strides(stride, layout, size[B], size[S], (int32_t)size[H], (int32_t)size[D]);
    CHECK_MESSAGE(status == TROPE_OK, "layout %d: %s", layout, trope_last_error());
    tensor_fill_strides(layout, size, expected);
    expected[G] = stride[H] * size[H];
    for (int d = 0; d < TROPE_MAX_DIMS; d++)
        CHECK_MESSAGE(stride[d] == expected[d], "layout %d: stride[%d] is %lld, not %lld", layout, d, (long long)stride[d],
                      (long long)expected[d]);
}

static void check_all_strides(void)
{
    const int64_t some[] = {3, 5, 1, 7, 11}, one[] = {1, 1, 1, 1, 1}, packed[] = {1, 5, 1, 7, 11};
    const int64_t large[] = {1 << 10, 1 << 20, 1, 1 << 8, 1 << 8};
    const int64_t *const sizes[] = {some, one, packed, large};
    for (int i = 0; i < 4; i++)
        for (int32_t layout = TROPE_SBHD; layout <= TROPE_BHSD; layout++)
            check_strides(layout, sizes[i]);
    check_strides(TROPE_THD, packed);
}

/* Fields that the arguments do not set are 0. */
static void check_fill_operand(int32_t layout, int32_t rotary_dim)
{
    float x[1];
    trope_operand o;
    memset(&o, 0x5a, sizeof o);
    CHECK_MESSAGE(trope_fill_operand(&o, x, layout, 7, 12, rotary_dim) == TROPE_OK, "%s", trope_last_error());
    CHECK(o.src == x && o.dst == x && !o.forward_src);
    CHECK(o.src_layout == layout && o.dst_layout == layout && o.forward_src_layout == 0);
    CHECK((o.groups == 0 || o.groups == 1) && o.heads_per_group == 7 && o.head_dim == 12 && o.rotary_dim == rotary_dim);
    CHECK(o.rotary_offset == 0 && o.shared_heads == TROPE_SHARED_NONE && o.accumulate == 0);
    for (int d = 0; d < TROPE_MAX_DIMS; d++)
        CHECK(o.src_stride[d] == 0 && o.dst_stride[d] == 0 && o.forward_src_stride[d] == 0);
}

/* ---- Packed QKV buffers ---- */

enum { BATCH = 2, TOKENS = 3, Q = 6, KV = 2, RATIO = Q / KV, ALL = Q + 2 * KV, DIM = 8, ROTARY = 6 };

static const int32_t counts[] = {[TROPE_Q] = Q, [TROPE_K] = KV, [TROPE_V] = KV};

/* Returns the index of a head of q, k or v among all heads of a token in the buffer. */
static int32_t head_in_buffer(int32_t order, int32_t which, int32_t head)
{
    if (order == TROPE_QKV_PARTS)
        return head + (which == TROPE_Q ? 0 : which == TROPE_K ? Q : Q + KV);
    if (which == TROPE_Q)
        return head / RATIO * (RATIO + 2) + head % RATIO;
    return head * (RATIO + 2) + RATIO + (which == TROPE_V);
}

/* The operand has the address of each head in the buffer. */
static void check_qkv(int32_t dtype, int32_t layout, int32_t order, int32_t which)
{
    static double buffer[BATCH * TOKENS * ALL * DIM];
    const int size = dtype == TROPE_F32 ? 4 : dtype == TROPE_F64 ? 8 : 2;
    const int64_t batch = layout == TROPE_THD ? 1 : BATCH, heads[] = {batch, TOKENS, 1, ALL, DIM};
    const trope_qkv qkv = {.struct_size = sizeof qkv,
                           .buffer = buffer,
                           .batch = batch,
                           .tokens = TOKENS,
                           .layout = layout,
                           .order = order,
                           .dtype = dtype,
                           .q_heads = Q,
                           .kv_heads = KV,
                           .head_dim = DIM,
                           .rotary_dim = ROTARY};
    int64_t stride[TROPE_MAX_DIMS];
    trope_operand o;
    memset(&o, 0x5a, sizeof o);
    if (!CHECK_MESSAGE(trope_fill_qkv(&o, &qkv, which) == TROPE_OK, "%s", trope_last_error()))
        return;
    CHECK(o.src == o.dst && !o.forward_src && o.src_layout == TROPE_STRIDED && o.dst_layout == TROPE_STRIDED);
    CHECK(!memcmp(o.src_stride, o.dst_stride, sizeof o.src_stride) && o.forward_src_layout == 0);
    CHECK(o.head_dim == DIM && o.rotary_dim == (which == TROPE_V ? TROPE_COPY : ROTARY) && o.rotary_offset == 0);
    CHECK(o.shared_heads == 0 && o.accumulate == 0 && (o.groups ? o.groups : 1) * o.heads_per_group == counts[which]);
    tensor_fill_strides(layout, heads, stride);
    long wrong = 0;
    for (int64_t b = 0; b < batch; b++)
        for (int64_t t = 0; t < TOKENS; t++)
            for (int32_t h = 0; h < counts[which]; h++) {
                const int64_t *s = o.src_stride, group = h / o.heads_per_group, head = h % o.heads_per_group;
                const char *at = (const char *)o.src + (b * s[B] + t * s[S] + group * s[G] + head * s[H]) * size;
                const int64_t place = b * stride[B] + t * stride[S] + head_in_buffer(order, which, h) * stride[H];
                wrong += at != (const char *)buffer + place * size;
            }
    CHECK_MESSAGE(wrong == 0 && o.src_stride[D] == 1, "dtype %d, layout %d, order %d, %c: %ld heads have a wrong address",
                  dtype, layout, order, " qkv"[which], wrong);
}

/* ---- Axes of pairs, with expected values written by hand ---- */

enum { MOST = TROPE_MAX_ROTARY_DIM / 2 };

static void check_axes(const char *what, int32_t order, const int32_t *sections, const char *expected)
{
    const int32_t pairs = (int32_t)strlen(expected);
    uint8_t axis[MOST + 1];
    memset(axis, 77, sizeof axis);
    if (!CHECK_MESSAGE(trope_fill_pair_axis(axis, pairs, order, sections) == TROPE_OK, "%s: %s", what, trope_last_error()))
        return;
    for (int32_t i = 0; i < pairs; i++)
        CHECK_MESSAGE(axis[i] == expected[i] - '0', "%s: pair %d has axis %d, not %c", what, i, axis[i], expected[i]);
    CHECK_MESSAGE(axis[pairs] == 77, "%s: the function wrote beyond the end", what);
}

static void check_all_axes(void)
{
    check_axes("sections", TROPE_AXES_SECTIONS, (const int32_t[]){2, 3, 3, 0}, "00111222");
    check_axes("four sections", TROPE_AXES_SECTIONS, (const int32_t[]){1, 2, 3, 2}, "01122233");
    check_axes("an empty section", TROPE_AXES_SECTIONS, (const int32_t[]){0, 2, 0, 1}, "113");
    check_axes("one section", TROPE_AXES_SECTIONS, (const int32_t[]){4, 0, 0, 0}, "0000");
    /* Axis 1 has pairs 1, 4, 7, .. below 3 * sections[1], axis 2 has 2, 5, .. below 3 * sections[2]. */
    check_axes("interleaved", TROPE_AXES_INTERLEAVED, (const int32_t[]){4, 2, 2, 0}, "01201200");
    check_axes("interleaved, unequal", TROPE_AXES_INTERLEAVED, (const int32_t[]){4, 3, 1, 0}, "01201001");
    check_axes("interleaved, one axis", TROPE_AXES_INTERLEAVED, (const int32_t[]){5, 0, 0, 0}, "00000");
    check_axes("alternating", TROPE_AXES_ALTERNATING, (const int32_t[]){4, 3, 0, 0}, "0101010");
    check_axes("hwt", TROPE_AXES_HWT, (const int32_t[]){2, 3, 3, 0}, "12121200");
    check_axes("hwt, h and w only", TROPE_AXES_HWT, (const int32_t[]){0, 2, 2, 0}, "1212");
    check_axes("hwt, t only", TROPE_AXES_HWT, (const int32_t[]){3, 0, 0, 0}, "000");
    uint8_t axis[MOST];
    const int32_t sections[] = {MOST, 0, 0, 0}, halves[] = {MOST / 2, MOST / 2, 0, 0};
    CHECK_MESSAGE(trope_fill_pair_axis(axis, MOST, TROPE_AXES_SECTIONS, sections) == TROPE_OK, "%s", trope_last_error());
    CHECK_MESSAGE(trope_fill_pair_axis(axis, MOST, TROPE_AXES_ALTERNATING, halves) == TROPE_OK, "%s", trope_last_error());
    CHECK(axis[MOST - 1] == 1);
}

int main(void)
{
    check_all_strides();
    for (int32_t layout = TROPE_SBHD; layout <= TROPE_THD; layout++) {
        check_fill_operand(layout, 8);
        check_fill_operand(layout, TROPE_COPY);
        for (int32_t order = TROPE_QKV_GROUPS; order <= TROPE_QKV_PARTS; order++)
            for (int32_t which = TROPE_Q; which <= TROPE_V; which++)
                for (int32_t dtype = TROPE_F32; dtype <= TROPE_F64; dtype++)
                    check_qkv(dtype, layout, order, which);
    }
    check_all_axes();
    return check_result();
}
