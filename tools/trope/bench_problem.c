/* A case made concrete: sizes, the call, and what is in the memory. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench.h"
#include "call_options.h"
#include "command.h"
#include "parallel.h"
#include "value.h"

#define LONGEST      16384 /* tokens of a sequence of BENCH_SEQS_PARETO */
#define SHORTEST     64
#define PARETO_COUNT 256 /* sequences of BENCH_SEQS_PARETO_256 */

int32_t bench_head_dim(const bench_case *c)
{
    return c->head_dim ? c->head_dim : 128;
}

static int32_t rotary_dim_of(const bench_case *c)
{
    return c->rotary_dim ? c->rotary_dim : bench_head_dim(c);
}

static int32_t batch_of(const bench_case *c)
{
    return c->batch ? c->batch : 1;
}

static int32_t ranks_of(const bench_case *c)
{
    return c->cp_size ? c->cp_size : 1;
}

static int is_qkv(const bench_case *c)
{
    return c->form == BENCH_QKV_SPLIT || c->form == BENCH_QKV_INSIDE;
}

/* Heads of a token that are rotated: those of Q, and of K if there is one. */
static int64_t rotated_heads(const bench_case *c)
{
    return c->heads + c->groups;
}

/* Elements of the source for one token: all heads, with K and V if they are in it. */
static int64_t token_elements(const bench_case *c)
{
    return (rotated_heads(c) + (is_qkv(c) ? c->groups : 0)) * bench_head_dim(c);
}

/* Elements that the call touches for one token, read and written counted apart. */
static int64_t token_traffic(const bench_case *c)
{
    if (c->in_place)
        return 2 * rotated_heads(c) * rotary_dim_of(c);
    return (c->angle_gradient ? 3 : 2) * token_elements(c);
}

void bench_name(const bench_case *c, int32_t dtype, char *name, size_t size)
{
    snprintf(name, size, "%s/%s", c->name, choice_name(dtype_choices, dtype));
}

/* Sequences */

/* Pareto lengths of at least 1 for sequence i: the same each time that it is asked for. */
static double pareto(int64_t i)
{
    uint64_t z = (uint64_t)(i + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    const double u = ((double)(z >> 12) + 0.5) * 0x1p-52;
    return pow(u, -1 / 1.16);
}

/* Where the i-th of PARETO_COUNT sequences begins when all of them together have this many tokens. */
static int64_t pareto_boundary(int64_t tokens, int64_t i)
{
    double before = 0, sum = 0;
    for (int64_t j = 0; j < PARETO_COUNT; j++) {
        before += j < i ? pareto(j) : 0;
        sum += pareto(j);
    }
    return i < PARETO_COUNT ? (int64_t)(before / sum * (double)tokens) : tokens;
}

static int64_t length_of(const bench_problem *p, int64_t i)
{
    switch (p->c->lengths) {
    case BENCH_SEQS_OF_1024:
        return 1024;
    case BENCH_SEQS_OF_4:
        return 4;
    case BENCH_SEQS_PARETO_256:
        return pareto_boundary(p->tokens, i + 1) - pareto_boundary(p->tokens, i);
    default:
        return SHORTEST * pareto(i) < LONGEST ? (int64_t)(SHORTEST * pareto(i)) : LONGEST;
    }
}

/* Writes cu_seqlens, unless it is NULL, and returns the number of sequences. The last one ends with the tokens. */
static int64_t write_sequences(const bench_problem *p, int32_t *cu_seqlens, int64_t *longest)
{
    int64_t count = 0, end = 0;
    *longest = 0;
    while (end < p->tokens) {
        int64_t length = length_of(p, count);
        length = length < p->tokens - end ? length : p->tokens - end;
        if (cu_seqlens)
            cu_seqlens[count] = (int32_t)end;
        *longest = length > *longest ? length : *longest;
        end += length;
        count++;
    }
    if (cu_seqlens)
        cu_seqlens[count] = (int32_t)end;
    return count;
}

/* Angles */

static int is_table(const bench_problem *p)
{
    return p->c->angles == BENCH_TABLE_HALF || p->c->angles == BENCH_TABLE_FULL || p->c->angles == BENCH_TABLE_OWN;
}

static int32_t angle_type(const bench_problem *p)
{
    return p->c->angles == BENCH_TABLE_OWN ? p->dtype : TROPE_F32;
}

static int32_t angle_cols(const bench_case *c)
{
    const int full = c->angles == BENCH_FREQS_FULL || c->angles == BENCH_TABLE_FULL || c->angles == BENCH_TABLE_OWN;
    return c->angles == BENCH_INV_FREQ ? 0 : rotary_dim_of(c) / (full ? 1 : 2);
}

static int64_t table_rows(const bench_problem *p)
{
    return p->cols ? p->rows * ranks_of(p->c) : 0;
}

/* Sizes */

static int64_t ceil_to(double x, int64_t multiple)
{
    const int64_t whole = (int64_t)ceil(x / (double)multiple);
    return (whole > 0 ? whole : 1) * multiple;
}

static void set_sizes(bench_problem *p)
{
    const bench_case *c = p->c;
    const size_t tensor = (size_t)(p->tokens * batch_of(c) * token_elements(c) * value_size(p->dtype));
    const size_t angles = (size_t)(table_rows(p) * p->cols * value_size(angle_type(p)));
    const size_t copied = (size_t)ceil(p->moved / 2);
    p->size[AREA_SRC] = tensor > copied ? tensor : copied;
    p->size[AREA_DST] = c->in_place || copied > tensor ? copied : tensor;
    p->size[AREA_FORWARD_SRC] = c->angle_gradient ? tensor : 0;
    p->size[AREA_COS] = angles;
    p->size[AREA_SIN] = is_table(p) ? angles : 0;
    p->size[AREA_CU_SEQLENS] = c->lengths ? (size_t)(p->sequences + 1) * sizeof(int32_t) : 0;
    if (c->angle_gradient)
        p->size[AREA_D_ANGLES] = p->cols ? (size_t)(table_rows(p) * p->cols) * sizeof(float) : sizeof p->inv_freq;
}

/* Additions of a sum, each to a double of this sum's magnitude: a term is at most 2 * 2 * 2 * the position. */
static double sum_slack(const bench_problem *p)
{
    if (!p->c->angle_gradient)
        return 0;
    const double heads = (double)p->c->heads * batch_of(p->c), tokens = (double)p->tokens;
    const double sharing = p->c->lengths ? (double)p->sequences : 1;
    const double terms = 2 * heads * (p->cols ? sharing : tokens);
    return terms * 0x1p-53 * terms * 8 * (p->cols ? 1 : (double)p->rows);
}

/* What is touched of a tensor that a call changes in place: windows of heads, or Q and K of QKV. */
static device_runs runs_of(const bench_problem *p)
{
    const bench_case *c = p->c;
    const int64_t size = value_size(p->dtype), head = bench_head_dim(c) * size, tokens = p->tokens * batch_of(c);
    device_runs runs = {c->rotary_offset * size, rotary_dim_of(c) * size, head, tokens * rotated_heads(c)};
    if (c->form == BENCH_QKV_INSIDE) {
        const int64_t rotated = c->heads / c->groups + 1;
        runs = (device_runs){0, rotated * head, (rotated + 1) * head, tokens * c->groups};
    }
    return c->in_place && runs.bytes < runs.pitch ? runs : (device_runs){0};
}

int bench_plan(bench_problem *p, const bench_case *c, int32_t dtype, double bytes)
{
    memset(p, 0, sizeof *p);
    p->c = c;
    p->dtype = dtype;
    p->cols = angle_cols(c);
    const double per_token = (double)token_traffic(c) * value_size(dtype);
    p->tokens = c->tokens ? c->tokens : ceil_to((c->bytes > 0 ? c->bytes : bytes) / per_token / batch_of(c), 64);
    p->rows = p->tokens;
    if (p->tokens > INT32_MAX)
        return complain("--bytes: %s needs more tokens than cu_seqlens can count", c->name);
    if (c->lengths)
        p->sequences = write_sequences(p, NULL, &p->rows);
    const int tables = is_table(p) ? 2 : 1;
    p->moved = per_token * (double)p->tokens * batch_of(c) + (double)p->rows * p->cols * value_size(angle_type(p)) * tables;
    trope_frequency_args rule = {
        .struct_size = sizeof rule, .rule = TROPE_RULE_DEFAULT, .rotary_dim = rotary_dim_of(c), .base = 10000};
    double attention_factor;
    if (trope_frequencies(&rule, p->inv_freq, &attention_factor))
        return complain("%s: %s", c->name, trope_last_error());
    p->sum_slack = sum_slack(p);
    p->runs = runs_of(p);
    set_sizes(p);
    return 0;
}

/* The call */

/* Bytes of a tensor with this many heads. */
static int64_t tensor_bytes(const bench_problem *p, int64_t heads)
{
    return heads * bench_head_dim(p->c) * p->tokens * batch_of(p->c) * value_size(p->dtype);
}

/* [s, b, d, h], in and out. */
static void say_strided(const bench_problem *p, trope_operand *o)
{
    const int64_t head = bench_head_dim(p->c), heads = o->heads_per_group;
    const int64_t stride[TROPE_MAX_DIMS] = {heads * head, heads * head * batch_of(p->c), 0, 1, heads};
    o->src_layout = o->dst_layout = TROPE_STRIDED;
    memcpy(o->src_stride, stride, sizeof stride);
    memcpy(o->dst_stride, stride, sizeof stride);
}

/* A tensor of its own, with this many heads, after one of `skip` heads. */
static int bind_tensor(const bench_problem *p, void *const *area, bench_call *call, int32_t heads, int32_t skip)
{
    const bench_case *c = p->c;
    const int32_t layout = c->layout ? c->layout : TROPE_SBHD;
    trope_operand *o = &call->operands[call->args.operand_count++];
    char *src = (char *)area[AREA_SRC] + tensor_bytes(p, skip);
    if (trope_fill_operand(o, src, layout, heads, bench_head_dim(c), rotary_dim_of(c)))
        return complain("%s: %s", c->name, trope_last_error());
    o->rotary_offset = c->rotary_offset;
    if (!c->in_place)
        o->dst = (char *)area[AREA_DST] + tensor_bytes(p, skip);
    if (c->angle_gradient) {
        o->forward_src = area[AREA_FORWARD_SRC];
        o->forward_src_layout = layout;
    }
    if (c->form == BENCH_STRIDED)
        say_strided(p, o);
    return 0;
}

/* Q, K or V of the packed tensor, to the same place or, after one of `skip` heads, to a tensor of its own. */
static int bind_part(const bench_problem *p, void *const *area, bench_call *call, int32_t which, int32_t skip)
{
    const bench_case *c = p->c;
    const trope_qkv qkv = {.struct_size = sizeof qkv,
                           .buffer = area[AREA_SRC],
                           .batch = batch_of(c),
                           .tokens = p->tokens,
                           .layout = TROPE_SBHD,
                           .order = TROPE_QKV_GROUPS,
                           .dtype = p->dtype,
                           .q_heads = c->heads,
                           .kv_heads = c->groups,
                           .head_dim = bench_head_dim(c),
                           .rotary_dim = rotary_dim_of(c)};
    trope_operand *o = &call->operands[call->args.operand_count++];
    if (trope_fill_qkv(o, &qkv, which))
        return complain("%s: %s", c->name, trope_last_error());
    if (!c->in_place) {
        o->dst = (char *)area[AREA_DST] + tensor_bytes(p, skip);
        o->dst_layout = TROPE_SBHD;
        memset(o->dst_stride, 0, sizeof o->dst_stride);
    }
    return 0;
}

static int bind_operands(const bench_problem *p, void *const *area, bench_call *call)
{
    const bench_case *c = p->c;
    switch (c->form) {
    case BENCH_QKV_SPLIT:
    case BENCH_QKV_INSIDE:
        return bind_part(p, area, call, TROPE_Q, 0) || bind_part(p, area, call, TROPE_K, c->heads) ||
               (c->form == BENCH_QKV_SPLIT && bind_part(p, area, call, TROPE_V, c->heads + c->groups));
    case BENCH_Q_AND_K:
        return bind_tensor(p, area, call, c->heads, 0) || bind_tensor(p, area, call, c->groups, c->heads);
    default:
        return bind_tensor(p, area, call, c->heads, 0);
    }
}

static void bind_table(const bench_problem *p, void *const *area, trope_args *args)
{
    if (is_table(p)) {
        args->cos = area[AREA_COS];
        args->sin = area[AREA_SIN];
    } else {
        args->freqs = area[AREA_COS];
    }
    args->angle_dtype = angle_type(p);
    args->angle_columns = columns_of_table(args, p->cols == rotary_dim_of(p->c));
    args->angle_layout = TROPE_TABLE_ROWS;
    args->angle_rows = table_rows(p);
}

static void bind_angle_gradient(const bench_problem *p, void *const *area, trope_args *args)
{
    args->d_freqs = p->cols ? area[AREA_D_ANGLES] : NULL;
    args->d_freqs_layout = p->cols ? TROPE_TABLE_ROWS : 0;
    args->d_inv_freq = p->cols ? NULL : area[AREA_D_ANGLES];
    args->workspace = area[AREA_WORKSPACE];
    args->workspace_size = p->size[AREA_WORKSPACE];
}

static void bind_sequences(const bench_problem *p, void *const *area, trope_args *args)
{
    if (p->c->cp_size) {
        args->cp_size = p->c->cp_size;
        args->cp_rank = p->c->cp_size - 1;
        args->cp_layout = TROPE_CP_ZIGZAG;
    }
    if (p->c->lengths) {
        args->cu_seqlens = area[AREA_CU_SEQLENS];
        args->sequences = p->sequences;
        args->cu_seqlens_dtype = TROPE_I32;
        args->padding = TROPE_PADDING_ZERO; /* there is none, but CUDA wants to be told */
    }
}

int bench_bind(const bench_problem *p, void *const *area, bench_call *call)
{
    trope_args *args = &call->args;
    memset(call, 0, sizeof *call);
    args->struct_size = sizeof *args;
    args->dtype = p->dtype;
    args->rounding = p->c->rounding;
    args->operands = call->operands;
    args->operand_size = sizeof call->operands[0];
    args->batch = batch_of(p->c);
    args->tokens = p->tokens;
    args->pairing = p->c->pairing ? p->c->pairing : TROPE_PAIRING_HALF;
    args->pairing_out = p->c->pairing_out;
    if (p->cols)
        bind_table(p, area, args);
    else
        args->inv_freq = p->inv_freq;
    if (p->c->angle_gradient)
        bind_angle_gradient(p, area, args);
    bind_sequences(p, area, args);
    return bind_operands(p, area, call) ? RESULT_REFUSED : 0;
}

int bench_output_area(const bench_problem *p)
{
    return p->c->in_place ? AREA_SRC : AREA_DST;
}

/* What is in the memory */

/* Numbers from 1/8 to 2 of both signs: random bits, with all of the exponent but the last two bits fixed. */
typedef struct pattern {
    uint64_t *words;
    uint64_t seed, random, fixed;
} pattern;

static void fill_words(void *context, size_t begin, size_t end)
{
    const pattern *w = context;
    for (size_t i = begin / 8; i < end / 8; i++) {
        uint64_t z = w->seed + (i + 1) * 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        w->words[i] = ((z ^ (z >> 31)) & w->random) | w->fixed;
    }
}

static void fill_values(const bench_problem *p, void *area, size_t size, uint64_t seed, int32_t threads)
{
    pattern w = {.words = area, .seed = seed};
    if (p->dtype == TROPE_F16)
        w.random = 0x8fff8fff8fff8fffu, w.fixed = 0x3000300030003000u;
    else if (p->dtype == TROPE_BF16)
        w.random = 0x81ff81ff81ff81ffu, w.fixed = 0x3e003e003e003e00u;
    else if (p->dtype == TROPE_F32)
        w.random = 0x81ffffff81ffffffu, w.fixed = 0x3e0000003e000000u;
    else
        w.random = 0x803fffffffffffffu, w.fixed = 0x3fc0000000000000u;
    parallel_bytes(fill_words, &w, size / 8 * 8, threads);
}

typedef struct angle_job {
    const bench_problem *p;
    void *const *area;
} angle_job;

/* Some rows; `begin` and `end` count bytes of a column of one byte a row. */
static void fill_rows(void *context, size_t begin, size_t end)
{
    const angle_job *job = context;
    const bench_problem *p = job->p;
    const int32_t pairs = rotary_dim_of(p->c) / 2, type = angle_type(p);
    for (size_t row = begin; row < end; row++) {
        for (int32_t i = 0; i < p->cols; i++) {
            const double angle = (double)row * p->inv_freq[i % pairs];
            const int64_t at = (int64_t)row * p->cols + i;
            value_store(type, job->area[AREA_COS], at, is_table(p) ? cos(angle) : angle);
            if (is_table(p))
                value_store(type, job->area[AREA_SIN], at, sin(angle));
        }
    }
}

void bench_fill(const bench_problem *p, void *const *area, int32_t threads)
{
    int64_t longest;
    angle_job job = {p, area};
    fill_values(p, area[AREA_SRC], p->size[AREA_SRC], 1, threads);
    fill_values(p, area[AREA_FORWARD_SRC], p->size[AREA_FORWARD_SRC], 2, threads);
    memset(area[AREA_DST], 0xff, p->size[AREA_DST]);
    memset(area[AREA_D_ANGLES], 0xff, p->size[AREA_D_ANGLES]);
    if (p->cols)
        parallel_bytes(fill_rows, &job, (size_t)table_rows(p), threads);
    if (p->c->lengths)
        write_sequences(p, area[AREA_CU_SEQLENS], &longest);
}
