#include "support/reference.h"

#include <stdlib.h>

#include "support/reference_parts.h"

/* ---- The rotation ---- */

static reference_element a_number(long double value, double tolerance)
{
    return (reference_element){.value = value, .tolerance = tolerance, .kind = REFERENCE_NUMBER};
}

/* Like `fused`, but for exact inputs. It computes in the arithmetic type, like the library. */
static double fused_exactly(const trope_args *args, term own, term product)
{
    const double c = (double)own.coefficient, s = (double)product.coefficient;
    if (!is_double(args))
        return fmaf((float)own.x, (float)c, (float)product.x * (float)s);
    const double rounded = product.x * s;
    return args->rounding == TROPE_ROUND_ONCE ? fma(own.x, c, rounded) : own.x * c + rounded;
}

/* The result in the arithmetic type, before the store: one product is rounded, and the other is fused with the sum. */
static reference_element fused(const trope_args *args, term own, term product)
{
    if (own.error == 0 && product.error == 0 && own.off == 0 && product.off == 0)
        return a_number(fused_exactly(args, own, product), 0);
    const long double value = own.x * own.coefficient + product.x * product.coefficient;
    double tolerance = fabs(own.x) * own.error + fabs(product.x) * product.error;
    tolerance += own.off * ((double)fabsl(own.coefficient) + own.error);
    tolerance += product.off * ((double)fabsl(product.coefficient) + product.error);
    tolerance += unit(args) * (double)fabsl(product.x * product.coefficient);
    if (args->rounding != TROPE_ROUND_ONCE)
        tolerance += unit(args) * (double)fabsl(own.x * own.coefficient);
    tolerance += number_half_ulp(is_double(args) ? TROPE_F64 : TROPE_F32, fabs((double)value) + tolerance);
    return a_number(value, tolerance);
}

static double rounded_product(int32_t dtype, term t, double sign)
{
    return number_round(dtype, t.x * number_round(dtype, (double)t.coefficient + sign * t.error));
}

/* Rounds each operation to this dtype, with the least and the greatest possible coefficients. The library's result is
 * between the least and the greatest of these results. */
static reference_element unfused(int32_t dtype, term a, term b)
{
    double least = INFINITY, greatest = -INFINITY;
    for (int i = 0; i < 4; i++) {
        const double sum = rounded_product(dtype, a, i & 1 ? 1 : -1) + rounded_product(dtype, b, i & 2 ? 1 : -1);
        const double y = number_round(dtype, sum);
        least = y < least ? y : least;
        greatest = y > greatest ? y : greatest;
    }
    const double middle = (least + greatest) / 2;
    return a_number(middle, greatest - middle);
}

/* A product with a coefficient that already includes mscale. If cos and sin come from a table, the library's coefficient
 * is exactly their product with mscale, rounded. In f64, the coefficient has a tolerance instead, because long double is
 * too narrow for the exact product. */
static term term_of(const trope_args *args, const turn *t, double x, double off, long double coefficient)
{
    const double m = scale(args);
    if (t->error == 0 && !is_double(args))
        return (term){x, (float)coefficient, 0, off};
    return (term){x, coefficient, fabs(m) * t->error + (m != 1 ? unit(args) * (double)fabsl(coefficient) : 0), off};
}

static void rotate_pair(const trope_args *args, int backward, const turn *t, const double x[2], const double off[2],
                        reference_element y[2])
{
    const long double m = scale(args), sign = args->inverse ? -1 : 1;
    long double matrix[2][2] = {{m * t->cosine[0], -m * sign * t->sine[0]}, {m * sign * t->sine[1], m * t->cosine[1]}};
    if (backward) { /* the transpose */
        const long double corner = matrix[0][1];
        matrix[0][1] = matrix[1][0];
        matrix[1][0] = corner;
    }
    for (int i = 0; i < 2; i++) {
        const int other = 1 - i;
        const term own = term_of(args, t, x[i], off[i], matrix[i][i]),
                   product = term_of(args, t, x[other], off[other], matrix[i][other]);
        if (args->rounding == TROPE_ROUND_ONCE || is_double(args))
            y[i] = fused(args, own, product);
        else
            y[i] = unfused(args->rounding == TROPE_ROUND_NATIVE ? args->dtype : TROPE_F32, own, product);
        if (t->is_poisoned)
            y[i].kind = REFERENCE_NAN;
    }
}

/* ---- Sums and stores ---- */

/* Rounds the least and the greatest possible number. All numbers between them round to numbers between the two results. */
void reference_round(const trope_args *args, reference_element *y)
{
    if (args->dtype == TROPE_F32 || is_double(args) || y->kind != REFERENCE_NUMBER)
        return;
    const double wider = y->tolerance * (1 + 1e-9), value = (double)y->value;
    const double least = number_round(args->dtype, value - wider), greatest = number_round(args->dtype, value + wider);
    y->value = (least + greatest) / 2;
    y->tolerance = (greatest - least) / 2;
}

static void accumulate(const trope_args *args, double before, reference_element *y)
{
    if (args->rounding == TROPE_ROUND_NATIVE)
        reference_round(args, y);
    if (y->tolerance == 0) {
        y->value = is_double(args) ? before + (double)y->value : (float)before + (float)y->value;
        y->kind = y->kind == REFERENCE_NAN ? REFERENCE_NAN : REFERENCE_NUMBER;
        return;
    }
    y->value += before;
    y->tolerance += unit(args) * (fabs((double)y->value) + y->tolerance) * (1 + 1e-4) +
                    number_half_ulp(is_double(args) ? TROPE_F64 : TROPE_F32, 0);
    y->kind = y->kind == REFERENCE_NAN ? REFERENCE_NAN : REFERENCE_NUMBER;
}

/* ---- The call ---- */

/* Whether the call sums heads of the source into one head of dst. */
static int is_summed(const walk *w, int operand)
{
    return w->backward && w->args->operands[operand].shared_heads;
}

/* Sums `size` heads, starting at head `first`, by the tree t[i] = t[2i] + t[2i+1] in the arithmetic type. `size` is a power
 * of two. Heads with an index of `heads` or more count as 0. The heads of a group follow each other. */
static double sum_tree(const walk *w, head h, const tensor *t, int64_t element, int64_t first, int64_t size, int64_t heads)
{
    if (first >= heads)
        return 0;
    if (size == 1) {
        const int64_t of_group = t->size[TROPE_DIM_HEAD];
        return element_at(w, t,
                          head_number(w, (head){h.operand, h.group + first / of_group, first % of_group}, t) + element);
    }
    const double sum =
        sum_tree(w, h, t, element, first, size / 2, heads) + sum_tree(w, h, t, element, first + size / 2, size / 2, heads);
    return is_double(w->args) ? sum : (double)(float)sum;
}

/* An element of a head of the source or, if heads are summed, of their sum. NATIVE rounds the sum to the dtype. */
static double source_at(const walk *w, head h, const tensor *t, int64_t element)
{
    if (!is_summed(w, h.operand))
        return element_at(w, t, head_number(w, h, t) + element);
    const int all = w->args->operands[h.operand].shared_heads == TROPE_SHARED_ALL;
    const int64_t heads = t->size[TROPE_DIM_HEAD] * (all ? t->size[TROPE_DIM_GROUP] : 1);
    int64_t size = 1;
    while (size < heads)
        size *= 2;
    const double sum = sum_tree(w, h, t, element, 0, size, heads);
    return w->args->rounding == TROPE_ROUND_NATIVE ? number_round(w->args->dtype, sum) : sum;
}

static int rotates(const walk *w)
{
    return !w->place.is_padding || w->args->padding == TROPE_PADDING_ROTATE;
}

static int is_zeroed(const walk *w)
{
    return w->place.is_padding && w->args->padding == TROPE_PADDING_ZERO;
}

static int is_normed(const walk *w, int operand)
{
    return reference_norm(w->args, operand) && rotates(w);
}

static void load_source(const walk *w, head h)
{
    const tensor src = tensor_of(w->args, h.operand, TENSOR_SRC, w->backward);
    for (int64_t i = 0; i < src.size[TROPE_DIM_ELEMENT]; i++)
        w->x[i] = source_at(w, h, &src, i), w->off[i] = 0;
    if (is_normed(w, h.operand) && !w->backward)
        reference_normalise(w, h);
}

static void copy_head(const walk *w, head h)
{
    const tensor src = tensor_of(w->args, h.operand, TENSOR_SRC, w->backward);
    const int64_t first = head_number(w, h, &src);
    for (int64_t i = 0; i < src.size[TROPE_DIM_ELEMENT]; i++) {
        w->head[i] = (reference_element){.kind = REFERENCE_BITS};
        if (is_zeroed(w))
            continue;
        w->head[i].value = w->x[i];
        w->head[i].bits = number_bits(w->args->dtype, element_address(w, &src, first + i));
        if (is_summed(w, h.operand) || is_normed(w, h.operand))
            w->head[i].kind = REFERENCE_NUMBER;
    }
}

void reference_rotate(const walk *w, head h, int backward, reference_element *to)
{
    const trope_operand *o = &w->args->operands[h.operand];
    trope_args args = *w->args;
    if (backward && is_normed(w, h.operand))
        args.rounding = TROPE_ROUND_ONCE;
    const int32_t in = backward ? pairing_out(w->args) : w->args->pairing;
    const int32_t out = backward ? w->args->pairing : pairing_out(w->args);
    for (int pair = 0; pair < pairs_of(o); pair++) {
        int from[2], into[2];
        reference_element rotated[2];
        reference_pair_elements(w->args, in, o->rotary_dim, pair, from);
        reference_pair_elements(w->args, out, o->rotary_dim, pair, into);
        const double x[2] = {w->x[o->rotary_offset + from[0]], w->x[o->rotary_offset + from[1]]};
        const double off[2] = {w->off[o->rotary_offset + from[0]], w->off[o->rotary_offset + from[1]]};
        rotate_pair(&args, backward, &w->turns[pair], x, off, rotated);
        for (int i = 0; i < 2; i++)
            to[o->rotary_offset + into[i]] = rotated[i];
    }
}

/* Computes the head of dst that `h` belongs to. If several heads are summed, only the first of them computes it. */
static void write_head(const walk *w, head h)
{
    const tensor dst = tensor_of(w->args, h.operand, TENSOR_DST, w->backward);
    const int32_t shared = is_summed(w, h.operand) ? w->args->operands[h.operand].shared_heads : TROPE_SHARED_NONE;
    if (shared && (h.head > 0 || (shared == TROPE_SHARED_ALL && h.group > 0)))
        return;
    load_source(w, h);
    copy_head(w, h);
    if (rotates(w))
        reference_rotate(w, h, w->backward, w->head);
    if (is_normed(w, h.operand))
        w->backward ? reference_norm_gradient(w, h) : reference_normalise_rotated(w, h);
    if (!w->result->operands[h.operand])
        return;
    memcpy(w->result->operands[h.operand] + head_number(w, h, &dst), w->head,
           (size_t)dst.size[TROPE_DIM_ELEMENT] * sizeof *w->head);
}

/* Converts one token of an operand from the arithmetic type to the stored values. */
static void store_token(const walk *w, int operand)
{
    const trope_operand *o = &w->args->operands[operand];
    const tensor dst = tensor_of(w->args, operand, TENSOR_DST, w->backward);
    const int64_t count = dst.size[2] * dst.size[3] * dst.size[4];
    const int64_t first = head_number(w, (head){operand, 0, 0}, &dst);
    for (int64_t i = first; i < first + count; i++) {
        reference_element *y = &w->result->operands[operand][i];
        if (is_zeroed(w)) {
            y->bits = w->backward && o->accumulate ? number_bits(w->args->dtype, element_address(w, &dst, i)) : 0;
            continue;
        }
        if (w->backward && o->accumulate)
            accumulate(w->args, element_at(w, &dst, i), y);
        reference_round(w->args, y);
    }
}

/* ---- The walk over the tokens ---- */

static void walk_operand(walk *w, int operand)
{
    const trope_operand *o = &w->args->operands[operand];
    if (is_normed(w, operand))
        reference_find_token(w, operand);
    for (int64_t group = 0; group < (o->groups ? o->groups : 1); group++)
        for (int64_t h = 0; h < o->heads_per_group; h++) {
            if (w->result->operands[operand] || w->result->weights[operand])
                write_head(w, (head){operand, group, h});
            if (w->result->angles && rotates(w))
                reference_add_head(w, (head){operand, group, h});
        }
    if (w->result->operands[operand])
        store_token(w, operand);
}

static void walk_token(walk *w)
{
    const trope_args *args = w->args;
    for (int pair = 0; rotates(w) && pair < reference_pairs(args); pair++) {
        w->turns[pair] = reference_find_turn(args, w->batch, &w->place, pair);
        if (w->turns[pair].is_poisoned)
            w->result->status |= TROPE_STATUS_POSITION;
    }
    for (int i = 0; i < args->operand_count; i++)
        walk_operand(w, i);
}

reference_result reference_run(const trope_args *args, int backward)
{
    reference_result result = {.backward = backward};
    int32_t widest = 1;
    for (int i = 0; i < args->operand_count; i++) {
        const tensor dst = tensor_of(args, i, TENSOR_DST, backward);
        widest = args->operands[i].head_dim > widest ? args->operands[i].head_dim : widest;
        if (dst.base)
            result.operands[i] = calloc((size_t)tensor_count(&dst) + 1, sizeof *result.operands[i]);
        const trope_norm *norm = reference_norm(args, i);
        if (norm && norm->rstd_use == TROPE_RSTD_WRITE)
            result.rstd[i] =
                calloc((size_t)(args->batch * args->tokens * reference_rstds(args, i)), sizeof *result.rstd[i]);
        if (norm && norm->token_sums_use == TROPE_SUMS_WRITE)
            result.sums[i] =
                calloc((size_t)(args->batch * args->tokens * reference_heads(args, i)), sizeof *result.sums[i]);
        if (norm && norm->d_weight)
            result.weights[i] = calloc((size_t)reference_weights(args, i), sizeof *result.weights[i]);
    }
    if (backward)
        reference_make_sums(args, &result);
    walk *w = calloc(1, sizeof *w);
    *w = (walk){.args = args, .backward = backward, .result = &result};
    w->head = calloc((size_t)widest, sizeof *w->head);
    w->x = calloc((size_t)widest, sizeof *w->x);
    w->off = calloc((size_t)widest, sizeof *w->off);
    for (w->batch = 0; w->batch < args->batch; w->batch++)
        for (w->token = 0; w->token < args->tokens; w->token++) {
            w->place = reference_find(args, w->batch, w->token);
            walk_token(w);
        }
    free(w->head);
    free(w->x);
    free(w->off);
    free(w);
    reference_finish_sums(args, &result);
    return result;
}

void reference_free(reference_result *result)
{
    for (int i = 0; i < TROPE_MAX_OPERANDS; i++) {
        free(result->operands[i]);
        free(result->rstd[i]);
        free(result->sums[i]);
        free(result->weights[i]);
    }
    free(result->angles);
}
