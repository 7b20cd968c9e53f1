/* freqs_cis, the complex64 tables of torchtitan [max_seqlen, d / 2] and of Llama 4 [b, s, d / 2]: interleaved pairs are
 * complex numbers, multiplied in fp32 and rounded once. sin is cos + 1 and the columns have a stride of 2. The numbers are
 * random, not of magnitude 1. */
#include <stdio.h>

#include "frameworks/checks.h"

enum { B = 3, S = 8, D = 64, HEAD_DIM = 64, ROWS = 24 };

typedef struct complex64 {
    float re, im;
} complex64;

static complex64 freqs_cis[ROWS][D / 2]; /* [b, s, d / 2] uses all rows too: B * S = ROWS */
static int32_t ids[B][S];

/* cos and sin by halves of the rows that each token has. */
static void gather(int by_batch, int with_ids, float *cos, float *sin)
{
    for (int b = 0; b < B; b++)
        for (int s = 0; s < S; s++)
            for (int i = 0; i < D; i++) {
                const complex64 z = freqs_cis[by_batch ? b * S + s : with_ids ? ids[b][s] : s][i % (D / 2)];
                cos[(b * S + s) * D + i] = z.re;
                sin[(b * S + s) * D + i] = z.im;
            }
}

static call make_call(int by_batch, int with_ids)
{
    call c = call_make(TROPE_F32, B, S);
    call_tables(&c, &freqs_cis[0][0].re, &freqs_cis[0][0].im, TROPE_F32, TROPE_COLUMNS_PAIR, by_batch ? S : ROWS);
    c.args.angle_layout = TROPE_TABLE_STRIDED;
    c.args.angle_stride[1] = by_batch ? S * D : 0;
    c.args.angle_stride[2] = D;
    c.args.angle_stride[3] = 2;
    if (with_ids) {
        c.args.position_ids = ids;
        c.args.position_dtype = TROPE_I32;
        c.args.ids_layout = TROPE_IDS_BATCH_TOKENS;
    }
    return c;
}

int main(void)
{
    random_state random = {4};
    static float cos[B * S * D], sin[B * S * D];
    const int32_t dtypes[] = {TROPE_F32, TROPE_BF16};
    for (int row = 0; row < ROWS; row++)
        for (int i = 0; i < D / 2; i++)
            freqs_cis[row][i] = (complex64){(float)random_real(&random), (float)random_real(&random)};
    for (int i = 0; i < B * S; i++)
        ids[i / S][i % S] = (int32_t)random_between(&random, 0, ROWS - 1);
    for (int d = 0; d < 2; d++)
        for (int way = 0; way < 3; way++) { /* torchtitan, Llama 4, torchtitan with positions */
            const shape s = {TROPE_BSHD, B, S, 5, HEAD_DIM};
            const rotation r = {dtypes[d], TROPE_ROUND_NATIVE_F32, TROPE_PAIRING_INTERLEAVED, TROPE_PAIRING_INTERLEAVED, D};
            const call c = make_call(way == 1, way == 2);
            char what[64];
            snprintf(what, sizeof what, "%s, way %d", number_name(dtypes[d]), way);
            gather(way == 1, way == 2, cos, sin);
            check_eager(what, &c, &s, &r, &(coefficients){cos, sin}, &random);
        }
    return check_result();
}
