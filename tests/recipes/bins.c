/* The recipe "A batch of packed bins". */
#include "recipes/recipe.h"

enum { BATCH = 2, TOKENS = 8, HEADS = 3, DIM = 16 };

static float q[BATCH][TOKENS][HEADS][DIM], before[BATCH][TOKENS][HEADS][DIM];

int main(void)
{
    const int expected[BATCH][TOKENS] = {{0, 1, 2, 3, 4, 0, 1, -1}, {0, 1, 2, 0, 1, 2, 3, -1}};
    const float zeros[HEADS][DIM] = {{0}};
    double inv_freq[DIM / 2];
    fill_frequencies(inv_freq, DIM, 10000.0);
    fill_random(q[0][0][0], before[0][0][0], sizeof q);
#include "begin.inc"
#include "bins.inc"
    CHECK_OK(status);
    for (int b = 0; b < BATCH; b++)
        for (int t = 0; t < TOKENS; t++) {
            if (expected[b][t] < 0)
                CHECK(!memcmp(q[b][t], zeros, sizeof zeros));
            else
                check_rotated(q[b][t][0], before[b][t][0], HEADS, DIM, expected[b][t], inv_freq);
        }
    return check_result();
}
