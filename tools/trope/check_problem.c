/* The memory of a problem, its angles, the calls of the library, and the evaluation in double. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "command.h"
#include "random_bits.h"
#include "value.h"

/* Returns the index of head h of token t in the order of the checks. */
static int64_t plain_index(const check_problem *p, int operand, int64_t b, int64_t t, int32_t h)
{
    const trope_operand *o = &p->operand[operand];
    return p->first[operand] + ((b * p->args.tokens + t) * o->heads_per_group + h) * o->head_dim;
}

double check_random(check_problem *p)
{
    return (double)(int64_t)(random_bits(p->seed, p->drawn++) >> 11) * 0x1p-52 - 1.0;
}

void check_fill(check_problem *p, double *values)
{
    char memory[8];
    for (int64_t i = 0; i < p->elements; i++) {
        value_store(p->args.dtype, memory, 0, check_random(p));
        values[i] = value_load(p->args.dtype, memory, 0);
    }
}

/* Calls `what` for each head, with the index of its first element. */
static void for_each_head(const check_problem *p, void (*what)(const check_problem *p, int64_t at, int64_t token, void *to),
                          void *to)
{
    for (int i = 0; i < p->args.operand_count; i++)
        for (int64_t b = 0; b < p->args.batch; b++)
            for (int64_t t = 0; t < p->args.tokens; t++)
                for (int32_t h = 0; h < p->operand[i].heads_per_group; h++)
                    what(p, plain_index(p, i, b, t, h), t, to);
}

static int is_zeroed(const check_problem *p, int64_t token)
{
    return p->is_padding[token] && p->args.padding == TROPE_PADDING_ZERO;
}

static int is_rotated(const check_problem *p, int64_t token)
{
    return !p->is_padding[token] || p->args.padding == TROPE_PADDING_ROTATE;
}

static void clear_padding(const check_problem *p, int64_t at, int64_t token, void *to)
{
    if (is_zeroed(p, token))
        memset((double *)to + at, 0, (size_t)p->operand[0].head_dim * sizeof(double));
}

void check_fill_kept(check_problem *p, double *values)
{
    check_fill(p, values);
    for_each_head(p, clear_padding, values);
}

int check_overflows(const check_problem *p, double magnitude)
{
    char memory[8];
    value_store(p->args.dtype, memory, 0, magnitude);
    return !isfinite(value_load(p->args.dtype, memory, 0));
}

/* Angles */

void reference_pair(const check_problem *p, int32_t pairing, int32_t pair, int32_t element[2])
{
    const int32_t per_part = p->pairs / p->args.parts;
    const int32_t start = pair / per_part * 2 * per_part, i = pair % per_part;
    const int interleaved = pairing == TROPE_PAIRING_INTERLEAVED;
    element[0] = start + (interleaved ? 2 * i : i);
    element[1] = start + (interleaved ? 2 * i + 1 : i + per_part);
}

static int32_t output_pairing(const check_problem *p)
{
    return p->args.pairing_out ? p->args.pairing_out : p->args.pairing;
}

static int is_full(const check_problem *p)
{
    return p->cols == 2 * p->pairs;
}

/* Returns the column of the first or second element of a pair. */
static int32_t column_of(const check_problem *p, int32_t pair, int second)
{
    int32_t element[2];
    if (!is_full(p))
        return pair;
    reference_pair(p, output_pairing(p), pair, element);
    return element[second];
}

void check_draw_angles(check_problem *p, int alike)
{
    const int differ = !alike && is_full(p);
    for (int64_t row = 0; row < p->rows; row++) {
        double *first = p->pair_angle + 2 * row * p->pairs, *second = first + p->pairs;
        for (int32_t i = 0; i < p->pairs; i++) {
            first[i] = (double)row * p->rule_freq[i];
            if (p->cols)
                first[i] += 3 * check_random(p);
            second[i] = first[i] + (differ ? 3 * check_random(p) : 0);
        }
    }
    check_write_angles(p);
}

/* Stores an angle in the source and returns the cosine and sine of the stored value. */
static void write_angle(check_problem *p, int64_t at, double angle, double *cosine, double *sine)
{
    const int32_t type = p->args.angle_dtype;
    if (p->options->angles == ANGLES_FREQS) {
        value_store(type, p->freqs, at, angle);
        *cosine = cos(value_load(type, p->freqs, at));
        *sine = sin(value_load(type, p->freqs, at));
    } else {
        value_store(type, p->cos_table, at, cos(angle));
        value_store(type, p->sin_table, at, sin(angle));
        *cosine = value_load(type, p->cos_table, at);
        *sine = value_load(type, p->sin_table, at);
    }
}

void check_write_angles(check_problem *p)
{
    for (int64_t row = 0; row < p->rows; row++) {
        for (int32_t j = 0; j < 2 * p->pairs; j++) {
            const int64_t at = 2 * row * p->pairs + j;
            p->cosine[at] = cos(p->pair_angle[at]);
            p->sine[at] = sin(p->pair_angle[at]);
            if (p->cols)
                write_angle(p, row * p->cols + column_of(p, j % p->pairs, j >= p->pairs), p->pair_angle[at], &p->cosine[at],
                            &p->sine[at]);
        }
    }
}

void check_move_angle(check_problem *p, int64_t row, int32_t column, double step)
{
    double cosine, sine;
    if (!p->cols) {
        p->inv_freq[column] = p->rule_freq[column] + step;
        return;
    }
    for (int32_t j = 0; j < 2 * p->pairs; j++)
        if (column_of(p, j % p->pairs, j >= p->pairs) == column)
            write_angle(p, row * p->cols + column, p->pair_angle[2 * row * p->pairs + j] + step, &cosine, &sine);
}

/* The evaluation in double */

typedef struct evaluation {
    int backward;
    const double *in;
    double *out, *magnitude;
} evaluation;

static void reference_head(const check_problem *p, int64_t at, int64_t token, void *to)
{
    const evaluation *e = to;
    const int backward = e->backward;
    const double *in = e->in + at + p->operand[0].rotary_offset;
    double *out = e->out + at + p->operand[0].rotary_offset, *magnitude = e->magnitude + at + p->operand[0].rotary_offset;
    if (!is_rotated(p, token)) {
        clear_padding(p, at, token, e->out);
        return;
    }
    const double turn = p->args.inverse ? -1 : 1;
    const int32_t read = backward ? output_pairing(p) : p->args.pairing;
    const int32_t write = backward ? p->args.pairing : output_pairing(p);
    for (int32_t i = 0; i < p->pairs; i++) {
        const int64_t first = 2 * p->position[token] * p->pairs + i, second = first + p->pairs;
        const double c1 = p->cosine[first], s1 = turn * p->sine[first];
        const double c2 = p->cosine[second], s2 = turn * p->sine[second];
        int32_t read_at[2], write_at[2];
        reference_pair(p, read, i, read_at);
        reference_pair(p, write, i, write_at);
        const double a = in[read_at[0]], b = in[read_at[1]];
        out[write_at[0]] = p->mscale * (backward ? a * c1 + b * s2 : a * c1 - b * s1);
        out[write_at[1]] = p->mscale * (backward ? b * c2 - a * s1 : b * c2 + a * s2);
        magnitude[write_at[0]] = magnitude[write_at[1]] = fabs(p->mscale) * (fabs(a) + fabs(b));
    }
}

void reference_apply(const check_problem *p, int backward, const double *in, double *out, double *magnitude)
{
    evaluation e = {backward, in, out, magnitude};
    memcpy(out, in, (size_t)p->elements * sizeof *out);
    memset(magnitude, 0, (size_t)p->elements * sizeof *magnitude);
    for_each_head(p, reference_head, &e);
}

/* Calls of the library */

static size_t operand_bytes(const check_problem *p, int operand)
{
    const int64_t end = operand + 1 < p->args.operand_count ? p->first[operand + 1] : p->elements;
    return (size_t)(end - p->first[operand]) * (size_t)value_size(p->args.dtype);
}

/* Returns an operand's part of a buffer with all operands. */
static void *part_of(const check_problem *p, int operand, void *all)
{
    return (char *)all + (size_t)p->first[operand] * (size_t)value_size(p->args.dtype);
}

/* Copies between the checks' order and the call's layout. */
static void transfer_operand(const check_problem *p, int operand, double *plain, void *tensor, int to_tensor)
{
    const trope_operand *o = &p->operand[operand];
    const int64_t *s = p->stride[operand];
    int64_t i = 0;
    for (int64_t b = 0; b < p->args.batch; b++)
        for (int64_t t = 0; t < p->args.tokens; t++)
            for (int32_t h = 0; h < o->heads_per_group; h++)
                for (int32_t e = 0; e < o->head_dim; e++, i++) {
                    const int64_t at =
                        b * s[TROPE_DIM_BATCH] + t * s[TROPE_DIM_TOKEN] + h * s[TROPE_DIM_HEAD] + e * s[TROPE_DIM_ELEMENT];
                    if (to_tensor)
                        value_store(p->args.dtype, tensor, at, plain[i]);
                    else
                        plain[i] = value_load(p->args.dtype, tensor, at);
                }
}

static void transfer(const check_problem *p, double *plain, void *all, int to_tensor)
{
    for (int i = 0; i < p->args.operand_count; i++)
        transfer_operand(p, i, plain + p->first[i], part_of(p, i, all), to_tensor);
}

static size_t tensor_bytes(const check_problem *p)
{
    return (size_t)p->elements * (size_t)value_size(p->args.dtype);
}

static size_t angle_count(const check_problem *p)
{
    return 2 * (size_t)p->rows * (size_t)p->pairs;
}

static int upload_boundaries(check_problem *p, const int64_t *boundaries, const void **to)
{
    if (boundaries)
        *to = mirror_upload(&p->mirror, boundaries, (size_t)(p->args.sequences + 1) * sizeof *boundaries);
    return boundaries && !*to;
}

static int upload_sequences(check_problem *p, trope_args *args)
{
    return upload_boundaries(p, p->cu_seqlens, &args->cu_seqlens) ||
           upload_boundaries(p, p->cu_seqlens_padded, &args->cu_seqlens_padded);
}

/* Uploads the table of the angles. inv_freq stays on the host. */
static int upload_angles(check_problem *p, trope_args *args)
{
    const size_t bytes = (size_t)p->rows * (size_t)p->cols * (size_t)value_size(p->args.angle_dtype);
    switch (p->options->angles) {
    case ANGLES_FREQS:
        args->freqs = mirror_upload(&p->mirror, p->freqs, bytes);
        return !args->freqs;
    case ANGLES_TABLE:
        args->cos = mirror_upload(&p->mirror, p->cos_table, bytes);
        args->sin = args->cos ? mirror_upload(&p->mirror, p->sin_table, bytes) : NULL;
        return !args->sin;
    default:
        args->inv_freq = p->inv_freq;
        return 0;
    }
}

static int run_call(check_problem *p, trope_args *args, int backward)
{
    const char *refused;
    check_progress_step(p->progress);
    const int failed = mirror_run(&p->mirror, args, backward, &refused);
    return refused ? complain_of_library(refused) : failed;
}

int check_call(check_problem *p, int backward, const double *in, double *out)
{
    trope_args args = p->args;
    trope_operand o[CHECK_OPERANDS];
    memcpy(o, p->operand, sizeof o);
    args.operands = o;
    transfer(p, (double *)(uintptr_t)in, p->src, 1);
    memset(p->dst, 0xff, tensor_bytes(p));
    for (int i = 0; i < args.operand_count; i++) {
        o[i].src = mirror_upload(&p->mirror, part_of(p, i, p->src), operand_bytes(p, i));
        o[i].dst = mirror_upload(&p->mirror, part_of(p, i, p->dst), operand_bytes(p, i));
        if (!o[i].src || !o[i].dst)
            return RESULT_REFUSED;
    }
    if (upload_sequences(p, &args) || upload_angles(p, &args) || run_call(p, &args, backward))
        return RESULT_REFUSED;
    for (int i = 0; i < args.operand_count; i++)
        if (mirror_download(&p->mirror, part_of(p, i, p->dst)))
            return RESULT_REFUSED;
    transfer(p, out, p->dst, 0);
    return 0;
}

/* The workspace has no array on the host. Its mirror part uses the address of the problem instead. */
static int reserve_workspace(check_problem *p, trope_args *args)
{
    if (trope_workspace_size(args, &args->workspace_size))
        return complain_of_library(trope_last_error());
    args->workspace = mirror_reserve(&p->mirror, p, (size_t)args->workspace_size);
    return !args->workspace;
}

int check_call_angle_gradient(check_problem *p, const double *x, const double *dy)
{
    trope_args args = p->args;
    trope_operand o[CHECK_OPERANDS];
    memcpy(o, p->operand, sizeof o);
    args.operands = o;
    transfer(p, (double *)(uintptr_t)x, p->forward_src, 1);
    transfer(p, (double *)(uintptr_t)dy, p->src, 1);
    for (int i = 0; i < args.operand_count; i++) {
        o[i].src = mirror_upload(&p->mirror, part_of(p, i, p->src), operand_bytes(p, i));
        o[i].dst_layout = 0;
        o[i].forward_src = mirror_upload(&p->mirror, part_of(p, i, p->forward_src), operand_bytes(p, i));
        o[i].forward_src_layout = o[i].src_layout;
        if (!o[i].src || !o[i].forward_src)
            return RESULT_REFUSED;
    }
    double *gradient = mirror_upload(&p->mirror, p->d_angles, angle_count(p) * sizeof *gradient);
    args.d_freqs = p->cols ? gradient : NULL;
    args.d_freqs_layout = p->cols ? TROPE_TABLE_ROWS : 0;
    args.d_inv_freq = p->cols ? NULL : gradient;
    if (!gradient || upload_sequences(p, &args) || upload_angles(p, &args) || reserve_workspace(p, &args))
        return RESULT_REFUSED;
    return run_call(p, &args, 1) || mirror_download(&p->mirror, p->d_angles) ? RESULT_REFUSED : 0;
}

/* Memory */

static int allocate(check_problem *p)
{
    const size_t n = (size_t)p->elements, angles = angle_count(p);
    void **const bytes[] = {&p->src, &p->dst, &p->forward_src};
    void **const tables[] = {&p->freqs, &p->cos_table, &p->sin_table};
    double **const values[] = {&p->x, &p->y, &p->z, &p->result, &p->magnitude};
    double **const per_angle[] = {&p->pair_angle, &p->cosine, &p->sine, &p->d_angles};
    int missing = 0;
    for (int i = 0; i < 3; i++) {
        missing |= !(*bytes[i] = malloc(tensor_bytes(p)));
        missing |= !(*tables[i] = malloc(angles * sizeof(double)));
    }
    for (int i = 0; i < 5; i++)
        missing |= !(*values[i] = malloc(n * sizeof(double)));
    for (int i = 0; i < 4; i++)
        missing |= !(*per_angle[i] = calloc(angles, sizeof(double)));
    return missing ? complain("out of memory for %zu elements", n) : 0;
}

void check_release(check_problem *p)
{
    void *const all[] = {p->src, p->dst,    p->forward_src, p->freqs,      p->cos_table, p->sin_table, p->x,       p->y,
                         p->z,   p->result, p->magnitude,   p->pair_angle, p->cosine,    p->sine,      p->d_angles};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
    free(p->cu_seqlens);
    free(p->cu_seqlens_padded);
    free(p->position);
    free(p->is_padding);
    mirror_release(&p->mirror);
}

static int set_operand(check_problem *p, const check_options *options, int32_t heads)
{
    const int operand = p->args.operand_count++;
    trope_operand *o = &p->operand[operand];
    const int32_t layout = options->rotation.layout;
    o->src_layout = o->dst_layout = layout;
    o->heads_per_group = heads;
    o->head_dim = options->head_dim;
    o->rotary_offset = rotary_offset_in(&options->rotation, o->head_dim);
    o->rotary_dim = rotary_dim_in(&options->rotation, o->head_dim);
    if (o->rotary_dim < 0)
        o->rotary_dim = o->head_dim - o->rotary_offset;
    if (o->rotary_offset < 0 || o->rotary_offset > o->head_dim || o->rotary_dim > o->head_dim - o->rotary_offset)
        return complain("--rotary-offset, --rotary-dim: a window of %d elements from %d on must fit --head-dim (%d)",
                        o->rotary_dim, o->rotary_offset, o->head_dim);
    if (trope_fill_strides(p->stride[operand], layout, options->batch, options->tokens, heads, options->head_dim))
        return complain_of_library(trope_last_error());
    p->first[operand] = p->elements;
    p->elements += options->batch * options->tokens * heads * options->head_dim;
    return 0;
}

static void set_table(check_problem *p)
{
    p->args.angle_columns = columns_of_table(&p->args, p->options->full);
    p->args.angle_layout = TROPE_TABLE_ROWS;
    p->args.angle_rows = p->rows;
    p->args.angle_dtype = p->args.dtype == TROPE_F64 ? TROPE_F64 : TROPE_F32;
}

int check_prepare(check_problem *p, const check_options *options, int32_t dtype)
{
    memset(p, 0, sizeof *p);
    p->options = options;
    p->mirror = (device_mirror){.device = options->device, .threads = options->machine.threads};
    p->seed = (uint64_t)options->seed * 0x2545f4914f6cdd1du + (uint64_t)dtype;
    p->args.struct_size = sizeof p->args;
    p->args.device = options->device->id;
    p->args.threads = options->machine.threads;
    p->args.isa = options->machine.isa;
    p->args.dtype = dtype;
    p->args.operand_size = sizeof p->operand[0];
    p->args.batch = options->batch;
    p->args.tokens = options->tokens;
    rotation_to_args(&options->rotation, &p->args);
    if (set_operand(p, options, options->heads) || (options->k_heads && set_operand(p, options, options->k_heads)))
        return RESULT_REFUSED;
    if (sequence_to_args(&options->sequence, &p->args) || check_place_tokens(p))
        return RESULT_REFUSED;
    const int32_t rotary_dim = p->operand[0].rotary_dim;
    if (frequencies_by_rule(&options->rotation, rotary_dim, p->rows - 1, p->rule_freq, &p->mscale))
        return RESULT_REFUSED;
    memcpy(p->inv_freq, p->rule_freq, sizeof p->inv_freq);
    p->args.mscale = p->mscale;
    p->pairs = rotary_dim / 2;
    p->cols = options->angles == ANGLES_INV_FREQ ? 0 : options->full ? rotary_dim : rotary_dim / 2;
    if (p->cols)
        set_table(p);
    if (allocate(p))
        return RESULT_REFUSED;
    check_draw_angles(p, 0);
    return 0;
}
