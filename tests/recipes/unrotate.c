/* The recipe "Undoing a rotation with mscale". Also checks the page's statement that backward would give m^2 times x. */
#include "recipes/recipe.h"

enum { BATCH = 2, TOKENS = 9, HEADS = 3, DIM = 16, COUNT = BATCH * TOKENS * HEADS * DIM };

static float x[COUNT], before[COUNT];

int main(void)
{
    const double attention_factor = 1.3465735902799727;
    double inv_freq[DIM / 2];
    fill_frequencies(inv_freq, DIM, 10000.0);
    fill_random(x, before, sizeof x);
#include "begin.inc"
#include "unrotate.inc"
    CHECK_OK(status);
    for (int i = 0; i < COUNT; i++)
        CHECK_MESSAGE(fabs((double)x[i] - before[i]) < 6e-7, "element %d is %.8f, not %.8f", i, x[i], before[i]);

    args.inverse = 0;
    args.mscale = attention_factor;
    CHECK_OK(trope_forward(&args));
    CHECK_OK(trope_backward(&args));
    for (int i = 0; i < COUNT; i++)
        CHECK(fabs(x[i] - attention_factor * attention_factor * before[i]) < 2e-6);
    return check_result();
}
