/* How a call with norms is cut into blocks: those of a rotation, with whole heads in a warp. Host only. */
#ifndef TROPE_FWD_CUDA_PLAN_NORMS_CUH
#define TROPE_FWD_CUDA_PLAN_NORMS_CUH

#include "fwd/cuda/norm_call.cuh"
#include "fwd/cuda/plan_blocks.cuh"

/* Lanes after which the first and second vectors of a head are added (norm_call.cuh), 0 if vectors cannot follow its tree. */
static inline uint32_t join_of_head(const trope_plan &plan, const block_form &form, const trope_plan_operand &o)
{
    const int32_t of_vector = 16 / plan.element_size, vectors = o.head_dim / of_vector;
    const bool interleaved = plan.interleaved_src != 0;
    if (!o.rotary_dim) /* halves of the head, or neighbours */
        return power_of_two((uint32_t)vectors) == (uint32_t)vectors && vectors > 1 ? (uint32_t)vectors / 2 : 0;
    const int32_t half = form.splits ? o.rotary_dim / of_vector / 2 : interleaved ? 1 : o.part_pairs / of_vector;
    const bool whole = vectors % (2 * half) == 0 && (interleaved || vectors / (2 * half) <= TROPE_MAX_AXES) &&
                       o.rotary_offset / of_vector % (2 * half) == 0 && (!form.splits || o.rotary_dim == o.head_dim);
    return whole && power_of_two((uint32_t)half) == (uint32_t)half ? (uint32_t)half : 0;
}

static inline bool norm_fits_vectors(const trope_plan &plan, const block_form &form, const trope_plan_operand &o)
{
    const int32_t most = 2 * 32 * 16 / plan.element_size; /* elements that a warp holds */
    return o.head_dim <= most && (uintptr_t)o.norm.weight % 16 == 0 && join_of_head(plan, form, o) > 0;
}

static inline block_form form_of_norms(const trope_plan &plan)
{
    block_form form = form_of(plan, can_be_vectors(plan) && pairs_are_usual(plan));
    for (int i = 0; form.splits && i < plan.operand_count; i++) {
        const trope_plan_operand &o = plan.operands[i];
        form.splits = !o.norm.is_given || !o.rotary_dim || norm_fits_vectors(plan, form, o);
    }
    for (int i = 0; form.vectors && i < plan.operand_count; i++)
        if (plan.operands[i].norm.is_given && !norm_fits_vectors(plan, form, plan.operands[i]))
            return form_of(plan, false);
    return form;
}

struct norm_blocks : rotation_blocks {
    static inline void begin(norm_call *call)
    {
        call->most_lanes = 0;
        call->most_join = 0;
        call->heads_are_alike = 1;
    }

    static inline void fill(const trope_plan_operand &o, uint32_t number, norm_call *call)
    {
        const trope_plan &plan = call->plan.plan;
        const int32_t of_lane = 2 * 16 / plan.element_size;
        block_norm n = {};
        if (o.norm.is_given) {
            block_form form = {};
            form.splits = call->shape.splits != 0;
            n.is_given = 1;
            n.join = join_of_head(plan, form, o);
            n.first_lane = (uint32_t)(o.rotary_offset / of_lane);
            n.window_lanes = (uint32_t)(o.rotary_dim / of_lane);
            n.weight_dtype = o.norm.weight_dtype;
            n.weight_of_head = (uint32_t)o.norm.weight_of_head;
            n.plus_one = o.norm.plus_one;
            n.rounding = o.norm.rounding;
            n.head_dim = (float)o.head_dim;
            n.eps = (float)o.norm.eps;
            n.reads_rstd = o.norm.reads_rstd != 0;
            n.weight = (const char *)o.norm.weight;
            n.rstd = (float *)o.norm.rstd;
            const uint32_t lanes = call->segments[number].lanes.divisor;
            const bool is_first = call->most_lanes == 0;
            call->heads_are_alike =
                is_first || (call->heads_are_alike && lanes == call->most_lanes && n.join == call->most_join);
            call->most_lanes = std::max(call->most_lanes, lanes);
            call->most_join = std::max(call->most_join, n.join);
        }
        call->norms[number] = n;
    }
};

#endif
