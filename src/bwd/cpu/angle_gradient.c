/* The gradient of the angles. Every sum is in double. It adds tokens in ascending order of batch * tokens + token, and the
 * operands and heads of each token in their order. So the result depends only on shapes and data.
 *
 * With freqs and tables, tokens that add to the same gradients form a bucket. A counting sort first lists the tokens of
 * each bucket in order, and then one thread sums each bucket. With inv_freq, each token has its own angle, and tokens are
 * summed in chunks of a fixed size. */
#include "bwd/cpu/angle_gradient.h"

#include <string.h>

#include "bwd/angle_term.h"
#include "bwd/cpu/norm_gradient.h"
#include "core/element.h"
#include "core/scalar.h"
#include "core/threads.h"
#include "varlen/token.h"

#define CHUNK_TOKENS 256

/* Adding an element of dy with its element of x takes 3.3 ns, as long as moving BYTES_PER_ELEMENT bytes. Writing the zeros
 * of a bucket without tokens takes 118 ns, as long as moving BYTES_PER_BUCKET bytes. */
#define BYTES_PER_ELEMENT 128
#define BYTES_PER_BUCKET  4096

/* dL/da of the first and the second element of each pair. */
typedef struct pair_sums {
    double first[TROPE_MAX_PAIRS], second[TROPE_MAX_PAIRS];
} pair_sums;

typedef struct gradient {
    trope_plan plan;        /* the plan of the backward call, but its coefficients are not rounded to the operands' dtype */
    const trope_plan *call; /* the plan of the backward call, with its own rounding */
    const trope_token_kernels *kernels;
    int axis;              /* freqs and tables: the current axis, whose pairs are summed */
    int64_t buckets;       /* freqs and tables: rows of d_freqs, times batch entries if each has its own rows */
    int64_t *bucket_start; /* [buckets + 1], indices into `tokens` */
    int64_t *tokens;       /* token numbers, sorted by bucket */
    double *partial;       /* inv_freq: [chunks, pairs] */
} gradient;

static int64_t count_tokens(const trope_plan *plan)
{
    return plan->batch * plan->tokens;
}

static int64_t count_chunks(const trope_plan *plan)
{
    return (count_tokens(plan) + CHUNK_TOKENS - 1) / CHUNK_TOKENS;
}

static int count_threads(const gradient *g)
{
    double elements = 0;
    for (int i = 0; i < g->plan.operand_count; i++) {
        const trope_plan_operand *o = &g->plan.operands[i];
        elements += (double)count_tokens(&g->plan) * o->groups * o->heads_per_group * o->rotary_dim;
    }
    return trope_useful_threads(g->plan.threads, elements * BYTES_PER_ELEMENT + (double)g->buckets * BYTES_PER_BUCKET);
}

/* Returns the number of rows of d_freqs for each batch entry. With a row stride of 0, one row receives the sum. */
static int64_t gradient_rows(const trope_plan *plan)
{
    return plan->d_freqs_stride.row ? plan->angles.rows : 1;
}

static int64_t count_buckets(const trope_plan *plan)
{
    return gradient_rows(plan) * (plan->d_freqs_stride.batch ? plan->batch : 1);
}

uint64_t trope_angle_gradient_workspace(const trope_plan *plan)
{
    if (plan->d_inv_freq)
        return (uint64_t)count_chunks(plan) * (uint64_t)plan->pairs * sizeof(double);
    if (plan->d_freqs)
        return (uint64_t)(count_buckets(plan) + 1 + count_tokens(plan)) * sizeof(int64_t);
    return 0;
}

/* Finds token `number` in the fixed order of the sums, which does not depend on the order in memory. */
static void find_numbered_token(const gradient *g, int64_t number, trope_span *span, trope_token *token)
{
    token->batch = number / g->plan.tokens;
    token->index = number % g->plan.tokens;
    trope_find_token(&g->plan, span, token);
}

/* ---- one token ---- */

static double load_element(int32_t dtype, const char *from)
{
    uint16_t half;
    float single;
    double element;
    switch (dtype) {
    case TROPE_F32:
        memcpy(&single, from, sizeof single);
        return single;
    case TROPE_F64:
        memcpy(&element, from, sizeof element);
        return element;
    default:
        memcpy(&half, from, sizeof half);
        return dtype == TROPE_F16 ? trope_f16_to_f32(half) : trope_bf16_to_f32(half);
    }
}

/* The start of a head's window, and the bytes from one element to the next. */
typedef struct window {
    const char *at;
    int64_t step;
    int32_t interleaved;
    int32_t dtype;
} window;

static double load_first(const gradient *g, const window *w, int32_t pairs, int32_t pair)
{
    return load_element(w->dtype, w->at + trope_first_of_pair(w->interleaved, g->plan.parts, pairs, pair) * w->step);
}

static double load_second(const gradient *g, const window *w, int32_t pairs, int32_t pair)
{
    return load_element(w->dtype, w->at + trope_second_of_pair(w->interleaved, g->plan.parts, pairs, pair) * w->step);
}

static void add_head(const gradient *g, int32_t pairs, const window windows[2], const trope_token_angles *t,
                     pair_sums *sums)
{
    const window *dy = &windows[0], *x = &windows[1];
    for (int32_t i = 0; i < pairs; i++) {
        const trope_pair_f64 of_x = {load_first(g, x, pairs, i), load_second(g, x, pairs, i)},
                             of_dy = {load_first(g, dy, pairs, i), load_second(g, dy, pairs, i)};
        const trope_coefficients_f64 of_pair = {t->c1[i], t->s1[i], t->c2[i], t->s2[i]};
        trope_add_angle_terms(of_x, of_dy, of_pair, &sums->first[i], &sums->second[i]);
    }
}

static int64_t head_offset(const trope_plan_operand *o, const int64_t *stride, const trope_token *token, int group,
                           int head)
{
    return token->batch * stride[TROPE_DIM_BATCH] + token->index * stride[TROPE_DIM_TOKEN] +
           group * stride[TROPE_DIM_GROUP] + head * stride[TROPE_DIM_HEAD] + o->rotary_offset * stride[TROPE_DIM_ELEMENT];
}

static window window_of(const gradient *g, const char *base, const int64_t *stride, int64_t offset, int32_t interleaved)
{
    const int64_t size = g->plan.element_size;
    return (window){base + offset * size, stride[TROPE_DIM_ELEMENT] * size, interleaved, g->plan.dtype};
}

/* Replaces dy or x for a norm: dy by the gradient of the rotated elements (norm after the rotation), or x by n(x) (norm
 * before the rotation). */
static void replace_by_norm(const gradient *g, const trope_plan_operand *o, const trope_token *token,
                            const trope_token_angles *t, const int64_t head[2], const trope_token_norm *token_norm,
                            double *space, window windows[2])
{
    window *const w = &windows[o->norm.is_after ? 0 : 1];
    w->at = (const char *)space;
    w->dtype = o->norm.is_after ? trope_gradient_dtype(g->plan.dtype) : TROPE_F64;
    w->step = trope_element_size(w->dtype);
    if (o->norm.is_after)
        trope_find_norm_gradient(g->kernels->isa)->of_window(g->call, o, token, t, head, token_norm, space);
    else
        g->kernels->normalised(&g->plan, o, token, head, token_norm->rstd, space);
}

static void add_operand(const gradient *g, const trope_plan_operand *o, const trope_token *token,
                        const trope_token_angles *t, pair_sums *sums)
{
    double replaced[TROPE_MAX_ROTARY_DIM]; /* or as many floats */
    if (o->norm.is_after && trope_is_poisoned(&g->plan, o, token))
        return; /* all of y is NaN for this token */
    trope_token_norm token_norm = {0};
    if (o->norm.is_token)
        token_norm = trope_find_norm_gradient(g->kernels->isa)->of_token(g->call, o, token, t, replaced);
    for (int group = 0; group < o->groups; group++) {
        for (int head = 0; head < o->heads_per_group; head++) {
            window windows[] = {window_of(g, o->src, o->src_stride, head_offset(o, o->src_stride, token, group, head),
                                          g->plan.interleaved_src),
                                window_of(g, o->forward_src, o->forward_src_stride,
                                          head_offset(o, o->forward_src_stride, token, group, head),
                                          g->plan.interleaved_forward_src)};
            if (o->norm.is_given)
                replace_by_norm(g, o, token, t, (const int64_t[]){group, head}, &token_norm, replaced, windows);
            add_head(g, o->rotary_dim / 2, windows, t, sums);
        }
    }
}

/* Adds all heads of all operands of a token with these coefficients. */
static void add_token(const gradient *g, const trope_token *token, const trope_token_angles *t, pair_sums *sums)
{
    for (int i = 0; i < g->plan.operand_count; i++)
        if (g->plan.operands[i].rotary_dim)
            add_operand(g, &g->plan.operands[i], token, t, sums);
}

/* ---- freqs and tables ---- */

/* Returns the bucket of a token for the current axis, or -1 if the token adds nothing to that axis. */
static int64_t find_bucket(const gradient *g, const trope_token *token)
{
    if (token->action != TROPE_TOKEN_ROTATE || (token->poisoned >> g->axis & 1))
        return -1;
    return (g->plan.d_freqs_stride.batch ? token->batch * gradient_rows(&g->plan) : 0) +
           (g->plan.d_freqs_stride.row ? token->position[g->axis] : 0);
}

static void sort_tokens(const gradient *g)
{
    const int64_t tokens = count_tokens(&g->plan);
    int64_t *start = g->bucket_start;
    memset(start, 0, (size_t)(g->buckets + 1) * sizeof *start);
    for (int pass = 0; pass < 2; pass++) {
        trope_span span = {0};
        trope_token token;
        for (int64_t number = 0; number < tokens; number++) {
            find_numbered_token(g, number, &span, &token);
            const int64_t bucket = find_bucket(g, &token);
            if (bucket < 0)
                continue;
            if (pass == 0)
                start[bucket + 1]++; /* counts, shifted by one */
            else
                g->tokens[start[bucket]++] = number; /* moves each start to the end of its bucket */
        }
        for (int64_t bucket = 0; pass == 0 && bucket < g->buckets; bucket++)
            start[bucket + 1] += start[bucket];
    }
    memmove(start + 1, start, (size_t)g->buckets * sizeof *start);
    start[0] = 0;
}

static void store_angle(const gradient *g, int64_t index, double value)
{
    if (g->plan.dtype == TROPE_F64)
        ((double *)g->plan.d_freqs)[index] = value;
    else
        ((float *)g->plan.d_freqs)[index] = trope_canonical((float)value);
}

/* Stores the gradients of a pair's columns at a row of d_freqs, in the plane of the pair. The other planes receive 0. */
static void store_pair(const gradient *g, int64_t base, int32_t pair, const pair_sums *sums)
{
    const trope_plan *plan = &g->plan;
    const trope_table_stride *stride = &plan->d_freqs_stride;
    const int32_t first = trope_first_of_pair(plan->interleaved_columns, plan->parts, plan->pairs, pair);
    const int32_t second = trope_second_of_pair(plan->interleaved_columns, plan->parts, plan->pairs, pair);
    for (int32_t plane = 0; plane < (stride->axis ? plan->planes : 1); plane++) {
        const double on = !stride->axis || plane == trope_pair_plane(plan, pair);
        const int64_t at = base + plane * stride->axis;
        if (!plan->angles.per_element) {
            store_angle(g, at + pair * stride->column, on ? sums->first[pair] + sums->second[pair] : 0);
            continue;
        }
        store_angle(g, at + first * stride->column, on ? sums->first[pair] : 0);
        store_angle(g, at + second * stride->column, on ? sums->second[pair] : 0);
    }
}

static void store_bucket(const gradient *g, int64_t bucket, const pair_sums *sums)
{
    const trope_plan *plan = &g->plan;
    const int64_t rows = gradient_rows(plan);
    const int64_t base = bucket / rows * plan->d_freqs_stride.batch + bucket % rows * plan->d_freqs_stride.row;
    for (int32_t pair = 0; pair < plan->pairs; pair++)
        if (trope_pair_axis(plan, pair) == g->axis)
            store_pair(g, base, pair, sums);
}

/* With inverse, the rotation uses the angle -a, so the sums change their sign. (0 - x gives 0, not -0, for an angle that no
 * token uses.) */
static void invert_sums(const trope_plan *plan, pair_sums *sums)
{
    for (int32_t i = 0; plan->inverse && i < plan->pairs; i++) {
        sums->first[i] = 0 - sums->first[i];
        sums->second[i] = 0 - sums->second[i];
    }
}

static int has_norm_after(const trope_plan *plan)
{
    for (int i = 0; i < plan->operand_count; i++)
        if (plan->operands[i].norm.is_after)
            return 1;
    return 0;
}

/* Returns whether the tokens of a bucket, which share a row of d_freqs, may have different angles. The angles of other axes
 * matter only with a norm after the rotation, which needs the whole window. */
static int angles_differ(const trope_plan *plan)
{
    return (plan->pair_axes > 1 && has_norm_after(plan)) || (plan->angles.stride.batch && !plan->d_freqs_stride.batch) ||
           (plan->angles.stride.row && !plan->d_freqs_stride.row);
}

static void sum_buckets(const void *context, int64_t begin, int64_t end)
{
    const gradient *g = context;
    for (int64_t bucket = begin; bucket < end; bucket++) {
        pair_sums sums = {{0}, {0}};
        trope_token_angles angles;
        trope_span span = {0};
        trope_token token;
        for (int64_t i = g->bucket_start[bucket]; i < g->bucket_start[bucket + 1]; i++) {
            find_numbered_token(g, g->tokens[i], &span, &token);
            if (i == g->bucket_start[bucket] || angles_differ(&g->plan))
                g->kernels->angles(&g->plan, &token, &angles);
            add_token(g, &token, &angles, &sums);
        }
        invert_sums(&g->plan, &sums);
        store_bucket(g, bucket, &sums);
    }
}

static void sum_angles(gradient *g)
{
    g->buckets = count_buckets(&g->plan);
    g->bucket_start = g->plan.workspace;
    g->tokens = g->bucket_start + g->buckets + 1;
    for (g->axis = 0; g->axis < g->plan.pair_axes; g->axis++) {
        if (!(g->plan.used_axes >> g->axis & 1))
            continue;
        sort_tokens(g);
        trope_parallel_for(count_threads(g), g->buckets, sum_buckets, g);
    }
}

/* ---- inv_freq ---- */

static void sum_chunks(const void *context, int64_t begin, int64_t end)
{
    const gradient *g = context;
    const int64_t tokens = count_tokens(&g->plan);
    trope_span span = {0};
    trope_token token;
    trope_token_angles angles;
    for (int64_t chunk = begin; chunk < end; chunk++) {
        double *partial = g->partial + chunk * g->plan.pairs;
        const int64_t last = (chunk + 1) * CHUNK_TOKENS < tokens ? (chunk + 1) * CHUNK_TOKENS : tokens;
        memset(partial, 0, (size_t)g->plan.pairs * sizeof *partial);
        for (int64_t number = chunk * CHUNK_TOKENS; number < last; number++) {
            pair_sums sums = {{0}, {0}};
            find_numbered_token(g, number, &span, &token);
            if (token.action != TROPE_TOKEN_ROTATE)
                continue;
            g->kernels->angles(&g->plan, &token, &angles);
            add_token(g, &token, &angles, &sums);
            invert_sums(&g->plan, &sums);
            for (int32_t i = 0; i < g->plan.pairs; i++) /* the angle is position * inv_freq */
                partial[i] += (double)token.position[trope_pair_axis(&g->plan, i)] * (sums.first[i] + sums.second[i]);
        }
    }
}

static void sum_partials(const void *context, int64_t begin, int64_t end)
{
    const gradient *g = context;
    const int64_t chunks = count_chunks(&g->plan);
    for (int64_t i = begin; i < end; i++) {
        double sum = 0;
        for (int64_t chunk = 0; chunk < chunks; chunk++)
            sum += g->partial[chunk * g->plan.pairs + i];
        g->plan.d_inv_freq[i] = sum;
    }
}

static void sum_frequencies(gradient *g)
{
    g->partial = g->plan.workspace;
    trope_parallel_for(count_threads(g), count_chunks(&g->plan), sum_chunks, g);
    trope_parallel_for(1, g->plan.pairs, sum_partials, g);
}

void trope_angle_gradient(const trope_plan *plan, const trope_token_kernels *kernels)
{
    gradient g = {.plan = *plan, .call = plan, .kernels = kernels};
    g.plan.rounding = TROPE_ROUND_ONCE; /* derivatives use sin and cos before the rounding to the dtype */
    if (plan->d_freqs)
        sum_angles(&g);
    else
        sum_frequencies(&g);
}
