/* Cuts a call with norms into blocks, like a rotation, but with each head in one warp. Host only. */
#ifndef TROPE_FWD_CUDA_PLAN_NORMS_CUH
#define TROPE_FWD_CUDA_PLAN_NORMS_CUH

#include "fwd/cuda/kernels.h"
#include "fwd/cuda/norm_call.cuh"
#include "fwd/cuda/plan_blocks.cuh"

/* The properties that all heads with a norm share on a fast path. `head` is a rotating operand if there is one, and
 * `of_weights` is a norm with weights if there is one. */
struct common_norm {
    const trope_plan_operand *head;
    trope_plan_norm of_weights;

    explicit common_norm(const trope_plan &plan) : head(NULL), of_weights()
    {
        for (int i = 0; i < plan.operand_count; i++) {
            const trope_plan_operand &o = plan.operands[i];
            if (o.norm.is_given && (!head || (o.rotary_dim && !head->rotary_dim)))
                head = &o;
            if (o.norm.is_given && (!of_weights.is_given || (o.norm.weight && !of_weights.weight)))
                of_weights = o.norm;
        }
        if (!of_weights.weight)
            of_weights.weight_dtype = TROPE_F32;
    }

    /* Returns whether an operand with a norm has these properties. It may differ only in its weights and in whether it
     * rotates. */
    bool has(const trope_plan &plan, const trope_plan_operand &o) const
    {
        return o.head_dim == head->head_dim && o.norm.eps == head->norm.eps && o.norm.is_after == head->norm.is_after &&
               o.norm.is_token == head->norm.is_token &&
               (!o.rotary_dim || (o.rotary_dim == 2 * plan.pairs && o.rotary_offset == head->rotary_offset)) &&
               (!o.norm.weight ||
                (o.norm.weight_dtype == of_weights.weight_dtype && o.norm.plus_one == of_weights.plus_one &&
                 o.norm.rounding == of_weights.rounding && (uintptr_t)o.norm.weight % 16 == 0));
    }
};

/* Returns after how many items the sums of a head's first and second vectors are added (norm_call.cuh), or 0 if the
 * vectors cannot follow the tree of a head. */
static inline uint32_t join_of_heads(const trope_plan &plan, const block_form &form)
{
    const trope_plan_operand &o = *common_norm(plan).head;
    const int32_t of_vector = 16 / plan.element_size, vectors = o.head_dim / of_vector;
    const bool interleaved = plan.interleaved_src != 0;
    if (!o.rotary_dim) /* halves of the head */
        return power_of_two((uint32_t)vectors) == (uint32_t)vectors && vectors > 1 ? (uint32_t)vectors / 2 : 0;
    const int32_t half = form.splits ? o.rotary_dim / of_vector / 2 : interleaved ? 1 : o.part_pairs / of_vector;
    const bool whole = vectors % (2 * half) == 0 && (interleaved || vectors / (2 * half) <= TROPE_MAX_AXES) &&
                       o.rotary_offset / of_vector % (2 * half) == 0 && (!form.splits || o.rotary_dim == o.head_dim);
    return whole && power_of_two((uint32_t)half) == (uint32_t)half ? (uint32_t)half : 0;
}

/* Returns whether a norm over tokens must add the heads of a token, because its rstd (in backward, its slope) is not
 * known before the launch. */
static inline bool adds_heads(const trope_plan_norm &n)
{
    return n.is_token && !(n.is_backward ? n.slope != NULL : n.reads_rstd);
}

static inline bool any_adds_heads(const trope_plan &plan)
{
    bool any = false;
    for (int i = 0; i < plan.operand_count; i++)
        any = any || adds_heads(plan.operands[i].norm);
    return any;
}

/* Returns whether vector kernels can normalise heads after their rotation. The rotation must take the fast path
 * (rotates_fast). If rstd is read, angles must come from phase steps, so that no position poisons a head. */
static inline bool can_be_after(const trope_plan &plan)
{
    bool reads = false;
    for (int i = 0; i < plan.operand_count; i++)
        reads = reads || plan.operands[i].norm.reads_rstd;
    return rotates_fast(plan) && !(reads && plan.angles.source != TROPE_ANGLES_PHASE);
}

struct norm_blocks : rotation_blocks {
    static inline void begin(const trope_plan &plan, const block_form &form, norm_call *call)
    {
        const common_norm common(plan);
        const trope_plan_operand &o = *common.head;
        const uint32_t of_item = 2 * 16 / (uint32_t)plan.element_size;
        call->head_items = power_of_two((uint32_t)quotient_up(o.head_dim, of_item));
        call->any_idles = call->head_items * of_item != (uint32_t)o.head_dim;
        call->join = join_of_heads(plan, form);
        call->first_window_item = (uint32_t)o.rotary_offset / of_item;
        call->window_items = (uint32_t)o.rotary_dim / of_item;
        call->is_after = o.norm.is_after != 0;
        call->weight_dtype = common.of_weights.weight_dtype;
        call->plus_one = common.of_weights.plus_one;
        call->rounding = common.of_weights.rounding;
        call->head_dim = (uint32_t)o.head_dim;
        call->reciprocal = power_of_two(call->head_dim) == call->head_dim ? 1.0f / (float)o.head_dim : 0;
        call->eps = (float)o.norm.eps;
        call->has_rstd = 0;
        call->reads_rstd = 1;
        call->is_token = o.norm.is_token != 0;
        call->adds_heads = any_adds_heads(plan);
        call->token_heads = 0;
    }

    static inline void fill(const trope_plan_operand &o, uint32_t number, norm_call *call)
    {
        block_norm n = {};
        block_segment<int32_t> *const s = &call->segments[number];
        s->places = (uint32_t)quotient_up(s->heads, NORM_HEADS);
        s->is_intricate = o.groups > 1 || s->part_items < s->working || s->working < s->head_items.divisor;
        if (o.norm.is_given) {
            n.is_given = 1;
            n.rotates = o.rotary_dim > 0;
            n.weight_of_head = (uint32_t)o.norm.weight_of_head;
            n.reads_rstd = o.norm.reads_rstd != 0;
            n.weight = (const char *)o.norm.weight;
            n.rstd = (float *)o.norm.rstd;
            n.axes = o.norm.is_after || o.norm.is_backward ? axes_of(call->plan.plan, o) : 0;
            n.heads_at = call->token_heads;
            n.sums_read = (uint32_t)o.norm.sums_read;
            n.elements = (float)o.norm.elements;
            n.sums = (float *)o.norm.sums;
            n.slope = (const float *)o.norm.slope;
            call->token_heads += s->heads;
            call->reads_rstd = call->reads_rstd && n.rstd && n.reads_rstd;
        }
        call->has_rstd = call->has_rstd || n.rstd;
        call->norms[number] = n;
    }

    /* A block that adds heads has all heads of a token. */
    static inline void cut(const trope_plan &plan, const block_form &form, const norm_call &call, uint32_t together,
                           size_t bytes_of_token, block_shape *shape)
    {
        const uint32_t together_items =
            shape->is_uniform ? call.segments[0].head_items.divisor : 32; /* so that no head is in two warps */
        if (!call.adds_heads)
            return rotation_blocks::cut(plan, form, call, together, bytes_of_token, shape);
        shape->items_of_block = (uint32_t)quotient_up(std::max(shape->items, 32u), together_items) * together_items;
        shape->tokens_of_block =
            std::min(std::max(NORM_THREADS / shape->items_of_block, 1u), (uint32_t)MOST_SEARCHED_TOKENS);
    }

    /* Returns the size of the sums of heads, for all tokens that the block processes at the same time. */
    static inline size_t bytes_of_terms(const trope_plan &plan, const block_form &form, unsigned, block_shape *shape)
    {
        size_t heads = 0;
        for (int i = 0; i < plan.operand_count; i++)
            if (plan.operands[i].norm.is_given)
                heads += (size_t)trope_heads_of_token(&plan.operands[i]);
        return any_adds_heads(plan) ? (form.walks ? 1 : shape->tokens_of_block) * TOKEN_ROOM(heads) * sizeof(float) : 0;
    }
};

/* Returns a form for vectors if all heads with a norm are alike and each fits into one warp. If the block must add the
 * heads of a token, it must also have room for all of them. */
static inline block_form form_of_norms(const trope_plan &plan)
{
    block_form form = form_of(plan, can_be_vectors(plan) && pairs_fit(plan));
    const common_norm common(plan);
    bool alike = form.vectors && plan.interleaved_src == plan.interleaved_dst &&
                 common.head->head_dim * plan.element_size <= 2 * 32 * 16 &&
                 (!common.head->norm.is_after || can_be_after(plan));
    for (int i = 0; i < plan.operand_count; i++)
        alike = alike && (!plan.operands[i].norm.is_given ||
                          (common.has(plan, plan.operands[i]) && plan.operands[i].norm.sums_read <= MOST_TOKEN_HEADS));
    if (!alike)
        return form_of(plan, false);
    form.splits = form.splits && join_of_heads(plan, form);
    form.most = form.threads = form.items = NORM_THREADS;
    bool fits = join_of_heads(plan, form) != 0;
    if (fits && any_adds_heads(plan)) {
        norm_call call;
        form.most = TOKEN_THREADS;
        fits = plan_blocks<norm_blocks>(plan, form, &call).fits;
    }
    return fits ? form : form_of(plan, false);
}

/* Returns whether positions come from tokens, angles come from phase steps, and there are no rare options. */
static inline bool is_from_tokens_by_phase(const trope_plan &plan)
{
    return kind_of_positions(plan) == POSITIONS_FROM_TOKENS && plan.angles.source == TROPE_ANGLES_PHASE &&
           rotates_fast(plan);
}

/* Returns the kernel for a plan with the given form. POSITIONS_SEARCHED_GENERIC also takes calls of POSITIONS_SEARCHED
 * whose addresses are not simple. */
static inline const trope_cuda_kernel *find_norm_kernel(const trope_norm_kernels &kernels, const trope_plan &plan,
                                                        const block_form &form)
{
    position_kind positions = kind_of_positions(plan);
    if (!form.vectors)
        return &kernels.elements;
    const trope_plan_operand &head = *common_norm(plan).head;
    const uint32_t head_items = (uint32_t)(head.head_dim / form.pairs_of_item / 2);
    if (positions == POSITIONS_SEARCHED && !(addresses_are_simple(plan) && head_items == power_of_two(head_items)))
        positions = POSITIONS_SEARCHED_GENERIC;
    const bool is_fast = positions != POSITIONS_GENERIC && rotates_fast(plan),
               has_phases = plan.angles.source == TROPE_ANGLES_PHASE;
    const trope_cuda_kernel *best = &kernels.vectors;
    if (head.norm.is_after)
        best = &kernels.after[!is_from_tokens_by_phase(plan)];
    else if (is_fast)
        best = &(head.norm.is_token ? kernels.tokens : kernels.fast)[positions][!has_phases];
    return best->function ? best : &kernels.vectors;
}

#endif
