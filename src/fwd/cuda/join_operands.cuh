/* Operands that follow each other in memory and are turned alike are one: Q and K inside packed QKV. */
#ifndef TROPE_FWD_CUDA_JOIN_OPERANDS_CUH
#define TROPE_FWD_CUDA_JOIN_OPERANDS_CUH

#include "fwd/cuda/launch.cuh"

static inline bool same_rows(const trope_plan &plan, int32_t groups, const int64_t *a, const int64_t *b)
{
    return (plan.batch == 1 || a[TROPE_DIM_BATCH] == b[TROPE_DIM_BATCH]) &&
           (plan.tokens == 1 || a[TROPE_DIM_TOKEN] == b[TROPE_DIM_TOKEN]) &&
           (groups == 1 || a[TROPE_DIM_GROUP] == b[TROPE_DIM_GROUP]);
}

/* Whether the heads of a tensor are followed by those of another one, in each group; then *stride is that of all of them.
 */
static inline bool heads_follow(const trope_plan &plan, const trope_plan_operand &o, const trope_plan_operand &next,
                                const char *base, const char *next_base, const int64_t *next_strides, int64_t *stride)
{
    const int64_t away = (int64_t)((intptr_t)next_base - (intptr_t)base);
    if (o.heads_per_group == 1)
        *stride = away / plan.element_size;
    return away == *stride * o.heads_per_group * plan.element_size &&
           (next.heads_per_group == 1 || next_strides[TROPE_DIM_HEAD] == *stride);
}

/* Adds the heads of `next` to `o` if they are in the same places of the same rows: Q and K of packed QKV, in place. */
static inline bool join_operand(const trope_plan &plan, const trope_plan_operand &next, trope_plan_operand *o)
{
    trope_plan_operand joined = *o;
    if (o->groups != next.groups || o->head_dim != next.head_dim || o->rotary_dim != next.rotary_dim ||
        o->rotary_offset != next.rotary_offset || o->in_place != next.in_place ||
        !same_rows(plan, o->groups, o->src_stride, next.src_stride) ||
        !same_rows(plan, o->groups, o->dst_stride, next.dst_stride) ||
        !heads_follow(plan, *o, next, o->src, next.src, next.src_stride, &joined.src_stride[TROPE_DIM_HEAD]) ||
        !heads_follow(plan, *o, next, o->dst, next.dst, next.dst_stride, &joined.dst_stride[TROPE_DIM_HEAD]))
        return false;
    joined.heads_per_group += next.heads_per_group;
    *o = joined;
    return true;
}

/* Returns how many operands are left. */
static inline int32_t join_operands(const trope_plan &plan, trope_plan_operand *joined)
{
    int32_t count = 0;
    for (int i = 0; i < plan.operand_count; i++)
        if (count == 0 || !join_operand(plan, plan.operands[i], &joined[count - 1]))
            joined[count++] = plan.operands[i];
    return count;
}

#endif
