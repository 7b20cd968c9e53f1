/* trope_fill_qkv finds q, k and v in a packed QKV buffer: where strides written by hand have them, and where a rotation of
 * separate tensors gives the same bits. */
#include "support/call.h"
#include "support/check.h"
#include "support/random.h"

enum { BATCH = 2, TOKENS = 3, Q = 6, KV = 2, RATIO = Q / KV, ALL = Q + 2 * KV, DIM = 8, ROTARY = 6 };
enum { ROWS = BATCH * TOKENS, ELEMENTS = ROWS * ALL * DIM };

static const int32_t counts[] = {[TROPE_Q] = Q, [TROPE_K] = KV, [TROPE_V] = KV};

static trope_qkv describe(void *buffer, int32_t layout, int32_t order, int32_t dtype)
{
    return (trope_qkv){.struct_size = sizeof(trope_qkv),
                       .buffer = buffer,
                       .batch = layout == TROPE_THD ? 1 : BATCH,
                       .tokens = layout == TROPE_THD ? ROWS : TOKENS,
                       .layout = layout,
                       .order = order,
                       .dtype = dtype,
                       .q_heads = Q,
                       .kv_heads = KV,
                       .head_dim = DIM,
                       .rotary_dim = ROTARY};
}

/* The place of a head of q, k or v among all heads of a token. */
static int32_t head_in_buffer(int32_t order, int32_t which, int32_t head)
{
    if (order == TROPE_QKV_PARTS)
        return head + (which == TROPE_Q ? 0 : which == TROPE_K ? Q : Q + KV);
    if (which == TROPE_Q)
        return head / RATIO * (RATIO + 2) + head % RATIO;
    return head * (RATIO + 2) + RATIO + (which == TROPE_V);
}

/* The element of a layout [.., heads, DIM] with so many heads. */
static int64_t place(int32_t layout, int64_t heads, int64_t batch, int64_t token, int64_t head)
{
    switch (layout) {
    case TROPE_SBHD:
        return ((token * BATCH + batch) * heads + head) * DIM;
    case TROPE_BSHD:
        return ((batch * TOKENS + token) * heads + head) * DIM;
    case TROPE_BHSD:
        return ((batch * heads + head) * TOKENS + token) * DIM;
    default:
        return (token * heads + head) * DIM;
    }
}

/* Every element of the operand is where the buffer has it. */
static void check_places(int32_t layout, int32_t order, int32_t which)
{
    static float buffer[ELEMENTS];
    const trope_qkv qkv = describe(buffer, layout, order, TROPE_F32);
    trope_operand o;
    memset(&o, 0x5a, sizeof o);
    if (!CHECK_MESSAGE(trope_fill_qkv(&o, &qkv, which) == TROPE_OK, "%s", trope_last_error()))
        return;
    const int32_t groups = o.groups ? o.groups : 1;
    long wrong = 0;
    CHECK(o.src == o.dst && !o.forward_src && o.src_layout == TROPE_STRIDED && o.dst_layout == TROPE_STRIDED);
    CHECK(!memcmp(o.src_stride, o.dst_stride, sizeof o.src_stride) && o.forward_src_layout == 0);
    CHECK(o.head_dim == DIM && o.rotary_dim == (which == TROPE_V ? TROPE_COPY : ROTARY) && o.rotary_offset == 0);
    CHECK(o.shared_heads == 0 && o.accumulate == 0 && groups * o.heads_per_group == counts[which]);
    for (int64_t b = 0; b < qkv.batch; b++)
        for (int64_t t = 0; t < qkv.tokens; t++)
            for (int32_t h = 0; h < counts[which]; h++) {
                const int64_t *s = o.src_stride;
                const int64_t offset = b * s[TROPE_DIM_BATCH] + t * s[TROPE_DIM_TOKEN] +
                                       h / o.heads_per_group * s[TROPE_DIM_GROUP] +
                                       h % o.heads_per_group * s[TROPE_DIM_HEAD];
                wrong +=
                    (const float *)o.src + offset != buffer + place(layout, ALL, b, t, head_in_buffer(order, which, h));
            }
    CHECK_MESSAGE(wrong == 0 && o.src_stride[TROPE_DIM_ELEMENT] == 1, "layout %d, order %d, %c: %ld heads are elsewhere",
                  layout, order, " qkv"[which], wrong);
}

/* Strides as somebody writes them who knows Megatron's buffer [s, b, groups, (ratio + 2) * d]. */
static void check_megatron_by_hand(void)
{
    static float buffer[ELEMENTS];
    enum { GROUP = (RATIO + 2) * DIM, TOKEN = KV * GROUP };
    const int64_t strides[TROPE_MAX_DIMS] = {TOKEN, BATCH * TOKEN, GROUP, DIM, 1};
    const int64_t first[] = {[TROPE_Q] = 0, [TROPE_K] = RATIO * DIM, [TROPE_V] = (RATIO + 1) * DIM};
    const trope_qkv qkv = describe(buffer, TROPE_SBHD, TROPE_QKV_GROUPS, TROPE_F32);
    for (int32_t which = TROPE_Q; which <= TROPE_V; which++) {
        trope_operand o;
        CHECK(trope_fill_qkv(&o, &qkv, which) == TROPE_OK);
        CHECK(o.groups == KV && o.heads_per_group == (which == TROPE_Q ? RATIO : 1));
        CHECK((const float *)o.src == buffer + first[which]);
        for (int d = 0; d < TROPE_MAX_DIMS; d++) /* one head: its stride is not looked at */
            CHECK((d == TROPE_DIM_HEAD && which != TROPE_Q) || o.src_stride[d] == strides[d]);
    }
}

static float buffer[ELEMENTS], before[ELEMENTS], separate[3][ROWS * Q * DIM];

static void copy_heads(int32_t layout, int32_t order, int to_separate)
{
    const int64_t batch = layout == TROPE_THD ? 1 : BATCH, tokens = layout == TROPE_THD ? ROWS : TOKENS;
    for (int32_t which = TROPE_Q; which <= TROPE_V; which++)
        for (int64_t b = 0; b < batch; b++)
            for (int64_t t = 0; t < tokens; t++)
                for (int32_t h = 0; h < counts[which]; h++) {
                    float *in_buffer = buffer + place(layout, ALL, b, t, head_in_buffer(order, which, h));
                    float *alone = separate[which - 1] + place(layout, counts[which], b, t, h);
                    memcpy(to_separate ? alone : in_buffer, to_separate ? in_buffer : alone, DIM * sizeof(float));
                }
}

/* The buffer rotated where it is, and q and k taken out, rotated and put back. */
static void check_rotation(int32_t layout, int32_t order)
{
    const double inv_freq[] = {1, 0.1, 0.01};
    const trope_qkv qkv = describe(buffer, layout, order, TROPE_F32);
    call packed = call_make(TROPE_F32, qkv.batch, qkv.tokens), apart = packed;
    packed.args.inv_freq = apart.args.inv_freq = inv_freq;
    for (int32_t which = TROPE_Q; which <= TROPE_V; which++) {
        CHECK(trope_fill_qkv(&packed.operands[which - 1], &qkv, which) == TROPE_OK);
        call_add(&apart, separate[which - 1], layout, counts[which], DIM, which == TROPE_V ? TROPE_COPY : ROTARY);
    }
    packed.args.operand_count = 3;
    random_state random = {(uint64_t)(layout * 8 + order)};
    for (int i = 0; i < ELEMENTS; i++)
        buffer[i] = before[i] = (float)random_real(&random);
    copy_heads(layout, order, 1);
    CHECK_MESSAGE(trope_forward(call_args(&apart)) == TROPE_OK, "%s", trope_last_error());
    copy_heads(layout, order, 0);
    float expected[ELEMENTS];
    memcpy(expected, buffer, sizeof buffer);
    memcpy(buffer, before, sizeof buffer);
    CHECK_MESSAGE(trope_forward(call_args(&packed)) == TROPE_OK, "%s", trope_last_error());
    CHECK_MESSAGE(!memcmp(buffer, expected, sizeof buffer), "layout %d, order %d: not the bits of separate tensors", layout,
                  order);
    CHECK(memcmp(buffer, before, sizeof buffer) != 0);
}

/* The dtype decides where k and v begin. */
static void check_dtypes(void)
{
    static double memory[ELEMENTS];
    for (int32_t dtype = TROPE_F32; dtype <= TROPE_F64; dtype++) {
        const int size = dtype == TROPE_F32 ? 4 : dtype == TROPE_F64 ? 8 : 2;
        const trope_qkv qkv = describe(memory, TROPE_BSHD, TROPE_QKV_PARTS, dtype);
        trope_operand o;
        CHECK(trope_fill_qkv(&o, &qkv, TROPE_K) == TROPE_OK &&
              (const char *)o.src == (const char *)memory + Q * DIM * size);
    }
}

int main(void)
{
    for (int32_t order = TROPE_QKV_GROUPS; order <= TROPE_QKV_PARTS; order++)
        for (int32_t layout = TROPE_SBHD; layout <= TROPE_THD; layout++) {
            for (int32_t which = TROPE_Q; which <= TROPE_V; which++)
                check_places(layout, order, which);
            check_rotation(layout, order);
        }
    check_megatron_by_hand();
    check_dtypes();
    return check_result();
}
