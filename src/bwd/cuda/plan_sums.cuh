/* How a call that sums heads is cut into blocks: as a rotation, but several slots share a sum. Host only. */
#ifndef TROPE_BWD_CUDA_PLAN_SUMS_CUH
#define TROPE_BWD_CUDA_PLAN_SUMS_CUH

#include "fwd/cuda/plan_blocks.cuh"

/* If the heads of a sum have more bytes than this, the element kernel adds them, because the waiting sums would not fit in
 * shared memory. */
#define MOST_SUM_BYTES 65536

/* Returns the number of heads of one sum, or 1 if the operand is not a sum. */
static inline int64_t terms_of(const trope_plan_operand &o)
{
    return o.summed_heads == TROPE_SHARED_ALL     ? (int64_t)o.groups * o.heads_per_group
           : o.summed_heads == TROPE_SHARED_GROUP ? o.heads_per_group
                                                  : 1;
}

/* Whether the vector kernel can sum the heads of an operand. The number of heads and their bytes are rounded up to
 * powers of two. */
static inline bool sum_fits_vectors(const trope_plan &plan, const trope_plan_operand &o)
{
    const int64_t terms = terms_of(o), bytes = std::max<int64_t>((int64_t)o.head_dim * plan.element_size, 32);
    return terms <= MOST_SUM_BYTES && bytes <= MOST_SUM_BYTES &&
           (int64_t)power_of_two((uint32_t)terms) * power_of_two((uint32_t)bytes) <= MOST_SUM_BYTES;
}

static inline block_form form_of_sums(const trope_plan &plan)
{
    bool vectors = can_be_vectors(plan) && pairs_fit(plan);
    for (int i = 0; i < plan.operand_count; i++)
        vectors = vectors && (!plan.operands[i].summed_heads || sum_fits_vectors(plan, plan.operands[i]));
    block_form form = form_of(plan, vectors);
    form.sums = true;
    if (vectors)
        form.most = SUM_THREADS;
    return form;
}

struct sum_blocks : rotation_blocks {
    /* Gives a sum as many slots as the block has room for. */
    template <class CALL> static inline void fill(const trope_plan_operand &o, uint32_t number, CALL *call)
    {
        block_shape *const shape = &call->shape;
        auto *const s = &call->segments[number];
        if (!o.summed_heads)
            return;
        s->terms = (uint32_t)terms_of(o);
        const uint32_t slots =
            std::min(power_of_two(s->terms), std::max((uint32_t)DEFAULT_THREADS / s->head_items.divisor, 1u));
        s->slot_bits = (uint32_t)__builtin_ctz(slots);
        s->rounds = power_of_two(s->terms) / slots;
        s->places = s->heads / s->terms * slots;
        shape->slots = std::max(shape->slots, slots);
        shape->rounds = std::max(shape->rounds, s->rounds);
        shape->most_head_items = std::max(shape->most_head_items, s->head_items.divisor);
    }

    /* Returns the number of slices of a token: the slices that have items, multiplied until each thread copies about
     * SUM_COPIES items that pass through. */
    template <class CALL> static inline int64_t copying_slices(const CALL &call)
    {
        const block_shape &shape = call.shape;
        const int64_t slices = quotient_up(shape.items, shape.items_of_block);
        int64_t copied_items = 0;
        for (int i = shape.segments; i < shape.segments + shape.rest; i++)
            copied_items +=
                call.segments[i].is_loaded ? (int64_t)call.segments[i].places * call.segments[i].head_items.divisor : 0;
        return std::max<int64_t>(
            std::min(copied_items / (SUM_COPIES * slices * shape.items_of_block), MOST_GRID_Y / slices), 1);
    }

    /* Returns the bytes of shared memory for terms: in each thread, the sums that wait for others, and the sum that it
     * passes to another slot. */
    static inline size_t bytes_of_terms(const trope_plan &plan, const block_form &form, unsigned threads,
                                        block_shape *shape)
    {
        const uint32_t levels = (uint32_t)__builtin_ctz(std::max(shape->rounds, 1u));
        shape->terms = threads * std::max(levels, 1u);
        return 2 * form.pairs_of_item * bytes_of_real(plan) * shape->terms;
    }
};

#endif
