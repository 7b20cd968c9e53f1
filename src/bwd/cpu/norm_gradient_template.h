/* The backward of the norm of a head (trope.h, trope_norm), in blocks. u = M' dy is kept for the window; elsewhere it is dy. */

typedef struct FN(head_gradient) {
    const trope_plan *plan;
    const trope_plan_operand *operand;
    const char *x, *dy; /* the head */
    char *dst;          /* NULL: not wanted */
    const char *weight; /* of the head; NULL: none */
    REAL *sums;         /* of the head's weights; NULL: not wanted */
    REAL rstd;
    REAL u[TROPE_MAX_ROTARY_DIM];
} FN(head_gradient);

/* M' of the window, by coefficients that are not rounded. */
static void FN(rotate_window)(FN(head_gradient) * h, FN(coefficients) t)
{
    const trope_plan *plan = h->plan;
    const trope_plan_operand *o = h->operand;
    const int64_t step = o->src_stride[TROPE_DIM_ELEMENT];
    const int pairs = o->rotary_dim / 2;
    REAL dy[TROPE_MAX_ROTARY_DIM];
    FN(load_strided)(dy, h->dy + o->rotary_offset * step * plan->element_size, step, plan->dtype, o->rotary_dim);
    for (int i = 0; i < pairs; i++) {
        const FN(pair) in = {dy[trope_first_of_pair(plan->interleaved_src, plan->parts, pairs, i)],
                             dy[trope_second_of_pair(plan->interleaved_src, plan->parts, pairs, i)]};
        const FN(pair_coefficients) c = {t.c1[i], t.s1[i], t.c2[i], t.s2[i]};
        const FN(pair) out = FN(rotate_pair)(0, in, c);
        h->u[trope_first_of_pair(plan->interleaved_dst, plan->parts, pairs, i)] = out.first;
        h->u[trope_second_of_pair(plan->interleaved_dst, plan->parts, pairs, i)] = out.second;
    }
}

/* u of elements [first, first + count), which are a block. */
static void FN(load_u)(const FN(head_gradient) * h, int64_t first, int count, REAL *u)
{
    const trope_plan_operand *o = h->operand;
    const int64_t step = o->src_stride[TROPE_DIM_ELEMENT], after = o->rotary_offset + o->rotary_dim;
    FN(load_strided)(u, h->dy + first * step * h->plan->element_size, step, h->plan->dtype, count);
    for (int i = 0; i < count; i++)
        if (first + i >= o->rotary_offset && first + i < after)
            u[i] = h->u[first + i - o->rotary_offset];
}

static void FN(load_x)(const FN(head_gradient) * h, int64_t first, int count, REAL *x)
{
    const int64_t step = h->operand->forward_src_stride[TROPE_DIM_ELEMENT];
    FN(load_strided)(x, h->x + first * step * h->plan->element_size, step, h->plan->dtype, count);
}

/* Turns u of a block into g = w u. */
static void FN(weigh)(const FN(head_gradient) * h, int64_t first, int count, REAL *u)
{
    REAL w[NORM_BLOCK];
    if (!h->weight)
        return;
    FN(load_weights)(&h->operand->norm, h->weight, first, count, w);
    for (int i = 0; i < count; i++)
        u[i] = w[i] * u[i];
}

/* The sum of g x over the head; the terms of d_weight are added to its sums. */
static REAL FN(sum_products)(const FN(head_gradient) * h)
{
    REAL x[NORM_BLOCK], g[NORM_BLOCK];
    FN(head_sum) sum;
    sum.count = 0;
    for (int64_t e = 0; e < h->operand->head_dim; e += NORM_BLOCK) {
        const int64_t left = h->operand->head_dim - e;
        const int count = (int)(left < NORM_BLOCK ? left : NORM_BLOCK);
        FN(load_x)(h, e, count, x);
        FN(load_u)(h, e, count, g);
        for (int i = 0; h->sums && i < count; i++)
            h->sums[e + i] = REAL_FMA(g[i], x[i] * h->rstd, h->sums[e + i]);
        FN(weigh)(h, e, count, g);
        for (int i = 0; i < count; i++)
            g[i] *= x[i];
        FN(add_block)(&sum, g, count);
    }
    return FN(end_sum)(&sum);
}

/* Stores a block of results, added to what dst holds if asked to: with NATIVE, which `rounding` is, they are rounded before. */
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

static void FN(store_gradient)(const FN(head_gradient) * h, REAL k)
{
    REAL x[NORM_BLOCK], g[NORM_BLOCK];
    for (int64_t e = 0; e < h->operand->head_dim; e += NORM_BLOCK) {
        const int64_t left = h->operand->head_dim - e;
        const int count = (int)(left < NORM_BLOCK ? left : NORM_BLOCK);
        FN(load_x)(h, e, count, x);
        FN(load_u)(h, e, count, g);
        FN(weigh)(h, e, count, g);
        for (int i = 0; i < count; i++)
            g[i] = h->rstd * REAL_FMA(-x[i], k, g[i]);
        FN(store_block)(h, e, count, g);
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

/* Padding that is copied: dx is dy, bit for bit, or is added. */
static void FN(copy_padding)(const FN(head_gradient) * h)
{
    const trope_plan_operand *o = h->operand;
    const int64_t size = h->plan->element_size, from = o->src_stride[TROPE_DIM_ELEMENT] * size,
                  to = o->dst_stride[TROPE_DIM_ELEMENT] * size;
    REAL value;
    for (int64_t e = 0; h->dst && e < o->head_dim; e++) {
        if (!o->accumulate) {
            memmove(h->dst + e * to, h->dy + e * from, (size_t)size);
            continue;
        }
        FN(load)(&value, h->dy + e * from, h->plan->dtype, 1);
        FN(store_block)(h, e, 1, &value);
    }
}

/* Whether a position of the row is out of a table and drives a pair of the operand. */
static int FN(is_poisoned)(const trope_plan *plan, const trope_plan_operand *o, const trope_row *row)
{
    for (int pair = 0; row->poisoned && pair < o->rotary_dim / 2; pair++)
        if (row->poisoned >> trope_pair_axis(plan, pair) & 1)
            return 1;
    return 0;
}

static void FN(gradient_of_head)(FN(head_gradient) * h, const trope_row *row, FN(coefficients) t, const int64_t head[2])
{
    const trope_plan_operand *o = h->operand;
    if (row->action == TROPE_ROW_ZERO) {
        if (!o->accumulate)
            FN(fill_head)(h, 0);
        return;
    }
    if (row->action == TROPE_ROW_COPY) {
        FN(copy_padding)(h);
        return;
    }
    if (FN(is_poisoned)(h->plan, o, row)) {
        FN(fill_head)(h, FN(canonical)((REAL)NAN));
        return;
    }
    FN(rotate_window)(h, t);
    h->rstd = FN(find_rstd)(h->plan, o, row, head, h->x, o->forward_src_stride[TROPE_DIM_ELEMENT]);
    const REAL p = FN(sum_products)(h);
    if (h->dst)
        FN(store_gradient)(h, REAL_NORM_SLOPE(p / (REAL)o->head_dim, h->rstd));
}

static int64_t FN(offset_of)(const int64_t *stride, const trope_row *row, const int64_t head[2])
{
    return row->batch * stride[TROPE_DIM_BATCH] + row->token * stride[TROPE_DIM_TOKEN] + head[0] * stride[TROPE_DIM_GROUP] +
           head[1] * stride[TROPE_DIM_HEAD];
}

/* SUMS: of the operand's weights, or NULL. Not inlined, so that the stack does not hold its arrays while coefficients are found. */
static __attribute__((noinline)) void FN(gradient_of_operand)(const trope_plan *plan, const trope_plan_operand *o,
                                                              const trope_row *row, FN(coefficients) t, REAL *sums)
{
    const int64_t size = plan->element_size;
    FN(head_gradient) h;
    h.plan = plan;
    h.operand = o;
    for (int64_t group = 0; group < o->groups; group++) {
        for (int64_t in_group = 0; in_group < o->heads_per_group; in_group++) {
            const int64_t head[] = {group, in_group}, number = group * o->heads_per_group + in_group;
            h.x = o->forward_src + FN(offset_of)(o->forward_src_stride, row, head) * size;
            h.dy = o->src + FN(offset_of)(o->src_stride, row, head) * size;
            h.dst = o->dst ? o->dst + FN(offset_of)(o->dst_stride, row, head) * size : NULL;
            h.weight = FN(weights_of_head)(o, head);
            h.sums = sums ? sums + number * o->norm.weight_of_head : NULL;
            FN(gradient_of_head)(&h, row, t, head);
        }
    }
}

static void FN(gradient_of_rows)(const trope_plan *plan, int64_t begin, int64_t end, REAL *sums)
{
    trope_plan once = *plan;
    once.rounding = TROPE_ROUND_ONCE; /* backward is that of the formula, whatever forward rounds */
    REAL space[4 * TROPE_MAX_PAIRS];
    FN(coefficients) coefficients = {0};
    trope_span span = {0};
    trope_row row;
    for (int64_t number = begin; number < end; number++) {
        row.batch = number / plan->tokens;
        row.token = number % plan->tokens;
        trope_find_row(plan, &span, &row);
        if (row.action == TROPE_ROW_ROTATE && plan->pairs > 0)
            coefficients = FN(find_coefficients)(&once, &row, space);
        REAL *of_operand = sums;
        for (int i = 0; i < plan->operand_count; i++) {
            const trope_plan_operand *o = &plan->operands[i];
            if (!o->norm.is_given)
                continue;
            FN(gradient_of_operand)(plan, o, &row, coefficients, o->norm.d_weight ? of_operand : NULL);
            if (o->norm.d_weight)
                of_operand += trope_count_weights(o);
        }
    }
}
