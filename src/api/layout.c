/* Expands layouts to strides. After validation, the library uses only strides. */
#include <string.h>

#include "api/args.h"
#include "core/pairs.h"

/* The dimensions of each layout, from the second innermost outwards. The innermost dimension is always the element. */
static const int orders[][3] = {
    [TROPE_SBHD] = {TROPE_DIM_HEAD, TROPE_DIM_BATCH, TROPE_DIM_TOKEN},
    [TROPE_BSHD] = {TROPE_DIM_HEAD, TROPE_DIM_TOKEN, TROPE_DIM_BATCH},
    [TROPE_BHSD] = {TROPE_DIM_TOKEN, TROPE_DIM_HEAD, TROPE_DIM_BATCH},
    [TROPE_THD] = {TROPE_DIM_HEAD, TROPE_DIM_TOKEN, TROPE_DIM_BATCH},
};

int trope_contiguous_strides(int64_t *stride, int32_t layout, const int64_t shape[3], int64_t head_dim)
{
    const int64_t size[] = {[TROPE_DIM_BATCH] = shape[0], [TROPE_DIM_TOKEN] = shape[1], [TROPE_DIM_HEAD] = shape[2]};
    int64_t step = head_dim;
    stride[TROPE_DIM_ELEMENT] = 1;
    for (int i = 0; i < 3; i++) {
        const int d = orders[layout][i];
        stride[d] = step;
        if (__builtin_mul_overflow(step, size[d] > 1 ? size[d] : 1, &step))
            return 0;
    }
    return !__builtin_mul_overflow(shape[2], stride[TROPE_DIM_HEAD], &stride[TROPE_DIM_GROUP]);
}

trope_tensor trope_tensor_of(const trope_args *args, int operand, trope_tensor_role role, int backward)
{
    const trope_operand *o = &args->operands[operand];
    const int shares_heads = backward ? role != TROPE_TENSOR_SRC : role == TROPE_TENSOR_SRC;
    const int32_t shared_heads = shares_heads ? o->shared_heads : TROPE_SHARED_NONE;
    trope_tensor t = {.size = {args->batch, args->tokens, shared_heads == TROPE_SHARED_ALL ? 1 : o->groups,
                               shared_heads ? 1 : o->heads_per_group, o->head_dim}};
    const void *const bases[] = {o->src, o->dst, o->forward_src};
    const int64_t *const strides[] = {o->src_stride, o->dst_stride, o->forward_src_stride};
    static const char *const names[] = {"src", "dst", "forward_src"};
    t.name = names[role];
    t.base = bases[role];
    t.layout = role == TROPE_TENSOR_SRC ? o->src_layout : role == TROPE_TENSOR_DST ? o->dst_layout : o->forward_src_layout;
    t.stride = (int64_t *)(uintptr_t)strides[role];
    return t;
}

int trope_operand_is_in_place(const trope_args *args, int operand, int backward)
{
    const trope_tensor src = trope_tensor_of(args, operand, TROPE_TENSOR_SRC, backward),
                       dst = trope_tensor_of(args, operand, TROPE_TENSOR_DST, backward);
    for (int d = 0; d < TROPE_MAX_DIMS; d++)
        if (src.size[d] != dst.size[d] || (src.size[d] > 1 && src.stride[d] != dst.stride[d]))
            return 0;
    return src.base == dst.base;
}

static void expand_tensor(const trope_tensor *t)
{
    if (t->layout == TROPE_STRIDED || !t->base)
        return;
    const int64_t heads = t->size[TROPE_DIM_GROUP] * t->size[TROPE_DIM_HEAD];
    trope_contiguous_strides(t->stride, t->layout, (const int64_t[]){t->size[0], t->size[1], heads},
                             t->size[TROPE_DIM_ELEMENT]);
    t->stride[TROPE_DIM_GROUP] = t->size[TROPE_DIM_HEAD] * t->stride[TROPE_DIM_HEAD];
}

static void expand_table(const trope_args *a, int32_t layout, int64_t *stride)
{
    const int64_t columns = trope_count_columns(a);
    const int64_t plane = a->angle_rows * columns;
    if (layout == TROPE_TABLE_STRIDED)
        return;
    stride[0] = layout == TROPE_TABLE_AXES_BATCH_ROWS ? a->batch * plane : 0;
    stride[1] = layout == TROPE_TABLE_ROWS ? 0 : plane;
    stride[2] = columns;
    stride[3] = 1;
}

void trope_expand_ids(trope_args *a)
{
    if (!a->position_ids || a->ids_layout == TROPE_IDS_STRIDED)
        return;
    a->ids_stride[0] = a->ids_layout == TROPE_IDS_AXES_BATCH_TOKENS ? a->batch * a->tokens : 0;
    a->ids_stride[1] = a->ids_layout == TROPE_IDS_TOKENS ? 0 : a->tokens;
    a->ids_stride[2] = 1;
}

void trope_expand_layouts(trope_call *call, int backward)
{
    trope_args *a = &call->args;
    for (int i = 0; i < a->operand_count; i++) {
        for (int role = TROPE_TENSOR_SRC; role <= TROPE_TENSOR_FORWARD_SRC; role++) {
            const trope_tensor t = trope_tensor_of(a, i, (trope_tensor_role)role, backward);
            expand_tensor(&t);
        }
    }
    if (trope_has_table(a))
        expand_table(a, a->angle_layout, a->angle_stride);
    if (a->d_freqs)
        expand_table(a, a->d_freqs_layout, a->d_freqs_stride);
    trope_expand_ids(a);
}

int32_t trope_widest_pairs(const trope_args *a)
{
    int32_t widest = 0;
    for (int i = 0; i < a->operand_count; i++)
        widest = a->operands[i].rotary_dim / 2 > widest ? a->operands[i].rotary_dim / 2 : widest;
    return widest;
}

int64_t trope_count_columns(const trope_args *a)
{
    return trope_widest_pairs(a) * (a->angle_columns == TROPE_COLUMNS_PAIR ? 1 : 2);
}

int32_t trope_specified_axis(const trope_args *a, int32_t pairs, int32_t pair)
{
    return a->pair_axis ? a->pair_axis[pair] : pair / (pairs / a->parts);
}

int32_t trope_count_axes(const trope_args *a)
{
    const int32_t pairs = trope_widest_pairs(a);
    int32_t most = a->pair_axis ? 1 : a->parts;
    for (int32_t pair = 0; a->pair_axis && pair < pairs; pair++)
        most = a->pair_axis[pair] >= most ? a->pair_axis[pair] + 1 : most;
    return most;
}

int32_t trope_count_planes(const trope_args *a)
{
    const int32_t used = trope_count_axes(a);
    return a->position_axes > used ? a->position_axes : used;
}
