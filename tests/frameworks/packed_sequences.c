/* Megatron-Core's packed QKV [t, groups, (q_per_group + 2) * head_dim] with GQA and packed sequences (thd), in place: q and k
 * are rotated where they are, V and what is beyond the rotary dimension stay. freqs [max_seqlen, 1, 1, d] with halves that
 * differ. And the zigzag split of each sequence over context parallel ranks: each rank's tokens have the whole stream's
 * bits. */
#include <stdio.h>

#include "frameworks/checks.h"

enum { T = 48, GROUPS = 2, Q_PER_GROUP = 3, HEADS = GROUPS * (Q_PER_GROUP + 2), HEAD_DIM = 80, R = 64, ROWS = 24 };
enum { ROW = HEADS * HEAD_DIM, SEQUENCES = 4, RANKS = 4 };

static const int32_t cu_seqlens[SEQUENCES + 1] = {0, 16, 16, 40, 48}; /* each length a multiple of twice the ranks */
static float freqs[ROWS][R];

static call make_call(void *buffer, int64_t tokens)
{
    const trope_qkv qkv = {.struct_size = sizeof qkv,
                           .buffer = buffer,
                           .batch = 1,
                           .tokens = tokens,
                           .layout = TROPE_THD,
                           .order = TROPE_QKV_GROUPS,
                           .dtype = TROPE_F32,
                           .q_heads = GROUPS * Q_PER_GROUP,
                           .kv_heads = GROUPS,
                           .head_dim = HEAD_DIM,
                           .rotary_dim = R};
    call c = call_make(TROPE_F32, 1, tokens);
    c.args.operand_count = 2;
    CHECK_MESSAGE(trope_fill_qkv(&c.operands[0], &qkv, TROPE_Q) == TROPE_OK, "%s", trope_last_error());
    CHECK_MESSAGE(trope_fill_qkv(&c.operands[1], &qkv, TROPE_K) == TROPE_OK, "%s", trope_last_error());
    call_freqs(&c, freqs, TROPE_COLUMNS_HALF, ROWS);
    call_cu_seqlens(&c, cu_seqlens, TROPE_I32, SEQUENCES);
    return c;
}

/* The whole stream, token by token: positions begin anew in each sequence, and every head but the last of a group (V) is
 * rotated. */
static void expect(const float *x, int backward, double *y)
{
    const rotation r = {TROPE_F32, TROPE_ROUND_ONCE, TROPE_PAIRING_HALF, TROPE_PAIRING_HALF, R};
    for (int s = 0; s < SEQUENCES; s++)
        for (int t = cu_seqlens[s]; t < cu_seqlens[s + 1]; t++)
            for (int h = 0; h < HEADS; h++) {
                const int64_t offset = (int64_t)t * ROW + h * HEAD_DIM;
                double angle[R];
                for (int e = 0; e < R; e++)
                    angle[e] = freqs[t - cu_seqlens[s]][e];
                for (int e = 0; e < HEAD_DIM; e++)
                    y[offset + e] = x[offset + e];
                if (h % (Q_PER_GROUP + 2) <= Q_PER_GROUP)
                    (backward ? exact_rotate_back : exact_rotate)(&r, angle, x + offset, y + offset);
            }
}

/* The tokens of one rank: of each sequence chunk r, and chunk 2c - 1 - r from the other end. */
static int64_t take_rank(int rank, const float *whole, float *local)
{
    int64_t n = 0;
    for (int s = 0; s < SEQUENCES; s++) {
        const int chunk = (cu_seqlens[s + 1] - cu_seqlens[s]) / (2 * RANKS);
        const int chunks[2] = {rank, 2 * RANKS - 1 - rank};
        for (int i = 0; i < 2; i++)
            for (int t = 0; t < chunk; t++, n++)
                memcpy(local + n * ROW, whole + (int64_t)(cu_seqlens[s] + chunks[i] * chunk + t) * ROW,
                       ROW * sizeof *local);
    }
    return n;
}

static void check_direction(int backward, random_state *random)
{
    float *x = random_tensor(random, TROPE_F32, T * ROW), *y = copy_tensor(TROPE_F32, x, T * ROW);
    double *expected = zero_tensor(TROPE_F64, T * ROW);
    call c = make_call(y, T);
    check_call("the whole stream", call_args(&c), backward);
    expect(x, backward, expected);
    check_near("the whole stream", y, expected, 1.2e-6, T * ROW);
    for (int64_t i = 0; i < T * ROW; i++) { /* what is not rotated keeps its bits */
        const int64_t head = i / HEAD_DIM % (Q_PER_GROUP + 2);
        CHECK(head <= Q_PER_GROUP && i % HEAD_DIM < R ? y[i] != x[i] : !memcmp(&y[i], &x[i], sizeof y[i]));
    }

    for (int rank = 0; rank < RANKS; rank++) {
        float *local = zero_tensor(TROPE_F32, T * ROW), *local_expected = zero_tensor(TROPE_F32, T * ROW);
        const int64_t tokens = take_rank(rank, x, local);
        take_rank(rank, y, local_expected);
        call part = make_call(local, tokens);
        part.args.cp_size = RANKS;
        part.args.cp_rank = rank;
        part.args.cp_layout = TROPE_CP_ZIGZAG;
        check_call("a rank", call_args(&part), backward);
        check_bits("a rank", TROPE_F32, local, local_expected, tokens * ROW);
        free(local);
        free(local_expected);
    }
    free(x);
    free(y);
    free(expected);
}

int main(void)
{
    random_state random = {10};
    for (int i = 0; i < ROWS * R; i++)
        freqs[i / R][i % R] = (float)(30.0 * random_real(&random));
    check_direction(0, &random);
    check_direction(1, &random);
    return check_result();
}
