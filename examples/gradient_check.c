/* The gradient check: see gradient_check.h. */
#define GPT_DOUBLE 1
#include "gpt.h"
#include "gradient_check.h"

_Static_assert((int)CHECK_TENSORS == (int)TENSORS, "one result for each tensor");

/* Returns how far a parameter moves to either side. If it moves too far, the loss is not linear; if it moves too little,
 * the difference loses precision. The step is smaller if all parameters of a tensor move together. */
static double step_for(int64_t count)
{
    return count == 1 ? 3e-5 : 1e-6;
}

/* Returns the derivative of the loss along signs (+1 or -1 for each of count parameters), by a central difference. */
static double difference(struct gpt *m, const struct batch *batch, real *weights, const int8_t *signs, int64_t count)
{
    const double step = step_for(count);
    real *saved = malloc((size_t)count * sizeof *saved);
    if (!saved)
        return NAN;
    memcpy(saved, weights, (size_t)count * sizeof *saved);
    for (int64_t i = 0; i < count; i++)
        weights[i] = saved[i] + step * signs[i];
    double above = gpt_forward(m, batch);
    for (int64_t i = 0; i < count; i++)
        weights[i] = saved[i] - step * signs[i];
    double below = gpt_forward(m, batch);
    memcpy(weights, saved, (size_t)count * sizeof *saved);
    free(saved);
    return (above - below) / (2 * step);
}

static double length(const double *gradient, int64_t count)
{
    double square = 0;
    for (int64_t i = 0; i < count; i++)
        square += gradient[i] * gradient[i];
    return sqrt(square);
}

/* Returns the relative error along the signs of parameters [begin, begin + count). */
static double direction_error(struct gpt *m, const struct batch *batch, const double *gradient, const int8_t *signs,
                              int64_t begin, int64_t count)
{
    double expected = 0;
    for (int64_t i = 0; i < count; i++)
        expected += gradient[begin + i] * signs[begin + i];
    double found = difference(m, batch, m->weights + begin, signs + begin, count);
    return fabs(found - expected) / length(gradient + begin, count);
}

/* Returns the largest relative error of some of a tensor's parameters. It skips parameters without influence, such as the
 * embedding of a byte that does not occur. */
static double element_error(struct gpt *m, const struct batch *batch, const double *gradient, const struct tensor *t,
                            uint64_t *random)
{
    const int64_t count = tensor_size(t);
    const double typical = length(gradient + t->offset, count) / sqrt((double)count);
    double worst = 0;
    for (int sample = 0, tries = 0; sample < CHECK_SAMPLES; tries++) {
        int64_t i = t->offset + (int64_t)(random_bits(random) % (uint64_t)count);
        if (gradient[i] == 0 && tries < 1000)
            continue;
        double found = difference(m, batch, m->weights + i, &(int8_t){1}, 1);
        double error = fabs(found - gradient[i]) / fmax(fabs(gradient[i]), typical);
        worst = error > worst || isnan(error) ? error : worst;
        sample++;
    }
    return worst;
}

void check_gradient(struct gradient_check *check, const struct gpt_shape *shape, const struct batch *batch, uint64_t seed)
{
    struct gpt m;
    gpt_new(&m, shape, batch->tokens);
    gpt_randomize(&m, seed, CHECK_SPREAD);
    gpt_forward(&m, batch);
    gpt_backward(&m, batch);

    double *gradient = malloc((size_t)m.parameters * sizeof *gradient);
    int8_t *signs = gpt_block(&m, m.parameters, 1);
    if (!gradient) {
        fprintf(stderr, "train_packed: out of memory\n");
        exit(2);
    }
    memcpy(gradient, m.gradients, (size_t)m.parameters * sizeof *gradient);
    for (int64_t i = 0; i < m.parameters; i++)
        signs[i] = random_bits(&seed) & 1 ? 1 : -1;
    for (int i = 0; i < TENSORS; i++) {
        const struct tensor *t = &m.tensors[i];
        check->element[i] = element_error(&m, batch, gradient, t, &seed);
        check->direction[i] = direction_error(&m, batch, gradient, signs, t->offset, tensor_size(t));
    }
    check->all = direction_error(&m, batch, gradient, signs, 0, m.parameters);
    check->gradient = gradient;
    gpt_free(&m);
}
