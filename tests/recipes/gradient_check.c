/* The recipe "A gradient check", for every element. */
#include "recipes/recipe.h"

enum { BATCH = 2, TOKENS = 5, HEADS = 2, DIM = 8, COUNT = BATCH * TOKENS * HEADS * DIM };

static void check_element(int n)
{
    static double x[COUNT], dy[COUNT], y[COUNT], dx[COUNT];
    random_state random = {3};
    double inv_freq[DIM / 2];
    fill_frequencies(inv_freq, DIM, 100.0);
    for (int i = 0; i < COUNT; i++) {
        x[i] = random_real(&random);
        dy[i] = random_real(&random);
    }
#include "begin.inc"
#include "gradient_check.inc"
    CHECK_OK(status);
    CHECK(dx[n] != 0.0);
    CHECK_MESSAGE(fabs(off) < 1e-14, "element %d is off by %g", n, off);
}

int main(void)
{
    for (int n = 0; n < COUNT; n++)
        check_element(n);
    return check_result();
}
