/* The reference: the norm of a head, and its gradient. Each operation is computed in double and rounded to the arithmetic. In double it is
 * precise enough that the result is as if it were rounded once. */
#include <stdlib.h>

#include "support/reference_parts.h"

static double real(const walk *w, double value)
{
    return is_double(w->args) ? value : (double)(float)value;
}

int64_t reference_heads(const trope_args *args, int operand)
{
    const trope_operand *o = &args->operands[operand];
    return (o->groups ? o->groups : 1) * (int64_t)o->heads_per_group;
}

int64_t reference_weights(const trope_args *args, int operand)
{
    const trope_norm *norm = reference_norm(args, operand);
    return (norm && norm->weight_per_head ? reference_heads(args, operand) : 1) * args->operands[operand].head_dim;
}

const trope_norm *reference_norm(const trope_args *args, int operand)
{
    return args->norms ? args->norms[operand] : NULL;
}

/* The number of a head among all of its operand. */
static int64_t number_of(const walk *w, head h)
{
    return h.group * w->args->operands[h.operand].heads_per_group + h.head;
}

/* t[i] = t[2i] + t[2i+1], from i = first on, over `size` numbers, a power of two, of which there are `count`. */
static double sum_tree(const walk *w, const double *t, int64_t first, int64_t size, int64_t count)
{
    if (first >= count)
        return 0;
    if (size == 1)
        return t[first];
    return real(w, sum_tree(w, t, first, size / 2, count) + sum_tree(w, t, first + size / 2, size / 2, count));
}

/* The sum of the products of two heads. *levels: of the tree. */
static double sum_products(const walk *w, const double *a, const double *b, int64_t count, int *levels)
{
    double *products = malloc((size_t)count * sizeof *products);
    for (int64_t i = 0; i < count; i++)
        products[i] = real(w, a[i] * b[i]);
    for (*levels = 0; (int64_t)1 << *levels < count; ++*levels)
        continue;
    const double sum = sum_tree(w, products, 0, (int64_t)1 << *levels, count);
    free(products);
    return sum;
}

/* The factor of an element: weight, or 1 + weight; 1 without. */
static double factor(const walk *w, head h, int64_t element)
{
    const trope_norm *norm = reference_norm(w->args, h.operand);
    const int64_t first = norm->weight_per_head ? number_of(w, h) * w->args->operands[h.operand].head_dim : 0;
    if (!norm->weight)
        return 1;
    const char *weight = (const char *)norm->weight + (first + element) * (int64_t)number_size(norm->weight_dtype);
    return real(w, number_load(norm->weight_dtype, weight) + norm->weight_plus_one);
}

/* rstd of a head whose x is in w->x: read, or computed, and noted where it is written. */
static double find_rstd(const walk *w, head h)
{
    const trope_norm *norm = reference_norm(w->args, h.operand);
    const int64_t dim = w->args->operands[h.operand].head_dim, row = w->batch * w->args->tokens + w->token;
    const int64_t at = row * reference_heads(w->args, h.operand) + number_of(w, h);
    const int32_t dtype = is_double(w->args) ? TROPE_F64 : TROPE_F32;
    int levels;
    if (norm->rstd_use == TROPE_RSTD_READ)
        return number_load(dtype, (const char *)norm->rstd + at * (int64_t)number_size(dtype));
    const double mean = real(w, sum_products(w, w->x, w->x, dim, &levels) / (double)dim);
    const double rstd = real(w, 1 / real(w, sqrt(real(w, mean + real(w, norm->eps)))));
    if (w->result->rstd[h.operand])
        w->result->rstd[h.operand][at] = rstd;
    return rstd;
}

void reference_load_head(const walk *w, head h, tensor_role role)
{
    const tensor t = tensor_of(w->args, h.operand, role, w->backward);
    for (int64_t i = 0; i < t.size[TROPE_DIM_ELEMENT]; i++)
        w->x[i] = element_at(w, &t, head_number(w, h, &t) + i);
}

void reference_normalise(const walk *w, head h)
{
    const trope_norm *norm = reference_norm(w->args, h.operand);
    if (!norm)
        return;
    const double rstd = find_rstd(w, h);
    for (int64_t i = 0; i < w->args->operands[h.operand].head_dim; i++) {
        double n = real(w, w->x[i] * rstd);
        if (norm->rounding == TROPE_NORM_ROUND_TWICE)
            n = number_round(w->args->dtype, n);
        n = real(w, n * factor(w, h, i));
        w->x[i] = w->args->rounding == TROPE_ROUND_ONCE ? n : number_round(w->args->dtype, n);
    }
}

/* ---- The gradient ---- */

static int is_poisoned(const walk *w, head h)
{
    for (int pair = 0; pair < pairs_of(&w->args->operands[h.operand]); pair++)
        if (w->turns[pair].is_poisoned)
            return 1;
    return 0;
}

static void add_to_weight(const walk *w, head h, int64_t element, const reference_element *u, double rstd)
{
    if (!w->result->weights[h.operand])
        return;
    const int64_t first =
        reference_norm(w->args, h.operand)->weight_per_head ? number_of(w, h) * w->args->operands[h.operand].head_dim : 0;
    reference_sum *sum = &w->result->weights[h.operand][first + element];
    const double normalised = real(w, w->x[element] * rstd);
    sum->value += u->value * normalised;
    sum->magnitude += fabs((double)u->value * normalised);
    sum->tolerance += u->tolerance * fabs(normalised);
    sum->terms++;
}

/* dx = rstd * fma(-x, k, g), with g = w' u, p = sum g x and k = ((p / D) rstd) rstd. The library and the reference round each operation
 * once, so an operation on inexact numbers adds two roundings to the tolerance. */
void reference_norm_gradient(const walk *w, head h)
{
    const int64_t dim = w->args->operands[h.operand].head_dim;
    const double two = 2 * unit(w->args);
    double *g = malloc(2 * (size_t)dim * sizeof *g), *error = g + dim, of_p = 0, magnitude = 0;
    int exact = 1, levels;
    reference_load_head(w, h, TENSOR_FORWARD_SRC);
    const double rstd = find_rstd(w, h);
    for (int64_t i = 0; i < dim; i++) {
        const double u = real(w, (double)w->head[i].value);
        if (!is_poisoned(w, h))
            add_to_weight(w, h, i, &w->head[i], rstd);
        g[i] = real(w, factor(w, h, i) * u);
        error[i] = fabs(factor(w, h, i)) * (w->head[i].tolerance + two * fabs(u)) + two * fabs(g[i]);
        of_p += fabs(w->x[i]) * (error[i] + two * fabs(g[i]));
        magnitude += fabs(w->x[i] * g[i]);
        exact &= w->head[i].tolerance == 0;
    }
    const double p = sum_products(w, g, w->x, dim, &levels);
    const double k = real(w, real(w, real(w, p / (double)dim) * rstd) * rstd);
    const double of_k = (of_p + levels * two * magnitude) / (double)dim * rstd * rstd + 3 * two * fabs(k);
    for (int64_t i = 0; i < dim; i++) {
        const double x = w->x[i], inner = is_double(w->args) ? fma(-x, k, g[i]) : fmaf((float)-x, (float)k, (float)g[i]);
        const double value = real(w, rstd * inner), off = error[i] + fabs(x) * of_k + two * fabs(inner);
        w->head[i] = (reference_element){.value = value, .kind = is_poisoned(w, h) ? REFERENCE_NAN : REFERENCE_NUMBER};
        w->head[i].tolerance = exact ? 0 : (rstd * off + two * fabs(value)) * (1 + 1e-6);
    }
    free(g);
}
