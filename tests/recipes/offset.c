/* The recipe "Continuing at an offset". */
#include "recipes/recipe.h"

enum { BATCH = 3, TOKENS = 6, Q_HEADS = 4, KV_HEADS = 2, DIM = 16 };

static float q[BATCH][TOKENS][Q_HEADS][DIM], q_before[BATCH][TOKENS][Q_HEADS][DIM];
static float k[BATCH][TOKENS][KV_HEADS][DIM], k_before[BATCH][TOKENS][KV_HEADS][DIM];

int main(void)
{
    const int64_t past[BATCH] = {0, 1000, 7};
    double inv_freq[DIM / 2];
    fill_frequencies(inv_freq, DIM, 10000.0);
    fill_random(q[0][0][0], q_before[0][0][0], sizeof q);
    fill_random(k[0][0][0], k_before[0][0][0], sizeof k);
#include "begin.inc"
#include "offset.inc"
    CHECK_OK(status);
    for (int b = 0; b < BATCH; b++)
        for (int t = 0; t < TOKENS; t++) {
            check_rotated(q[b][t][0], q_before[b][t][0], Q_HEADS, DIM, (double)(past[b] + t), inv_freq);
            check_rotated(k[b][t][0], k_before[b][t][0], KV_HEADS, DIM, (double)(past[b] + t), inv_freq);
        }
    return check_result();
}
