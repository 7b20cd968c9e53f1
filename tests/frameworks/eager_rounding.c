/* The rounding modes are eager PyTorch's bits where the tables are the framework's own. Llama casts cos and sin to the dtype
 * of q, and each operation rounds to it (NATIVE). OLMo 2 and the vision towers rotate in fp32 and cast the result
 * (NATIVE_F32). gpt-oss has one column a pair. attention_scaling multiplies cos and sin before they are cast, as mscale does.
 *
 * Backward the same holds where q is cast to fp32 once, as the vision towers do. OLMo 2 and Ernie 4.5 VL multiply a bf16 q
 * by an fp32 cos twice; PyTorch casts each of the two gradients to bf16 before it adds them, and NATIVE_F32 adds first. */
#include <stdio.h>

#include "frameworks/checks.h"

enum { B = 2, S = 11, D = 64, PAIRS = D / 2, HEAD_DIM = 64 };

typedef struct model {
    const char *name;
    int32_t rounding, pairing, columns;
    double attention_scaling;
} model;

static const model models[] = {
    {"Llama", TROPE_ROUND_NATIVE, TROPE_PAIRING_HALF, TROPE_COLUMNS_HALF, 1.0},
    {"Llama with YaRN", TROPE_ROUND_NATIVE, TROPE_PAIRING_HALF, TROPE_COLUMNS_HALF, 1.2079441541679836},
    {"OLMo 2", TROPE_ROUND_NATIVE_F32, TROPE_PAIRING_HALF, TROPE_COLUMNS_HALF, 1.0},
    {"OLMo 2 with YaRN", TROPE_ROUND_NATIVE_F32, TROPE_PAIRING_HALF, TROPE_COLUMNS_HALF, 1.2079441541679836},
    {"gpt-oss", TROPE_ROUND_NATIVE, TROPE_PAIRING_HALF, TROPE_COLUMNS_PAIR, 1.3465735902799727},
    {"GPT-J", TROPE_ROUND_NATIVE, TROPE_PAIRING_INTERLEAVED, TROPE_COLUMNS_INTERLEAVED, 1.0},
};

static float freqs[B * S][PAIRS];  /* inv_freq times position_ids, which differ by batch entry */
static float table[2][B * S * D];  /* cos and sin of them, in the model's columns, not scaled */
static float cos_sin[2][B * S][D]; /* by halves and scaled, in fp32 */

static void make_tables(const model *m)
{
    const int columns = m->columns == TROPE_COLUMNS_PAIR ? PAIRS : D;
    const float scale = (float)m->attention_scaling;
    for (int row = 0; row < B * S; row++)
        for (int e = 0; e < D; e++) {
            const float angle = freqs[row][e % PAIRS];
            const int column = m->columns == TROPE_COLUMNS_INTERLEAVED ? 2 * (e % PAIRS) + e / PAIRS : e % columns;
            table[0][row * columns + column] = cosf(angle);
            table[1][row * columns + column] = sinf(angle);
            cos_sin[0][row][e] = cosf(angle) * scale;
            cos_sin[1][row][e] = sinf(angle) * scale;
        }
}

static void check_model(const model *m, int32_t dtype, random_state *random)
{
    const shape s = {TROPE_BHSD, B, S, 4, HEAD_DIM};
    const rotation r = {dtype, m->rounding, m->pairing, m->pairing, D};
    const coefficients k = {cos_sin[0][0], cos_sin[1][0]};
    call c = call_make(dtype, B, S);
    char what[64];
    snprintf(what, sizeof what, "%s, %s", m->name, number_name(dtype));
    make_tables(m);
    call_tables(&c, table[0], table[1], TROPE_F32, m->columns, S);
    c.args.angle_layout = TROPE_TABLE_BATCH_ROWS;
    c.args.mscale = m->attention_scaling;
    check_eager(what, &c, &s, &r, &k, random);

    /* The same from the tables that Hugging Face's models hand on, scaled and cast. */
    if (m->rounding != TROPE_ROUND_NATIVE || m->columns != TROPE_COLUMNS_HALF)
        return;
    void *cast[2];
    for (int i = 0; i < 2; i++)
        cast[i] = cast_tensor(dtype, TROPE_F32, cos_sin[i], B * S * D);
    call_tables(&c, cast[0], cast[1], dtype, m->columns, S);
    c.args.angle_layout = TROPE_TABLE_BATCH_ROWS;
    c.args.mscale = 0.0;
    check_eager(what, &c, &s, &r, &k, random);
    free(cast[0]);
    free(cast[1]);
}

int main(void)
{
    random_state random = {7};
    const int32_t dtypes[] = {TROPE_F32, TROPE_BF16, TROPE_F16};
    for (int row = 0; row < B * S; row++) {
        const float position = (float)random_between(&random, 0, 5000);
        for (int i = 0; i < PAIRS; i++)
            freqs[row][i] = position * (float)pow(500000.0, -1.0 * i / PAIRS);
    }
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++)
        for (int d = 0; d < 3; d++)
            check_model(&models[i], dtypes[d], &random);
    return check_result();
}
