/* The loop over tokens, for one instruction set and one type of arithmetic. It works in chunks of tokens: it finds the
 * coefficients of each token, and then processes all heads of all operands. The window of a head goes through three loops,
 * each of which the compiler vectorizes: convert to REAL, rotate, convert from REAL. */

#if defined(VECTOR_WIDTH) && !defined(REAL_IS_DOUBLE)
#define USE_VECTORS
#endif

static void FN(token_angles)(const trope_plan *plan, const trope_token *token, trope_token_angles *out)
{
#ifdef REAL_IS_DOUBLE
    const FN(coefficients) t = FN(find_coefficients)(plan, token, out->values);
    out->c1 = t.c1, out->s1 = t.s1, out->c2 = t.c2, out->s2 = t.s2;
#else
    REAL space[4 * TROPE_MAX_PAIRS];
    const FN(coefficients) t = FN(find_coefficients)(plan, token, space);
    const int pairs = plan->pairs;
    for (int i = 0; i < (plan->angles.per_element ? 4 : 2) * pairs; i++)
        out->values[i] = space[i];
    out->c1 = out->values + (t.c1 - space);
    out->s1 = out->values + (t.s1 - space);
    out->c2 = out->values + (t.c2 - space);
    out->s2 = out->values + (t.s2 - space);
#endif
}

/* Computes the coefficients of tokens that have one position each, 2 * plan->pairs for each token. It computes all of them
 * at once, because a call with one head spends most of its time here. */
static void FN(find_phase_coefficients)(const trope_plan *plan, int tokens, const int64_t *position, REAL *space)
{
    const REAL scale[] = {(REAL)plan->cosine_scale, (REAL)plan->sine_scale};
    const uint64_t *restrict step = plan->step;
    const int pairs = plan->pairs;
    for (int r = 0; r < tokens; r++) {
        const int64_t at = position[r];
        REAL *restrict cosine = space + 2 * r * pairs, *restrict sine = cosine + pairs;
        for (int i = 0; i < pairs; i++)
            FN(sincos_of_phase)(at, step[i], scale, &cosine[i], &sine[i]);
    }
    if (plan->rounding == TROPE_ROUND_NATIVE)
        FN(round_values)(plan->dtype, 2 * tokens * pairs, space);
}

/* ---- the rotation of a window ---- */

/* Rotates all parts of a window. */
static void FN(rotate_parts)(const trope_plan *plan, const trope_plan_operand *o, const REAL *x, REAL *y,
                             FN(coefficients) t)
{
    const FN(kind) kind = {FN(native_kind)(plan), plan->interleaved_src, plan->interleaved_dst};
    const int pairs = o->part_pairs;
    for (int part = 0; part < plan->parts; part++, x += 2 * pairs, y += 2 * pairs) {
        FN(rotate_part)(kind, pairs, x, y, t);
        t = (FN(coefficients)){t.c1 + pairs, t.s1 + pairs, t.c2 + pairs, t.s2 + pairs};
    }
}

/* Rotates the window of a head from `from` to `to`, which may be the same memory, but must not overlap otherwise. */
static __attribute__((noinline)) void FN(rotate_elements)(const trope_plan *plan, const trope_plan_operand *o,
                                                          const char *from, char *to, FN(coefficients) t)
{
    REAL x[TROPE_MAX_ROTARY_DIM], y[TROPE_MAX_ROTARY_DIM];
    FN(load_strided)(x, from, o->src_stride[TROPE_DIM_ELEMENT], plan->dtype, o->rotary_dim);
    FN(rotate_parts)(plan, o, x, y, t);
    FN(store_strided)(to, y, o->dst_stride[TROPE_DIM_ELEMENT], plan->dtype, o->rotary_dim);
}

/* ---- a head ---- */

static inline void FN(copy_run)(char *to, const char *from, int64_t bytes)
{
    if (bytes > 0)
        memcpy(to, from, (size_t)bytes);
}

static void FN(rotate_contiguous_head)(const trope_plan *plan, const trope_plan_operand *o, const char *src, char *dst,
                                       FN(coefficients) t)
{
    _Alignas(64) char stage[STAGE_BYTES];
    const int64_t size = plan->element_size, bytes = o->head_dim * size;
    const int64_t before = o->rotary_offset * size, window = o->rotary_dim * size;
    const int streamed = plan->stream_stores && !o->in_place && bytes <= STAGE_BYTES;
    char *out = streamed ? stage : dst;
    if (!o->in_place) {
        FN(copy_run)(out, src, before);
        FN(copy_run)(out + before + window, src + before + window, bytes - before - window);
    }
    FN(rotate_elements)(plan, o, src + before, out + before, t);
    if (streamed)
        trope_stream_copy(dst, stage, (size_t)bytes);
}

static __attribute__((noinline)) void FN(copy_strided)(char *to, int64_t to_step, const char *from, int64_t from_step,
                                                       const int64_t count[2])
{
    for (int64_t i = 0; i < count[0]; i++)
        memcpy(to + i * to_step, from + i * from_step, (size_t)count[1]);
}

static void FN(rotate_strided_head)(const trope_plan *plan, const trope_plan_operand *o, const char *src, char *dst,
                                    FN(coefficients) t)
{
    const int64_t size = plan->element_size, from = o->src_stride[TROPE_DIM_ELEMENT] * size,
                  to = o->dst_stride[TROPE_DIM_ELEMENT] * size;
    const int64_t first = o->rotary_offset, after = first + o->rotary_dim;
    FN(rotate_elements)(plan, o, src + first * from, dst + first * to, t);
    if (o->in_place)
        return;
    FN(copy_strided)(dst, to, src, from, (const int64_t[]){first, size});
    FN(copy_strided)(dst + after * to, to, src + after * from, from, (const int64_t[]){o->head_dim - after, size});
}

/* Returns whether heads are further apart in memory than tokens. */
static int FN(heads_outside)(const trope_plan_operand *o)
{
    const int64_t *stride = o->dst_stride;
    return stride[TROPE_DIM_HEAD] > stride[TROPE_DIM_TOKEN] || stride[TROPE_DIM_GROUP] > stride[TROPE_DIM_TOKEN];
}

/* Returns the bytes from a head to the window that is prefetched while that head is processed. The result is unsigned,
 * because the prefetched address may be anywhere. */
static uint64_t FN(prefetch_distance)(const trope_plan *plan, const trope_plan_operand *o)
{
    const int inner = FN(heads_outside)(o)     ? TROPE_DIM_TOKEN
                      : o->heads_per_group > 1 ? TROPE_DIM_HEAD
                      : o->groups > 1          ? TROPE_DIM_GROUP
                                               : TROPE_DIM_TOKEN;
    if (inner == TROPE_DIM_TOKEN && plan->tokens == 1)
        return 0;
    return (PREFETCH_HEADS * (uint64_t)o->src_stride[inner] + (uint64_t)o->rotary_offset) * (uint64_t)plan->element_size;
}

static void FN(copy_head)(const trope_plan *plan, const trope_plan_operand *o, const char *src, char *dst)
{
    const int64_t size = plan->element_size, from = o->src_stride[TROPE_DIM_ELEMENT], to = o->dst_stride[TROPE_DIM_ELEMENT];
    if (o->in_place)
        return;
    if (from != 1 || to != 1) {
        FN(copy_strided)(dst, to * size, src, from * size, (const int64_t[]){o->head_dim, size});
        return;
    }
    prefetch_run(src, FN(prefetch_distance)(plan, o), o->head_dim * size);
    if (plan->stream_stores)
        trope_stream_copy(dst, src, (size_t)(o->head_dim * size));
    else
        memcpy(dst, src, (size_t)(o->head_dim * size));
}

static void FN(zero_head)(const trope_plan *plan, const trope_plan_operand *o, char *dst)
{
    const int64_t step = o->dst_stride[TROPE_DIM_ELEMENT] * plan->element_size;
    for (int64_t i = 0; i < o->head_dim; i++)
        memset(dst + i * step, 0, (size_t)plan->element_size);
}

/* ---- a head with a norm ---- */

/* Rotates the window of a head whose norm comes after the rotation: u = M x. NATIVE and NATIVE_F32 round u before the
 * norm. */
static void FN(rotate_source)(const trope_plan *plan, const trope_plan_operand *o, const char *src, FN(coefficients) t,
                              REAL *x, REAL *y)
{
    const int64_t step = o->src_stride[TROPE_DIM_ELEMENT];
    FN(load_strided)(x, src + o->rotary_offset * step * plan->element_size, step, plan->dtype, o->rotary_dim);
    if (o->rotary_dim)
        FN(rotate_parts)(plan, o, x, y, t);
    FN(round_rotated)(plan, o->rotary_dim, y);
}

/* Returns the rstd of a token with a norm over all of its heads. With TROPE_SUMS_WRITE, it only writes the sums of the
 * heads. */
static __attribute__((noinline)) REAL FN(rstd_of_token)(const trope_plan *plan, const trope_plan_operand *o,
                                                        const trope_token *token, FN(coefficients) t)
{
    const int64_t *f = o->src_stride;
    REAL x[TROPE_MAX_ROTARY_DIM], y[TROPE_MAX_ROTARY_DIM];
    FN(tree_sum) squares = {.count = 0};
    const int is_known = o->norm.reads_rstd || o->norm.sums_read;
    for (int64_t group = 0; !is_known && group < o->groups; group++) {
        for (int64_t head = 0; head < o->heads_per_group; head++) {
            const int64_t at = token->batch * f[0] + token->index * f[1] + group * f[2] + head * f[3];
            const char *src = o->src + at * plan->element_size;
            const FN(head_values) normed = {src, f[TROPE_DIM_ELEMENT], o->norm.is_after ? y : NULL};
            if (o->norm.is_after)
                FN(rotate_source)(plan, o, src, t, x, y);
            FN(add_head)(plan, o, token, &squares, FN(sum_squares)(plan, o, &normed));
        }
    }
    FN(read_sums)(plan, o, token, &squares);
    if (o->norm.is_after && trope_is_poisoned(plan, o, token)) /* NaN, even if the caller's sums are finite */
        FN(push_sum)(&squares, 0, (REAL)NAN);
    return FN(find_rstd_of_token)(plan, o, token, &squares);
}

/* Normalises a head and rotates its window, or rotates the window and normalises the head. NATIVE and NATIVE_F32 round the
 * result of the first step before the second. `of_token` is the rstd of a norm over the token. */
static __attribute__((noinline)) void FN(write_normed_head)(const trope_plan *plan, const trope_plan_operand *o,
                                                            const trope_token *token, FN(coefficients) t,
                                                            const int64_t head[2], head_place place, REAL of_token)
{
    const int64_t size = plan->element_size, from = o->src_stride[TROPE_DIM_ELEMENT], to = o->dst_stride[TROPE_DIM_ELEMENT];
    const int is_after = o->norm.is_after;
    const char *weight = FN(weights_of_head)(o, head);
    REAL x[TROPE_MAX_ROTARY_DIM], y[TROPE_MAX_ROTARY_DIM], block[NORM_BLOCK];
    const FN(head_values) normed = {place.src, from, is_after ? y : NULL};
    if (is_after)
        FN(rotate_source)(plan, o, place.src, t, x, y);
    REAL rstd = o->norm.is_token ? of_token : FN(find_rstd)(plan, o, token, head, &normed);
    if (is_after && trope_is_poisoned(plan, o, token)) /* NaN in the whole head, even if the caller's rstd is finite */
        rstd = (REAL)NAN;
    if (!is_after && o->rotary_dim) {
        FN(load_strided)(x, place.src + o->rotary_offset * from * size, from, plan->dtype, o->rotary_dim);
        FN(normalise)(plan, &o->norm, weight, o->rotary_offset, o->rotary_dim, rstd, x);
        FN(rotate_parts)(plan, o, x, y, t);
    }
    for (int64_t e = 0; e < o->head_dim;) {
        const int count = count_block(o, e), rotated = is_in_window(o, e);
        REAL *values = rotated ? y + (e - o->rotary_offset) : block;
        if (!rotated)
            FN(load_strided)(values, place.src + e * from * size, from, plan->dtype, count);
        if (is_after || !rotated)
            FN(normalise)(plan, &o->norm, weight, e, count, rstd, values);
        for (int i = 0; i < count; i++)
            values[i] = FN(canonical)(values[i]);
        FN(store_strided)(place.dst + e * to * size, values, to, plan->dtype, count);
        e += count;
    }
}

static void FN(normalised_window)(const trope_plan *plan, const trope_plan_operand *o, const trope_token *token,
                                  const int64_t head[2], double of_token, double *out)
{
    const int64_t *f = o->forward_src_stride, step = f[TROPE_DIM_ELEMENT];
    const char *x =
        o->forward_src + (token->batch * f[0] + token->index * f[1] + head[0] * f[2] + head[1] * f[3]) * plan->element_size;
    const REAL rstd =
        o->norm.is_token ? (REAL)of_token : FN(find_rstd)(plan, o, token, head, &(const FN(head_values)){x, step, NULL});
    REAL block[NORM_BLOCK];
    for (int e = 0; e < o->rotary_dim; e += NORM_BLOCK) {
        const int64_t first = o->rotary_offset + e;
        const int count = o->rotary_dim - e < NORM_BLOCK ? o->rotary_dim - e : NORM_BLOCK;
        FN(load_strided)(block, x + first * step * plan->element_size, step, plan->dtype, count);
        FN(normalise)(plan, &o->norm, FN(weights_of_head)(o, head), first, count, rstd, block);
        for (int i = 0; i < count; i++)
            out[e + i] = FN(canonical)(block[i]);
    }
}

/* `of_token` is the rstd of a norm over the token. */
static void FN(write_head)(const trope_plan *plan, const trope_plan_operand *o, const trope_token *token,
                           FN(coefficients) t, const int64_t head[2], REAL of_token)
{
    const int64_t *f = o->src_stride, *g = o->dst_stride;
    const int64_t from = token->batch * f[0] + token->index * f[1] + head[0] * f[2] + head[1] * f[3];
    const int64_t to = token->batch * g[0] + token->index * g[1] + head[0] * g[2] + head[1] * g[3];
    const char *src = o->src + from * plan->element_size;
    char *dst = o->dst + to * plan->element_size;
    const int rotates = token->action == TROPE_TOKEN_ROTATE;
    if (o->norm.is_given && !rotates && o->norm.rstd && !o->norm.reads_rstd)
        FN(store)(FN(rstd_place)(plan, o, token, head), &(const REAL){0}, REAL_DTYPE, 1);
    if (token->action == TROPE_TOKEN_ZERO)
        FN(zero_head)(plan, o, dst);
    else if (o->norm.is_given && rotates)
        FN(write_normed_head)(plan, o, token, t, head, (const head_place){src, dst}, of_token);
    else if (!rotates || o->rotary_dim == 0)
        FN(copy_head)(plan, o, src, dst);
    else if (f[TROPE_DIM_ELEMENT] == 1 && g[TROPE_DIM_ELEMENT] == 1)
        FN(rotate_contiguous_head)(plan, o, src, dst, t);
    else
        FN(rotate_strided_head)(plan, o, src, dst, t);
}

/* ---- chunks of tokens ---- */

typedef struct FN(chunk) {
    int tokens;
    trope_token token[CHUNK_TOKENS];
    FN(coefficients) token_coefficients[CHUNK_TOKENS];
    REAL token_rstd[CHUNK_TOKENS]; /* of the current operand, if its norm is over the token */
    int phases;                    /* the coefficients of this many tokens must still be computed, from these positions */
    int64_t phase_position[CHUNK_TOKENS];
    _Alignas(64) REAL coefficients[CHUNK_BYTES / sizeof(REAL)];
} FN(chunk);

/* Sets the coefficients of token r of the chunk: those of the token before it, if they are the same, or new ones in
 * `space`. With phases and one axis, it only lists the position, and find_phase_coefficients computes the coefficients
 * later. */
static void FN(add_coefficients)(const trope_plan *plan, FN(chunk) * chunk, int r, REAL *space)
{
    const trope_token *token = &chunk->token[r];
    if (r > 0 && plan->same_angles_in_batch && chunk->token[r - 1].index == token->index) {
        chunk->token_coefficients[r] = chunk->token_coefficients[r - 1];
    } else if (plan->angles.source == TROPE_ANGLES_PHASE && plan->pair_axes == 1) {
        chunk->token_coefficients[r] = (FN(coefficients)){space, space + plan->pairs, space, space + plan->pairs};
        chunk->phase_position[chunk->phases++] = token->position[0];
    } else {
        chunk->token_coefficients[r] = FN(find_coefficients)(plan, token, space);
    }
}

/* Fills the chunk from token `begin` on. Returns the first token that does not fit. */
static int64_t FN(fill_chunk)(const trope_plan *plan, trope_span *span, int64_t begin, int64_t end, FN(chunk) * chunk)
{
    const int per_token = plan->pairs * (plan->angles.per_element ? 4 : 2);
    REAL *space = chunk->coefficients;
    trope_token next;
    trope_locate_token(plan, begin, &next);
    chunk->tokens = chunk->phases = 0;
    while (begin < end && chunk->tokens < CHUNK_TOKENS &&
           space + per_token <= chunk->coefficients + CHUNK_BYTES / sizeof(REAL)) {
        const int r = chunk->tokens++;
        trope_token *token = &chunk->token[r];
        token->batch = next.batch;
        token->index = next.index;
        trope_find_token(plan, span, token);
        if (token->action == TROPE_TOKEN_ROTATE && plan->pairs > 0) {
            FN(add_coefficients)(plan, chunk, r, space);
            if (chunk->token_coefficients[r].c1 == space)
                space += per_token;
        }
        begin++;
        trope_step_token(plan, &next);
    }
    if (chunk->phases)
        FN(find_phase_coefficients)(plan, chunk->phases, chunk->phase_position, chunk->coefficients);
    return begin;
}

/* Writes a head of token r of the chunk. */
static void FN(write_chunk_head)(const trope_plan *plan, const trope_plan_operand *o, const FN(chunk) * chunk, int r,
                                 const int64_t head[2])
{
    FN(write_head)(plan, o, &chunk->token[r], chunk->token_coefficients[r], head, chunk->token_rstd[r]);
}

/* Writes every head of an operand for every token of the chunk. The dimension with the larger stride is outermost. */
static void FN(write_operand)(const trope_plan *plan, const trope_plan_operand *o, const FN(chunk) * chunk)
{
    const int heads_outside = FN(heads_outside)(o);
    const int outer_tokens = heads_outside ? 1 : chunk->tokens, inner_tokens = heads_outside ? chunk->tokens : 1;
    for (int outer = 0; outer < outer_tokens; outer++)
        for (int group = 0; group < o->groups; group++)
            for (int head = 0; head < o->heads_per_group; head++)
                for (int r = outer; r < outer + inner_tokens; r++)
                    FN(write_chunk_head)(plan, o, chunk, r, (const int64_t[]){group, head});
}

#ifdef USE_VECTORS
/* The values that all heads of an operand share. */
typedef struct vector_job {
    const trope_plan *plan;
    const trope_plan_operand *operand;
    const FN(chunk) * chunk;
    char *stage;    /* NULL: write directly to dst */
    float *weight;  /* with a norm: the factors of a head */
    uint64_t ahead; /* bytes from a head to the data that is prefetched */
    int64_t window; /* bytes of that data */
} vector_job;

/* src and dst are not neighbours in this struct: otherwise gcc would compute both addresses with vectors of 64-bit
 * products, which are slower than scalars. */
typedef struct vector_head {
    const char *src;
    int64_t head[2];
    char *dst;
    int in_chunk; /* the token's index in the chunk */
} vector_head;

ALWAYS_INLINE vector_head find_vector_head(const vector_job *job, int r, int64_t group, int64_t head)
{
    const trope_token *token = &job->chunk->token[r];
    const int64_t *f = job->operand->src_stride, *g = job->operand->dst_stride, size = job->plan->element_size;
    vector_head h = {.head = {group, head}, .in_chunk = r};
    h.src = job->operand->src + (token->batch * f[0] + token->index * f[1] + group * f[2] + head * f[3]) * size;
    h.dst = job->operand->dst + (token->batch * g[0] + token->index * g[1] + group * g[2] + head * g[3]) * size;
    return h;
}

/* Loads all factors of a head, which are 1 without a weight. */
static __attribute__((noinline)) void load_factors(const trope_plan_operand *o, const int64_t head[2], float *w)
{
    const char *weight = FN(weights_of_head)(o, head);
    if (weight)
        FN(load_weights)(&o->norm, weight, 0, o->head_dim, w);
    for (int i = 0; !weight && i < o->head_dim; i++)
        w[i] = 1;
}

/* Finds rstd of up to VECTOR_WIDTH heads. A vector of divisions and roots takes as long as a single one. */
ALWAYS_INLINE void find_rstd_of(int dtype, const vector_job *job, const vector_head *heads, int count, float *rstd)
{
    const trope_plan_operand *o = job->operand;
    vector sums[VECTOR_WIDTH];
    for (int i = 0; o->norm.is_token && i < count; i++)
        rstd[i] = job->chunk->token_rstd[heads[i].in_chunk];
    if (o->norm.is_token)
        return;
    for (int i = 0; i < VECTOR_WIDTH; i++)
        sums[i] = i < count && !o->norm.reads_rstd ? vector_sum_squares(dtype, o->head_dim, heads[i].src) : vector_set(0);
    vector_store(TROPE_F32, (char *)rstd, vector_sum_each(sums));
    for (int i = 0; i < VECTOR_WIDTH; i++)
        rstd[i] = trope_reciprocal_root(rstd[i] / (float)o->head_dim, (float)o->norm.eps);
    for (int i = 0; o->norm.rstd && i < count; i++)
        FN(share_rstd)(job->plan, o, &job->chunk->token[heads[i].in_chunk], heads[i].head, &rstd[i]);
}

/* The function is not inlined: otherwise it would be compiled again for every pairing. */
static __attribute__((noinline)) void find_vector_rstd(int dtype, const vector_job *job, const vector_head *heads,
                                                       int count, float *rstd)
{
    dtype == TROPE_F32   ? find_rstd_of(TROPE_F32, job, heads, count, rstd)
    : dtype == TROPE_F16 ? find_rstd_of(TROPE_F16, job, heads, count, rstd)
                         : find_rstd_of(TROPE_BF16, job, heads, count, rstd);
}

/* Writes up to VECTOR_WIDTH heads with a norm before the rotation. The function is inlined with constants for the dtype and
 * the pairings, so that only the rotation remains in the loop. */
ALWAYS_INLINE void write_vector_heads(vector_kind kind, const vector_job *job, const vector_head *heads, int count)
{
    const trope_plan_operand *o = job->operand;
    float rstd[VECTOR_WIDTH];
    find_vector_rstd(kind.dtype, job, heads, count, rstd);
    for (int i = 0; i < count; i++) {
        const vector_head *h = &heads[i];
        const FN(coefficients) t = job->chunk->token_coefficients[h->in_chunk];
        prefetch_run(h->src, job->ahead, job->window);
        const vector_source from = {h->src, job->weight, vector_set(rstd[i])};
        if (o->norm.weight_of_head)
            load_factors(o, h->head, job->weight);
        vector_rotate_head(kind, o, from, h->dst, job->stage, (vector_part_coefficients){t.c1, t.s1, t.c2, t.s2});
    }
}

/* Rotates a head whose norm comes after the rotation: u = M x in fp32. */
ALWAYS_INLINE void rotate_into(vector_kind kind, const vector_job *job, const vector_head *h, float *u)
{
    const trope_plan_operand *o = job->operand;
    const int after = o->rotary_offset + o->rotary_dim;
    const vector_kind rotation = {kind.dtype, TROPE_F32, 0, kind.from_interleaved, kind.to_interleaved};
    const FN(coefficients) t = job->chunk->token_coefficients[h->in_chunk];
    prefetch_run(h->src, job->ahead, job->window);
    FN(load)(u, h->src, kind.dtype, o->rotary_offset);
    FN(load)(u + after, h->src + after * trope_element_size(kind.dtype), kind.dtype, o->head_dim - after);
    vector_rotate_window(rotation, o, (vector_source){h->src, job->weight, vector_set(0)}, (char *)u,
                         (vector_part_coefficients){t.c1, t.s1, t.c2, t.s2});
}

/* Writes up to VECTOR_WIDTH heads with a norm after the rotation, which have at most TROPE_MAX_ROTARY_DIM elements
 * together. */
ALWAYS_INLINE void write_rotated_heads(vector_kind kind, const vector_job *job, const vector_head *heads, int count)
{
    const trope_plan_operand *o = job->operand;
    const vector_kind norm = {TROPE_F32, kind.dtype, TROPE_NORM_AFTER, 0, 0};
    float u[TROPE_MAX_ROTARY_DIM], rstd[VECTOR_WIDTH];
    vector_head rotated[VECTOR_WIDTH];
    for (int i = 0; i < count; i++) {
        float *const to = u + i * o->head_dim;
        rotate_into(kind, job, &heads[i], to);
        rotated[i] = heads[i];
        rotated[i].src = (const char *)to;
    }
    find_vector_rstd(TROPE_F32, job, rotated, count, rstd);
    for (int i = 0; i < count; i++) {
        const vector_head *h = &rotated[i];
        char *const out = job->stage ? job->stage : h->dst;
        if (trope_is_poisoned(job->plan, o, &job->chunk->token[h->in_chunk]))
            rstd[i] = NAN;
        if (o->norm.weight_of_head)
            load_factors(o, h->head, job->weight);
        vector_pass(norm, (vector_source){h->src, job->weight, vector_set(rstd[i])}, out, o->head_dim);
        if (job->stage)
            trope_stream_copy(h->dst, job->stage, (size_t)(o->head_dim * trope_element_size(kind.dtype)));
    }
}

ALWAYS_INLINE void write_normed_heads(vector_kind kind, const vector_job *job, const vector_head *heads, int count)
{
    kind.normed == TROPE_NORM_AFTER ? write_rotated_heads(kind, job, heads, count)
                                    : write_vector_heads(kind, job, heads, count);
}

/* Writes one head of token r, for an operand without a norm. */
ALWAYS_INLINE void write_vector_head(vector_kind kind, const vector_job *job, int r, int64_t group, int64_t head)
{
    const trope_plan_operand *o = job->operand;
    const FN(coefficients) t = job->chunk->token_coefficients[r];
    if (job->chunk->token[r].action != TROPE_TOKEN_ROTATE) {
        FN(write_chunk_head)(job->plan, o, job->chunk, r, (const int64_t[]){group, head});
        return;
    }
    const vector_head h = find_vector_head(job, r, group, head);
    prefetch_run(h.src, job->ahead, job->window);
    vector_rotate_head(kind, o, (vector_source){h.src, job->weight, vector_set(0)}, h.dst, job->stage,
                       (vector_part_coefficients){t.c1, t.s1, t.c2, t.s2});
}

/* Like write_operand, for an operand that vectors can rotate. Heads with a norm are collected first, up to VECTOR_WIDTH of
 * them. */
ALWAYS_INLINE void write_vectors(vector_kind kind, const trope_plan *plan, const trope_plan_operand *o,
                                 const FN(chunk) * chunk)
{
    _Alignas(64) char stage[STAGE_BYTES];
    _Alignas(64) float weight[TROPE_MAX_ROTARY_DIM];
    const int64_t size = trope_element_size(kind.dtype);
    const int heads_outside = FN(heads_outside)(o),
              streamed = plan->stream_stores && !o->in_place && o->head_dim * size <= STAGE_BYTES;
    const int outer_tokens = heads_outside ? 1 : chunk->tokens, inner_tokens = heads_outside ? chunk->tokens : 1;
    const vector_job job = {.plan = plan,
                            .operand = o,
                            .chunk = chunk,
                            .stage = streamed ? stage : NULL,
                            .weight = weight,
                            .ahead = FN(prefetch_distance)(plan, o),
                            .window = (kind.normed ? o->head_dim : o->rotary_dim) * size};
    const int fit = kind.normed == TROPE_NORM_AFTER ? TROPE_MAX_ROTARY_DIM / o->head_dim : VECTOR_WIDTH,
              most = fit < VECTOR_WIDTH ? fit : VECTOR_WIDTH;
    vector_head heads[VECTOR_WIDTH];
    int count = 0;
    if (kind.normed)
        load_factors(o, (const int64_t[]){0, 0}, weight);
    for (int outer = 0; outer < outer_tokens; outer++)
        for (int group = 0; group < o->groups; group++)
            for (int head = 0; head < o->heads_per_group; head++)
                for (int r = outer; r < outer + inner_tokens; r++) {
                    if (!kind.normed) {
                        write_vector_head(kind, &job, r, group, head);
                        continue;
                    }
                    if (chunk->token[r].action != TROPE_TOKEN_ROTATE) {
                        FN(write_chunk_head)(plan, o, chunk, r, (const int64_t[]){group, head});
                        continue;
                    }
                    heads[count] = find_vector_head(&job, r, group, head);
                    if (++count == most) {
                        write_normed_heads(kind, &job, heads, count);
                        count = 0;
                    }
                }
    if (count > 0)
        write_normed_heads(kind, &job, heads, count);
}

ALWAYS_INLINE void write_by_pairing(int dtype, int normed, const trope_plan *plan, const trope_plan_operand *o,
                                    const FN(chunk) * chunk)
{
    if (plan->interleaved_src)
        plan->interleaved_dst ? write_vectors((vector_kind){dtype, dtype, normed, 1, 1}, plan, o, chunk)
                              : write_vectors((vector_kind){dtype, dtype, normed, 1, 0}, plan, o, chunk);
    else
        plan->interleaved_dst ? write_vectors((vector_kind){dtype, dtype, normed, 0, 1}, plan, o, chunk)
                              : write_vectors((vector_kind){dtype, dtype, normed, 0, 0}, plan, o, chunk);
}

#define WRITE_VECTORS(dtype)                                                                                               \
    static void write_vectors_##dtype(const trope_plan *plan, const trope_plan_operand *o, const FN(chunk) * chunk)        \
    {                                                                                                                      \
        if (!o->norm.is_given)                                                                                             \
            write_by_pairing(TROPE_##dtype, 0, plan, o, chunk);                                                            \
        else if (o->norm.is_after)                                                                                         \
            write_by_pairing(TROPE_##dtype, TROPE_NORM_AFTER, plan, o, chunk);                                             \
        else                                                                                                               \
            write_by_pairing(TROPE_##dtype, TROPE_NORM_BEFORE, plan, o, chunk);                                            \
    }
WRITE_VECTORS(F32)
WRITE_VECTORS(F16)
WRITE_VECTORS(BF16)
#endif

static void FN(write_chunk)(const trope_plan *plan, const trope_plan_operand *o, FN(chunk) * chunk)
{
    const int writes_sums = trope_writes_sums(o);
    for (int r = 0; r < chunk->tokens; r++) {
        const int is_normed = o->norm.is_token && chunk->token[r].action == TROPE_TOKEN_ROTATE;
        chunk->token_rstd[r] = is_normed ? FN(rstd_of_token)(plan, o, &chunk->token[r], chunk->token_coefficients[r]) : 0;
        if (writes_sums && !is_normed)
            FN(clear_sums)(plan, o, &chunk->token[r]);
    }
    if (writes_sums)
        return;
#ifdef USE_VECTORS
    if ((o->rotary_dim || o->norm.is_given) && vector_can_rotate(plan, o)) {
        if (plan->dtype == TROPE_F32)
            write_vectors_F32(plan, o, chunk);
        else if (plan->dtype == TROPE_F16)
            write_vectors_F16(plan, o, chunk);
        else
            write_vectors_BF16(plan, o, chunk);
        return;
    }
#endif
    FN(write_operand)(plan, o, chunk);
}

static void FN(rotate_tokens)(const trope_plan *plan, int64_t begin, int64_t end)
{
    FN(chunk) chunk;
    trope_span span = {0};
    while (begin < end) {
        begin = FN(fill_chunk)(plan, &span, begin, end, &chunk);
        for (int i = 0; i < plan->operand_count; i++)
            if (trope_writer_of(&plan->operands[i]) == TROPE_WRITER_ROTATION)
                FN(write_chunk)(plan, &plan->operands[i], &chunk);
    }
    if (plan->stream_stores)
        trope_stream_fence();
}

#undef USE_VECTORS
