/* The recipe "MLA: k_pe for every head". */
#include "recipes/recipe.h"

enum { BATCH = 1, TOKENS = 7, HEADS = 5, NOPE = 12, PE = 8, V = 10 };

static float kv[TOKENS * HEADS * (NOPE + V)], k_pe[TOKENS * PE];
static float key[TOKENS * HEADS * (NOPE + PE)], value[TOKENS * HEADS * V];

int main(void)
{
    double inv_freq[PE / 2], angle[PE / 2];
    fill_frequencies(inv_freq, PE, 10000.0);
    fill_random(kv, NULL, sizeof kv);
    fill_random(k_pe, NULL, sizeof k_pe);
#include "begin.inc"
#include "mla.inc"
    CHECK_OK(status);
    for (int row = 0; row < TOKENS * HEADS; row++) {
        const float *joint = kv + row * (NOPE + V), *head = key + row * (NOPE + PE);
        for (int i = 0; i < PE / 2; i++)
            angle[i] = row / HEADS * inv_freq[i];
        CHECK(!memcmp(head, joint, NOPE * sizeof *head));
        CHECK(!memcmp(value + row * V, joint + NOPE, V * sizeof *value));
        check_turned(head + NOPE, k_pe + row / HEADS * PE, 1, PE, angle, TROPE_PAIRING_INTERLEAVED);
    }
    return check_result();
}
