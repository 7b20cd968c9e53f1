/* Computes one destination head at a time: M' of the sum of dy over one head, or over all heads that share it. The sum is a
 * binary tree, neighbours first, padded with +0 to a power of two. Terms come in order, so the tree is a binary counter: a
 * level holds a sum that waits for its neighbour. */

typedef struct FN(terms) {
    REAL value[SUM_WIDTH];
} FN(terms);

typedef struct FN(tree) {
    uint64_t count; /* the number of terms so far; bit l is set if level l holds a sum */
    FN(terms) level[SUM_LEVELS];
} FN(tree);

/* Adds a sum of 2^level terms. */
static inline void FN(push)(FN(tree) * tree, int level, FN(terms) sum)
{
    int l = level;
    for (; tree->count >> l & 1; l++)
        for (int i = 0; i < SUM_WIDTH; i++)
            sum.value[i] = tree->level[l].value[i] + sum.value[i];
    tree->level[l] = sum;
    tree->count += (uint64_t)1 << level;
}

/* Pads with +0, one subtree at a time, and returns the sum. */
static FN(terms) FN(finish)(FN(tree) * tree)
{
    static const FN(terms) zeros;
    while (tree->count & (tree->count - 1))
        FN(push)(tree, __builtin_ctzll(tree->count), zeros);
    return tree->level[__builtin_ctzll(tree->count)];
}

/* The values that all elements of a destination head share. */
typedef struct FN(sum) {
    const trope_plan *plan;
    const trope_plan_operand *operand;
    FN(coefficients) coefficients;
    const char *src; /* the first source head */
    char *dst;
    int64_t heads, inner; /* the number of source heads, and of heads in a group */
} FN(sum);

static inline const char *FN(source_head)(const FN(sum) * s, int64_t head)
{
    const trope_plan_operand *o = s->operand;
    const int64_t group = head / s->inner, in_group = head - group * s->inner;
    return s->src +
           (group * o->src_stride[TROPE_DIM_GROUP] + in_group * o->src_stride[TROPE_DIM_HEAD]) * s->plan->element_size;
}

/* Stores `count` elements that are `step` elements apart in the head. With accumulate, it adds old_dst first. */
static void FN(store_sum)(const FN(sum) * s, REAL *sum, int first, int step, int count)
{
    const int32_t dtype = s->plan->dtype;
    const int64_t stride = s->operand->dst_stride[TROPE_DIM_ELEMENT];
    char *to = s->dst + first * stride * s->plan->element_size;
    if (s->operand->accumulate) {
        REAL old_dst[SUM_WIDTH];
        if (s->plan->rounding == TROPE_ROUND_NATIVE)
            FN(round_values)(dtype, count, sum);
        FN(load_strided)(old_dst, to, step * stride, dtype, count);
        for (int i = 0; i < count; i++)
            sum[i] = old_dst[i] + sum[i];
    }
    for (int i = 0; i < count; i++)
        sum[i] = FN(canonical)(sum[i]);
    FN(store_strided)(to, sum, step * stride, dtype, count);
}

/* Sums elements [first, first + count), which pass through. */
static void FN(sum_elements)(const FN(sum) * s, int first, int count)
{
    const int64_t stride = s->operand->src_stride[TROPE_DIM_ELEMENT], size = s->plan->element_size;
    FN(tree) tree;
    tree.count = 0;
    for (int64_t head = 0; head < s->heads; head++) {
        FN(terms) term = {{0}};
        FN(load_strided)(term.value, FN(source_head)(s, head) + first * stride * size, stride, s->plan->dtype, count);
        FN(push)(&tree, 0, term);
    }
    FN(terms) sum = FN(finish)(&tree);
    FN(store_sum)(s, sum.value, first, 1, count);
}

static void FN(sum_run)(const FN(sum) * s, int begin, int end)
{
    for (int first = begin; first < end; first += SUM_WIDTH)
        FN(sum_elements)(s, first, end - first < SUM_WIDTH ? end - first : SUM_WIDTH);
}

/* Loads `count` pairs of one head, from `pair` on, all in one part. The first half of the result has the first elements,
 * and the second half has the second elements. */
static FN(terms) FN(load_pairs)(const FN(sum) * s, const char *window, int pair, int count)
{
    const trope_plan *plan = s->plan;
    const int pairs = s->operand->rotary_dim / 2, half = SUM_WIDTH / 2;
    const int64_t stride = s->operand->src_stride[TROPE_DIM_ELEMENT], step = plan->interleaved_src ? 2 * stride : stride;
    const int first = trope_first_of_pair(plan->interleaved_src, plan->parts, pairs, pair),
              second = trope_second_of_pair(plan->interleaved_src, plan->parts, pairs, pair);
    FN(terms) x = {{0}};
    FN(load_strided)(x.value, window + first * stride * plan->element_size, step, plan->dtype, count);
    FN(load_strided)(x.value + half, window + second * stride * plan->element_size, step, plan->dtype, count);
    return x;
}

/* Rotates the sum of these pairs. NATIVE rounds the sum to the dtype first, as eager code stores it. */
static void FN(rotate_sum)(const FN(sum) * s, int pair, int count, FN(terms) * sum)
{
    const int half = SUM_WIDTH / 2, native = FN(native_kind)(s->plan);
    if (s->plan->rounding == TROPE_ROUND_NATIVE)
        FN(round_values)(s->plan->dtype, SUM_WIDTH, sum->value);
    for (int i = 0; i < count; i++) {
        const FN(pair_coefficients) c = {s->coefficients.c1[pair + i], s->coefficients.s1[pair + i],
                                         s->coefficients.c2[pair + i], s->coefficients.s2[pair + i]};
        const FN(pair) out = FN(rotate_pair)(native, (FN(pair)){sum->value[i], sum->value[half + i]}, c);
        sum->value[i] = out.first;
        sum->value[half + i] = out.second;
    }
}

static void FN(sum_pairs)(const FN(sum) * s, int pair, int count)
{
    const trope_plan *plan = s->plan;
    const trope_plan_operand *o = s->operand;
    const int64_t offset = o->rotary_offset * o->src_stride[TROPE_DIM_ELEMENT] * plan->element_size;
    const int pairs = o->rotary_dim / 2, step = plan->interleaved_dst ? 2 : 1;
    FN(tree) tree;
    tree.count = 0;
    for (int64_t head = 0; head < s->heads; head++)
        FN(push)(&tree, 0, FN(load_pairs)(s, FN(source_head)(s, head) + offset, pair, count));
    FN(terms) sum = FN(finish)(&tree);
    FN(rotate_sum)(s, pair, count, &sum);
    FN(store_sum)
    (s, sum.value, o->rotary_offset + trope_first_of_pair(plan->interleaved_dst, plan->parts, pairs, pair), step, count);
    FN(store_sum)
    (s, sum.value + SUM_WIDTH / 2, o->rotary_offset + trope_second_of_pair(plan->interleaved_dst, plan->parts, pairs, pair),
     step, count);
}

static void FN(sum_window)(const FN(sum) * s)
{
    const int per_part = s->operand->part_pairs, most = SUM_WIDTH / 2;
    for (int part = 0; part < s->plan->parts; part++)
        for (int i = 0; i < per_part; i += most)
            FN(sum_pairs)(s, part * per_part + i, per_part - i < most ? per_part - i : most);
}

/* Writes zeros for padding. With accumulate, old_dst stays unchanged. */
static void FN(clear_head)(const FN(sum) * s)
{
    const int64_t step = s->operand->dst_stride[TROPE_DIM_ELEMENT] * s->plan->element_size;
    for (int64_t i = 0; !s->operand->accumulate && i < s->operand->head_dim; i++)
        memset(s->dst + i * step, 0, (size_t)s->plan->element_size);
}

static void FN(sum_head)(const FN(sum) * s, trope_token_action action)
{
    const trope_plan_operand *o = s->operand;
    if (action == TROPE_TOKEN_ZERO) {
        FN(clear_head)(s);
    } else if (action == TROPE_TOKEN_COPY || o->rotary_dim == 0) {
        FN(sum_run)(s, 0, o->head_dim);
    } else {
        FN(sum_run)(s, 0, o->rotary_offset);
        FN(sum_window)(s);
        FN(sum_run)(s, o->rotary_offset + o->rotary_dim, o->head_dim);
    }
}

static void FN(sum_operand)(const trope_plan *plan, const trope_plan_operand *o, const trope_token *token,
                            FN(coefficients) t)
{
    const int64_t *f = o->src_stride, *g = o->dst_stride, size = plan->element_size;
    const int64_t groups = o->summed_heads == TROPE_SHARED_ALL ? 1 : o->groups;
    const int64_t heads = o->summed_heads ? 1 : o->heads_per_group;
    FN(sum) s = {.plan = plan, .operand = o, .coefficients = t, .inner = o->heads_per_group};
    s.heads = o->summed_heads == TROPE_SHARED_ALL ? (int64_t)o->groups * o->heads_per_group
              : o->summed_heads                   ? o->heads_per_group
                                                  : 1;
    for (int64_t group = 0; group < groups; group++) {
        for (int64_t head = 0; head < heads; head++) {
            s.src = o->src + (token->batch * f[0] + token->index * f[1] + group * f[2] + head * f[3]) * size;
            s.dst = o->dst + (token->batch * g[0] + token->index * g[1] + group * g[2] + head * g[3]) * size;
            FN(sum_head)(&s, token->action);
        }
    }
}

static void FN(sum_tokens)(const trope_plan *plan, int64_t begin, int64_t end)
{
    REAL space[4 * TROPE_MAX_PAIRS];
    FN(coefficients) coefficients = {0};
    trope_span span = {0};
    trope_token token;
    for (int64_t number = begin; number < end; number++) {
        trope_locate_token(plan, number, &token);
        trope_find_token(plan, &span, &token);
        if (token.action == TROPE_TOKEN_ROTATE && plan->pairs > 0)
            coefficients = FN(find_coefficients)(plan, &token, space);
        for (int i = 0; i < plan->operand_count; i++)
            if (trope_writer_of(&plan->operands[i]) == TROPE_WRITER_SUM)
                FN(sum_operand)(plan, &plan->operands[i], &token, coefficients);
    }
}
