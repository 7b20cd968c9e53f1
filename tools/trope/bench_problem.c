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
    p->size[AREA_INPUT] = c->angle_gradient ? tensor : 0;
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
    trope_frequency_args rule = {.struct_size = sizeof rule, .rotary_dim = rotary_dim_of(c)};
    double mscale;
    if (trope_frequencies(&rule, p->inv_freq, &mscale))
        return complain("%s: %s", c->name, trope_last_error());
    p->sum_slack = sum_slack(p);
    p->runs = runs_of(p);
    set_sizes(p);
    return 0;
}

/* The call */

static void set_strides(int64_t *stride, int64_t batch, int64_t token, int64_t group, int64_t head)
{
    stride[TROPE_DIM_BATCH] = batch;
    stride[TROPE_DIM_TOKEN] = token;
    stride[TROPE_DIM_GROUP] = group;
    stride[TROPE_DIM_HEAD] = head;
    stride[TROPE_DIM_ELEMENT] = 1;
}

static trope_operand *add_operand(const bench_problem *p, trope_args *args)
{
    trope_operand *o = &args->operands[args->operand_count++];
    o->head_dim = bench_head_dim(p->c);
    o->rotary_dim = rotary_dim_of(p->c);
    o->rotary_offset = p->c->rotary_offset;
    return o;
}

/* A tensor of its own, with this many heads, after one of `skip` heads. */
static void bind_tensor(const bench_problem *p, void *const *area, trope_args *args, int32_t heads, int32_t skip)
{
    const bench_case *c = p->c;
    const int32_t batch = batch_of(c), d = bench_head_dim(c);
    const int64_t before = (int64_t)skip * d * p->tokens * batch * value_size(p->dtype);
    trope_operand *o = add_operand(p, args);
    o->heads_per_group = heads;
    o->src = (char *)area[AREA_SRC] + before;
    o->dst = (char *)area[c->in_place ? AREA_SRC : AREA_DST] + before;
    if (c->form == BENCH_STRIDED) {
        set_strides(o->src_stride, (int64_t)heads * d, (int64_t)heads * d * batch, 0, 1);
        o->src_stride[TROPE_DIM_ELEMENT] = heads;
    } else {
        trope_fill_strides(o->src_stride, c->layout ? c->layout : TROPE_SBHD, batch, p->tokens, heads, d);
    }
    memcpy(o->dst_stride, o->src_stride, sizeof o->dst_stride);
    if (c->angle_gradient) {
        o->input = area[AREA_INPUT];
        memcpy(o->input_stride, o->src_stride, sizeof o->input_stride);
    }
}

/* Q, K and V have `per_group` heads each in a group, after `skip` others. */
static void bind_part(const bench_problem *p, void *const *area, trope_args *args, int32_t per_group, int32_t skip)
{
    const bench_case *c = p->c;
    const int64_t d = bench_head_dim(c), size = value_size(p->dtype), in_group = c->heads / c->groups + 2;
    trope_operand *o = add_operand(p, args);
    o->groups = c->groups;
    o->heads_per_group = per_group;
    o->src = (char *)area[AREA_SRC] + skip * d * size;
    set_strides(o->src_stride, c->groups * in_group * d, c->groups * in_group * d * batch_of(c), in_group * d, d);
    if (c->in_place) {
        o->dst = (char *)area[AREA_SRC] + skip * d * size;
        memcpy(o->dst_stride, o->src_stride, sizeof o->dst_stride);
    } else {
        const int64_t heads = (int64_t)per_group * c->groups;
        o->dst = (char *)area[AREA_DST] + (int64_t)skip * c->groups * d * p->tokens * batch_of(c) * size;
        set_strides(o->dst_stride, heads * d, heads * d * batch_of(c), per_group * d, d);
    }
}

static void bind_qkv(const bench_problem *p, void *const *area, trope_args *args)
{
    const int32_t q_per_group = p->c->heads / p->c->groups;
    bind_part(p, area, args, q_per_group, 0);
    bind_part(p, area, args, 1, q_per_group);
    if (p->c->form == BENCH_QKV_INSIDE)
        return;
    bind_part(p, area, args, 1, q_per_group + 1);
    args->operands[2].rotary_dim = 0;
    args->operands[2].rotary_offset = 0;
}

static void bind_angles(const bench_problem *p, void *const *area, trope_args *args)
{
    if (is_table(p)) {
        args->cos = area[AREA_COS];
        args->sin = area[AREA_SIN];
    } else if (p->cols) {
        args->freqs = area[AREA_COS];
    } else {
        args->inv_freq = p->inv_freq;
    }
    args->angle_dtype = p->cols ? angle_type(p) : TROPE_F32;
    args->angle_cols = p->cols;
    args->angle_rows = table_rows(p);
    if (p->c->angle_gradient) {
        args->d_freqs = p->cols ? area[AREA_D_ANGLES] : NULL;
        args->d_inv_freq = p->cols ? NULL : area[AREA_D_ANGLES];
        args->workspace = area[AREA_WORKSPACE];
        args->workspace_size = p->size[AREA_WORKSPACE];
    }
}

void bench_bind(const bench_problem *p, void *const *area, trope_args *args)
{
    memset(args, 0, sizeof *args);
    args->struct_size = sizeof *args;
    args->dtype = p->dtype;
    args->rounding = p->c->rounding;
    args->batch = batch_of(p->c);
    args->tokens = p->tokens;
    args->pairing = p->c->pairing;
    args->pairing_out = p->c->pairing_out;
    if (is_qkv(p->c))
        bind_qkv(p, area, args);
    else
        bind_tensor(p, area, args, p->c->heads, 0);
    if (p->c->form == BENCH_Q_AND_K)
        bind_tensor(p, area, args, p->c->groups, p->c->heads);
    bind_angles(p, area, args);
    if (p->c->cp_size) {
        args->cp_size = p->c->cp_size;
        args->cp_rank = p->c->cp_size - 1;
        args->cp_layout = TROPE_CP_ZIGZAG;
    }
    if (p->c->lengths) {
        args->cu_seqlens = area[AREA_CU_SEQLENS];
        args->sequences = p->sequences;
        args->cu_seqlens_dtype = TROPE_I32;
    }
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
    fill_values(p, area[AREA_INPUT], p->size[AREA_INPUT], 2, threads);
    memset(area[AREA_DST], 0xff, p->size[AREA_DST]);
    memset(area[AREA_D_ANGLES], 0xff, p->size[AREA_D_ANGLES]);
    if (p->cols)
        parallel_bytes(fill_rows, &job, (size_t)table_rows(p), threads);
    if (p->c->lengths)
        write_sequences(p, area[AREA_CU_SEQLENS], &longest);
}
