/* Helpers of all launches of the CUDA backend: properties of a plan, and errors. */
#ifndef TROPE_FWD_CUDA_LAUNCH_CUH
#define TROPE_FWD_CUDA_LAUNCH_CUH

#include <algorithm>

#include "core/cuda/early_launch.cuh"
#include "core/error.h"
#include "fwd/cuda/coefficients.cuh"

static inline int64_t quotient_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static inline uint32_t power_of_two(uint32_t at_least)
{
    uint32_t p = 1;
    while (p < at_least)
        p *= 2;
    return p;
}

/* Returns whether padding is overwritten: with zeros, or with NaN if the call has no padding policy. */
static inline bool fills_padding(const trope_plan &plan)
{
    const int32_t padding = plan.position_source.padding;
    return plan.position_source.boundaries && padding != TROPE_PADDING_ROTATE && padding != TROPE_PADDING_COPY;
}

/* Returns whether the call also writes the elements of an operand that do not rotate: if it is not in place, or if
 * padding is filled. */
static inline bool writes_rest(const trope_plan &plan, const trope_plan_operand &o)
{
    return !o.in_place || fills_padding(plan);
}

static inline bool moves_operand(const trope_plan &plan, const trope_plan_operand &o)
{
    return (o.dst || o.norm.d_weight || trope_writes_sums(&o)) &&
           (o.rotary_dim > 0 || o.norm.is_given || writes_rest(plan, o));
}

static inline bool moves_something(const trope_plan &plan)
{
    bool moves = false;
    for (int i = 0; i < plan.operand_count; i++)
        moves = moves || moves_operand(plan, plan.operands[i]);
    return moves && plan.tokens > 0;
}

/* ---- positions ---- */

/* POSITIONS_SEARCHED supports no table with a plane for each axis. */
static inline position_kind kind_of_positions(const trope_plan &plan)
{
    const trope_position_source &s = plan.position_source;
    const bool has_planes = plan.planes > 1 && plan.angles.stride.axis;
    const bool has_table = plan.angles.source != TROPE_ANGLES_PHASE,
               is_short = s.tokens >= INT32_MAX / s.cp.size || (has_table && s.tokens * s.cp.size > plan.angles.rows);
    if (s.boundaries)
        return s.ids                              ? POSITIONS_GENERIC
               : search_is_fast(s) && !has_planes ? POSITIONS_SEARCHED
                                                  : POSITIONS_SEARCHED_GENERIC;
    return s.ids || s.starts ? POSITIONS_READ : is_short ? POSITIONS_GENERIC : POSITIONS_FROM_TOKENS;
}

/* (Start positions are in device memory, and a kernel adds them.) */
static inline token_positions plan_positions(const trope_position_source &of)
{
    trope_position_source s = of;
    s.starts = NULL;
    const int64_t half = s.tokens / 2, first = trope_dense_position(&s, 0);
    token_positions p;
    p.step = (uint32_t)s.cp.step;
    p.first = (uint32_t)first;
    p.second_run = (uint32_t)half;
    p.gap = (uint32_t)(trope_dense_position(&s, half) - first - half * p.step);
    return p;
}

static inline void fill_cuda_plan(const trope_plan &plan, cuda_plan *p)
{
    p->plan = plan;
    p->cosine_scale = (float)plan.cosine_scale;
    p->sine_scale = (float)plan.sine_scale;
    p->part_pairs = plan.pairs / plan.parts;
    const bool has_freqs = plan.angles.source == TROPE_ANGLES_FREQS;
    p->entry_bytes = plan.angles.dtype == TROPE_F64 ? 8 : plan.angles.dtype == TROPE_F32 ? 4 : 2;
    p->table[0] = (const char *)(has_freqs ? plan.angles.freqs : plan.angles.cos);
    p->table[1] = (const char *)(has_freqs ? plan.angles.freqs : plan.angles.sin);
    p->has_fast_freqs = has_freqs && plan.angles.dtype == TROPE_F32 && !plan.angles.per_element &&
                        !plan.angles.stride.axis && !axis_bits_of_tokens(plan) && plan.pairs % 2 == 0;
    p->axis_bits = axis_bits_of_tokens(plan);
    p->axis_mask = (1 << p->axis_bits) - 1;
    p->of_padding = trope_action_of_padding(&plan.position_source);
    p->source = plan_source(plan.position_source);
    p->from_tokens = kind_of_positions(plan) == POSITIONS_FROM_TOKENS;
    p->positions = plan_positions(plan.position_source);
}

/* ---- tensors ---- */

/* The two dimensions of tokens. */
static inline int outer_dim(const trope_plan &plan)
{
    return plan.batch_outermost ? TROPE_DIM_BATCH : TROPE_DIM_TOKEN;
}

static inline int inner_dim(const trope_plan &plan)
{
    return plan.batch_outermost ? TROPE_DIM_TOKEN : TROPE_DIM_BATCH;
}

/* Merges the groups of an operand into one if all consecutive heads are equally far apart, also across groups.
 * forward_src is read if the operand has a norm, or if it rotates and the call computes a gradient of the angles. */
static inline void join_groups(trope_plan_operand *o, bool with_forward_src)
{
    int64_t *const strides[] = {
        o->src_stride, with_forward_src && (o->rotary_dim || o->norm.is_given) ? o->forward_src_stride : o->src_stride,
        o->dst ? o->dst_stride : o->src_stride};
    for (int i = 0; i < 3; i++) {
        if (o->heads_per_group == 1)
            strides[i][TROPE_DIM_HEAD] = strides[i][TROPE_DIM_GROUP];
        if (strides[i][TROPE_DIM_GROUP] != strides[i][TROPE_DIM_HEAD] * o->heads_per_group)
            return;
    }
    o->heads_per_group *= o->groups;
    o->groups = 1;
}

static inline trope_status fail_cuda(const char *function, cudaError_t error)
{
    return trope_fail(TROPE_ERROR_DEVICE, "%s: CUDA says: %s", function, cudaGetErrorString(error));
}

#endif
