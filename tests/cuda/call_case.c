#include "cuda/call_case.h"

#include <math.h>

#include "support/number.h"
#include "support/tensor.h"

enum { ALIGNMENT = 256, TOKENS_OF_NONE = 4 };

/* ---- sizes ---- */

static int operand_count(const call_case *k)
{
    int count = 0;
    while (count < CASE_OPERANDS && k->operands[count].heads)
        count++;
    return count;
}

static int64_t batch_of(const call_case *k)
{
    return k->batch ? k->batch : 1;
}

static int64_t step_of(const call_case *k)
{
    return k->step ? k->step : 1;
}

static int64_t pairs_of(const call_case *k)
{
    int64_t most = 0;
    for (int i = 0; i < operand_count(k); i++)
        if (k->operands[i].rotary_dim / 2 > most)
            most = k->operands[i].rotary_dim / 2;
    return most;
}

static int64_t columns_of(const call_case *k)
{
    return k->columns && k->columns != TROPE_COLUMNS_PAIR ? 2 * pairs_of(k) : pairs_of(k);
}

static int64_t row_stride_of(const call_case *k)
{
    return k->row_stride ? k->row_stride : columns_of(k);
}

static int64_t angle_count(const call_case *k)
{
    return (k->per_batch ? batch_of(k) : 1) * k->rows * row_stride_of(k);
}

static size_t tensor_bytes(const call_case *k, int operand)
{
    const case_operand *const o = &k->operands[operand];
    const int64_t tokens = batch_of(k) * (k->tokens ? k->tokens : TOKENS_OF_NONE), of_token = o->heads * o->head_dim;
    const int64_t distance = k->token_step ? k->token_step : of_token;
    return (size_t)(k->first + step_of(k) * ((tokens - 1) * distance + of_token)) * number_size(k->dtype);
}

int case_is_backward(const call_case *k)
{
    return k->backward || k->gradient;
}

/* ---- the layout of a block ---- */

case_region case_take(size_t *end, size_t bytes)
{
    const case_region region = {*end, bytes};
    if (bytes)
        *end += (bytes + 2 * ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return region;
}

static size_t region_bytes(const call_case *k, int region)
{
    const size_t index = k->cu_dtype == TROPE_I64 ? sizeof(int64_t) : sizeof(int32_t);
    const size_t id = k->ids_dtype == TROPE_I64 ? sizeof(int64_t) : sizeof(int32_t);
    switch (region) {
    case REGION_CU_SEQLENS:
    case REGION_PADDED:
        return k->cu_dtype ? (size_t)(k->sequences + 1) * index : 0;
    case REGION_IDS:
        return k->ids_dtype ? (size_t)(batch_of(k) * k->tokens) * id : 0;
    case REGION_STARTS:
        return k->starts_dtype ? (size_t)k->sequences * sizeof(int32_t) : 0;
    case REGION_WEIGHTS:
        return k->weight_bytes;
    case REGION_RSTD:
        return k->rstd_bytes;
    case REGION_SINES:
        return k->angles == TABLES ? (size_t)angle_count(k) * sizeof(float) : 0;
    case REGION_TABLE:
        return k->angles != INV_FREQ ? (size_t)angle_count(k) * sizeof(float) : 0;
    case REGION_SUMS:
        if (k->gradient && k->angles == INV_FREQ)
            return (size_t)pairs_of(k) * sizeof(double);
        return k->gradient ? (size_t)angle_count(k) * (k->dtype == TROPE_F64 ? sizeof(double) : sizeof(float)) : 0;
    default:
        return sizeof(int32_t); /* the status word */
    }
}

case_map case_plan(const call_case *k)
{
    case_map m = {.end = ALIGNMENT};
    const int operands = operand_count(k);
    for (int region = 0; region < REGION_FORWARD_SRC; region++)
        m.regions[region] = case_take(&m.end, region_bytes(k, region));
    for (int i = 0; i < operands; i++)
        m.regions[REGION_FORWARD_SRC + i] = case_take(&m.end, k->gradient || k->forward_src ? tensor_bytes(k, i) : 0);
    for (int i = 0; i < operands; i++)
        m.regions[REGION_SRC + i] = case_take(&m.end, tensor_bytes(k, i));
    for (int i = 0; i < operands; i++) {
        const case_region src = m.regions[REGION_SRC + i];
        m.regions[REGION_DST + i] = k->in_place ? src : case_take(&m.end, k->gradient == GRADIENT_ALONE ? 0 : src.bytes);
    }
    for (int region = REGION_SUMS; region < REGIONS; region++)
        m.regions[region] = case_take(&m.end, region_bytes(k, region));
    for (int i = 0; i < TROPE_MAX_ROTARY_DIM / 2; i++)
        m.inv_freq[i] = k->gradient ? 0.1 + 0.005 * (i % 64) / 64 : pow(100, -(i % 64) / 64.0);
    return m;
}

/* ---- drawing the inputs ---- */

static unsigned char *place(const case_map *m, void *memory, int region)
{
    return (unsigned char *)memory + m->regions[region].at;
}

/* Draws each number from three random bits. The numbers repeat after PERIOD numbers. PERIOD is a prime number, so that a
 * test detects reads from a wrong address. */
static void draw_whole_numbers(int32_t dtype, unsigned char *to, size_t bytes, random_state *random)
{
    enum { NUMBERS = 8, OF_DRAW = 21, PERIOD = 1000003 };
    static const double numbers[NUMBERS] = {1, 2, 3, -1, -2, -3, 2, -3};
    const size_t size = number_size(dtype), drawn = bytes < PERIOD * size ? bytes : PERIOD * size;
    unsigned char elements[NUMBERS][8];
    for (int i = 0; i < NUMBERS; i++)
        number_store(dtype, elements[i], numbers[i]);
    for (size_t at = 0; at < drawn;) {
        uint64_t bits = random_bits(random);
        for (int i = 0; i < OF_DRAW && at < drawn; i++, at += size, bits >>= 3)
            memcpy(to + at, elements[bits % NUMBERS], size);
    }
    for (size_t at = drawn; at < bytes; at += drawn)
        memcpy(to + at, to, bytes - at < drawn ? bytes - at : drawn);
}

/* Draws the elements in the order of their indices, not of their addresses. */
static void draw_any_numbers(const tensor *t, int32_t dtype, random_state *random)
{
    const int64_t size = (int64_t)number_size(dtype);
    for (int64_t i = 0; i < tensor_count(t); i++)
        number_store(dtype, (char *)(uintptr_t)t->base + tensor_offset(t, i) * size, random_real(random));
}

static void draw_tensors(const call_case *k, const case_map *m, void *memory, random_state *random)
{
    call c = case_call(k, m, memory, TROPE_DEVICE_CPU);
    for (int i = 0; i < 2 * operand_count(k); i++) {
        const int is_src = i % 2 == 0, region = (is_src ? REGION_SRC : REGION_FORWARD_SRC) + i / 2;
        const size_t bytes = m->regions[region].bytes;
        const tensor t = tensor_of(call_args(&c), i / 2, is_src ? TENSOR_SRC : TENSOR_FORWARD_SRC, case_is_backward(k));
        if (k->any_numbers && t.base)
            draw_any_numbers(&t, k->dtype, random);
        else
            draw_whole_numbers(k->dtype, place(m, memory, region), bytes, random);
    }
}

/* If the call computes a gradient, sines and cosines are multiples of 1/4. */
static void draw_tables(const call_case *k, const case_map *m, void *memory, random_state *random)
{
    float *const table = (float *)(void *)place(m, memory, REGION_TABLE);
    float *const sines = (float *)(void *)place(m, memory, REGION_SINES);
    for (int64_t i = 0; i < angle_count(k); i++) {
        const double angle = 0.75 + 0.65 * random_real(random);
        const double quarters = (double)random_between(random, -4, 4) / 4,
                     others = (double)random_between(random, -4, 4) / 4;
        table[i] = (float)(k->angles == FREQS ? angle : k->gradient ? quarters : cos(angle));
        if (k->angles == TABLES)
            sines[i] = (float)(k->gradient ? others : sin(angle));
    }
}

void case_store_index(int32_t dtype, void *to, int64_t i, int64_t value)
{
    if (dtype == TROPE_I64)
        ((int64_t *)to)[i] = value;
    else
        ((int32_t *)to)[i] = (int32_t)value;
}

/* One sequence in four is empty, unless the later sequences cannot contain all remaining tokens. */
static void draw_boundaries(const call_case *k, void *to, random_state *random)
{
    const int64_t longest = k->longest ? k->longest : k->rows;
    const int64_t end = k->tokens - (k->gap ? random_between(random, 0, k->gap) : 0);
    int64_t at = k->gap ? random_between(random, 0, k->gap) : 0;
    case_store_index(k->cu_dtype, to, 0, at);
    for (int64_t i = 1; i <= k->sequences; i++) {
        const int64_t left = end - at, most = left < longest ? left : longest, others = longest * (k->sequences - i);
        const int64_t least = !k->gap && left > others ? left - others : 0;
        if (least || random_between(random, 0, 3))
            at += random_between(random, least, most);
        case_store_index(k->cu_dtype, to, i, at);
    }
}

void case_draw(const call_case *k, const case_map *m, void *memory, uint64_t seed)
{
    random_state random = {seed};
    draw_tensors(k, m, memory, &random);
    if (k->angles != INV_FREQ)
        draw_tables(k, m, memory, &random);
    if (k->cu_dtype)
        draw_boundaries(k, place(m, memory, REGION_CU_SEQLENS), &random);
    for (int64_t i = 0; k->ids_dtype && i < batch_of(k) * k->tokens; i++)
        case_store_index(k->ids_dtype, place(m, memory, REGION_IDS), i, random_between(&random, 0, k->rows - 1));
    for (int64_t i = 0; k->starts_dtype && i < k->sequences; i++)
        case_store_index(TROPE_I32, place(m, memory, REGION_STARTS), i, random_between(&random, 0, 1000000));
}

/* ---- the call ---- */

/* Applies the strides `token_step` and `step` of the case to a tensor. */
static void spread(const call_case *k, int32_t layout, int64_t stride[TROPE_MAX_DIMS])
{
    if (!layout) /* the operand does not have this tensor */
        return;
    if (k->token_step) {
        stride[TROPE_DIM_TOKEN] = k->token_step;
        stride[TROPE_DIM_BATCH] = k->token_step * k->tokens;
    }
    for (int d = 0; d < TROPE_MAX_DIMS; d++)
        stride[d] *= step_of(k);
}

static void spread_operands(const call_case *k, call *c)
{
    tensor_say_strides(call_args(c), c->operands, case_is_backward(k));
    for (int i = 0; i < c->args.operand_count; i++) {
        trope_operand *const o = &c->operands[i];
        spread(k, o->src_layout, o->src_stride);
        spread(k, o->dst_layout, o->dst_stride);
        spread(k, o->forward_src_layout, o->forward_src_stride);
    }
}

static void add_operand(const call_case *k, const case_map *m, void *memory, int i, call *c)
{
    const case_operand *from = &k->operands[i];
    const size_t first = (size_t)k->first * number_size(k->dtype);
    trope_operand *const o =
        call_add(c, place(m, memory, REGION_DST + i) + first, k->layout, from->heads, from->head_dim, from->rotary_dim);
    o->src = place(m, memory, REGION_SRC + i) + first;
    o->rotary_offset = from->rotary_offset;
    if (k->forward_src || (k->gradient && from->rotary_dim != TROPE_COPY)) {
        o->forward_src = place(m, memory, REGION_FORWARD_SRC + i) + first;
        o->forward_src_layout = k->layout;
    }
    if (k->gradient == GRADIENT_ALONE) {
        o->dst = NULL;
        o->dst_layout = 0;
    }
}

static void set_angles(const call_case *k, const case_map *m, void *memory, call *c)
{
    unsigned char *const table = place(m, memory, REGION_TABLE), *const sums = place(m, memory, REGION_SUMS);
    const int32_t columns = k->columns ? k->columns : TROPE_COLUMNS_PAIR;
    trope_args *const a = &c->args;
    if (k->angles == INV_FREQ) {
        a->inv_freq = m->inv_freq;
        a->d_inv_freq = k->gradient ? (double *)(void *)sums : NULL;
        return;
    }
    if (k->angles == TABLES)
        call_tables(c, table, place(m, memory, REGION_SINES), TROPE_F32, columns, k->rows);
    else
        call_freqs(c, table, columns, k->rows);
    a->out_of_range = k->out_of_range;
    a->angle_layout = k->row_stride ? TROPE_TABLE_STRIDED : k->per_batch ? TROPE_TABLE_BATCH_ROWS : TROPE_TABLE_ROWS;
    if (k->row_stride) {
        a->angle_stride[1] = k->per_batch ? k->rows * k->row_stride : 0;
        a->angle_stride[2] = k->row_stride;
        a->angle_stride[3] = 1;
    }
    if (!k->gradient)
        return;
    a->d_freqs = sums;
    a->d_freqs_layout = a->angle_layout;
    memcpy(a->d_freqs_stride, a->angle_stride, sizeof a->d_freqs_stride);
}

static void set_positions(const call_case *k, const case_map *m, void *memory, call *c)
{
    trope_args *const a = &c->args;
    if (k->cu_dtype) {
        call_cu_seqlens(c, place(m, memory, REGION_CU_SEQLENS), k->cu_dtype, k->sequences);
        a->padding = k->padding;
    }
    if (k->ids_dtype) {
        a->position_ids = place(m, memory, REGION_IDS);
        a->position_dtype = k->ids_dtype;
        a->ids_layout = TROPE_IDS_BATCH_TOKENS;
    }
    if (k->starts_dtype) {
        a->start_positions = place(m, memory, REGION_STARTS);
        a->position_dtype = k->starts_dtype;
    }
}

call case_call(const call_case *k, const case_map *m, void *memory, int32_t device)
{
    call c = call_make(k->dtype, batch_of(k), k->tokens);
    c.args.device = device;
    c.args.pairing = k->pairing ? k->pairing : TROPE_PAIRING_HALF;
    c.args.status = (int32_t *)(void *)place(m, memory, REGION_STATUS);
    for (int i = 0; i < operand_count(k); i++)
        add_operand(k, m, memory, i, &c);
    if (step_of(k) > 1 || k->token_step)
        spread_operands(k, &c);
    set_angles(k, m, memory, &c);
    set_positions(k, m, memory, &c);
    return c;
}

void case_reverse(int64_t tokens, size_t element, unsigned char **base, int64_t *stride)
{
    *base += (tokens - 1) * stride[TROPE_DIM_TOKEN] * (int64_t)element;
    stride[TROPE_DIM_TOKEN] *= -1;
}
