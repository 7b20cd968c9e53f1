/* Calls that the helpers refuse. They must leave their output unchanged. tests/numerics/rules.c tests trope_frequencies. */
#include <math.h>

#include "api/refused.h"

static void fill_strides(void)
{
    int64_t stride[TROPE_MAX_DIMS] = {1, 2, 3, 4, 5};
    const int64_t before[TROPE_MAX_DIMS] = {1, 2, 3, 4, 5};
    CALL_ROW(trope_fill_strides, (NULL, TROPE_BSHD, 2, 3, 4, 5), IS_NULL, "stride", "stride is NULL");
    CALL_ROW(trope_fill_strides, (stride, 0, 2, 3, 4, 5), ARGUMENT, "layout", "(0)");
    CALL_ROW(trope_fill_strides, (stride, TROPE_STRIDED, 2, 3, 4, 5), ARGUMENT, "layout", "(5)");
    CALL_ROW(trope_fill_strides, (stride, -1, 2, 3, 4, 5), ARGUMENT, "layout", "(-1)");
    CALL_ROW(trope_fill_strides, (stride, TROPE_THD, 2, 3, 4, 5), ARGUMENT, "batch", "(2)");
    CALL_ROW(trope_fill_strides, (stride, TROPE_BSHD, 0, 3, 4, 5), ARGUMENT, "batch", "(0)");
    CALL_ROW(trope_fill_strides, (stride, TROPE_BSHD, -1, 3, 4, 5), ARGUMENT, "batch", "(-1)");
    CALL_ROW(trope_fill_strides, (stride, TROPE_BSHD, 2, -1, 4, 5), ARGUMENT, "tokens", "(-1)");
    CALL_ROW(trope_fill_strides, (stride, TROPE_BSHD, 2, 3, 0, 5), ARGUMENT, "heads", "(0)");
    CALL_ROW(trope_fill_strides, (stride, TROPE_BSHD, 2, 3, 4, 0), ARGUMENT, "head_dim", "(0)");
    CALL_ROW(trope_fill_strides, (stride, TROPE_BSHD, 2, INT64_MAX / 2, 4, 5), TOO_LARGE, "batch",
             "tokens (4611686018427387903)");
    CALL_ROW(trope_fill_strides, (stride, TROPE_SBHD, INT64_MAX / 2, 3, 4, 5), TOO_LARGE, "batch", "");
    CALL_ROW(trope_fill_strides, ((int64_t *)(void *)plus(stride, 4), TROPE_BSHD, 2, 3, 4, 5), ARGUMENT, "stride",
             "aligned to 8 bytes");
    CHECK(memcmp(stride, before, sizeof stride) == 0);
}

static void fill_operand(void)
{
    trope_operand o, before;
    float x[16];
    memset(&o, 0x5a, sizeof o);
    before = o;
    CALL_ROW(trope_fill_operand, (NULL, x, TROPE_BSHD, 4, 16, 8), IS_NULL, "operand", "operand is NULL");
    CALL_ROW(trope_fill_operand, (&o, x, 0, 4, 16, 8), ARGUMENT, "layout", "(0)");
    CALL_ROW(trope_fill_operand, (&o, x, TROPE_STRIDED, 4, 16, 8), ARGUMENT, "layout", "(5)");
    CALL_ROW(trope_fill_operand, (&o, x, -1, 4, 16, 8), ARGUMENT, "layout", "(-1)");
    CALL_ROW(trope_fill_operand, (&o, x, TROPE_BSHD, 0, 16, 8), ARGUMENT, "heads", "(0)");
    CALL_ROW(trope_fill_operand, (&o, x, TROPE_BSHD, -4, 16, 8), ARGUMENT, "heads", "(-4)");
    CALL_ROW(trope_fill_operand, (&o, x, TROPE_BSHD, 4, 0, 8), ARGUMENT, "head_dim", "(0)");
    CALL_ROW(trope_fill_operand, (&o, x, TROPE_BSHD, 4, 16, 0), ARGUMENT, "rotary_dim", "TROPE_COPY");
    CALL_ROW(trope_fill_operand, (&o, x, TROPE_BSHD, 4, 16, 7), ARGUMENT, "rotary_dim", "(7)");
    CALL_ROW(trope_fill_operand, (&o, x, TROPE_BSHD, 4, 16, -2), ARGUMENT, "rotary_dim", "(-2)");
    CALL_ROW(trope_fill_operand, (&o, x, TROPE_BSHD, 4, 16, 18), ARGUMENT, "rotary_dim", "(18)");
    CALL_ROW(trope_fill_operand, (&o, x, TROPE_BSHD, 4, 4096, 1026), ARGUMENT, "rotary_dim", "(1026)");
    CALL_ROW(trope_fill_operand, ((trope_operand *)(void *)plus(&o, 4), x, TROPE_BSHD, 4, 16, 8), ARGUMENT, "operand",
             "aligned to 8 bytes");
    CHECK(memcmp(&o, &before, sizeof o) == 0);
}

static trope_qkv valid_qkv(void)
{
    static float buffer[64];
    return (trope_qkv){.struct_size = sizeof(trope_qkv),
                       .buffer = buffer,
                       .batch = 2,
                       .tokens = 3,
                       .layout = TROPE_SBHD,
                       .order = TROPE_QKV_GROUPS,
                       .dtype = TROPE_F32,
                       .q_heads = 6,
                       .kv_heads = 2,
                       .head_dim = 16,
                       .rotary_dim = 8};
}

static trope_operand qkv_operand;

static trope_status fill_changed(const trope_qkv *p)
{
    return trope_fill_qkv(&qkv_operand, p, TROPE_K);
}

/* A valid trope_qkv with one field changed. */
#define QKV_ROW(change, ...)                                                                                               \
    do {                                                                                                                   \
        trope_qkv p = valid_qkv();                                                                                         \
        change;                                                                                                            \
        row_count++;                                                                                                       \
        check_one(&(refusal){#change, __VA_ARGS__}, "trope_fill_qkv", fill_changed(&p));                                   \
    } while (0)

static void fill_qkv(void)
{
    trope_qkv valid = valid_qkv();
    memset(&qkv_operand, 0x5a, sizeof qkv_operand);
    const trope_operand before = qkv_operand;
    CALL_ROW(trope_fill_qkv, (NULL, &valid, TROPE_Q), IS_NULL, "operand", "operand is NULL");
    CALL_ROW(trope_fill_qkv, (&qkv_operand, NULL, TROPE_Q), IS_NULL, "qkv", "qkv is NULL");
    CALL_ROW(trope_fill_qkv, ((trope_operand *)(void *)plus(&qkv_operand, 4), &valid, TROPE_Q), ARGUMENT, "operand",
             "aligned to 8 bytes");
    CALL_ROW(trope_fill_qkv, (&qkv_operand, (trope_qkv *)(void *)plus(&valid, 4), TROPE_Q), ARGUMENT, "qkv",
             "aligned to 8 bytes");
    CALL_ROW(trope_fill_qkv, (&qkv_operand, &valid, 0), ARGUMENT, "which", "(0)");
    CALL_ROW(trope_fill_qkv, (&qkv_operand, &valid, 4), ARGUMENT, "which", "(4)");
    QKV_ROW(p.struct_size = 0, ARGUMENT, "struct_size", "(0)");
    QKV_ROW(p.struct_size = sizeof(trope_qkv *), ARGUMENT, "struct_size", "(8)");
    QKV_ROW(p.struct_size = sizeof p - 1, ARGUMENT, "struct_size", "sizeof of the struct");
    QKV_ROW(p.buffer = NULL, IS_NULL, "buffer", "buffer is NULL");
    QKV_ROW(p.batch = 0, ARGUMENT, "batch", "(0)");
    QKV_ROW(p.tokens = -1, ARGUMENT, "tokens", "(-1)");
    QKV_ROW(p.layout = 0, ARGUMENT, "layout", "(0)");
    QKV_ROW(p.layout = TROPE_STRIDED, ARGUMENT, "layout", "(5)");
    QKV_ROW(p.layout = TROPE_THD, ARGUMENT, "batch", "(2)");
    QKV_ROW(p.order = 0, ARGUMENT, "order", "(0)");
    QKV_ROW(p.order = 3, ARGUMENT, "order", "(3)");
    QKV_ROW(p.dtype = 0, ARGUMENT, "dtype", "(0)");
    QKV_ROW(p.dtype = 5, ARGUMENT, "dtype", "(5)");
    QKV_ROW(p.q_heads = 0, ARGUMENT, "q_heads", "(0)");
    QKV_ROW(p.kv_heads = 0, ARGUMENT, "kv_heads", "(0)");
    QKV_ROW(p.kv_heads = -2, ARGUMENT, "kv_heads", "(-2)");
    QKV_ROW(p.kv_heads = 4, ARGUMENT, "q_heads", "(6) must be a multiple of kv_heads (4)");
    QKV_ROW(p.head_dim = 0, ARGUMENT, "head_dim", "(0)");
    QKV_ROW(p.rotary_dim = 0, ARGUMENT, "rotary_dim", "(0)");
    QKV_ROW(p.rotary_dim = TROPE_COPY, ARGUMENT, "rotary_dim", "q and k rotate");
    QKV_ROW(p.rotary_dim = 7, ARGUMENT, "rotary_dim", "(7)");
    QKV_ROW(p.rotary_dim = 18, ARGUMENT, "rotary_dim", "(18)");
    QKV_ROW(p.reserved = 1, ARGUMENT, "reserved", "(1) must be 0");
    QKV_ROW(p.tokens = INT64_MAX / 8, TOO_LARGE, "batch", "tokens (1152921504606846975)");
    QKV_ROW(p.q_heads = p.kv_heads = INT32_MAX, TOO_LARGE, "q_heads", "");
    CHECK(memcmp(&qkv_operand, &before, sizeof before) == 0);
}

static void fill_pair_axis(void)
{
    enum { SECTIONS = TROPE_AXES_SECTIONS, INTERLEAVED = TROPE_AXES_INTERLEAVED, HWT = TROPE_AXES_HWT };
    uint8_t to[4] = {9, 9, 9, 9};
    const uint8_t before[4] = {9, 9, 9, 9};
    const int32_t fit[] = {2, 1, 1, 0}, few[] = {1, 1, 1, 0}, many[] = {2, 2, 1, 0}, negative[] = {5, -1, 0, 0},
                  three[] = {3, 1, 0, 0};
    const int32_t late[] = {1, 1, 2, 0}, fourth[] = {1, 1, 1, 1}, uneven[] = {1, 1, 2, 0},
                  huge[] = {INT32_MAX, INT32_MAX, 6, 0};
    CALL_ROW(trope_fill_pair_axis, (NULL, 4, SECTIONS, fit), IS_NULL, "pair_axis", "pair_axis is NULL");
    CALL_ROW(trope_fill_pair_axis, (to, 4, SECTIONS, NULL), IS_NULL, "sections", "sections is NULL");
    CALL_ROW(trope_fill_pair_axis, (to, 4, INTERLEAVED, NULL), IS_NULL, "sections", "sections is NULL");
    CALL_ROW(trope_fill_pair_axis, (to, 4, TROPE_AXES_ALTERNATING, NULL), IS_NULL, "sections", "sections is NULL");
    CALL_ROW(trope_fill_pair_axis, (to, 4, TROPE_AXES_ALTERNATING, fourth), ARGUMENT, "sections[3]", "(1)");
    CALL_ROW(trope_fill_pair_axis, (to, 4, TROPE_AXES_ALTERNATING, three), ARGUMENT, "sections", "halves");
    CALL_ROW(trope_fill_pair_axis, (to, 4, HWT, NULL), IS_NULL, "sections", "sections is NULL");
    CALL_ROW(trope_fill_pair_axis, (to, 4, HWT, (const int32_t *)(void *)plus(three, 2)), ARGUMENT, "sections",
             "aligned to 4 bytes");
    CALL_ROW(trope_fill_pair_axis, (to, 0, SECTIONS, fit), ARGUMENT, "pairs", "(0)");
    CALL_ROW(trope_fill_pair_axis, (to, -4, SECTIONS, fit), ARGUMENT, "pairs", "(-4)");
    CALL_ROW(trope_fill_pair_axis, (to, 513, SECTIONS, fit), ARGUMENT, "pairs", "(513)");
    CALL_ROW(trope_fill_pair_axis, (to, 4, 0, fit), ARGUMENT, "order", "(0)");
    CALL_ROW(trope_fill_pair_axis, (to, 4, 5, fit), ARGUMENT, "order", "(5)");
    CALL_ROW(trope_fill_pair_axis, (to, 4, SECTIONS, few), ARGUMENT, "sections", "(4)");
    CALL_ROW(trope_fill_pair_axis, (to, 4, SECTIONS, many), ARGUMENT, "sections", "(4)");
    CALL_ROW(trope_fill_pair_axis, (to, 4, SECTIONS, negative), ARGUMENT, "sections[1]", "(-1)");
    CALL_ROW(trope_fill_pair_axis, (to, 4, SECTIONS, huge), ARGUMENT, "sections", "");
    CALL_ROW(trope_fill_pair_axis, (to, 4, INTERLEAVED, few), ARGUMENT, "sections", "(4)");
    CALL_ROW(trope_fill_pair_axis, (to, 4, INTERLEAVED, late), ARGUMENT, "sections[2]", "(2)"); /* would need pair 5 */
    CALL_ROW(trope_fill_pair_axis, (to, 4, INTERLEAVED, fourth), ARGUMENT, "sections[3]", "(1)");
    CALL_ROW(trope_fill_pair_axis, (to, 4, HWT, few), ARGUMENT, "sections", "(4)");
    CALL_ROW(trope_fill_pair_axis, (to, 4, HWT, fourth), ARGUMENT, "sections[3]", "(1)");
    CALL_ROW(trope_fill_pair_axis, (to, 4, HWT, uneven), ARGUMENT, "sections[1]",
             "sections[2] (2)"); /* h and w alternate, and h comes first */
    CHECK(memcmp(to, before, sizeof to) == 0);
}

static void phase_steps(void)
{
    const double good[2] = {1, 0.5}, with_nan[2] = {1, NAN}, infinite[2] = {-INFINITY, 1}, large[2] = {1, 0x1p64};
    uint64_t steps[2] = {77, 78};
    CALL_ROW(trope_phase_steps, (NULL, 2, steps), IS_NULL, "inv_freq", "inv_freq is NULL");
    CALL_ROW(trope_phase_steps, (good, 2, NULL), IS_NULL, "phase_step", "phase_step is NULL");
    CALL_ROW(trope_phase_steps, (good, 0, steps), ARGUMENT, "pairs", "(0)");
    CALL_ROW(trope_phase_steps, (good, -1, steps), ARGUMENT, "pairs", "(-1)");
    CALL_ROW(trope_phase_steps, (good, 513, steps), ARGUMENT, "pairs", "(513)");
    CALL_ROW(trope_phase_steps, (with_nan, 2, steps), ARGUMENT, "inv_freq[1]", "(nan)");
    CALL_ROW(trope_phase_steps, (infinite, 2, steps), ARGUMENT, "inv_freq[0]", "(-inf)");
    CALL_ROW(trope_phase_steps, (large, 2, steps), ARGUMENT, "inv_freq[1]", "2^64");
    CALL_ROW(trope_phase_steps, ((const double *)(const void *)((const char *)good + 4), 1, steps), ARGUMENT, "inv_freq",
             "aligned to 8 bytes");
    CALL_ROW(trope_phase_steps, (good, 1, (uint64_t *)(void *)((char *)steps + 4)), ARGUMENT, "phase_step",
             "aligned to 8 bytes");
    CHECK(steps[0] == 77 && steps[1] == 78);
}

int main(void)
{
    memset(&out, 0xff, sizeof out);
    fill_strides();
    fill_operand();
    fill_qkv();
    fill_pair_axis();
    phase_steps();
    return refused_result();
}
