/* The bits of the results do not depend on where elements are in memory. The test varies layout, strides and alignment of
 * tensors, tables and ids, and runs calls in place and out of place.
 *
 *     parity_memory [--seed S] [--count N] */
#include <stdlib.h>
#include <string.h>

#include "parity/parity.h"
#include "support/number.h"
#include "support/reference.h"
#include "support/seeds.h"
#include "support/tensor.h"

/* A call, and the memory of its own tensors. */
typedef struct own_call {
    call k;
    char *memory[2 * TROPE_MAX_OPERANDS];
} own_call;

/* Returns whether an operand may be in place. Shared heads, accumulation and a missing dst prevent it. */
static int may_be_in_place(const trope_operand *o)
{
    return o->dst && !o->shared_heads && !o->accumulate;
}

static void copy_elements(const trope_args *args, const tensor *from, const tensor *to)
{
    const int64_t size = (int64_t)number_size(args->dtype);
    for (int64_t i = 0; i < tensor_count(from); i++)
        memcpy((char *)(uintptr_t)to->base + tensor_offset(to, i) * size,
               (const char *)from->base + tensor_offset(from, i) * size, (size_t)size);
}

/* Changes an operand to a contiguous layout with random alignment, in place or with separate src and dst. */
static void make_contiguous(own_call *own, int i, int backward, random_state *random, int in_place)
{
    const int64_t element = (int64_t)number_size(own->k.args.dtype);
    const int32_t last = own->k.args.batch == 1 ? TROPE_THD : TROPE_BHSD;
    const trope_args *args = call_args(&own->k);
    const tensor src = tensor_of(args, i, TENSOR_SRC, backward), dst = tensor_of(args, i, TENSOR_DST, backward);
    trope_operand *o = &own->k.operands[i];
    char *place[2];
    for (int j = 0; j < 2; j++) {
        own->memory[2 * i + j] = malloc((size_t)((tensor_count(j ? &dst : &src) + 64) * element));
        place[j] = own->memory[2 * i + j] + random_between(random, 0, 63) * element;
    }
    memset(o->src_stride, 0, sizeof o->src_stride);
    memset(o->dst_stride, 0, sizeof o->dst_stride);
    o->src_layout = (int32_t)random_between(random, TROPE_SBHD, last);
    o->src = place[0];
    if (o->dst) {
        o->dst_layout = in_place ? o->src_layout : (int32_t)random_between(random, TROPE_SBHD, last);
        o->dst = place[!in_place];
    }
    const tensor to = tensor_of(args, i, TENSOR_SRC, backward), onto = tensor_of(args, i, TENSOR_DST, backward);
    if (o->accumulate)
        copy_elements(args, &dst, &onto);
    copy_elements(args, &src, &to);
}

static void check_contiguous(config *c, int backward)
{
    random_state random = {c->seed};
    call k = config_call(c, backward);
    for (int in_place = 0; in_place < 2; in_place++) {
        own_call own = {.k = config_call(c, backward)};
        config_reset(c);
        for (int i = 0; i < k.args.operand_count; i++)
            make_contiguous(&own, i, backward, &random, in_place && may_be_in_place(&k.operands[i]));
        run_call(call_args(&k), backward);
        unsigned char *here = snapshot(c);
        run_call(call_args(&own.k), backward); /* writes status, rstd, sums and d_weight to the same memory */
        check_parity(c, same_elements(&k.args, &own.k.args, backward) && is_snapshot(c, here),
                     in_place ? "parity_memory, contiguous in place" : "parity_memory, contiguous");
        free(here);
        for (int i = 0; i < 2 * k.args.operand_count; i++)
            free(own.memory[i]);
    }
}

/* ---- The table and the ids ---- */

/* Returns the table as [axes, batch, rows, columns]. The caller frees it. */
static char *expand_table(const trope_args *args, const void *table)
{
    const int64_t columns = reference_columns(args);
    const int64_t rows = args->angle_rows, count = reference_axes(args) * args->batch * rows * columns;
    const size_t size = number_size(args->angle_dtype);
    int64_t stride[4];
    if (!table)
        return NULL;
    char *expanded = malloc((size_t)count * size);
    tensor_table_strides(args, args->angle_layout, args->angle_stride, columns, stride);
    for (int64_t i = 0; i < count; i++) {
        const int64_t row = i / columns, batch = row / rows, axis = batch / args->batch;
        const int64_t offset = axis * stride[0] + batch % args->batch * stride[1] + row % rows * stride[2];
        memcpy(expanded + (size_t)i * size, (const char *)table + (offset + i % columns * stride[3]) * (int64_t)size, size);
    }
    return expanded;
}

/* Returns the ids as [axes, batch, tokens]. The caller frees them. */
static char *expand_ids(const trope_args *args)
{
    const int64_t axes = args->position_axes ? args->position_axes : 1, count = axes * args->batch * args->tokens;
    const size_t size = args->position_dtype == TROPE_I64 ? 8 : 4;
    int64_t stride[3];
    if (!args->position_ids)
        return NULL;
    char *expanded = malloc((size_t)count * size);
    tensor_ids_strides(args, stride);
    for (int64_t i = 0; i < count; i++) {
        const int64_t row = i / args->tokens;
        const int64_t offset = row / args->batch * stride[0] + row % args->batch * stride[1] + i % args->tokens * stride[2];
        memcpy(expanded + (size_t)i * size, (const char *)args->position_ids + offset * (int64_t)size, size);
    }
    return expanded;
}

/* Replaces the table and the ids by contiguous copies that have entries for every axis and batch entry. */
static void check_expanded(config *c, int backward)
{
    call k = config_call(c, backward), other = k;
    trope_args *a = call_args(&other);
    char *freqs = expand_table(a, a->freqs), *cos = expand_table(a, a->cos), *sin = expand_table(a, a->sin);
    char *ids = expand_ids(a);
    if (freqs || cos) {
        a->freqs = freqs;
        a->cos = cos;
        a->sin = sin;
        a->angle_layout = a->pair_axis || a->parts > 1 ? TROPE_TABLE_AXES_BATCH_ROWS : TROPE_TABLE_BATCH_ROWS;
        memset(a->angle_stride, 0, sizeof a->angle_stride);
    }
    if (ids) {
        a->position_ids = ids;
        a->ids_layout = a->position_axes > 1 ? TROPE_IDS_AXES_BATCH_TOKENS : TROPE_IDS_BATCH_TOKENS;
        memset(a->ids_stride, 0, sizeof a->ids_stride);
    }
    check_parity(c, same_bytes(c, &other, &k, backward), "parity_memory, expanded table and ids");
    free(freqs);
    free(cos);
    free(sin);
    free(ids);
}

/* ---- The same call in other memory ---- */

/* Runs the call with all buffers at other addresses. */
static void check_moved(config *c, int backward)
{
    unsigned char *memory[CONFIG_MAX_BUFFERS], *bases[CONFIG_MAX_BUFFERS];
    random_state random = {c->seed};
    config_reset(c);
    call k = config_call(c, backward), moved = k;
    for (int i = 0; i < c->buffer_count; i++) {
        memory[i] = malloc(c->buffers[i].size + 64);
        bases[i] = memory[i] + 16 * random_between(&random, 0, 3); /* the workspace must be aligned to 16 bytes */
        memcpy(bases[i], c->buffers[i].bytes, c->buffers[i].size);
    }
    config_rebase(c, &moved, bases);
    run_call(call_args(&moved), backward);
    run_call(call_args(&k), backward);
    unsigned char *here = snapshot(c);
    for (int i = 0; i < c->buffer_count; i++) {
        memcpy(c->buffers[i].bytes, bases[i], c->buffers[i].size);
        free(memory[i]);
    }
    check_parity(c, is_snapshot(c, here), "parity_memory, buffers at other addresses");
    free(here);
}

/* Runs the call in place, with the layout of the source. */
static void check_in_place(config *c, int backward)
{
    config_reset(c);
    call k = config_call(c, backward), in_place = k;
    run_call(call_args(&k), backward);
    for (int i = 0; i < k.args.operand_count; i++) {
        trope_operand *o = &in_place.operands[i];
        if (!may_be_in_place(o))
            return;
        o->dst = (void *)(uintptr_t)o->src;
        o->dst_layout = o->src_layout;
        memcpy(o->dst_stride, o->src_stride, sizeof o->dst_stride);
    }
    run_call(call_args(&in_place), backward);
    check_parity(c, same_elements(&k.args, &in_place.args, backward), "parity_memory, in place");
}

static void check(config *c, int backward)
{
    check_moved(c, backward);
    check_contiguous(c, backward);
    check_expanded(c, backward);
    if (c->choices.value[OPTION_PLACE] == PLACE_OUT && c->choices.value[OPTION_SOURCE] != SOURCE_BROADCAST)
        check_in_place(c, backward);
}

int main(int argc, char **argv)
{
    const seed_range seeds = parse_seeds(argc, argv, 2000);
    for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; seed++) {
        const uint8_t fixed[][2] = {{OPTION_GRADIENT, GRADIENT_NONE},
                                    {OPTION_D_WEIGHT, seed % 8 < 2 ? D_WEIGHT_TOO : D_WEIGHT_NONE}};
        run_directions(seed, fixed, 2, 1, check);
    }
    return check_result();
}
