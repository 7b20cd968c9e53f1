/* The elements of an operand, numbered in the order [batch, tokens, groups, heads_per_group, head_dim]. */
#ifndef TESTS_SUPPORT_TENSOR_H
#define TESTS_SUPPORT_TENSOR_H

#include <stdint.h>

#include "trope/trope.h"

static inline void tensor_sizes(const trope_args *args, const trope_operand *o, int64_t size[TROPE_MAX_DIMS])
{
    size[TROPE_DIM_BATCH] = args->batch;
    size[TROPE_DIM_TOKEN] = args->tokens;
    size[TROPE_DIM_GROUP] = o->groups ? o->groups : 1;
    size[TROPE_DIM_HEAD] = o->heads_per_group;
    size[TROPE_DIM_ELEMENT] = o->head_dim;
}

static inline int64_t tensor_count(const trope_args *args, const trope_operand *o)
{
    int64_t size[TROPE_MAX_DIMS], count = 1;
    tensor_sizes(args, o, size);
    for (int d = 0; d < TROPE_MAX_DIMS; d++)
        count *= size[d];
    return count;
}

/* The offset, in elements, of element `number` of a tensor with these strides. */
static inline int64_t tensor_offset(const trope_args *args, const trope_operand *o, const int64_t *stride, int64_t number)
{
    int64_t size[TROPE_MAX_DIMS], offset = 0;
    tensor_sizes(args, o, size);
    for (int d = TROPE_MAX_DIMS - 1; d >= 0; d--) {
        offset += number % size[d] * stride[d];
        number /= size[d];
    }
    return offset;
}

#endif
