/* The recipe "Going on at an offset". */
#include "recipes/recipe.h"

enum { BATCH = 3, TOKENS = 6, Q_HEADS = 4, KV_HEADS = 2, DIM = 16 };

static float q[BATCH][TOKENS][Q_HEADS][DIM], q_before[BATCH][TOKENS][Q_HEADS][DIM];
static float k[BATCH][TOKENS][KV_HEADS][DIM], k_before[BATCH][TOKENS][KV_HEADS][DIM];

int main(void)
{
    const int64_t past[BATCH] = {0, 1000, 7};
    double inv_freq[DIM / 2];
    fill_frequencies(inv_freq, DIM, 10000.0);
    fill_random(q[0][0][0], sizeof q / sizeof(float));
    fill_random(k[0][0][0], sizeof k / sizeof(float));
    memcpy(q_before, q, sizeof q);
    memcpy(k_before, k, sizeof k);
#include "begin.inc"
#include "offset.inc"
    CHECK_OK(status);
    for (int b = 0; b < BATCH; b++)
        for (int t = 0; t < TOKENS; t++) {
            for (int h = 0; h < Q_HEADS; h++)
                check_rotated(q[b][t][h], q_before[b][t][h], (double)(past[b] + t), inv_freq, DIM);
            for (int h = 0; h < KV_HEADS; h++)
                check_rotated(k[b][t][h], k_before[b][t][h], (double)(past[b] + t), inv_freq, DIM);
        }
    return check_result();
}
