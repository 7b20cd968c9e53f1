/* The recipe "M-RoPE". */
#include "recipes/recipe.h"

enum { BATCH = 2, TOKENS = 5, Q_HEADS = 3, KV_HEADS = 1 };

static float q[BATCH][Q_HEADS][TOKENS][128], q_before[BATCH][Q_HEADS][TOKENS][128];
static float k[BATCH][KV_HEADS][TOKENS][128], k_before[BATCH][KV_HEADS][TOKENS][128];
static int64_t ids[3][BATCH][TOKENS];

int main(void)
{
    random_state random = {2};
    double inv_freq[64], angle[64];
    fill_frequencies(inv_freq, 128, 1000000.0);
    fill_random(q[0][0][0], q_before[0][0][0], sizeof q);
    fill_random(k[0][0][0], k_before[0][0][0], sizeof k);
    for (int i = 0; i < 3 * BATCH * TOKENS; i++)
        ids[i / (BATCH * TOKENS)][i / TOKENS % BATCH][i % TOKENS] = random_between(&random, 0, 500);
#include "begin.inc"
#include "mrope.inc"
    CHECK_OK(status);
    for (int b = 0; b < BATCH; b++)
        for (int t = 0; t < TOKENS; t++) {
            for (int i = 0; i < 64; i++)
                angle[i] = (double)ids[i < 16 ? 0 : i < 40 ? 1 : 2][b][t] * inv_freq[i];
            for (int h = 0; h < Q_HEADS; h++)
                check_turned(q[b][h][t], q_before[b][h][t], 1, 128, angle, TROPE_PAIRING_HALF);
            check_turned(k[b][0][t], k_before[b][0][t], 1, 128, angle, TROPE_PAIRING_HALF);
        }
    return check_result();
}
