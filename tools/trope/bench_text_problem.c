/* The problem of a case whose call is given as text: its sizes, the places of its arrays in memory, and what they contain. */
#include <math.h>
#include <string.h>

#include "bench_problem.h"
#include "command.h"
#include "random_bits.h"
#include "value.h"

/* Arrays of several operands lie one after the other, at multiples of this. */
#define ARRAY_ALIGN 256

static int64_t aligned(int64_t bytes)
{
    return (bytes + ARRAY_ALIGN - 1) / ARRAY_ALIGN * ARRAY_ALIGN;
}

/* ---- the case that describes the call ---- */

static bench_angles angles_of(const bench_text *t)
{
    const trope_args *a = &t->args;
    if (!a->freqs && !a->cos)
        return a->phase_step ? BENCH_PHASE_STEP : BENCH_INV_FREQ;
    if (a->freqs)
        return a->angle_columns == TROPE_COLUMNS_PAIR ? BENCH_FREQS_HALF : BENCH_FREQS_FULL;
    return a->angle_columns == TROPE_COLUMNS_PAIR ? BENCH_TABLE_HALF : BENCH_TABLE_FULL;
}

static bench_positions positions_of(const bench_text *t)
{
    if (t->args.start_positions)
        return BENCH_STARTS;
    if (!t->args.position_ids)
        return BENCH_INDEX;
    return t->args.position_axes > 1 ? BENCH_IDS_SECTIONS : BENCH_IDS_DISTINCT;
}

static bench_source source_of(const bench_text *t)
{
    const trope_args *a = &t->args;
    return (bench_source){.angles = angles_of(t),
                          .positions = positions_of(t),
                          .lengths = a->cu_seqlens ? BENCH_SEQS_GIVEN : BENCH_DENSE,
                          .index_dtype = a->cu_seqlens ? a->cu_seqlens_dtype : a->position_dtype,
                          .padded = a->cu_seqlens_padded != NULL,
                          .cp_size = a->cp_size > 1 ? a->cp_size : 0,
                          .cp_layout = a->cp_layout};
}

static int32_t heads_of(const bench_text *t, int operand)
{
    const trope_operand *o = &t->operands[operand];
    return operand < t->args.operand_count ? (o->groups ? o->groups : 1) * o->heads_per_group : 0;
}

/* Fills in the properties of the call that the report and the goals read. */
static void describe(const bench_text *t, bench_case *c)
{
    c->form = t->args.operand_count > 1 ? BENCH_Q_AND_K : BENCH_PLAIN;
    c->layout = t->operands[0].src_layout;
    c->batch = (int32_t)t->args.batch;
    c->heads = heads_of(t, 0);
    c->groups = heads_of(t, 1);
    c->head_dim = t->operands[0].head_dim;
    c->pairing = t->args.pairing;
    c->rounding = t->args.rounding;
    c->backward = t->backward;
    c->in_place = 1;
    c->angle_gradient = t->args.d_freqs || t->args.d_inv_freq;
    c->source = source_of(t);
    for (int i = 0; i < t->args.operand_count; i++) {
        const trope_operand *o = &t->operands[i];
        c->rotary_dim = o->rotary_dim > c->rotary_dim ? o->rotary_dim : c->rotary_dim;
        c->in_place &= bench_text_is_in_place(t, i);
        c->accumulate |= o->accumulate;
        if (t->has_norm[i]) {
            c->norm = t->norm[i].order;
            c->norm_token = t->norm[i].scope == TROPE_NORM_TOKEN;
        }
    }
}

/* ---- sizes ---- */

static void grow(bench_problem *p, int area, int64_t bytes)
{
    if ((size_t)bytes > p->size[area])
        p->size[area] = (size_t)bytes;
}

static void set_norm_sizes(bench_problem *p)
{
    const bench_text *t = &p->text;
    const int64_t real = value_size(bench_weight_gradient_dtype(p));
    int64_t weights = 0, gradients = 0, rstds = 0, sums = 0;
    for (int i = 0; i < t->args.operand_count; i++) {
        if (!t->has_norm[i])
            continue;
        weights += t->norm[i].weight ? aligned(bench_text_weights(t, i) * value_size(t->norm[i].weight_dtype)) : 0;
        gradients += t->norm[i].d_weight ? aligned(bench_text_weights(t, i) * real) : 0;
        rstds += t->norm[i].rstd ? aligned(bench_text_rstds(t, i) * real) : 0;
        sums += t->norm[i].token_sums ? aligned(bench_text_sums(t, i) * real) : 0;
    }
    grow(p, AREA_WEIGHT, weights);
    grow(p, AREA_D_WEIGHT, gradients);
    grow(p, AREA_RSTD, rstds);
    grow(p, AREA_SUMS, sums);
}

/* complex64 is a table of cos and sin with a column stride of 2, and sin begins one element after cos. */
static int is_complex(const bench_text *t)
{
    return t->args.sin && t->args.angle_layout == TROPE_TABLE_STRIDED && t->args.angle_stride[3] == 2;
}

static void set_text_sizes(bench_problem *p)
{
    const bench_text *t = &p->text;
    const trope_args *a = &t->args;
    const int64_t real = value_size(bench_weight_gradient_dtype(p)), index = bench_index_dtype(p->c) == TROPE_I64 ? 8 : 4;
    for (int i = 0; i < a->operand_count; i++)
        for (int role = 0; role < BENCH_TEXT_ROLES; role++)
            if (t->place[i][role].area >= 0)
                grow(p, AREA_TENSORS + t->place[i][role].area,
                     t->place[i][role].offset + bench_text_tensor(t, i, role).elements * value_size(p->dtype));
    if (p->cols) {
        const int64_t bytes =
            (bench_text_table(t, a->angle_layout, a->angle_stride).elements + is_complex(t)) * value_size(a->angle_dtype);
        grow(p, AREA_COS, bytes);
        grow(p, AREA_SIN, a->sin && !is_complex(t) ? bytes : 0);
    }
    grow(p, AREA_INDICES,
         a->position_ids      ? bench_text_ids(t).elements * (a->position_dtype == TROPE_I64 ? 8 : 4)
         : a->start_positions ? bench_index_count(p) * 8
                              : 0);
    grow(p, AREA_CU_SEQLENS, a->cu_seqlens ? (p->sequences + 1) * index : 0);
    grow(p, AREA_CU_SEQLENS_PADDED, a->cu_seqlens_padded ? (p->sequences + 1) * index : 0);
    grow(p, AREA_D_ANGLES,
         a->d_inv_freq ? (int64_t)sizeof p->inv_freq
         : a->d_freqs  ? bench_text_table(t, a->d_freqs_layout, a->d_freqs_stride).elements * real
                       : 0);
    grow(p, AREA_STATUS, a->status ? 4 : 0);
    set_norm_sizes(p);
    grow(p, AREA_SRC, (int64_t)ceil(p->moved / 2)); /* for the copies */
    grow(p, AREA_DST, (int64_t)ceil(p->moved / 2));
}

/* ---- bytes ---- */

/* The elements that a call reads and writes for an operand. In place and without a norm, only the window moves. */
static double elements_moved(const bench_text *t, int i)
{
    const trope_operand *o = &t->operands[i];
    const double src = bench_text_tensor(t, i, 0).distinct;
    const double forward = o->forward_src_layout ? bench_text_tensor(t, i, 2).distinct : 0;
    if (t->place[i][1].area < 0)
        return src + forward;
    if (bench_text_is_in_place(t, i) && !t->has_norm[i])
        return o->rotary_dim > 0 ? 2 * src * o->rotary_dim / o->head_dim : 0;
    return src + forward + bench_text_tensor(t, i, 1).distinct * (1 + o->accumulate);
}

static double text_bytes(const bench_problem *p)
{
    const bench_text *t = &p->text;
    const trope_args *a = &t->args;
    const double rows = (double)(a->angle_rows < p->tokens ? a->angle_rows : p->tokens);
    double bytes = 0;
    for (int i = 0; i < a->operand_count; i++)
        bytes += elements_moved(t, i) * value_size(p->dtype);
    if (p->cols)
        bytes += bench_text_table(t, a->angle_layout, a->angle_stride).distinct / (double)a->angle_rows * rows *
                 value_size(a->angle_dtype) * (a->sin ? 2 : 1);
    return bytes;
}

int bench_plan_text(bench_problem *p, const bench_case *c, int32_t dtype, const bench_sizes *sizes)
{
    bench_text *t = &p->text;
    if (bench_read_text(c->name, c->call, t))
        return RESULT_REFUSED;
    p->described = *c;
    describe(t, &p->described);
    p->c = &p->described;
    p->dtype = dtype;
    if (p->dtype != t->args.dtype)
        return complain("%s: its call has another dtype", c->name);
    p->cols = t->args.freqs || t->args.cos ? bench_text_columns(t) : 0;
    p->tokens = t->args.tokens;
    p->moved = text_bytes(p);
    if (sizes->most > 0 && p->moved > sizes->most && !t->args.cu_seqlens) {
        p->tokens = (int64_t)((double)p->tokens * sizes->most / p->moved / 64) * 64;
        p->tokens = t->args.tokens = p->tokens ? p->tokens : 64 < t->args.tokens ? 64 : t->args.tokens;
        p->moved = text_bytes(p);
    }
    p->sequences = t->args.sequences;
    p->longest = p->tokens;
    set_text_sizes(p);
    return 0;
}

/* ---- the call ---- */

static void *array(void *const *area, int which, int64_t *used, int64_t bytes)
{
    void *at = (char *)area[which] + *used;
    *used += aligned(bytes);
    return at;
}

static void bind_text_norms(const bench_problem *p, void *const *area, bench_call *call)
{
    const bench_text *t = &p->text;
    const int64_t real = value_size(bench_weight_gradient_dtype(p));
    int64_t weights = 0, gradients = 0, rstds = 0, sums = 0;
    for (int i = 0; i < t->args.operand_count; i++) {
        if (!t->has_norm[i])
            continue;
        trope_norm *n = &call->norm[i];
        *n = t->norm[i];
        if (n->weight)
            n->weight = array(area, AREA_WEIGHT, &weights, bench_text_weights(t, i) * value_size(n->weight_dtype));
        if (n->d_weight)
            n->d_weight = array(area, AREA_D_WEIGHT, &gradients, bench_text_weights(t, i) * real);
        if (n->rstd)
            n->rstd = array(area, AREA_RSTD, &rstds, bench_text_rstds(t, i) * real);
        if (n->token_sums)
            n->token_sums = array(area, AREA_SUMS, &sums, bench_text_sums(t, i) * real);
        call->norms[i] = n;
        call->args.norms = call->norms;
    }
}

static void *in_area(void *const *area, const bench_place *place)
{
    return place->area < 0 ? NULL : (char *)area[AREA_TENSORS + place->area] + place->offset;
}

static void bind_text_arrays(const bench_problem *p, void *const *area, trope_args *a)
{
    const trope_args *given = &p->text.args;
    a->pair_axis = given->pair_axis ? p->text.pair_axis : NULL;
    a->inv_freq = given->inv_freq ? p->inv_freq : NULL;
    a->phase_step = given->phase_step ? p->phase_step : NULL;
    a->freqs = given->freqs ? area[AREA_COS] : NULL;
    a->cos = given->cos ? area[AREA_COS] : NULL;
    a->sin = !given->sin            ? NULL
             : is_complex(&p->text) ? (char *)area[AREA_COS] + value_size(given->angle_dtype)
                                    : area[AREA_SIN];
    a->position_ids = given->position_ids ? area[AREA_INDICES] : NULL;
    a->start_positions = given->start_positions ? area[AREA_INDICES] : NULL;
    a->cu_seqlens = given->cu_seqlens ? area[AREA_CU_SEQLENS] : NULL;
    a->cu_seqlens_padded = given->cu_seqlens_padded ? area[AREA_CU_SEQLENS_PADDED] : NULL;
    a->status = given->status ? area[AREA_STATUS] : NULL;
    a->d_freqs = given->d_freqs ? area[AREA_D_ANGLES] : NULL;
    a->d_inv_freq = given->d_inv_freq ? area[AREA_D_ANGLES] : NULL;
    if (p->c->backward && bench_reads_forward(p->c)) {
        a->workspace = area[AREA_WORKSPACE];
        a->workspace_size = p->size[AREA_WORKSPACE];
    }
}

void bench_bind_text(const bench_problem *p, void *const *area, bench_call *call)
{
    const bench_text *t = &p->text;
    memset(call, 0, sizeof *call);
    call->args = t->args;
    call->args.struct_size = sizeof call->args;
    call->args.operands = call->operands;
    call->args.operand_size = sizeof call->operands[0];
    memcpy(call->operands, t->operands, sizeof call->operands);
    for (int i = 0; i < t->args.operand_count; i++) {
        call->operands[i].src = in_area(area, &t->place[i][0]);
        call->operands[i].dst = in_area(area, &t->place[i][1]);
        call->operands[i].forward_src = in_area(area, &t->place[i][2]);
    }
    bind_text_arrays(p, area, &call->args);
    bind_text_norms(p, area, call);
}

/* ---- the contents of the memory ---- */

/* Fills a table, whatever its strides: entry i of a row of `step` entries gets the angle of that row and pair. */
static void fill_text_table(const bench_problem *p, void *const *area)
{
    const trope_args *a = &p->text.args;
    const int64_t size = value_size(a->angle_dtype), count = (int64_t)p->size[AREA_COS] / size;
    const int64_t width = is_complex(&p->text) ? 2 : 1, step = p->cols * width, pairs = bench_text_pairs(&p->text);
    for (int64_t i = 0; i < count; i++) {
        const double angle = (double)(i / step % a->angle_rows) * p->inv_freq[i % step / width % pairs];
        const int is_sine = width == 2 && i % 2;
        value_store(a->angle_dtype, area[AREA_COS], i, a->freqs ? angle : is_sine ? sin(angle) : cos(angle));
        if (p->size[AREA_SIN])
            value_store(a->angle_dtype, area[AREA_SIN], i, sin(angle));
    }
}

/* Ids of several axes are frames of 16 x 16 patches. */
static void fill_text_ids(const bench_problem *p, void *ids)
{
    const trope_args *a = &p->text.args;
    const int64_t size = a->position_dtype == TROPE_I64 ? 8 : 4, count = (int64_t)p->size[AREA_INDICES] / size;
    const int64_t limit = p->cols ? a->angle_rows : INT32_MAX;
    for (int64_t i = 0; i < count; i++) {
        const int64_t token = i % p->tokens, axis = i / p->tokens / a->batch;
        const int64_t id = a->position_axes <= 1 ? token
                           : axis == 0           ? token / 256
                           : axis == 1           ? token / 16 % 16
                                                 : token % 16;
        if (size == 8)
            ((int64_t *)ids)[i] = id % limit;
        else
            ((int32_t *)ids)[i] = (int32_t)(id % limit);
    }
}

/* Fills f32 or f64 values from 1/2 to 3/2: rstd and sums that are read. */
static void fill_positive(const bench_problem *p, void *to, size_t bytes)
{
    const int32_t type = bench_weight_gradient_dtype(p);
    for (int64_t i = 0; i < (int64_t)(bytes / (size_t)value_size(type)); i++)
        value_store(type, to, i, 0.5 + (double)(random_bits(5, (uint64_t)i) >> 40) * 0x1p-24);
}

void bench_fill_text(const bench_problem *p, void *const *area)
{
    const bench_text *t = &p->text;
    if (p->cols)
        fill_text_table(p, area);
    if (t->args.position_ids)
        fill_text_ids(p, area[AREA_INDICES]);
    else
        bench_write_indices(p, area);
    fill_positive(p, area[AREA_RSTD], p->size[AREA_RSTD]);
    fill_positive(p, area[AREA_SUMS], p->size[AREA_SUMS]);
    memset(area[AREA_STATUS], 0, p->size[AREA_STATUS]);
}
