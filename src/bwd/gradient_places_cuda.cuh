/* The gradient of the angles on CUDA: where in memory the heads of a unit are, and which pairs of a head a thread has. */
#ifndef TROPE_BWD_GRADIENT_PLACES_CUDA_CUH
#define TROPE_BWD_GRADIENT_PLACES_CUDA_CUH

#include "bwd/gradient_call_cuda.cuh"

struct gradient_head {
    const char *src, *input;
    char *dst;
    uint32_t operand;
    uint32_t left; /* of the heads of its group, with itself; 0: there is no such head */
};

__device__ __forceinline__ int64_t offset_of_head(const int64_t *stride, int64_t batch, int64_t token, uint32_t group,
                                                  uint32_t head)
{
    return batch * stride[TROPE_DIM_BATCH] + token * stride[TROPE_DIM_TOKEN] + group * stride[TROPE_DIM_GROUP] +
           head * stride[TROPE_DIM_HEAD];
}

/* Head `number` of a unit, which has the heads of its batch entries one after another. */
__device__ __forceinline__ gradient_head find_gradient_head(const gradient_call &g, int64_t unit_batch, int64_t token,
                                                            uint32_t number)
{
    const trope_plan &plan = g.plan.plan;
    const uint32_t entry = g.batch_per_unit > 1 ? g.row_heads.divide(number) : 0,
                   row_head = number - entry * g.row_heads.divisor;
    const int64_t batch = unit_batch * g.batch_per_unit + entry;
    gradient_head h = {NULL, NULL, NULL, 0, 0};
    if (row_head >= g.row_heads.divisor || entry >= g.batch_per_unit || batch >= g.batch)
        return h;
    for (int k = 1; k < TROPE_MAX_OPERANDS; k++)
        h.operand += k < plan.operand_count && row_head >= g.operands[k].first;
    const trope_plan_operand &o = plan.operands[h.operand];
    const uint32_t head = row_head - g.operands[h.operand].first;
    const uint32_t group = o.groups > 1 ? g.operands[h.operand].per_group.divide(head) : 0,
                   in_group = head - group * o.heads_per_group;
    h.src = o.src + offset_of_head(o.src_stride, batch, token, group, in_group) * plan.element_size;
    h.input = o.input + offset_of_head(o.input_stride, batch, token, group, in_group) * plan.element_size;
    h.dst = o.dst + offset_of_head(o.dst_stride, batch, token, group, in_group) * plan.element_size;
    h.left = o.heads_per_group - in_group;
    return h;
}

/* Where a thread's first vectors or elements of a head are. */
struct gradient_place {
    const char *src, *input;
    char *dst;
    uint32_t operand, left;
    uint32_t flags;
};

enum { PLACE_FIRST = 1, PLACE_SECOND = 2, PLACE_WRITES = 4 };

/* The pairs of one thread, in two runs of half a vector that start at `low` and `high` of its window. Where a tensor is
 * half paired the runs adjoin, so that first and second elements are a vector each; where all are interleaved they are
 * vector j of the window's first half and vector j of its second, so that neighbouring threads read neighbouring vectors.
 */
struct thread_pairs {
    uint32_t window, low, high;
};

template <int WIDTH> __device__ __forceinline__ thread_pairs find_thread_pairs(const gradient_call &g, uint32_t j)
{
    const uint32_t window_pairs = (uint32_t)(g.plan.plan.pairs / g.plan.plan.windows), per_window = window_pairs / WIDTH;
    thread_pairs t;
    t.window = g.plan.plan.windows > 1 ? j / per_window : 0;
    j -= t.window * per_window;
    t.low = j * (g.spread ? WIDTH / 2 : WIDTH);
    t.high = g.spread ? window_pairs / 2 + t.low : t.low + WIDTH / 2;
    return t;
}

/* Pair number e of the thread whose number in the head is j. */
template <int WIDTH> __device__ __forceinline__ uint32_t pair_of(const gradient_call &g, uint32_t j, uint32_t e)
{
    if (!g.spread)
        return j * WIDTH + e;
    const thread_pairs t = find_thread_pairs<WIDTH>(g, j);
    const uint32_t pair = e < (WIDTH + 1) / 2 ? t.low + e : t.high + e - WIDTH / 2;
    return t.window * (uint32_t)(g.plan.plan.pairs / g.plan.plan.windows) + pair;
}

#endif
