/* The recipe "Packed QKV with GQA, thd". */
#include "recipes/recipe.h"

enum { BATCH = 1, TOKENS = 12, Q_HEADS = 6, KV_HEADS = 2, DIM = 16, SEQUENCES = 3 };
enum { GROUP = Q_HEADS / KV_HEADS + 2 };

static float buffer[TOKENS][KV_HEADS][GROUP][DIM], before[TOKENS][KV_HEADS][GROUP][DIM];

int main(void)
{
    const int32_t cu_seqlens[SEQUENCES + 1] = {0, 5, 6, TOKENS};
    double inv_freq[DIM / 2];
    fill_frequencies(inv_freq, DIM, 10000.0);
    fill_random(buffer[0][0][0], before[0][0][0], sizeof buffer);
#include "begin.inc"
#include "packed_qkv.inc"
    CHECK_OK(status);
    for (int t = 0; t < TOKENS; t++)
        for (int g = 0; g < KV_HEADS; g++) {
            const int position = t < 5 ? t : t < 6 ? t - 5 : t - 6;
            check_rotated(buffer[t][g][0], before[t][g][0], GROUP - 1, DIM, position, inv_freq);
            CHECK(!memcmp(buffer[t][g][GROUP - 1], before[t][g][GROUP - 1], sizeof buffer[t][g][0]));
        }
    return check_result();
}
