/* Fills in the parameters of a call with norms that vector kernels cannot take. Host only. */
#ifndef TROPE_FWD_CUDA_PLAN_NORM_GENERIC_CUH
#define TROPE_FWD_CUDA_PLAN_NORM_GENERIC_CUH

#include "fwd/cuda/norm_generic_call.cuh"
#include "fwd/cuda/plan_blocks.cuh"

static inline head_tensor plan_head_tensor(const trope_plan &plan, const void *base, const int64_t *stride)
{
    head_tensor t;
    t.base = (char *)base;
    t.outer = stride[outer_dim(plan)] * plan.element_size;
    t.inner = stride[inner_dim(plan)] * plan.element_size;
    t.group = stride[TROPE_DIM_GROUP] * plan.element_size;
    t.head = stride[TROPE_DIM_HEAD] * plan.element_size;
    t.element = stride[TROPE_DIM_ELEMENT] * plan.element_size;
    return t;
}

static inline head_operand plan_head_operand(const trope_plan &plan, const trope_plan_operand &o)
{
    head_operand h = {};
    h.src = plan_head_tensor(plan, o.src, o.src_stride);
    h.dst = plan_head_tensor(plan, o.dst, o.dst_stride);
    h.heads = (uint32_t)trope_heads_of_token(&o);
    h.heads_per_group = (uint32_t)o.heads_per_group;
    h.head_dim = o.head_dim;
    h.rotary_dim = o.rotary_dim;
    h.rotary_offset = o.rotary_offset;
    h.in_place = o.in_place;
    h.accumulate = o.accumulate;
    h.axes = axes_of(plan, o);
    h.norm = o.norm;
    return h;
}

/* Fills in all fields except the operands. Returns the size of the shared memory of a block with the given number of
 * tokens. */
static inline size_t plan_norm_generic(const trope_plan &plan, uint32_t tokens, norm_generic_call *call)
{
    block_shape *const shape = &call->shape;
    block_form form = {};
    form.pairs_of_item = 1;
    plan_tokens(plan, shape);
    fill_cuda_plan(plan, &call->plan);
    plan_couples(plan, form, shape);
    call->operands = 0;
    shape->tokens_of_block = tokens;
    shape->rotating_slices = plan.pairs > 0;
    shape->second_at = tokens * shape->couples_of_token;
    shape->tokens_at = (uint32_t)quotient_up((int64_t)(tokens * bytes_of_couples(plan, *shape)), 16) * 16;
    call->window_at = shape->tokens_at + (uint32_t)quotient_up((int64_t)bytes_of_block_tokens(plan, tokens), 16) * 16;
    call->window_size = (uint32_t)(2 * (size_t)plan.pairs * bytes_of_real(plan));
    return call->window_at + NORM_WARPS * call->window_size;
}

#endif
