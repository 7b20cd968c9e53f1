/* How a block of the vector kernel adds the terms of d_weight of its cell (norm_gradient_call.cuh). */
#ifndef TROPE_BWD_CUDA_CELL_SUMS_CUH
#define TROPE_BWD_CUDA_CELL_SUMS_CUH

#include "bwd/cuda/norm_gradient_call.cuh"
#include "fwd/cuda/norm.cuh"

/* Returns the terms of d_weight of a block, in shared memory. They are ordered by element of a thread's vectors, then by
 * the thread's index in its head, then by place. */
__device__ __forceinline__ float *terms_of_block(const block_shape &shape)
{
    return (float *)(shared_memory + shape.terms_at);
}

/* CELL_SUMS consecutive numbers. */
struct alignas(CELL_SUMS * sizeof(float)) term_group {
    float of[CELL_SUMS];
};

/* One element of all heads, and the address of its terms in the block's cell. */
template <class R> struct cell_element {
    uint32_t element, terms_at;

    __device__ __forceinline__ void find(const norm_gradient_call &call, uint32_t e)
    {
        const uint32_t vector = e / R::PAIRS, of_run = vector & (2 * call.join - 1), which = of_run >= call.join,
                       in_head = (vector - of_run) / 2 + of_run - which * call.join;
        element = found_here(e);
        terms_at = found_here((which * R::PAIRS + e % R::PAIRS) * NORM_TERMS + in_head * call.terms_of_item);
    }

    /* Stores the sum of each operand for this element. */
    __device__ __forceinline__ void add(const norm_gradient_call &call, uint32_t tokens) const
    {
        const block_shape &shape = call.shape;
        const uint32_t slice = slice_of_block(shape), first = slice * shape.units_of_block;
#pragma unroll 1
        for (uint32_t i = 0; i < shape.segments; i++) {
            const operand_gradient &o = call.of[i];
            const uint32_t begin = max(o.first_unit, first) - first,
                           end = min(max(o.after_unit, first), first + shape.units_of_block) - first;
            if (o.is_wanted && begin < end)
                *call.sums.template sum<float>(o, slice - o.first_slice, block_of_tokens(shape), element) =
                    add_places(shape, o.places_at + begin, o.places_at + begin + (end - begin) * tokens);
        }
    }

  private:
    __device__ __forceinline__ float add_places(const block_shape &shape, uint32_t begin, uint32_t end) const
    {
        constexpr uint32_t TOGETHER = 4; /* groups that are loaded before they are added */
        const term_group *const terms = (const term_group *)(terms_of_block(shape) + terms_at);
        uint32_t at = begin / CELL_SUMS * CELL_SUMS;
        float sums[CELL_SUMS] = {};
        if (at < begin)
            add_some(terms[at / CELL_SUMS], begin - at, end - at, sums), at += CELL_SUMS;
#pragma unroll 1
        for (; at + TOGETHER * CELL_SUMS <= end; at += TOGETHER * CELL_SUMS) {
            term_group group[TOGETHER];
#pragma unroll
            for (uint32_t i = 0; i < TOGETHER; i++)
                group[i] = terms[at / CELL_SUMS + i];
#pragma unroll
            for (uint32_t i = 0; i < TOGETHER * CELL_SUMS; i++)
                sums[i % CELL_SUMS] = trope_add(sums[i % CELL_SUMS], group[i / CELL_SUMS].of[i % CELL_SUMS]);
        }
#pragma unroll 1
        for (; at < end; at += CELL_SUMS)
            add_some(terms[at / CELL_SUMS], 0, end - at, sums);
        return sum_of_vector<CELL_SUMS>(sums);
    }

    /* Adds terms [begin, end) of a group. */
    static __device__ __forceinline__ void add_some(const term_group &group, uint32_t begin, uint32_t end, float *sums)
    {
#pragma unroll
        for (uint32_t i = 0; i < CELL_SUMS; i++)
            sums[i] = i >= begin && i < end ? trope_add(sums[i], group.of[i]) : sums[i];
    }
};

#endif
