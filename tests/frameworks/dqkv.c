/* Attention's gradients dq, dk and dv go into one dQKV buffer, and are added to what another branch has put there: one
 * backward call with accumulate, in both orders of a packed buffer. V is only copied, that is added too. */
#include <stdio.h>

#include "frameworks/checks.h"

enum { B = 2, S = 6, Q_HEADS = 6, KV_HEADS = 2, HEAD_DIM = 80, R = 64, GROUP = Q_HEADS / KV_HEADS };
enum { BUFFER_HEADS = Q_HEADS + 2 * KV_HEADS };

static float cos_sin[2][S][R];

/* The head of the buffer that head h of q, k or v is. */
static int buffer_head(int32_t order, int32_t which, int h)
{
    if (order == TROPE_QKV_PARTS)
        return which == TROPE_Q ? h : h + Q_HEADS + (which == TROPE_V ? KV_HEADS : 0);
    if (which == TROPE_Q)
        return h / GROUP * (GROUP + 2) + h % GROUP;
    return h * (GROUP + 2) + GROUP + (which == TROPE_V);
}

/* dst + dx: in fp32 and rounded, or (eager) dx rounded first. */
static void accumulate(const rotation *r, void *buffer, int64_t offset, const float *dx)
{
    float sum[HEAD_DIM];
    load_elements(r->dtype, buffer, offset, HEAD_DIM, sum);
    for (int e = 0; e < HEAD_DIM; e++)
        sum[e] += r->rounding == TROPE_ROUND_NATIVE ? eager_round(r->dtype, dx[e]) : dx[e];
    store_elements(r->dtype, buffer, offset, HEAD_DIM, sum);
}

static void expect(const rotation *r, int32_t order, int32_t which, const void *gradient, void *buffer)
{
    const int heads = which == TROPE_Q ? Q_HEADS : KV_HEADS;
    for (int token = 0; token < B * S; token++)
        for (int h = 0; h < heads; h++) {
            const int64_t offset = ((int64_t)token * BUFFER_HEADS + buffer_head(order, which, h)) * HEAD_DIM;
            float dy[HEAD_DIM], dx[HEAD_DIM];
            load_elements(r->dtype, gradient, ((int64_t)token * heads + h) * HEAD_DIM, HEAD_DIM, dy);
            memcpy(dx, dy, sizeof dx);
            if (which != TROPE_V)
                eager_rotate_back(r, cos_sin[0][token % S], cos_sin[1][token % S], dy, dx);
            accumulate(r, buffer, offset, dx);
        }
}

static void check_buffer(const rotation *r, int32_t order, random_state *random)
{
    const int64_t count = B * S * BUFFER_HEADS * HEAD_DIM;
    void *buffer = random_tensor(random, r->dtype, count), *expected = copy_tensor(r->dtype, buffer, count), *gradients[3];
    const trope_qkv qkv = {.struct_size = sizeof qkv,
                           .buffer = buffer,
                           .batch = B,
                           .tokens = S,
                           .layout = TROPE_BSHD,
                           .order = order,
                           .dtype = r->dtype,
                           .q_heads = Q_HEADS,
                           .kv_heads = KV_HEADS,
                           .head_dim = HEAD_DIM,
                           .rotary_dim = R};
    call c = call_make(r->dtype, B, S);
    c.args.operand_count = 3;
    c.args.rounding = r->rounding;
    c.args.pairing = r->pairing;
    call_tables(&c, cos_sin[0], cos_sin[1], TROPE_F32, TROPE_COLUMNS_HALF, S);
    for (int i = 0; i < 3; i++) {
        trope_operand *o = &c.operands[i];
        const int32_t which = TROPE_Q + i;
        CHECK_MESSAGE(trope_fill_qkv(o, &qkv, which) == TROPE_OK, "%s", trope_last_error());
        gradients[i] = random_tensor(random, r->dtype, B * S * (i ? KV_HEADS : Q_HEADS) * HEAD_DIM);
        o->src = gradients[i]; /* [b, s, heads, head_dim] */
        o->src_layout = TROPE_BSHD;
        memset(o->src_stride, 0, sizeof o->src_stride);
        o->accumulate = 1;
        expect(r, order, which, gradients[i], expected);
    }
    char what[64];
    snprintf(what, sizeof what, "order %d, rounding %d, %s", (int)order, (int)r->rounding, number_name(r->dtype));
    check_call(what, call_args(&c), 1);
    check_bits(what, r->dtype, buffer, expected, count);
    for (int i = 0; i < 3; i++)
        free(gradients[i]);
    free(buffer);
    free(expected);
}

int main(void)
{
    random_state random = {9};
    const int32_t dtypes[] = {TROPE_F32, TROPE_BF16};
    const int32_t roundings[] = {TROPE_ROUND_ONCE, TROPE_ROUND_NATIVE, TROPE_ROUND_NATIVE_F32};
    for (int i = 0; i < 2 * S * R; i++)
        cos_sin[i / (S * R)][i / R % S][i % R] = (float)random_real(&random);
    for (int d = 0; d < 2; d++)
        for (int m = 0; m < 3; m++)
            for (int32_t order = TROPE_QKV_GROUPS; order <= TROPE_QKV_PARTS; order++) {
                const rotation r = {dtypes[d], roundings[m], TROPE_PAIRING_HALF, TROPE_PAIRING_HALF, R};
                check_buffer(&r, order, &random);
            }
    return check_result();
}
