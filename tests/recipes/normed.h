/* The tensors of the recipes "Norms of Qwen3 and Gemma 3", and checks of their results. The checks compute the norm and the
 * rotation of a head in double, and gradients by central differences. Define BATCH, TOKENS, Q_HEADS, KV_HEADS and DIM
 * before including this file. */
#ifndef TESTS_RECIPES_NORMED_H
#define TESTS_RECIPES_NORMED_H

#include "recipes/recipe.h"

enum { Q_SIZE = BATCH * TOKENS * Q_HEADS * DIM, K_SIZE = BATCH * TOKENS * KV_HEADS * DIM };
static float q[Q_SIZE], q_out[Q_SIZE], dq[Q_SIZE], dq_out[Q_SIZE];
static float k[K_SIZE], k_out[K_SIZE], dk[K_SIZE], dk_out[K_SIZE];
static float q_weight[DIM], k_weight[DIM], d_q_weight[DIM], d_k_weight[DIM];

/* The model multiplies by weight + plus, and rotates by the angles position * inv_freq. */
typedef struct {
    double plus, inv_freq[DIM / 2];
} normed_model;

/* One tensor, with its results and gradients. */
typedef struct {
    const float *x, *y, *dy, *dx, *weight, *d_weight;
    int heads;
} normed_tensor;

/* Fills the inputs. x is so small that eps changes the results. */
static void fill_normed(void)
{
    fill_random(q, NULL, sizeof q);
    fill_random(k, NULL, sizeof k);
    for (int i = 0; i < Q_SIZE; i++)
        q[i] *= 2e-3f;
    for (int i = 0; i < K_SIZE; i++)
        k[i] *= 2e-3f;
    fill_random(dq_out, NULL, sizeof dq_out);
    fill_random(dk_out, NULL, sizeof dk_out);
    fill_random(q_weight, NULL, sizeof q_weight);
    fill_random(k_weight, NULL, sizeof k_weight);
}

/* Computes y of head n, after adding x_step to x[i] and weight_step to weight[i]. Returns the sum of dy * y. */
static double normed_head(const normed_model *model, const normed_tensor *t, int n, int i, double x_step,
                          double weight_step, double *y)
{
    const float *x = t->x + n * DIM, *dy = t->dy + n * DIM;
    double normed[DIM], squares = 0.0, loss = 0.0;
    for (int e = 0; e < DIM; e++) {
        normed[e] = x[e] + (e == i ? x_step : 0.0);
        squares += normed[e] * normed[e];
    }
    for (int e = 0; e < DIM; e++)
        normed[e] *= (t->weight[e] + model->plus + (e == i ? weight_step : 0.0)) / sqrt(squares / DIM + 1e-6);
    for (int e = 0; e < DIM / 2; e++) {
        const double angle = n / t->heads % TOKENS * model->inv_freq[e], x1 = normed[e], x2 = normed[e + DIM / 2];
        y[e] = x1 * cos(angle) - x2 * sin(angle);
        y[e + DIM / 2] = x2 * cos(angle) + x1 * sin(angle);
        loss += dy[e] * y[e] + dy[e + DIM / 2] * y[e + DIM / 2];
    }
    return loss;
}

static void check_near(const char *what, int n, int i, double value, double expected, double scale)
{
    CHECK_MESSAGE(fabs(value - expected) < 3e-6 * scale, "%s, head %d, element %d: %.9g is not %.9g", what, n, i, value,
                  expected);
}

static void check_normed(const normed_model *model, const normed_tensor *t)
{
    const double x_step = 1e-7, weight_step = 1e-4;
    double y[DIM], moved[DIM], d_weight[DIM] = {0};
    for (int n = 0; n < BATCH * TOKENS * t->heads; n++) {
        normed_head(model, t, n, -1, 0.0, 0.0, y);
        for (int i = 0; i < DIM; i++) {
            const double up = normed_head(model, t, n, i, x_step, 0.0, moved);
            const double down = normed_head(model, t, n, i, -x_step, 0.0, moved);
            check_near("y", n, i, t->y[n * DIM + i], y[i], 1.0);
            check_near("dx", n, i, t->dx[n * DIM + i], (up - down) / (2 * x_step), 1e3);
            const double more = normed_head(model, t, n, i, 0.0, weight_step, moved);
            const double less = normed_head(model, t, n, i, 0.0, -weight_step, moved);
            d_weight[i] += (more - less) / (2 * weight_step);
        }
    }
    for (int i = 0; i < DIM; i++)
        check_near("d_weight", 0, i, t->d_weight[i], d_weight[i], 10.0);
}

/* Checks both tensors, with the frequencies base^(-2i/DIM) / factor. */
static void check_normed_model(double plus, double base, double factor)
{
    const normed_tensor of_q = {q, q_out, dq_out, dq, q_weight, d_q_weight, Q_HEADS};
    const normed_tensor of_k = {k, k_out, dk_out, dk, k_weight, d_k_weight, KV_HEADS};
    normed_model model = {.plus = plus};
    fill_frequencies(model.inv_freq, DIM, base);
    for (int i = 0; i < DIM / 2; i++)
        model.inv_freq[i] /= factor;
    check_normed(&model, &of_q);
    check_normed(&model, &of_k);
}

#endif
