/* The recipe "A rule from a config". Checks the frequencies of Llama 3.1 against their formula, and the rotation. */
#include "recipes/recipe.h"

enum { BATCH = 2, TOKENS = 9, HEADS = 3 };

static float q[BATCH][TOKENS][HEADS][128], before[BATCH][TOKENS][HEADS][128];

int main(void)
{
    fill_random(q[0][0][0], before[0][0][0], sizeof q);
#include "begin.inc"
#include "rule.inc"
    CHECK_OK(status);
    CHECK(args.mscale == 1.0);
    for (int i = 0; i < 64; i++) {
        const double f = pow(500000.0, -2.0 * i / 128.0), wavelength = 2.0 * 3.14159265358979323846 / f;
        const double smooth = (8192.0 / wavelength - 1.0) / (4.0 - 1.0);
        const double expected = wavelength > 8192.0 / 1.0   ? f / 8.0
                                : wavelength < 8192.0 / 4.0 ? f
                                                            : (1.0 - smooth) * f / 8.0 + smooth * f;
        CHECK_MESSAGE(fabs(inv_freq[i] / expected - 1.0) < 1e-14, "frequency %d is %.17g, not %.17g", i, inv_freq[i],
                      expected);
    }
    for (int b = 0; b < BATCH; b++)
        for (int t = 0; t < TOKENS; t++)
            check_rotated(q[b][t][0], before[b][t][0], HEADS, 128, t, inv_freq);
    return check_result();
}
