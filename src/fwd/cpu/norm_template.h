/* The RMS norm of a head (trope.h, trope_norm), in blocks: a head may have any number of elements.
 *
 * A sum over a head is a binary tree, neighbours first, padded with +0 to a power of two. A block has a power of two of elements and
 * is a subtree; the sums of blocks come in order, so that the rest of the tree is a binary counter. */

typedef struct FN(head_sum) {
    int block;      /* elements of a block */
    uint32_t count; /* blocks so far: bit l is set where level l holds a sum */
    REAL level[32];
} FN(head_sum);

static inline void FN(begin_sum)(FN(head_sum) * sum, int64_t head_dim)
{
    sum->count = 0;
    sum->block = 1;
    while (sum->block < head_dim && sum->block < NORM_BLOCK)
        sum->block *= 2;
}

/* The sum of a power of two of values, which are overwritten. */
static inline REAL FN(sum_values)(REAL *restrict values, int count)
{
    REAL half[NORM_BLOCK / 2];
    for (count /= 2; count > 0; count /= 2) {
        for (int i = 0; i < count; i++)
            half[i] = values[2 * i] + values[2 * i + 1];
        for (int i = 0; i < count; i++)
            values[i] = half[i];
    }
    return values[0];
}

static inline void FN(push_sum)(FN(head_sum) * sum, int level, REAL value)
{
    int l = level;
    for (; sum->count >> l & 1; l++)
        value = sum->level[l] + value;
    sum->level[l] = value;
    sum->count += 1u << level;
}

/* Adds a block of `count` values, which are overwritten: only the last block of a head has less than `block` of them. */
static inline void FN(add_block)(FN(head_sum) * sum, REAL *values, int count)
{
    for (int i = count; i < sum->block; i++)
        values[i] = 0;
    FN(push_sum)(sum, 0, FN(sum_values)(values, sum->block));
}

static inline REAL FN(end_sum)(FN(head_sum) * sum)
{
    while (sum->count & (sum->count - 1))
        FN(push_sum)(sum, __builtin_ctz(sum->count), 0);
    return sum->level[__builtin_ctz(sum->count)] + 0; /* -0 becomes +0, as if every head were padded */
}

/* Where the rstd of a head is, in an array of REAL. */
static inline char *FN(rstd_place)(const trope_plan *plan, const trope_plan_operand *o, const trope_row *row,
                                   const int64_t head[2])
{
    const int64_t heads = (int64_t)o->groups * o->heads_per_group, number = head[0] * o->heads_per_group + head[1];
    return o->norm.rstd
               ? (char *)o->norm.rstd + ((row->batch * plan->tokens + row->token) * heads + number) * (int64_t)sizeof(REAL)
               : NULL;
}

static inline const char *FN(weights_of_head)(const trope_plan_operand *o, const int64_t head[2])
{
    const int64_t number = head[0] * o->heads_per_group + head[1];
    return o->norm.weight
               ? (const char *)o->norm.weight + number * o->norm.weight_of_head * trope_element_size(o->norm.weight_dtype)
               : NULL;
}

/* rstd of a head whose elements are `step` apart: read, or computed. */
static REAL FN(find_rstd)(const trope_plan *plan, const trope_plan_operand *o, const char *place, const char *x,
                          int64_t step)
{
    const int64_t bytes = step * plan->element_size;
    REAL squares[NORM_BLOCK], rstd;
    FN(head_sum) sum;
    if (o->norm.reads_rstd) {
        memcpy(&rstd, place, sizeof rstd);
        return rstd;
    }
    FN(begin_sum)(&sum, o->head_dim);
    for (int64_t e = 0; e < o->head_dim; e += sum.block) {
        const int count = (int)(o->head_dim - e < sum.block ? o->head_dim - e : sum.block);
        FN(load_strided)(squares, x + e * bytes, step, plan->dtype, count);
        for (int i = 0; i < count; i++)
            squares[i] *= squares[i];
        FN(add_block)(&sum, squares, count);
    }
    return REAL_RECIPROCAL_ROOT(FN(end_sum)(&sum) / (REAL)o->head_dim, (REAL)o->norm.eps);
}

/* The factors of elements [first, first + count) of a head: weight, or 1 + weight. */
static inline void FN(load_weights)(const trope_plan_norm *norm, const char *weight, int64_t first, int count, REAL *w)
{
    FN(load)(w, weight + first * trope_element_size(norm->weight_dtype), norm->weight_dtype, count);
    for (int i = 0; norm->plus_one && i < count; i++)
        w[i] = (REAL)1 + w[i];
}

/* Elements [first, first + count) of a head, at most TROPE_MAX_ROTARY_DIM of them, normalised. weight: NULL for none. */
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
