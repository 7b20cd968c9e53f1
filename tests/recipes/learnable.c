/* The recipe "Learnable frequencies". Its step must agree with the gradient by central differences. */
#include "recipes/recipe.h"

enum { BATCH = 2, TOKENS = 9, HEADS = 3, DIM = 8 };

static float x[BATCH][TOKENS][HEADS][DIM], dy[BATCH][TOKENS][HEADS][DIM], dx[BATCH][TOKENS][HEADS][DIM];

/* The sum of dy * y. Its gradient with respect to y is dy. */
static double loss(const double *inv_freq)
{
    double sum = 0.0;
    for (int row = 0; row < BATCH * TOKENS * HEADS; row++) {
        const float *in = x[0][0][0] + row * DIM, *up = dy[0][0][0] + row * DIM;
        for (int i = 0; i < DIM / 2; i++) {
            const double angle = row / HEADS % TOKENS * inv_freq[i], x1 = in[i], x2 = in[i + DIM / 2];
            sum += up[i] * (x1 * cos(angle) - x2 * sin(angle)) + up[i + DIM / 2] * (x2 * cos(angle) + x1 * sin(angle));
        }
    }
    return sum;
}

int main(void)
{
    const double rate = 1e-3;
    double inv_freq[DIM / 2], before[DIM / 2], d_inv_freq[DIM / 2];
    fill_frequencies(inv_freq, DIM, 100.0);
    memcpy(before, inv_freq, sizeof inv_freq);
    fill_random(x[0][0][0], NULL, sizeof x);
    fill_random(dy[0][0][0], NULL, sizeof dy);
#include "begin.inc"
#include "learnable.inc"
    CHECK_OK(status);
    for (int i = 0; i < DIM / 2; i++) {
        double moved[DIM / 2], difference[2];
        for (int side = 0; side < 2; side++) {
            memcpy(moved, before, sizeof moved);
            moved[i] += side ? -1e-5 : 1e-5;
            difference[side] = loss(moved);
        }
        const double gradient = (difference[0] - difference[1]) / 2e-5;
        CHECK_MESSAGE(fabs(before[i] - inv_freq[i] - rate * gradient) < 1e-5 * rate * (1.0 + fabs(gradient)),
                      "frequency %d moved by %.9g, not by %.9g", i, before[i] - inv_freq[i], rate * gradient);
    }
    free(args.workspace);
    return check_result();
}
