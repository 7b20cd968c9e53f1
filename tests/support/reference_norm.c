/* The reference: the norm of a head, and its gradient. Each operation is computed in double and rounded to the arithmetic. In double it is
 * precise enough that the result is as if it were rounded once. */
#include <stdlib.h>
#include <string.h>

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

static int is_after(const walk *w, head h)
{
    return reference_norm(w->args, h.operand)->order == TROPE_NORM_AFTER;
}

/* Whether no number may be off. */
static int is_exact(const reference_element *x, int64_t count)
{
    while (count > 0 && x[count - 1].tolerance == 0)
        count--;
    return count == 0;
}

/* The library and the reference round each operation once, so an operation on inexact numbers adds two roundings to the tolerance. */
static double two_roundings(const walk *w)
{
    return 2 * unit(w->args);
}

/* By how much rstd may be off, which is `rstd`, of the mean of the squares of x. */
static double tolerance_of_rstd(const walk *w, head h, const reference_element *x, int levels, double mean, double rstd)
{
    const double two = two_roundings(w), eps = reference_norm(w->args, h.operand)->eps;
    const int64_t dim = w->args->operands[h.operand].head_dim;
    double off = 0;
    if (is_exact(x, dim))
        return 0;
    for (int64_t i = 0; i < dim; i++) {
        const double most = fabs((double)x[i].value) + x[i].tolerance;
        off += (most + fabs((double)x[i].value)) * x[i].tolerance + (levels + 1) * two * most * most;
    }
    off = off / (double)dim + 2 * two * (mean + eps);
    return fmax(1 / sqrt(fmax(mean - off, 0) + eps) - rstd, rstd - 1 / sqrt(mean + off + eps)) + 2 * two * rstd;
}

static int is_poisoned(const walk *w, head h)
{
    for (int pair = 0; pair < pairs_of(&w->args->operands[h.operand]); pair++)
        if (w->turns[pair].is_poisoned)
            return 1;
    return 0;
}

/* rstd of the head x: read, or computed, and noted where it is written. */
static reference_element find_rstd(const walk *w, head h, const reference_element *x)
{
    const trope_norm *norm = reference_norm(w->args, h.operand);
    const int64_t dim = w->args->operands[h.operand].head_dim, row = w->batch * w->args->tokens + w->token;
    const int64_t at = row * reference_heads(w->args, h.operand) + number_of(w, h);
    const int32_t dtype = is_double(w->args) ? TROPE_F64 : TROPE_F32;
    reference_element rstd = {.kind = is_after(w, h) && is_poisoned(w, h) ? REFERENCE_NAN : REFERENCE_NUMBER};
    int levels;
    if (norm->rstd_use == TROPE_RSTD_READ) {
        rstd.value = number_load(dtype, (const char *)norm->rstd + at * (int64_t)number_size(dtype));
        return rstd;
    }
    double *values = malloc((size_t)dim * sizeof *values);
    for (int64_t i = 0; i < dim; i++)
        values[i] = (double)x[i].value;
    const double mean = real(w, sum_products(w, values, values, dim, &levels) / (double)dim);
    const double value = real(w, 1 / real(w, sqrt(real(w, mean + real(w, norm->eps)))));
    rstd.value = value;
    rstd.tolerance = tolerance_of_rstd(w, h, x, levels, mean, value);
    if (w->result->rstd[h.operand])
        w->result->rstd[h.operand][at] = rstd;
    free(values);
    return rstd;
}

static reference_element multiply(const walk *w, reference_element a, reference_element b)
{
    const double first = (double)a.value, second = (double)b.value;
    reference_element c = {.value = real(w, first * second), .kind = a.kind};
    if (a.tolerance != 0 || b.tolerance != 0)
        c.tolerance = (fabs(first) + a.tolerance) * b.tolerance + fabs(second) * a.tolerance +
                      two_roundings(w) * (fabs((double)c.value) + a.tolerance * b.tolerance);
    return c;
}

/* Normalises a head. */
static void normalise(const walk *w, head h, reference_element *x)
{
    const trope_norm *norm = reference_norm(w->args, h.operand);
    const reference_element rstd = find_rstd(w, h, x);
    for (int64_t i = 0; i < w->args->operands[h.operand].head_dim; i++) {
        x[i] = multiply(w, x[i], rstd);
        if (norm->rounding == TROPE_NORM_ROUND_TWICE)
            reference_round(w->args, &x[i]);
        if (norm->weight)
            x[i] = multiply(w, x[i], (reference_element){.value = factor(w, h, i)});
        if (w->args->rounding != TROPE_ROUND_ONCE)
            reference_round(w->args, &x[i]);
        x[i].kind = rstd.kind;
    }
}

/* Room for `count` heads of an operand. */
static reference_element *make_heads(const walk *w, head h, int count)
{
    return calloc((size_t)count * (size_t)w->args->operands[h.operand].head_dim, sizeof(reference_element));
}

/* The numbers that are rotated. */
static void copy_source(const walk *w, head h, reference_element *to)
{
    for (int64_t i = 0; i < w->args->operands[h.operand].head_dim; i++)
        to[i] = (reference_element){.value = w->x[i], .tolerance = w->off[i], .kind = REFERENCE_NUMBER};
}

static void replace_source(const walk *w, head h, const reference_element *from)
{
    for (int64_t i = 0; i < w->args->operands[h.operand].head_dim; i++) {
        w->x[i] = (double)from[i].value;
        w->off[i] = from[i].tolerance;
    }
}

void reference_load_head(const walk *w, head h, tensor_role role)
{
    const tensor t = tensor_of(w->args, h.operand, role, w->backward);
    for (int64_t i = 0; i < t.size[TROPE_DIM_ELEMENT]; i++) {
        w->x[i] = element_at(w, &t, head_number(w, h, &t) + i);
        w->off[i] = 0;
    }
}

void reference_normalise(const walk *w, head h)
{
    if (!reference_norm(w->args, h.operand) || is_after(w, h))
        return;
    reference_element *x = make_heads(w, h, 1);
    copy_source(w, h, x);
    normalise(w, h, x);
    replace_source(w, h, x);
    free(x);
}

static void round_rotated(const walk *w, head h, reference_element *u)
{
    for (int64_t i = 0; w->args->rounding != TROPE_ROUND_ONCE && i < w->args->operands[h.operand].head_dim; i++)
        reference_round(w->args, &u[i]);
}

void reference_normalise_rotated(const walk *w, head h)
{
    if (!is_after(w, h))
        return;
    round_rotated(w, h, w->head);
    normalise(w, h, w->head);
}

/* ---- The gradient ---- */

static void add_to_weight(const walk *w, head h, int64_t element, const reference_element *out, reference_element in,
                          reference_element rstd)
{
    const int64_t first =
        reference_norm(w->args, h.operand)->weight_per_head ? number_of(w, h) * w->args->operands[h.operand].head_dim : 0;
    reference_sum *sum = &w->result->weights[h.operand][first + element];
    const reference_element normalised = multiply(w, in, rstd);
    const double value = (double)normalised.value;
    sum->value += out->value * value;
    sum->magnitude += fabs((double)out->value * value);
    sum->tolerance +=
        out->tolerance * (fabs(value) + normalised.tolerance) + fabs((double)out->value) * normalised.tolerance;
    sum->terms++;
}

/* d = rstd * fma(-in, k, g), with g = w' out, p = sum g in and k = ((p / D) rstd) rstd: the gradient of what the norm has, of that of
 * what it gives. */
static void find_gradient(const walk *w, head h, const reference_element *in, const reference_element *out,
                          reference_element rstd, reference_element *d)
{
    const int64_t dim = w->args->operands[h.operand].head_dim;
    const double two = two_roundings(w), r = (double)rstd.value, most_r = r + rstd.tolerance;
    double *x = malloc(3 * (size_t)dim * sizeof *x), *g = x + dim, *error = g + dim, of_p = 0, magnitude = 0;
    int levels;
    for (int64_t i = 0; i < dim; i++) {
        const double u = real(w, (double)out[i].value);
        x[i] = real(w, (double)in[i].value);
        g[i] = real(w, factor(w, h, i) * u);
        error[i] = fabs(factor(w, h, i)) * (out[i].tolerance + two * fabs(u)) + two * fabs(g[i]);
        of_p += fabs(x[i]) * (error[i] + two * fabs(g[i])) + (fabs(g[i]) + error[i]) * in[i].tolerance;
        magnitude += fabs(x[i] * g[i]);
    }
    const double p = sum_products(w, g, x, dim, &levels);
    const double mean = real(w, p / (double)dim), k = real(w, real(w, mean * r) * r);
    const double of_k = (of_p + levels * two * magnitude) / (double)dim * most_r * most_r +
                        fabs(mean) * (most_r * most_r - r * r) + 3 * two * fabs(k);
    const int exact = is_exact(in, dim) && is_exact(out, dim) && rstd.tolerance == 0;
    for (int64_t i = 0; i < dim; i++) {
        const double inner = is_double(w->args) ? fma(-x[i], k, g[i]) : fmaf((float)-x[i], (float)k, (float)g[i]);
        const double value = real(w, r * inner), of_x = in[i].tolerance + (is_after(w, h) ? two * fabs(x[i]) : 0);
        const double off = error[i] + fabs(x[i]) * of_k + of_x * (fabs(k) + of_k) + two * fabs(inner);
        d[i] = (reference_element){.value = value, .kind = REFERENCE_NUMBER};
        d[i].tolerance = exact ? 0 : (most_r * off + rstd.tolerance * fabs(inner) + two * fabs(value)) * (1 + 1e-6);
    }
    free(x);
}

/* The gradient of what the norm has, of a head whose dy is in w->x and its M' dy in w->head. Adds to that of the weight if asked to. */
static void find_head_gradient(const walk *w, head h, int adds, reference_element *d)
{
    const int64_t dim = w->args->operands[h.operand].head_dim;
    reference_element *in = make_heads(w, h, 2), *out = in + dim;
    if (is_after(w, h))
        copy_source(w, h, out);
    else
        memcpy(out, w->head, (size_t)dim * sizeof *out);
    reference_load_head(w, h, TENSOR_FORWARD_SRC);
    copy_source(w, h, in);
    if (is_after(w, h)) {
        reference_rotate(w, h, 0, in);
        round_rotated(w, h, in);
    }
    const reference_element rstd = find_rstd(w, h, in);
    for (int64_t i = 0; adds && i < dim; i++)
        add_to_weight(w, h, i, &out[i], in[i], rstd);
    find_gradient(w, h, in, out, rstd, d);
    free(in);
}

void reference_norm_gradient(const walk *w, head h)
{
    const int64_t dim = w->args->operands[h.operand].head_dim;
    reference_element *d = make_heads(w, h, 1);
    find_head_gradient(w, h, w->result->weights[h.operand] && !is_poisoned(w, h), d);
    memcpy(w->head, d, (size_t)dim * sizeof *d);
    if (is_after(w, h)) {
        replace_source(w, h, d);
        reference_rotate(w, h, 1, w->head);
    }
    for (int64_t i = 0; i < dim; i++)
        w->head[i].kind = is_poisoned(w, h) ? REFERENCE_NAN : REFERENCE_NUMBER;
    free(d);
}

int reference_rotated_gradient(const walk *w, head h, reference_element *d)
{
    const tensor dy = tensor_of(w->args, h.operand, TENSOR_SRC, 1);
    if (!reference_norm(w->args, h.operand) || !is_after(w, h)) {
        for (int64_t i = 0; i < dy.size[TROPE_DIM_ELEMENT]; i++)
            d[i] = (reference_element){.value = element_at(w, &dy, head_number(w, h, &dy) + i)};
        return 1;
    }
    reference_load_head(w, h, TENSOR_SRC);
    find_head_gradient(w, h, 0, d);
    return !is_poisoned(w, h);
}
