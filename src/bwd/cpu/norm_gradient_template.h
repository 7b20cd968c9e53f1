/* The backward of a norm (trope.h, trope_norm), in blocks of a head. `in` is the input of the norm in forward: x, or M x if
 * the norm comes after the rotation. `out` is the gradient of the output of the norm: M' dy, or dy if the norm comes after
 * the rotation. The elements of both are in the same order. One of the two has a rotated window. */

typedef struct FN(head_gradient) {
    const trope_plan *plan;
    const trope_plan_operand *operand;
    FN(head_values) in, out;
    char *dst;          /* NULL: dx is not computed */
    const char *weight; /* the weights of the head; NULL: none */
    REAL *sums;         /* the sums of the head's weights; NULL: d_weight is not computed */
    REAL rstd, k;       /* of the head, or of its token */
    REAL *rotated;      /* scratch memory for a window */
} FN(head_gradient);

/* Computes the coefficients of M for `count` pairs from the coefficients of M', by transposing again. NATIVE rounds them,
 * as in forward. */
static FN(coefficients)
    FN(find_forward_coefficients)(const trope_plan *plan, FN(coefficients) t, int count, REAL space[4 * NORM_BLOCK])
{
    REAL *const c1 = space, *const s1 = c1 + count, *const c2 = s1 + count, *const s2 = c2 + count;
    for (int i = 0; i < count; i++) {
        c1[i] = t.c1[i];
        s1[i] = -t.s2[i];
        c2[i] = t.c2[i];
        s2[i] = -t.s1[i];
    }
    if (plan->rounding == TROPE_ROUND_NATIVE)
        FN(round_values)(plan->dtype, 4 * count, space);
    return (FN(coefficients)){c1, s1, c2, s2};
}

/* Loads `count` pairs of a window in memory, from pair i of the part that begins at `part`. `to` receives them like a part
 * that has `count` pairs. */
static inline void FN(load_pairs)(const trope_plan_operand *o, int interleaved, const char *part, int64_t step,
                                  int32_t dtype, int i, int count, REAL *to)
{
    const int64_t bytes = step * trope_element_size(dtype);
    FN(load_strided)(to, part + trope_first_in_part(interleaved, i) * bytes, step, dtype, interleaved ? 2 * count : count);
    if (!interleaved)
        FN(load_strided)(to + count, part + trope_second_in_part(0, o->part_pairs, i) * bytes, step, dtype, count);
}

/* The reverse of load_pairs: stores `count` pairs into a part. */
static inline void FN(place_pairs)(const trope_plan_operand *o, int interleaved, const REAL *from, int i, int count,
                                   REAL *part)
{
    const size_t bytes = (size_t)count * sizeof *from;
    memcpy(part + trope_first_in_part(interleaved, i), from, interleaved ? 2 * bytes : bytes);
    if (!interleaved)
        memcpy(part + trope_second_in_part(0, o->part_pairs, i), from + count, bytes);
}

/* Rotates a window in memory. With is_forward, it computes M of the window as in forward, otherwise M' with coefficients
 * that are not rounded. */
static __attribute__((noinline)) void FN(rotate_window)(const trope_plan *plan, const trope_plan_operand *o, int is_forward,
                                                        const char *from, int64_t step, int32_t dtype, FN(coefficients) t,
                                                        REAL *to)
{
    const FN(kind) back = {0, plan->interleaved_src, plan->interleaved_dst},
                   forward = {FN(native_kind)(plan), plan->interleaved_forward_src, plan->interleaved_src};
    const FN(kind) kind = is_forward ? forward : back;
    const int pairs = o->part_pairs;
    REAL x[2 * NORM_BLOCK], y[2 * NORM_BLOCK], space[4 * NORM_BLOCK];
    for (int part = 0; part < plan->parts; part++) {
        const int64_t first = 2 * part * pairs;
        for (int i = 0; i < pairs; i += NORM_BLOCK) {
            const int count = pairs - i < NORM_BLOCK ? pairs - i : NORM_BLOCK, at = part * pairs + i;
            FN(coefficients) c = {t.c1 + at, t.s1 + at, t.c2 + at, t.s2 + at};
            if (is_forward)
                c = FN(find_forward_coefficients)(plan, c, count, space);
            FN(load_pairs)
            (o, kind.from_interleaved, from + first * step * trope_element_size(dtype), step, dtype, i, count, x);
            FN(rotate_part)(kind, count, x, count == pairs ? to + first : y, c);
            if (count < pairs)
                FN(place_pairs)(o, kind.to_interleaved, y, i, count, to + first);
        }
    }
    if (is_forward)
        FN(round_rotated)(plan, o->rotary_dim, to);
}

/* Rotates the window of x (norm after the rotation) or of dy (norm before it). */
static void FN(rotate_head)(FN(head_gradient) * h, FN(coefficients) t)
{
    const trope_plan *plan = h->plan;
    const trope_plan_operand *o = h->operand;
    FN(head_values) *const side = o->norm.is_after ? &h->in : &h->out;
    const char *window = side->at + o->rotary_offset * side->step * plan->element_size;
    FN(rotate_window)(plan, o, o->norm.is_after, window, side->step, plan->dtype, t, h->rotated);
    side->rotated = h->rotated;
}

/* Computes g = w out for a block of `out`. */
static void FN(weigh)(const FN(head_gradient) * h, int64_t first, int count, REAL *out)
{
    REAL w[NORM_BLOCK];
    if (!h->weight)
        return;
    FN(load_weights)(&h->operand->norm, h->weight, first, count, w);
    for (int i = 0; i < count; i++)
        out[i] = w[i] * out[i];
}

/* Returns the sum of g * in over a head. Also adds the terms of d_weight to their sums. */
static REAL FN(sum_products)(const FN(head_gradient) * h)
{
    REAL in[NORM_BLOCK], g[NORM_BLOCK];
    FN(tree_sum) sum;
    sum.count = 0;
    for (int64_t e = 0; e < h->operand->head_dim; e += NORM_BLOCK) {
        const int64_t left = h->operand->head_dim - e;
        const int count = (int)(left < NORM_BLOCK ? left : NORM_BLOCK);
        FN(load_block)(h->plan, h->operand, &h->in, e, count, in);
        FN(load_block)(h->plan, h->operand, &h->out, e, count, g);
        for (int i = 0; h->sums && i < count; i++)
            h->sums[e + i] = REAL_FMA(g[i], in[i] * h->rstd, h->sums[e + i]);
        FN(weigh)(h, e, count, g);
        for (int i = 0; i < count; i++)
            g[i] *= in[i];
        FN(add_block)(&sum, g, count);
    }
    return FN(end_sum)(&sum);
}

static inline REAL FN(slope_of_products)(const FN(head_gradient) * h, REAL products)
{
    return REAL_NORM_SLOPE(products / (REAL)h->operand->norm.elements, h->rstd);
}

/* Computes the gradient of a block of `in`. */
static void FN(find_gradient)(const FN(head_gradient) * h, int64_t first, int count, REAL *g)
{
    REAL in[NORM_BLOCK];
    FN(load_block)(h->plan, h->operand, &h->in, first, count, in);
    FN(load_block)(h->plan, h->operand, &h->out, first, count, g);
    FN(weigh)(h, first, count, g);
    for (int i = 0; i < count; i++)
        g[i] = h->rstd * REAL_FMA(-in[i], h->k, g[i]);
}

/* Computes the gradient of the window of `in`. The gradient replaces the rotated window. */
static void FN(find_window_gradient)(FN(head_gradient) * h)
{
    const trope_plan_operand *o = h->operand;
    REAL g[NORM_BLOCK];
    for (int e = 0; e < o->rotary_dim;) {
        const int count = count_block(o, o->rotary_offset + e);
        FN(find_gradient)(h, o->rotary_offset + e, count, g);
        memcpy(h->rotated + e, g, (size_t)count * sizeof *g);
        e += count;
    }
}

/* Stores a block of results. With accumulate, it adds them to old_dst. NATIVE rounds them before that. */
static void FN(store_block)(const FN(head_gradient) * h, int64_t first, int count, REAL *value)
{
    const int64_t step = h->operand->dst_stride[TROPE_DIM_ELEMENT];
    char *const to = h->dst + first * step * h->plan->element_size;
    REAL old_dst[NORM_BLOCK];
    if (h->operand->accumulate) {
        if (h->plan->rounding == TROPE_ROUND_NATIVE)
            FN(round_values)(h->plan->dtype, count, value);
        FN(load_strided)(old_dst, to, step, h->plan->dtype, count);
        for (int i = 0; i < count; i++)
            value[i] = old_dst[i] + value[i];
    }
    for (int i = 0; i < count; i++)
        value[i] = FN(canonical)(value[i]);
    FN(store_strided)(to, value, step, h->plan->dtype, count);
}

static __attribute__((noinline)) void FN(store_gradient)(FN(head_gradient) * h, FN(coefficients) t)
{
    const trope_plan_operand *o = h->operand;
    REAL block[NORM_BLOCK], window[TROPE_MAX_ROTARY_DIM];
    if (o->norm.is_after) {
        FN(find_window_gradient)(h);
        FN(rotate_window)(h->plan, o, 0, (const char *)h->rotated, 1, REAL_DTYPE, t, window);
    }
    for (int64_t e = 0; e < o->head_dim;) {
        const int count = count_block(o, e), rotated = o->norm.is_after && is_in_window(o, e);
        if (!rotated)
            FN(find_gradient)(h, e, count, block);
        FN(store_block)(h, e, count, rotated ? window + (e - o->rotary_offset) : block);
        e += count;
    }
}

static void FN(fill_head)(const FN(head_gradient) * h, REAL value)
{
    REAL block[NORM_BLOCK];
    for (int64_t e = 0; h->dst && e < h->operand->head_dim; e += NORM_BLOCK) {
        const int64_t left = h->operand->head_dim - e;
        const int count = (int)(left < NORM_BLOCK ? left : NORM_BLOCK);
        for (int i = 0; i < count; i++)
            block[i] = value;
        FN(store_strided)
        (h->dst + e * h->operand->dst_stride[TROPE_DIM_ELEMENT] * h->plan->element_size, block,
         h->operand->dst_stride[TROPE_DIM_ELEMENT], h->plan->dtype, count);
    }
}

/* Copies padding: dx is dy, bit for bit. With accumulate, it adds dy to old_dst. */
static void FN(copy_padding)(const FN(head_gradient) * h)
{
    const trope_plan_operand *o = h->operand;
    const int64_t size = h->plan->element_size, from = o->src_stride[TROPE_DIM_ELEMENT] * size,
                  to = o->dst_stride[TROPE_DIM_ELEMENT] * size;
    REAL value;
    for (int64_t e = 0; h->dst && e < o->head_dim; e++) {
        if (!o->accumulate) {
            memmove(h->dst + e * to, h->out.at + e * from, (size_t)size);
            continue;
        }
        FN(load)(&value, h->out.at + e * from, h->plan->dtype, 1);
        FN(store_block)(h, e, 1, &value);
    }
}

/* Rotates a head, and finds its rstd and k. With a norm over the token, they are already known. */
static void FN(begin_head)(FN(head_gradient) * h, const trope_token *token, FN(coefficients) t, const int64_t head[2])
{
    FN(rotate_head)(h, t);
    if (h->operand->norm.is_token)
        return;
    h->rstd = FN(find_rstd)(h->plan, h->operand, token, head, &h->in);
    h->k = FN(slope_of_products)(h, FN(sum_products)(h));
}

static void FN(gradient_of_head)(FN(head_gradient) * h, const trope_token *token, FN(coefficients) t, const int64_t head[2])
{
    const trope_plan_operand *o = h->operand;
    if (token->action == TROPE_TOKEN_ZERO) {
        if (!o->accumulate)
            FN(fill_head)(h, 0);
        return;
    }
    if (token->action == TROPE_TOKEN_COPY) {
        FN(copy_padding)(h);
        return;
    }
    if (trope_is_poisoned(h->plan, o, token)) {
        FN(fill_head)(h, FN(canonical)((REAL)NAN));
        return;
    }
    FN(begin_head)(h, token, t, head);
    if (h->dst)
        FN(store_gradient)(h, t);
}

static int64_t FN(offset_of)(const int64_t *stride, const trope_token *token, const int64_t head[2])
{
    return token->batch * stride[TROPE_DIM_BATCH] + token->index * stride[TROPE_DIM_TOKEN] +
           head[0] * stride[TROPE_DIM_GROUP] + head[1] * stride[TROPE_DIM_HEAD];
}

/* Sets the addresses of a head and its weights. `sums` are the sums of the operand's weights, or NULL. */
static void FN(place_head)(FN(head_gradient) * h, const trope_token *token, const int64_t head[2], REAL *sums)
{
    const trope_plan_operand *o = h->operand;
    const int64_t size = h->plan->element_size;
    h->in = (FN(head_values)){o->forward_src + FN(offset_of)(o->forward_src_stride, token, head) * size,
                              o->forward_src_stride[TROPE_DIM_ELEMENT], NULL};
    h->out = (FN(head_values)){o->src + FN(offset_of)(o->src_stride, token, head) * size, o->src_stride[TROPE_DIM_ELEMENT],
                               NULL};
    h->dst = o->dst ? o->dst + FN(offset_of)(o->dst_stride, token, head) * size : NULL;
    h->weight = FN(weights_of_head)(o, head);
    h->sums = sums ? sums + (head[0] * o->heads_per_group + head[1]) * o->norm.weight_of_head : NULL;
}

/* Finds rstd and k of a token with a norm over all of its heads. With TROPE_SUMS_WRITE, it finds only the sums of the
 * heads. A call that reads or writes sums also reads rstd. */
static void FN(begin_token)(FN(head_gradient) * h, const trope_token *token, FN(coefficients) t, REAL *sums)
{
    const trope_plan_operand *o = h->operand;
    FN(tree_sum) squares = {.count = 0}, products = {.count = 0};
    for (int64_t group = 0; !o->norm.reads_rstd && group < o->groups; group++) {
        for (int64_t in_group = 0; in_group < o->heads_per_group; in_group++) {
            FN(place_head)(h, token, (const int64_t[]){group, in_group}, NULL);
            if (o->norm.is_after)
                FN(rotate_head)(h, t);
            FN(push_sum)(&squares, 0, FN(sum_squares)(h->plan, o, &h->in));
        }
    }
    h->rstd = FN(find_rstd_of_token)(h->plan, o, token, &squares);
    const int is_known = o->norm.sums_read && !sums;
    for (int64_t group = 0; !is_known && group < o->groups; group++) {
        for (int64_t in_group = 0; in_group < o->heads_per_group; in_group++) {
            FN(place_head)(h, token, (const int64_t[]){group, in_group}, sums);
            FN(rotate_head)(h, t);
            FN(add_head)(h->plan, o, token, &products, FN(sum_products)(h));
        }
    }
    if (o->norm.sums_read)
        products.count = 0;
    FN(read_sums)(h->plan, o, token, &products);
    h->k = FN(slope_of_products)(h, FN(end_sum)(&products));
}

/* `sums` are the sums of the operand's weights, or NULL. The function is not inlined, so that its arrays are not on the
 * stack while coefficients are computed. */
static __attribute__((noinline)) void FN(gradient_of_operand)(const trope_plan *plan, const trope_plan_operand *o,
                                                              const trope_token *token, FN(coefficients) t, REAL *sums)
{
    REAL rotated[TROPE_MAX_ROTARY_DIM];
    FN(head_gradient) h = {.plan = plan, .operand = o, .rotated = rotated};
    const int is_normed = o->norm.is_token && token->action == TROPE_TOKEN_ROTATE, writes_sums = trope_writes_sums(o);
    if (is_normed && (writes_sums || !trope_is_poisoned(plan, o, token)))
        FN(begin_token)(&h, token, t, sums);
    if (writes_sums && !is_normed)
        FN(clear_sums)(plan, o, token);
    if (writes_sums)
        return;
    for (int64_t group = 0; group < o->groups; group++) {
        for (int64_t in_group = 0; in_group < o->heads_per_group; in_group++) {
            const int64_t head[] = {group, in_group};
            FN(place_head)(&h, token, head, sums);
            FN(gradient_of_head)(&h, token, t, head);
        }
    }
}

static void FN(gradient_of_tokens)(const trope_plan *plan, int64_t begin, int64_t end, REAL *sums)
{
    trope_plan once = *plan;
    once.rounding = TROPE_ROUND_ONCE; /* backward follows the formula, without forward's rounding */
    REAL space[4 * TROPE_MAX_PAIRS];
    FN(coefficients) coefficients = {0};
    trope_span span = {0};
    trope_token token;
    for (int64_t number = begin; number < end; number++) {
        token.batch = number / plan->tokens;
        token.index = number % plan->tokens;
        trope_find_token(plan, &span, &token);
        if (token.action == TROPE_TOKEN_ROTATE && plan->pairs > 0)
            coefficients = FN(find_coefficients)(&once, &token, space);
        REAL *of_operand = sums;
        for (int i = 0; i < plan->operand_count; i++) {
            const trope_plan_operand *o = &plan->operands[i];
            if (!o->norm.is_given)
                continue;
            FN(gradient_of_operand)(plan, o, &token, coefficients, o->norm.d_weight ? of_operand : NULL);
            if (o->norm.d_weight)
                of_operand += trope_count_weights(o);
        }
    }
}

/* Scratch memory for the coefficients of a token in f32. In f64, `angles` has them already. */
#define ANGLE_SPACE (sizeof(REAL) < sizeof(double) ? 4 * TROPE_MAX_PAIRS : 1)

/* Returns the coefficients of a token in the type of the arithmetic. */
static FN(coefficients)
    FN(coefficients_of_angles)(const trope_plan_operand *o, const trope_token_angles *angles, REAL *space)
{
#ifdef REAL_IS_DOUBLE
    (void)o, (void)space;
    return (FN(coefficients)){angles->c1, angles->s1, angles->c2, angles->s2};
#else
    const double *const from[] = {angles->c1, angles->s1, angles->c2, angles->s2};
    const int pairs = o->rotary_dim / 2;
    for (int c = 0; c < 4; c++)
        for (int i = 0; i < pairs; i++)
            space[c * pairs + i] = (REAL)from[c][i];
    return (FN(coefficients)){space, space + pairs, space + 2 * pairs, space + 3 * pairs};
#endif
}

static void FN(gradient_of_window)(const trope_plan *plan, const trope_plan_operand *o, const trope_token *token,
                                   const trope_token_angles *angles, const int64_t head[2],
                                   const trope_token_norm *token_norm, REAL *du)
{
    REAL space[ANGLE_SPACE];
    FN(head_gradient) h = {.plan = plan, .operand = o, .rotated = du};
    h.rstd = (REAL)token_norm->rstd;
    h.k = (REAL)token_norm->k;
    FN(place_head)(&h, token, head, NULL);
    FN(begin_head)(&h, token, FN(coefficients_of_angles)(o, angles, space), head);
    FN(find_window_gradient)(&h);
    for (int e = 0; e < o->rotary_dim; e++)
        du[e] = FN(canonical)(du[e]);
}

static trope_token_norm FN(norm_of_token)(const trope_plan *plan, const trope_plan_operand *o, const trope_token *token,
                                          const trope_token_angles *angles, REAL *window)
{
    REAL space[ANGLE_SPACE];
    FN(head_gradient) h = {.plan = plan, .operand = o, .rotated = window};
    FN(begin_token)(&h, token, FN(coefficients_of_angles)(o, angles, space), NULL);
    return (trope_token_norm){h.rstd, h.k};
}

#undef ANGLE_SPACE
