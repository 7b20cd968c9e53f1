/* The tensors of a call in memory: sizes, strides, and the offset of each element, for every layout. Elements are numbered
 * in the order [batch, tokens, groups, heads_per_group, head_dim]. */
#ifndef TESTS_SUPPORT_TENSOR_H
#define TESTS_SUPPORT_TENSOR_H

#include <stdint.h>
#include <string.h>

#include "trope/trope.h"

typedef enum tensor_role { TENSOR_SRC, TENSOR_DST, TENSOR_FORWARD_SRC } tensor_role;

/* Dimensions of shared heads have size 1. Dimensions of size 1 have stride 0. */
typedef struct tensor {
    const void *base;
    int64_t size[TROPE_MAX_DIMS], stride[TROPE_MAX_DIMS];
} tensor;

/* Whether the tensor of this role stores the shared heads of an operand as one head. This holds for x and dx. */
static inline int tensor_is_shared(tensor_role role, int backward)
{
    return backward ? role != TENSOR_SRC : role == TENSOR_SRC;
}

/* The strides of a contiguous tensor of these sizes, with groups outside heads. */
static inline void tensor_fill_strides(int32_t layout, const int64_t size[TROPE_MAX_DIMS], int64_t stride[TROPE_MAX_DIMS])
{
    static const int orders[][TROPE_MAX_DIMS] = {[TROPE_SBHD] = {1, 0, 2, 3, 4},
                                                 [TROPE_BSHD] = {0, 1, 2, 3, 4},
                                                 [TROPE_BHSD] = {0, 2, 3, 1, 4},
                                                 [TROPE_THD] = {0, 1, 2, 3, 4}};
    int64_t step = 1;
    for (int i = TROPE_MAX_DIMS - 1; i >= 0; i--) {
        stride[orders[layout][i]] = step;
        step *= size[orders[layout][i]];
    }
}

static inline tensor tensor_of(const trope_args *args, int operand, tensor_role role, int backward)
{
    const trope_operand *o = &args->operands[operand];
    const void *const bases[] = {o->src, o->dst, o->forward_src};
    const int32_t layout[] = {o->src_layout, o->dst_layout, o->forward_src_layout};
    const int64_t *const strides[] = {o->src_stride, o->dst_stride, o->forward_src_stride};
    const int is_shared = tensor_is_shared(role, backward);
    tensor t = {.base = bases[role], .size = {args->batch, args->tokens, o->groups ? o->groups : 1, o->heads_per_group}};
    t.size[TROPE_DIM_ELEMENT] = o->head_dim;
    if (is_shared && o->shared_heads)
        t.size[TROPE_DIM_HEAD] = 1;
    if (is_shared && o->shared_heads == TROPE_SHARED_ALL)
        t.size[TROPE_DIM_GROUP] = 1;
    if (layout[role] == TROPE_STRIDED)
        memcpy(t.stride, strides[role], sizeof t.stride);
    else if (layout[role])
        tensor_fill_strides(layout[role], t.size, t.stride);
    for (int d = 0; d < TROPE_MAX_DIMS; d++) /* even if another stride was specified */
        t.stride[d] = t.size[d] == 1 ? 0 : t.stride[d];
    return t;
}

static inline int64_t tensor_count(const tensor *t)
{
    return t->size[0] * t->size[1] * t->size[2] * t->size[3] * t->size[4];
}

/* The offset, in elements, of element `number`. */
static inline int64_t tensor_offset(const tensor *t, int64_t number)
{
    int64_t offset = 0;
    for (int d = TROPE_MAX_DIMS - 1; d >= 0; d--) {
        offset += number % t->size[d] * t->stride[d];
        number /= t->size[d];
    }
    return offset;
}

/* Specifies the same tensors by their strides, for tests that move along them. */
static inline void tensor_say_strides(const trope_args *args, trope_operand *operands, int backward)
{
    for (int i = 0; i < args->operand_count; i++) {
        trope_operand *o = &operands[i];
        int32_t *const layouts[] = {&o->src_layout, &o->dst_layout, &o->forward_src_layout};
        int64_t *const strides[] = {o->src_stride, o->dst_stride, o->forward_src_stride};
        for (int role = 0; role < 3; role++) {
            const tensor t = tensor_of(args, i, (tensor_role)role, backward);
            memcpy(strides[role], t.stride, sizeof t.stride);
            *layouts[role] = *layouts[role] ? TROPE_STRIDED : 0;
        }
    }
}

/* ---- Tables of angles, and ids ---- */

/* Element i of an array of int32 or int64. */
static inline int64_t tensor_index(const void *array, int32_t dtype, int64_t i)
{
    return dtype == TROPE_I64 ? ((const int64_t *)array)[i] : ((const int32_t *)array)[i];
}

/* The strides {axis, batch, row, column} of a table with any layout. */
static inline void tensor_table_strides(const trope_args *args, int32_t layout, const int64_t given[4], int64_t columns,
                                        int64_t stride[4])
{
    const int64_t plane = args->angle_rows * columns;
    memcpy(stride, (const int64_t[]){0, 0, columns, 1}, 4 * sizeof *stride);
    if (layout == TROPE_TABLE_STRIDED)
        memcpy(stride, given, 4 * sizeof *stride);
    if (layout == TROPE_TABLE_BATCH_ROWS || layout == TROPE_TABLE_AXES_BATCH_ROWS)
        stride[1] = plane;
    if (layout == TROPE_TABLE_AXES_BATCH_ROWS)
        stride[0] = plane * args->batch;
}

/* The strides {axis, batch, token} of position_ids. The axis stride is 0 if one axis is for all pairs. */
static inline void tensor_ids_strides(const trope_args *args, int64_t stride[3])
{
    memset(stride, 0, 3 * sizeof *stride);
    if (args->ids_layout == TROPE_IDS_STRIDED)
        memcpy(stride, args->ids_stride, 3 * sizeof *stride);
    else if (args->ids_layout)
        stride[2] = 1;
    if (args->ids_layout == TROPE_IDS_AXES_BATCH_TOKENS || args->ids_layout == TROPE_IDS_BATCH_TOKENS)
        stride[1] = args->tokens;
    if (args->ids_layout == TROPE_IDS_AXES_BATCH_TOKENS && args->position_axes > 1)
        stride[0] = args->batch * args->tokens;
}

#endif
