/* The recipe "Zigzag context parallel", run for every rank. */
#include "recipes/recipe.h"

enum { BATCH = 1, RANKS = 2, TOKENS = 12 / RANKS, HEADS = 3, DIM = 16, SEQUENCES = 2 };

/* Sequences of 8 and 4 tokens, in chunks of 2 and 1 tokens. */
static const int64_t expected[RANKS][TOKENS] = {{0, 1, 6, 7, 0, 3}, {2, 3, 4, 5, 1, 2}};

static void run_rank(int rank)
{
    const int ranks = RANKS;
    const int32_t cu_seqlens[SEQUENCES + 1] = {0, 8, 12};
    static float q[TOKENS][HEADS][DIM], before[TOKENS][HEADS][DIM];
    int64_t positions[TOKENS];
    double inv_freq[DIM / 2];
    fill_frequencies(inv_freq, DIM, 10000.0);
    fill_random(q[0][0], before[0][0], sizeof q);
#include "begin.inc"
#include "zigzag.inc"
    CHECK_OK(status);
    CHECK(!memcmp(positions, expected[rank], sizeof positions));
    for (int t = 0; t < TOKENS; t++)
        check_rotated(q[t][0], before[t][0], HEADS, DIM, (double)expected[rank][t], inv_freq);
}

int main(void)
{
    for (int rank = 0; rank < RANKS; rank++)
        run_rank(rank);
    return check_result();
}
