/* The RMS norm of a head, or of all heads of a token (trope.h, trope_norm). It works in blocks, because a head may have any
 * number of elements.
 *
 * A sum over a head is a binary tree, neighbours first, padded with +0 to a power of two; -0 becomes +0. A block is a
 * subtree. The sums of the blocks come in order, so the rest of the tree is a binary counter. A sum over a token is another
 * such tree, over the sums of its heads. */

typedef struct FN(tree_sum) {
    uint64_t count; /* the number of leaves so far; bit l is set if level l holds a sum */
    REAL level[64];
} FN(tree_sum);

/* Adds one level of the tree. */
static inline void FN(add_neighbours)(int count, const REAL *restrict from, REAL *restrict to)
{
    for (int i = 0; i < count; i++)
        to[i] = from[2 * i] + from[2 * i + 1];
}

/* Returns the sum of a block. All counts are constants, so that the compiler uses vector shuffles. The function is not
 * inlined: otherwise gcc would split the levels into scalars. */
static __attribute__((noinline)) REAL FN(sum_block)(const REAL values[NORM_BLOCK])
{
    REAL a[NORM_BLOCK / 2], b[NORM_BLOCK / 4], c[NORM_BLOCK / 8], d[NORM_BLOCK / 16];
    FN(add_neighbours)(NORM_BLOCK / 2, values, a);
    FN(add_neighbours)(NORM_BLOCK / 4, a, b);
    FN(add_neighbours)(NORM_BLOCK / 8, b, c);
    FN(add_neighbours)(NORM_BLOCK / 16, c, d);
    return (d[0] + d[1]) + (d[2] + d[3]);
}

static inline void FN(push_sum)(FN(tree_sum) * sum, int level, REAL value)
{
    int l = level;
    for (; sum->count >> l & 1; l++)
        value = sum->level[l] + value;
    sum->level[l] = value;
    sum->count += UINT64_C(1) << level;
}

/* Adds a block of `count` values, and pads it. Only the last block of a head has fewer than NORM_BLOCK values. */
static inline void FN(add_block)(FN(tree_sum) * sum, REAL *values, int count)
{
    for (int i = count; i < NORM_BLOCK; i++)
        values[i] = 0;
    FN(push_sum)(sum, 0, FN(sum_block)(values));
}

static inline REAL FN(end_sum)(FN(tree_sum) * sum)
{
    while (sum->count & (sum->count - 1))
        FN(push_sum)(sum, __builtin_ctzll(sum->count), 0);
    return sum->level[__builtin_ctzll(sum->count)] + 0; /* -0 becomes +0, as if every head were padded */
}

/* Returns the address of the rstd of a head, or of its token, in the caller's array. NULL: there is no array. */
static inline char *FN(rstd_place)(const trope_plan *plan, const trope_plan_operand *o, const trope_token *token,
                                   const int64_t head[2])
{
    const int64_t number = token->batch * plan->tokens + token->index, in_token = head[0] * o->heads_per_group + head[1];
    const int64_t entry = o->norm.is_token ? number : number * trope_heads_of_token(o) + in_token;
    return o->norm.rstd ? (char *)o->norm.rstd + entry * (int64_t)sizeof(REAL) : NULL;
}

static inline const char *FN(weights_of_head)(const trope_plan_operand *o, const int64_t head[2])
{
    const int64_t number = head[0] * o->heads_per_group + head[1];
    return o->norm.weight
               ? (const char *)o->norm.weight + number * o->norm.weight_of_head * trope_element_size(o->norm.weight_dtype)
               : NULL;
}

/* Reads rstd from the caller's array, or writes it there. Without an array, it does nothing. */
static inline void FN(share_rstd)(const trope_plan *plan, const trope_plan_operand *o, const trope_token *token,
                                  const int64_t head[2], REAL *rstd)
{
    char *const place = FN(rstd_place)(plan, o, token, head);
    if (!place)
        return;
    if (o->norm.reads_rstd)
        memcpy(rstd, place, sizeof *rstd);
    else
        FN(store)(place, rstd, REAL_DTYPE, 1);
}

/* A head in memory. If `rotated` is not NULL, it replaces the elements of the window. */
typedef struct FN(head_values) {
    const char *at;
    int64_t step; /* in elements */
    const REAL *rotated;
} FN(head_values);

/* Loads one block: elements [first, first + count) of a head. */
static inline void FN(load_block)(const trope_plan *plan, const trope_plan_operand *o, const FN(head_values) * head,
                                  int64_t first, int count, REAL *to)
{
    FN(load_strided)(to, head->at + first * head->step * plan->element_size, head->step, plan->dtype, count);
    const int64_t window = o->rotary_offset, after = window + o->rotary_dim;
    const int64_t begin = first > window ? first : window, end = first + count < after ? first + count : after;
    if (head->rotated && begin < end)
        memcpy(to + (begin - first), head->rotated + (begin - window), (size_t)(end - begin) * sizeof *to);
}

/* Returns the sum of the squares of a head. */
static __attribute__((noinline)) REAL FN(sum_squares)(const trope_plan *plan, const trope_plan_operand *o,
                                                      const FN(head_values) * x)
{
    REAL squares[NORM_BLOCK];
    FN(tree_sum) sum;
    sum.count = 0;
    for (int64_t e = 0; e < o->head_dim; e += NORM_BLOCK) {
        const int count = (int)(o->head_dim - e < NORM_BLOCK ? o->head_dim - e : NORM_BLOCK);
        FN(load_block)(plan, o, x, e, count, squares);
        for (int i = 0; i < count; i++)
            squares[i] *= squares[i];
        FN(add_block)(&sum, squares, count);
    }
    return FN(end_sum)(&sum);
}

static inline REAL FN(rstd_of_squares)(const trope_plan_operand *o, REAL squares)
{
    return REAL_RECIPROCAL_ROOT(squares / (REAL)o->norm.elements, (REAL)o->norm.eps);
}

/* Returns the rstd of a head, which is read, or computed from x. x is the head that is normalised. */
static REAL FN(find_rstd)(const trope_plan *plan, const trope_plan_operand *o, const trope_token *token,
                          const int64_t head[2], const FN(head_values) * x)
{
    REAL rstd = o->norm.reads_rstd ? 0 : FN(rstd_of_squares)(o, FN(sum_squares)(plan, o, x));
    FN(share_rstd)(plan, o, token, head, &rstd);
    return rstd;
}

/* Returns the address of the sum of a head of a token, in the caller's array. */
static inline char *FN(sum_place)(const trope_plan *plan, const trope_plan_operand *o, const trope_token *token,
                                  int64_t head)
{
    return o->norm.sums + ((head * plan->batch + token->batch) * plan->tokens + token->index) * (int64_t)sizeof(REAL);
}

/* Adds the sum of the next head of a token, and writes it if the caller wants the sums. */
static inline void FN(add_head)(const trope_plan *plan, const trope_plan_operand *o, const trope_token *token,
                                FN(tree_sum) * sum, REAL value)
{
    const REAL stored = FN(canonical)(value);
    if (trope_writes_sums(o))
        memcpy(FN(sum_place)(plan, o, token, (int64_t)sum->count), &stored, sizeof stored);
    FN(push_sum)(sum, 0, value);
}

/* Adds the sums of the heads of all ranks, from the caller's array. */
static void FN(read_sums)(const trope_plan *plan, const trope_plan_operand *o, const trope_token *token, FN(tree_sum) * sum)
{
    REAL value;
    for (int64_t head = 0; head < o->norm.sums_read; head++) {
        memcpy(&value, FN(sum_place)(plan, o, token, head), sizeof value);
        FN(push_sum)(sum, 0, value);
    }
}

/* Writes zeros as the sums of a token that is not normalised. */
static void FN(clear_sums)(const trope_plan *plan, const trope_plan_operand *o, const trope_token *token)
{
    for (int64_t head = 0; head < trope_heads_of_token(o); head++)
        memset(FN(sum_place)(plan, o, token, head), 0, sizeof(REAL));
}

/* Returns the rstd of a token, which is read, or computed from the squares of its heads. */
static REAL FN(find_rstd_of_token)(const trope_plan *plan, const trope_plan_operand *o, const trope_token *token,
                                   FN(tree_sum) * squares)
{
    REAL rstd = o->norm.reads_rstd ? 0 : FN(rstd_of_squares)(o, FN(end_sum)(squares));
    FN(share_rstd)(plan, o, token, (const int64_t[]){0, 0}, &rstd);
    return rstd;
}

/* Loads the factors of elements [first, first + count) of a head: weight, or 1 + weight. */
static inline void FN(load_weights)(const trope_plan_norm *norm, const char *weight, int64_t first, int count, REAL *w)
{
    FN(load)(w, weight + first * trope_element_size(norm->weight_dtype), norm->weight_dtype, count);
    for (int i = 0; norm->plus_one && i < count; i++)
        w[i] = (REAL)1 + w[i];
}

/* Normalises elements [first, first + count) of a head, at most TROPE_MAX_ROTARY_DIM of them. `weight` is NULL without a
 * weight. */
static inline void FN(normalise)(const trope_plan *plan, const trope_plan_norm *norm, const char *weight, int64_t first,
                                 int count, REAL rstd, REAL *x)
{
    REAL w[NORM_BLOCK];
    for (int i = 0; i < count; i++)
        x[i] *= rstd;
    if (norm->rounding == TROPE_NORM_ROUND_TWICE)
        FN(round_values)(plan->dtype, count, x);
    for (int e = 0; weight && e < count; e += NORM_BLOCK) {
        const int block = count - e < NORM_BLOCK ? count - e : NORM_BLOCK;
        FN(load_weights)(norm, weight, first + e, block, w);
        for (int i = 0; i < block; i++)
            x[e + i] *= w[i];
    }
    if (norm->rounding)
        FN(round_values)(plan->dtype, count, x);
}
