/* Chooses the sizes of a case. */
#include "bench_problem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "call_options.h"
#include "command.h"
#include "value.h"

void bench_name(const bench_case *c, int32_t dtype, char *name, size_t size)
{
    snprintf(name, size, "%s/%s", c->name, choice_name(dtype_choices, dtype));
}

/* Fields */

int32_t bench_head_dim(const bench_case *c)
{
    return c->head_dim ? c->head_dim : 128;
}

int32_t bench_rotary_dim(const bench_case *c)
{
    if (c->form == BENCH_MLA_KV)
        return MLA_PE;
    return c->rotary_dim ? c->rotary_dim : bench_head_dim(c);
}

int32_t bench_batch(const bench_case *c)
{
    return c->batch ? c->batch : 1;
}

int32_t bench_ranks(const bench_case *c)
{
    return c->source.cp_size ? c->source.cp_size : 1;
}

int32_t bench_layout(const bench_case *c)
{
    if (c->layout)
        return c->layout;
    return c->source.lengths ? TROPE_THD : TROPE_SBHD;
}

int32_t bench_index_dtype(const bench_case *c)
{
    return c->source.index_dtype ? c->source.index_dtype : TROPE_I32;
}

int bench_is_qkv(const bench_case *c)
{
    return c->form == BENCH_QKV_SPLIT || c->form == BENCH_QKV_INSIDE;
}

int bench_reads_forward(const bench_case *c)
{
    return c->angle_gradient || (c->norm && c->backward);
}

int32_t bench_weight_gradient_dtype(const bench_problem *p)
{
    return p->dtype == TROPE_F64 ? TROPE_F64 : TROPE_F32;
}

int32_t bench_id_axes(const bench_case *c)
{
    if (c->source.positions == BENCH_IDS_SECTIONS || c->source.positions == BENCH_IDS_INTERLEAVED)
        return BENCH_AXES;
    return c->source.positions == BENCH_IDS || c->source.positions == BENCH_IDS_DISTINCT;
}

/* Elements of a token */

/* Number of rotated heads: the heads of Q, and those of K if there is one. */
static int64_t rotated_heads(const bench_case *c)
{
    return c->heads + c->groups;
}

/* Elements per token in kv and k_pe, the joined form. */
static int64_t mla_joined(const bench_case *c)
{
    return (int64_t)c->heads * (MLA_NOPE + MLA_V) + MLA_PE;
}

static int64_t mla_split(const bench_case *c)
{
    return (int64_t)c->heads * (MLA_NOPE + MLA_PE + MLA_V);
}

/* Elements of all heads of the source, including K and V if they are in it. */
static int64_t source_elements(const bench_case *c)
{
    if (c->form == BENCH_MLA_KV)
        return c->backward ? mla_split(c) : mla_joined(c);
    return (rotated_heads(c) + (bench_is_qkv(c) ? c->groups : 0)) * bench_head_dim(c);
}

/* Elements of the destination of a call out of place. */
static int64_t result_elements(const bench_case *c)
{
    if (c->form == BENCH_MLA_KV)
        return c->backward ? mla_joined(c) : mla_split(c);
    return source_elements(c);
}

/* Elements that the call reads and, below, elements that it writes. */
static int64_t elements_read(const bench_case *c)
{
    if (c->in_place)
        return rotated_heads(c) * bench_rotary_dim(c);
    return source_elements(c) + (bench_reads_forward(c) ? rotated_heads(c) * bench_head_dim(c) : 0) +
           (c->accumulate ? result_elements(c) : 0);
}

static int64_t elements_written(const bench_case *c)
{
    return c->in_place ? elements_read(c) : result_elements(c);
}

/* Angles */

int bench_has_cos_and_sin(const bench_case *c)
{
    return c->source.angles >= BENCH_TABLE_HALF;
}

int64_t bench_tables(const bench_case *c)
{
    return c->source.angles == BENCH_TABLE_OWN_AXES ? BENCH_AXES * bench_batch(c) : 1;
}

int32_t bench_angle_dtype(const bench_problem *p)
{
    return p->c->source.angles >= BENCH_TABLE_OWN ? p->dtype : TROPE_F32;
}

static int32_t angle_cols(const bench_case *c)
{
    switch (c->source.angles) {
    case BENCH_INV_FREQ:
    case BENCH_PHASE_STEP:
        return 0;
    case BENCH_FREQS_HALF:
    case BENCH_TABLE_HALF:
        return bench_rotary_dim(c) / 2;
    default:
        return bench_rotary_dim(c);
    }
}

int64_t bench_table_rows(const bench_problem *p)
{
    return p->cols ? p->longest * bench_ranks(p->c) : 0;
}

/* Sets the axes of Qwen2-VL's sections of 64 pairs, or Qwen3-VL's. */
static int find_axes(bench_problem *p)
{
    static const int32_t by_sections[] = {16, 24, 24, 0}, interleaved[] = {24, 20, 20, 0};
    const int is_interleaved = p->c->source.positions == BENCH_IDS_INTERLEAVED;
    if (bench_id_axes(p->c) <= 1 && p->c->source.angles != BENCH_TABLE_OWN_AXES)
        return 0;
    return trope_fill_pair_axis(p->pair_axis, bench_rotary_dim(p->c) / 2,
                                is_interleaved ? TROPE_AXES_INTERLEAVED : TROPE_AXES_SECTIONS,
                                is_interleaved ? interleaved : by_sections);
}

static int find_angles(bench_problem *p)
{
    const int32_t dim = bench_rotary_dim(p->c);
    const trope_frequency_args rule = {
        .struct_size = sizeof rule, .rule = TROPE_RULE_DEFAULT, .rotary_dim = dim, .base = 10000};
    double attention_factor;
    if (trope_frequencies(&rule, p->inv_freq, &attention_factor) ||
        trope_phase_steps(p->inv_freq, dim / 2, p->phase_step) || find_axes(p))
        return complain("%s: %s", p->c->name, trope_last_error());
    return 0;
}

/* Sizes */

static int64_t ceil_to(double x, int64_t multiple)
{
    const int64_t whole = (int64_t)ceil(x / (double)multiple);
    return (whole > 0 ? whole : 1) * multiple;
}

int64_t bench_all_tokens(const bench_problem *p)
{
    return p->tokens * bench_batch(p->c);
}

int64_t bench_tensor_bytes(const bench_problem *p, int64_t elements)
{
    return bench_all_tokens(p) * elements * value_size(p->dtype);
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Sets the sizes of the areas. The source and the destination also have room for a copy of the same number of bytes. */
static void set_sizes(bench_problem *p)
{
    const bench_case *c = p->c;
    const size_t angles = (size_t)(bench_table_rows(p) * bench_tables(c) * p->cols * value_size(bench_angle_dtype(p)));
    const size_t copied = (size_t)ceil(p->moved / 2), index = bench_index_dtype(c) == TROPE_I64 ? 8 : 4;
    const size_t boundaries = c->source.lengths ? (size_t)(p->sequences + 1) * index : 0;
    const size_t source = (size_t)bench_tensor_bytes(p, source_elements(c));
    p->size[AREA_SRC] = larger(source, copied);
    p->size[AREA_DST] = c->in_place ? copied : larger((size_t)bench_tensor_bytes(p, result_elements(c)), copied);
    p->size[AREA_FORWARD_SRC] = bench_reads_forward(c) ? source : 0;
    p->size[AREA_COS] = angles;
    p->size[AREA_SIN] = bench_has_cos_and_sin(c) ? angles : 0;
    p->size[AREA_INDICES] = (size_t)bench_index_count(p) * index;
    p->size[AREA_CU_SEQLENS] = boundaries;
    p->size[AREA_CU_SEQLENS_PADDED] = c->source.padded ? boundaries : 0;
    if (c->angle_gradient)
        p->size[AREA_D_ANGLES] = p->cols ? (size_t)(bench_table_rows(p) * p->cols) * sizeof(float) : sizeof p->inv_freq;
    if (c->norm) {
        const int32_t of_q = c->norm_token ? c->heads : 1, of_k = c->norm_token ? c->groups : c->groups > 0;
        const size_t weights = (size_t)bench_head_dim(c) * (size_t)(of_q + of_k);
        p->size[AREA_WEIGHT] = weights * (size_t)value_size(p->dtype);
        p->size[AREA_D_WEIGHT] = c->backward ? weights * (size_t)value_size(bench_weight_gradient_dtype(p)) : 0;
    }
}

/* Bounds the rounding of a sum in the gradient of the angles: each addition rounds a double of the sum's magnitude. A term
 * is at most 2 * 2 * 2 * the position. */
static double sum_slack(const bench_problem *p)
{
    if (!p->c->angle_gradient)
        return 0;
    const double heads = (double)p->c->heads * bench_batch(p->c), tokens = (double)p->tokens;
    const double sharing = p->c->source.lengths ? (double)p->sequences : 1;
    const double terms = 2 * heads * (p->cols ? sharing : tokens);
    return terms * 0x1p-53 * terms * 8 * (p->cols ? 1 : (double)p->longest);
}

/* Returns 2^-20 of the sum of the magnitudes: x * rstd is about 1, and dy is below 2. */
static double weight_slack(const bench_problem *p)
{
    const int32_t heads = p->c->norm_token ? 1 : p->c->heads;
    return p->c->norm && p->c->backward ? 0x1p-20 * 2 * (double)(bench_all_tokens(p) * heads) : 0;
}

/* Returns the touched parts of a tensor in a call in place: windows of heads, or Q and K of QKV. */
static device_runs runs_of(const bench_problem *p)
{
    const bench_case *c = p->c;
    const int64_t size = value_size(p->dtype), head = bench_head_dim(c) * size, tokens = bench_all_tokens(p);
    device_runs runs = {c->rotary_offset * size, bench_rotary_dim(c) * size, head, tokens * rotated_heads(c)};
    if (c->form == BENCH_QKV_INSIDE) {
        const int64_t rotated = c->heads / c->groups + 1;
        runs = (device_runs){0, rotated * head, (rotated + 1) * head, tokens * c->groups};
    }
    return c->in_place && runs.bytes < runs.pitch ? runs : (device_runs){0};
}

/* Chooses a multiple of 64, because context parallel ranks need whole parts of sequences. */
static int64_t choose_tokens(const bench_case *c, double per_token, const bench_sizes *sizes)
{
    const double of_all = per_token * bench_batch(c);
    const int64_t tokens = c->tokens ? c->tokens : ceil_to(sizes->least / of_all, 64);
    const int64_t most = sizes->most > 0 ? ceil_to(sizes->most / of_all - 63, 64) : tokens;
    return tokens < most ? tokens : most;
}

/* Counts the bytes of the touched tensor parts and of the table rows in use. Padding that is not read does not count. */
static double bytes_moved(const bench_problem *p)
{
    const bench_case *c = p->c;
    const double tokens = (double)bench_all_tokens(p), size = value_size(p->dtype);
    const double elements = (tokens - (double)p->padding) * (double)elements_read(c) + tokens * (double)elements_written(c);
    const double row = (double)p->cols * value_size(bench_angle_dtype(p)) * (bench_has_cos_and_sin(c) ? 2 : 1);
    const int64_t entries = c->source.angles == BENCH_TABLE_OWN_AXES ? bench_batch(c) : 1; /* each column uses one axis */
    return elements * size + (double)(p->longest * entries) * row;
}

int bench_plan(bench_problem *p, const bench_case *c, int32_t dtype, const bench_sizes *sizes)
{
    memset(p, 0, sizeof *p);
    if (c->call) {
        if (bench_plan_text(p, c, dtype, sizes))
            return 1;
        p->sum_slack = sum_slack(p);
        p->weight_slack = weight_slack(p);
        return find_angles(p);
    }
    p->c = c;
    p->dtype = dtype;
    p->cols = angle_cols(c);
    p->tokens = choose_tokens(c, (double)(elements_read(c) + elements_written(c)) * value_size(dtype), sizes);
    if (p->tokens > INT32_MAX / bench_ranks(c))
        return complain("--bytes: %s needs more tokens than cu_seqlens can count", c->name);
    bench_count_sequences(p);
    p->moved = bytes_moved(p);
    p->sum_slack = sum_slack(p);
    p->weight_slack = weight_slack(p);
    p->runs = runs_of(p);
    set_sizes(p);
    return find_angles(p);
}

int bench_writes_area(const bench_problem *p, int area)
{
    if (!p->c->call)
        return area == (p->c->in_place ? AREA_SRC : AREA_DST);
    for (int i = 0; i < p->text.args.operand_count; i++)
        if (area == AREA_TENSORS + p->text.place[i][1].area)
            return 1;
    return 0;
}
