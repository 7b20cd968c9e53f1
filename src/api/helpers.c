/* The helpers that fill in operands, strides, the axis of each pair, and phase steps. */
#include <math.h>
#include <string.h>

#include "api/args.h"
#include "core/element.h"
#include "core/environment.h"
#include "core/phase.h"
#include "core/require.h"

#define ARGUMENT TROPE_ERROR_ARGUMENT

typedef long long ll;

static trope_status check_pointer(const char *function, const char *name, const void *pointer, size_t alignment)
{
    REQUIRE(pointer, TROPE_ERROR_NULL, "%s is NULL", name);
    REQUIRE((uintptr_t)pointer % alignment == 0, ARGUMENT, "%s (%p) must be aligned to %zu bytes", name, pointer,
            alignment);
    return TROPE_OK;
}

static trope_status check_layout(const char *function, int32_t layout)
{
    REQUIRE(layout >= TROPE_SBHD && layout <= TROPE_THD, ARGUMENT,
            "layout (%d) must be TROPE_SBHD, BSHD, BHSD or THD (1 to 4)", layout);
    return TROPE_OK;
}

static trope_status check_heads(const char *function, int32_t heads, int32_t head_dim)
{
    REQUIRE(heads >= 1, ARGUMENT, "heads (%d) must be at least 1", heads);
    REQUIRE(head_dim >= 1, ARGUMENT, "head_dim (%d) must be at least 1", head_dim);
    return TROPE_OK;
}

static trope_status check_rotary_dim(const char *function, int32_t rotary_dim, int32_t head_dim)
{
    REQUIRE(rotary_dim == TROPE_COPY || (rotary_dim >= 2 && rotary_dim % 2 == 0 && rotary_dim <= head_dim), ARGUMENT,
            "rotary_dim (%d) must be even, 2 to head_dim (%d), or TROPE_COPY", rotary_dim, head_dim);
    REQUIRE(rotary_dim <= TROPE_MAX_ROTARY_DIM, ARGUMENT, "rotary_dim (%d) must be at most %d", rotary_dim,
            TROPE_MAX_ROTARY_DIM);
    return TROPE_OK;
}

static trope_status check_batch_and_tokens(const char *function, int32_t layout, int64_t batch, int64_t tokens)
{
    REQUIRE(batch >= 1, ARGUMENT, "batch (%lld) must be at least 1", (ll)batch);
    REQUIRE(tokens >= 0, ARGUMENT, "tokens (%lld) must be at least 0", (ll)tokens);
    REQUIRE(layout != TROPE_THD || batch == 1, ARGUMENT, "batch (%lld) must be 1 for TROPE_THD", (ll)batch);
    return TROPE_OK;
}

trope_status trope_fill_operand(trope_operand *operand, void *x, int32_t layout, int32_t heads, int32_t head_dim,
                                int32_t rotary_dim)
{
    static const char function[] = "trope_fill_operand";
    CHECK(check_pointer(function, "operand", operand, _Alignof(trope_operand)));
    CHECK(check_layout(function, layout));
    CHECK(check_heads(function, heads, head_dim));
    CHECK(check_rotary_dim(function, rotary_dim, head_dim));
    memset(operand, 0, sizeof *operand);
    operand->src = operand->dst = x;
    operand->src_layout = operand->dst_layout = layout;
    operand->heads_per_group = heads;
    operand->head_dim = head_dim;
    operand->rotary_dim = rotary_dim;
    return TROPE_OK;
}

trope_status trope_fill_strides(int64_t *stride, int32_t layout, int64_t batch, int64_t tokens, int32_t heads,
                                int32_t head_dim)
{
    static const char function[] = "trope_fill_strides";
    int64_t filled[TROPE_MAX_DIMS];
    CHECK(check_pointer(function, "stride", stride, _Alignof(int64_t)));
    CHECK(check_layout(function, layout));
    CHECK(check_batch_and_tokens(function, layout, batch, tokens));
    CHECK(check_heads(function, heads, head_dim));
    REQUIRE(trope_contiguous_strides(filled, layout, (const int64_t[]){batch, tokens, heads}, head_dim),
            TROPE_ERROR_OVERFLOW, "batch (%lld) * tokens (%lld) * heads (%d) * head_dim (%d) does not fit in 64 bits",
            (ll)batch, (ll)tokens, heads, head_dim);
    memcpy(stride, filled, sizeof filled);
    return TROPE_OK;
}

static trope_status check_qkv(const char *function, const trope_qkv *q)
{
    REQUIRE(q->buffer, TROPE_ERROR_NULL, "%s", "buffer is NULL");
    CHECK(check_layout(function, q->layout));
    CHECK(check_batch_and_tokens(function, q->layout, q->batch, q->tokens));
    REQUIRE(q->order == TROPE_QKV_GROUPS || q->order == TROPE_QKV_PARTS, ARGUMENT,
            "order (%d) must be TROPE_QKV_GROUPS or TROPE_QKV_PARTS (1 or 2)", q->order);
    REQUIRE(q->dtype >= TROPE_F32 && q->dtype <= TROPE_F64, ARGUMENT,
            "dtype (%d) must be TROPE_F32, F16, BF16 or F64 (1 to 4)", q->dtype);
    REQUIRE(q->kv_heads >= 1, ARGUMENT, "kv_heads (%d) must be at least 1", q->kv_heads);
    REQUIRE(q->q_heads >= 1 && q->q_heads % q->kv_heads == 0, ARGUMENT, "q_heads (%d) must be a multiple of kv_heads (%d)",
            q->q_heads, q->kv_heads);
    REQUIRE((int64_t)q->q_heads + 2 * (int64_t)q->kv_heads <= INT32_MAX, TROPE_ERROR_OVERFLOW,
            "q_heads (%d) + 2 * kv_heads (%d) does not fit in 32 bits", q->q_heads, q->kv_heads);
    CHECK(check_heads(function, q->q_heads, q->head_dim));
    CHECK(check_rotary_dim(function, q->rotary_dim, q->head_dim));
    REQUIRE(q->rotary_dim != TROPE_COPY, ARGUMENT, "rotary_dim (%d) must be 2 to head_dim: q and k rotate", q->rotary_dim);
    REQUIRE(q->reserved == 0, ARGUMENT, "reserved (%d) must be 0", q->reserved);
    return TROPE_OK;
}

/* Returns the index of the first head of q, k or v in the buffer, or in each group if the order is GROUPS (Megatron). */
static int32_t first_head(const trope_qkv *q, int32_t which)
{
    const int32_t kv = q->order == TROPE_QKV_GROUPS ? 1 : q->kv_heads;
    const int32_t first_k = q->order == TROPE_QKV_GROUPS ? q->q_heads / q->kv_heads : q->q_heads;
    return which == TROPE_Q ? 0 : which == TROPE_K ? first_k : first_k + kv;
}

trope_status trope_fill_qkv(trope_operand *operand, const trope_qkv *qkv, int32_t which)
{
    static const char function[] = "trope_fill_qkv";
    trope_qkv q;
    int64_t stride[TROPE_MAX_DIMS];
    CHECK(check_pointer(function, "operand", operand, _Alignof(trope_operand)));
    CHECK(trope_copy_struct(function, "qkv", &q, sizeof q, qkv));
    CHECK(check_qkv(function, &q));
    REQUIRE(which >= TROPE_Q && which <= TROPE_V, ARGUMENT, "which (%d) must be TROPE_Q, TROPE_K or TROPE_V (1 to 3)",
            which);
    const int64_t shape[] = {q.batch, q.tokens, q.q_heads + 2 * q.kv_heads};
    int64_t bytes;
    REQUIRE(trope_contiguous_strides(stride, q.layout, shape, q.head_dim) &&
                !__builtin_mul_overflow(stride[TROPE_DIM_GROUP], (int64_t)trope_element_size(q.dtype), &bytes),
            TROPE_ERROR_OVERFLOW, "batch (%lld) * tokens (%lld) * all heads * head_dim (%d) does not fit in 64 bits",
            (ll)q.batch, (ll)q.tokens, q.head_dim);

    const int in_groups = q.order == TROPE_QKV_GROUPS;
    const int32_t per_group = in_groups ? q.q_heads / q.kv_heads + 2 : q.q_heads + 2 * q.kv_heads;
    memset(operand, 0, sizeof *operand);
    operand->dst = (char *)q.buffer + first_head(&q, which) * stride[TROPE_DIM_HEAD] * trope_element_size(q.dtype);
    operand->src = operand->dst;
    operand->src_layout = operand->dst_layout = TROPE_STRIDED;
    operand->groups = in_groups ? q.kv_heads : 1;
    operand->heads_per_group = which != TROPE_Q ? (in_groups ? 1 : q.kv_heads) : (in_groups ? per_group - 2 : q.q_heads);
    operand->head_dim = q.head_dim;
    operand->rotary_dim = which == TROPE_V ? TROPE_COPY : q.rotary_dim;
    stride[TROPE_DIM_GROUP] = per_group * stride[TROPE_DIM_HEAD];
    memcpy(operand->src_stride, stride, sizeof stride);
    memcpy(operand->dst_stride, stride, sizeof stride);
    return TROPE_OK;
}

static trope_status check_sections(const char *function, int32_t pairs, int32_t order, const int32_t *s)
{
    int64_t sum = 0;
    for (int axis = 0; axis < TROPE_MAX_AXES; axis++) {
        REQUIRE(s[axis] >= 0, ARGUMENT, "sections[%d] (%d) must be at least 0", axis, s[axis]);
        sum += s[axis];
    }
    REQUIRE(sum == pairs, ARGUMENT, "sections (%d, %d, %d, %d) must add up to pairs (%d)", s[0], s[1], s[2], s[3], pairs);
    REQUIRE(order == TROPE_AXES_SECTIONS || s[3] == 0, ARGUMENT,
            "sections[3] (%d) must be 0: only TROPE_AXES_SECTIONS has four", s[3]);
    for (int axis = 1; axis < 3 && order == TROPE_AXES_INTERLEAVED; axis++)
        REQUIRE(s[axis] == 0 || 3 * ((int64_t)s[axis] - 1) + axis < pairs, ARGUMENT,
                "sections[%d] (%d) puts the last pair of its axis at %lld, which must be below pairs (%d)", axis, s[axis],
                3 * ((ll)s[axis] - 1) + axis, pairs);
    if (order == TROPE_AXES_ALTERNATING)
        REQUIRE(s[2] == 0 && s[0] == (pairs + 1) / 2, ARGUMENT,
                "sections (%d, %d, %d) must be two halves of pairs (%d) and 0 for TROPE_AXES_ALTERNATING", s[0], s[1], s[2],
                pairs);
    if (order == TROPE_AXES_HWT)
        REQUIRE(s[1] == s[2] || s[1] == (int64_t)s[2] + 1, ARGUMENT,
                "sections[1] (%d) must equal sections[2] (%d), or be one more", s[1], s[2]);
    return TROPE_OK;
}

static int32_t axis_in_order(int32_t order, const int32_t *s, int32_t i)
{
    switch (order) {
    case TROPE_AXES_SECTIONS:
        return i < s[0] ? 0 : i - s[0] < s[1] ? 1 : i - s[0] - s[1] < s[2] ? 2 : 3;
    case TROPE_AXES_INTERLEAVED:
        return i < 3 * (int64_t)s[i % 3] ? i % 3 : 0;
    case TROPE_AXES_ALTERNATING:
        return i % 2;
    default:
        return i - s[1] < s[2] ? 1 + i % 2 : 0;
    }
}

trope_status trope_fill_pair_axis(uint8_t *pair_axis, int32_t pairs, int32_t order, const int32_t *sections)
{
    static const char function[] = "trope_fill_pair_axis";
    REQUIRE(pair_axis, TROPE_ERROR_NULL, "%s", "pair_axis is NULL");
    CHECK(check_pointer(function, "sections", sections, _Alignof(int32_t)));
    REQUIRE(pairs >= 1 && pairs <= TROPE_MAX_ROTARY_DIM / 2, ARGUMENT, "pairs (%d) must be 1 to %d", pairs,
            TROPE_MAX_ROTARY_DIM / 2);
    REQUIRE(order >= TROPE_AXES_SECTIONS && order <= TROPE_AXES_HWT, ARGUMENT,
            "order (%d) must be a TROPE_AXES_ value, 1 to 4", order);
    CHECK(check_sections(function, pairs, order, sections));
    for (int32_t i = 0; i < pairs; i++)
        pair_axis[i] = (uint8_t)axis_in_order(order, sections, i);
    return TROPE_OK;
}

static trope_status write_phase_steps(const char *function, const double *inv_freq, int32_t pairs, uint64_t *phase_step)
{
    for (int32_t i = 0; i < pairs; i++)
        REQUIRE(fabs(inv_freq[i]) < TROPE_MAX_FREQUENCY, ARGUMENT, "inv_freq[%d] (%.15g) must be finite and below 2^64", i,
                inv_freq[i]);
    for (int32_t i = 0; i < pairs; i++)
        phase_step[i] = trope_phase_step(inv_freq[i]);
    return TROPE_OK;
}

trope_status trope_phase_steps(const double *inv_freq, int32_t pairs, uint64_t *phase_step)
{
    static const char function[] = "trope_phase_steps";
    CHECK(check_pointer(function, "inv_freq", inv_freq, sizeof *inv_freq));
    CHECK(check_pointer(function, "phase_step", phase_step, sizeof *phase_step));
    REQUIRE(pairs >= 1 && pairs <= TROPE_MAX_ROTARY_DIM / 2, ARGUMENT, "pairs (%d) must be 1 to %d", pairs,
            TROPE_MAX_ROTARY_DIM / 2);
    const trope_environment saved = trope_set_default_environment();
    const trope_status status = write_phase_steps(function, inv_freq, pairs, phase_step);
    trope_restore_environment(saved);
    return status;
}
