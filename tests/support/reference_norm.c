/* The reference for norms and their gradients. Each operation is computed in double and rounded to the arithmetic type.
 * Double is precise enough that the result is the same as with a single rounding. */
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

/* The index of a head among all heads of its operand. */
static int64_t number_of(const walk *w, head h)
{
    return h.group * w->args->operands[h.operand].heads_per_group + h.head;
}

/* Sums `size` numbers, starting at t[first], by the tree t[i] = t[2i] + t[2i+1]. `size` is a power of two. Numbers with an
 * index of `count` or more count as 0. */
static double sum_tree(const walk *w, const double *t, int64_t first, int64_t size, int64_t count)
{
    if (first >= count)
        return 0;
    if (size == 1)
        return t[first];
    return real(w, sum_tree(w, t, first, size / 2, count) + sum_tree(w, t, first + size / 2, size / 2, count));
}

/* The sum of the products of two heads. *levels receives the number of levels of the tree. */
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

/* The factor of an element: weight, 1 + weight, or 1 without a weight. */
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

/* Whether all elements are exact. */
static int is_exact(const reference_element *x, int64_t count)
{
    while (count > 0 && x[count - 1].tolerance == 0)
        count--;
    return count == 0;
}

/* The library and the reference round each operation once, so an operation on inexact numbers adds two roundings to the
 * tolerance. */
static double two_roundings(const walk *w)
{
    return 2 * unit(w->args);
}

/* The tolerance of rstd, which is computed from the mean of the squares. `off` is the tolerance of the mean. */
static double tolerance_of_rstd(const walk *w, double eps, double mean, double off, double rstd)
{
    const double two = two_roundings(w);
    off += 2 * two * (mean + eps);
    return fmax(1 / sqrt(fmax(mean - off, 0) + eps) - rstd, rstd - 1 / sqrt(mean + off + eps)) + 2 * two * rstd;
}

static int is_poisoned(const walk *w, head h)
{
    for (int pair = 0; pair < pairs_of(&w->args->operands[h.operand]); pair++)
        if (w->turns[pair].is_poisoned)
            return 1;
    return 0;
}

/* Allocates `count` heads of an operand. */
static reference_element *make_heads(const walk *w, head h, int count)
{
    return calloc((size_t)count * (size_t)w->args->operands[h.operand].head_dim, sizeof(reference_element));
}

/* Copies w->x, with its tolerance. */
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

static void round_rotated(const walk *w, head h, reference_element *u)
{
    for (int64_t i = 0; w->args->rounding != TROPE_ROUND_ONCE && i < w->args->operands[h.operand].head_dim; i++)
        reference_round(w->args, &u[i]);
}

/* Loads the input of the norm: x, or M x. */
static void load_in(const walk *w, head h, reference_element *in)
{
    reference_load_head(w, h, w->backward ? TENSOR_FORWARD_SRC : TENSOR_SRC);
    copy_source(w, h, in);
    if (!is_after(w, h))
        return;
    reference_rotate(w, h, 0, in);
    round_rotated(w, h, in);
}

/* Backward: loads the gradient of the norm's output, which is M' dy or dy. */
static void load_out(const walk *w, head h, reference_element *out)
{
    reference_load_head(w, h, TENSOR_SRC);
    copy_source(w, h, out);
    if (!is_after(w, h))
        reference_rotate(w, h, 1, out);
}

/* g = w * out for one element with the factor w, and a bound of the error of g. */
typedef struct weighted {
    double value, error;
} weighted;

static weighted weigh(const walk *w, head h, int64_t element, reference_element out)
{
    const double by = factor(w, h, element), two = two_roundings(w), u = real(w, (double)out.value);
    const double value = real(w, by * u);
    return (weighted){value, fabs(by) * (out.tolerance + two * fabs(u)) + two * fabs(value)};
}

/* ---- The heads that a norm covers: one, or all heads of a token ---- */

static int is_token(const walk *w, int operand)
{
    const trope_norm *norm = reference_norm(w->args, operand);
    return norm && norm->scope == TROPE_NORM_TOKEN;
}

int64_t reference_rstds(const trope_args *args, int operand)
{
    const trope_norm *norm = reference_norm(args, operand);
    return norm && norm->scope == TROPE_NORM_TOKEN ? 1 : reference_heads(args, operand);
}

/* Head i of the heads that the norm of h covers. */
static head covered_head(const walk *w, head h, int64_t i)
{
    const int64_t of_group = w->args->operands[h.operand].heads_per_group;
    return is_token(w, h.operand) ? (head){h.operand, i / of_group, i % of_group} : h;
}

static int64_t count_covered(const walk *w, head h)
{
    return is_token(w, h.operand) ? reference_heads(w->args, h.operand) : 1;
}

/* A sum of products over the heads that a norm covers: first within each head, then over the heads. levels is the number
 * of levels of both trees together. */
typedef struct covered_sum {
    double *of_head;
    double off; /* the sum of the tolerances of the terms */
    double magnitude;
    int levels, is_exact;
} covered_sum;

/* Whether the norm reads the sums of the heads of all ranks. */
static int reads_sums(const walk *w, int operand)
{
    return reference_norm(w->args, operand)->token_sums_use == TROPE_SUMS_READ;
}

/* The number of elements that a norm covers. */
static double count_elements(const walk *w, head h)
{
    const int64_t heads =
        reads_sums(w, h.operand) ? reference_norm(w->args, h.operand)->heads_of_all_ranks : count_covered(w, h);
    return (double)(heads * w->args->operands[h.operand].head_dim);
}

/* The index in token_sums of the sum of a head, for this token. */
static int64_t place_of_sum(const walk *w, int64_t number)
{
    return (number * w->args->batch + w->batch) * w->args->tokens + w->token;
}

/* Replaces the sums of the operand's heads by the sums of the heads of all ranks, and returns the number of all these
 * heads. In backward, is_exact keeps its value, because it also describes the elements. */
static int64_t read_sums(const walk *w, head h, covered_sum *sum)
{
    const trope_norm *norm = reference_norm(w->args, h.operand);
    const int32_t dtype = is_double(w->args) ? TROPE_F64 : TROPE_F32;
    free(sum->of_head);
    *sum = (covered_sum){.is_exact = !w->backward || sum->is_exact};
    sum->of_head = calloc((size_t)norm->heads_of_all_ranks, sizeof *sum->of_head);
    for (int64_t i = 0; i < norm->heads_of_all_ranks; i++)
        sum->of_head[i] =
            number_load(dtype, (const char *)norm->token_sums + place_of_sum(w, i) * (int64_t)number_size(dtype));
    return norm->heads_of_all_ranks;
}

/* Stores the sum of a head if the call writes it. Only the sum of the squares of x contains no rotated elements, so
 * every other sum of a poisoned head is NaN. */
static void note_sum(const walk *w, head h, double value, const covered_sum *of)
{
    reference_element *sums = w->result->sums[h.operand];
    if (!sums)
        return;
    reference_element *sum = &sums[place_of_sum(w, number_of(w, h))];
    *sum = (reference_element){.value = value, .kind = REFERENCE_NUMBER};
    if (!of->is_exact)
        sum->tolerance = of->off + of->levels * two_roundings(w) * of->magnitude;
    if ((w->backward || is_after(w, h)) && is_poisoned(w, h))
        sum->kind = REFERENCE_NAN;
}

/* Adds the sum `value` of head `number` to `sum`. `of` has the bounds of `value`. */
static void add_head(int64_t number, double value, const covered_sum *of, covered_sum *sum)
{
    sum->of_head[number] = value;
    sum->off += of->off;
    sum->magnitude += of->magnitude;
    sum->levels = of->levels;
    sum->is_exact &= of->is_exact;
}

/* Adds up the sums of the heads and frees them. */
static double end_sum(const walk *w, head h, covered_sum *sum)
{
    const int64_t heads = reads_sums(w, h.operand) ? read_sums(w, h, sum) : count_covered(w, h);
    int64_t padded = 1;
    for (; padded < heads; padded *= 2)
        sum->levels++;
    const double total = sum_tree(w, sum->of_head, 0, padded, heads);
    free(sum->of_head);
    return total;
}

/* The sum of the squares of a head, with its bounds. */
static double sum_squares(const walk *w, head h, const reference_element *x, covered_sum *sum)
{
    const int64_t dim = w->args->operands[h.operand].head_dim;
    double *values = malloc((size_t)dim * sizeof *values);
    for (int64_t i = 0; i < dim; i++) {
        const double most = fabs((double)x[i].value) + x[i].tolerance;
        values[i] = (double)x[i].value;
        sum->off += (most + fabs((double)x[i].value)) * x[i].tolerance;
        sum->magnitude += most * most;
    }
    const double squares = sum_products(w, values, values, dim, &sum->levels);
    sum->is_exact = is_exact(x, dim);
    free(values);
    return squares;
}

/* The sum of g * in over a head, with its bounds. */
static double sum_gradient(const walk *w, head h, const reference_element *in, const reference_element *out,
                           covered_sum *sum)
{
    const int64_t dim = w->args->operands[h.operand].head_dim;
    const double two = two_roundings(w);
    double *x = malloc(2 * (size_t)dim * sizeof *x), *g = x + dim;
    for (int64_t i = 0; i < dim; i++) {
        const weighted of = weigh(w, h, i, out[i]);
        x[i] = real(w, (double)in[i].value);
        g[i] = of.value;
        sum->off += fabs(x[i]) * (of.error + two * fabs(g[i])) + (fabs(g[i]) + of.error) * in[i].tolerance;
        sum->magnitude += fabs(x[i] * g[i]);
    }
    const double p = sum_products(w, g, x, dim, &sum->levels);
    sum->is_exact = is_exact(in, dim) && is_exact(out, dim);
    free(x);
    return p;
}

/* rstd: read from the call, or computed from the sum of the squares. It is stored if the call writes it. */
static reference_element find_rstd(const walk *w, head h, double squares, const covered_sum *sum)
{
    const trope_norm *norm = reference_norm(w->args, h.operand);
    const double elements = count_elements(w, h);
    const int64_t row = w->batch * w->args->tokens + w->token,
                  at = row * reference_rstds(w->args, h.operand) + (is_token(w, h.operand) ? 0 : number_of(w, h));
    const int32_t dtype = is_double(w->args) ? TROPE_F64 : TROPE_F32;
    reference_element rstd = {.kind = is_after(w, h) && is_poisoned(w, h) ? REFERENCE_NAN : REFERENCE_NUMBER};
    if (norm->rstd_use == TROPE_RSTD_READ) {
        rstd.value = number_load(dtype, (const char *)norm->rstd + at * (int64_t)number_size(dtype));
        return rstd;
    }
    const double mean = real(w, squares / elements);
    const double value = real(w, 1 / real(w, sqrt(real(w, mean + real(w, norm->eps)))));
    const double off = (sum->off + (sum->levels + 1) * two_roundings(w) * sum->magnitude) / elements;
    rstd.value = value;
    rstd.tolerance = sum->is_exact ? 0 : tolerance_of_rstd(w, norm->eps, mean, off, value);
    if (w->result->rstd[h.operand])
        w->result->rstd[h.operand][at] = rstd;
    return rstd;
}

/* Computes k from p, the sum of g * in. */
static void find_slope(const walk *w, head h, double p, const covered_sum *sum, norm_numbers *n)
{
    const double two = two_roundings(w), r = (double)n->rstd.value, most_r = r + n->rstd.tolerance,
                 elements = count_elements(w, h);
    const double mean = real(w, p / elements);
    n->k = real(w, real(w, mean * r) * r);
    n->of_k = (sum->off + sum->levels * two * sum->magnitude) / elements * most_r * most_r +
              fabs(mean) * (most_r * most_r - r * r) + 3 * two * fabs(n->k);
    n->is_exact = sum->is_exact && n->rstd.tolerance == 0;
}

static norm_numbers find_numbers(const walk *w, head h)
{
    const int64_t dim = w->args->operands[h.operand].head_dim, heads = count_covered(w, h);
    reference_element *in = make_heads(w, h, 2), *out = in + dim;
    covered_sum squares = {.of_head = calloc((size_t)heads, sizeof(double)), .is_exact = 1}, products = squares;
    products.of_head = calloc((size_t)heads, sizeof(double)); /* stays 0 in forward */
    norm_numbers n = {.k = 0};
    for (int64_t i = 0; i < heads; i++) {
        const head of = covered_head(w, h, i);
        covered_sum of_head = {.off = 0};
        load_in(w, of, in);
        double sum = sum_squares(w, of, in, &of_head);
        add_head(i, sum, &of_head, &squares);
        if (w->backward) {
            of_head = (covered_sum){.off = 0};
            load_out(w, of, out);
            sum = sum_gradient(w, of, in, out, &of_head);
            add_head(i, sum, &of_head, &products);
        }
        note_sum(w, of, sum, &of_head);
    }
    const double of_squares = end_sum(w, h, &squares), p = end_sum(w, h, &products);
    n.rstd = find_rstd(w, h, of_squares, &squares);
    find_slope(w, h, p, &products, &n);
    free(in);
    return n;
}

void reference_find_token(walk *w, int operand)
{
    if (is_token(w, operand))
        w->of_token = find_numbers(w, (head){operand, 0, 0});
}

static norm_numbers numbers_of(const walk *w, head h)
{
    return is_token(w, h.operand) ? w->of_token : find_numbers(w, h);
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

static void normalise(const walk *w, head h, reference_element *x)
{
    const trope_norm *norm = reference_norm(w->args, h.operand);
    const reference_element rstd = numbers_of(w, h).rstd;
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

/* d = rstd * fma(-in, k, g) with g = w out: the gradient of the norm's input, from the gradient `out` of its output. */
static void find_gradient(const walk *w, head h, const reference_element *in, const reference_element *out, norm_numbers n,
                          reference_element *d)
{
    const double two = two_roundings(w), r = (double)n.rstd.value, most_r = r + n.rstd.tolerance;
    for (int64_t i = 0; i < w->args->operands[h.operand].head_dim; i++) {
        const weighted g = weigh(w, h, i, out[i]);
        const double x = real(w, (double)in[i].value);
        const double inner = is_double(w->args) ? fma(-x, n.k, g.value) : fmaf((float)-x, (float)n.k, (float)g.value);
        const double value = real(w, r * inner), of_x = in[i].tolerance + (is_after(w, h) ? two * fabs(x) : 0);
        const double off = g.error + fabs(x) * n.of_k + of_x * (fabs(n.k) + n.of_k) + two * fabs(inner);
        d[i] = (reference_element){.value = value, .kind = REFERENCE_NUMBER};
        d[i].tolerance = n.is_exact ? 0 : (most_r * off + n.rstd.tolerance * fabs(inner) + two * fabs(value)) * (1 + 1e-6);
    }
}

/* The gradient of the norm's input for a head. If `adds` is set, adds the head's terms to the gradient of the weight. */
static void find_head_gradient(const walk *w, head h, int adds, reference_element *d)
{
    const int64_t dim = w->args->operands[h.operand].head_dim;
    reference_element *in = make_heads(w, h, 2), *out = in + dim;
    const norm_numbers n = numbers_of(w, h);
    load_in(w, h, in);
    load_out(w, h, out);
    for (int64_t i = 0; adds && i < dim; i++)
        add_to_weight(w, h, i, &out[i], in[i], n.rstd);
    find_gradient(w, h, in, out, n, d);
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
    find_head_gradient(w, h, 0, d);
    return !is_poisoned(w, h);
}
