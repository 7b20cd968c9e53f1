/* The gradient of the angles on CUDA: the elements of dy that are not rotated, and so pass through to dx. */
#ifndef TROPE_BWD_GRADIENT_PASSING_CUDA_CUH
#define TROPE_BWD_GRADIENT_PASSING_CUDA_CUH

#include <type_traits>

#include "bwd/gradient_places_cuda.cuh"

struct gradient_passing {
    const char *from; /* NULL: zero is written */
    char *to;         /* NULL: nothing is */
};

/* Item `number`, of `width` elements, of those of the block's units. A function of its own: it is large and seldom called.
 */
static __device__ __noinline__ gradient_passing find_passing(const gradient_call &g, const trope_row *rows, uint32_t number,
                                                             uint32_t width)
{
    const trope_plan &plan = g.plan.plan;
    const trope_row &row = rows[g.unit_passing.divide(number)];
    uint32_t item = number - g.unit_passing.divide(number) * g.unit_passing.divisor;
    const uint32_t entry = item / g.row_passing;
    item -= entry * g.row_passing;
    uint32_t operand = 0;
    for (int k = 1; k < TROPE_MAX_OPERANDS; k++)
        operand += k < plan.operand_count && item >= g.operands[k].first_passing;
    const gradient_heads &heads = g.operands[operand];
    const trope_plan_operand &o = plan.operands[operand];
    item -= heads.first_passing;
    const uint32_t head = heads.passing.divide(item), group = heads.per_group.divide(head);
    const uint32_t in_group = head - group * o.heads_per_group, element = (item - head * heads.passing.divisor) * width;
    const int64_t at = element + (element >= (uint32_t)o.rotary_offset ? o.rotary_dim : 0);
    const int64_t batch = row.batch * g.batch_per_unit + entry;
    const int64_t from =
        offset_of_head(o.src_stride, batch, row.token, group, in_group) + at * o.src_stride[TROPE_DIM_ELEMENT];
    const int64_t to =
        offset_of_head(o.dst_stride, batch, row.token, group, in_group) + at * o.dst_stride[TROPE_DIM_ELEMENT];
    const bool zero = row.action == TROPE_ROW_ZERO, writes = batch < g.batch && (zero || !o.in_place);
    return {zero ? NULL : o.src + from * plan.element_size, writes ? o.dst + to * plan.element_size : NULL};
}

/* Copies what of each head is not rotated; a few items at a time, so that their loads are under way together. */
template <int DTYPE, int WIDTH>
__device__ __forceinline__ void copy_passing(const gradient_call &g, const trope_row *rows, uint32_t units)
{
    typedef std::conditional_t<WIDTH == 1, typename elements<DTYPE>::type, uint4> item;
    enum { AT_ONCE = 4 };
    const uint32_t count = units * g.unit_passing.divisor;
    for (uint32_t first = threadIdx.x; first < count; first += AT_ONCE * blockDim.x) {
        item items[AT_ONCE];
        item *to[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const uint32_t number = first + i * blockDim.x;
            gradient_passing p = {NULL, NULL};
            if (number < count)
                p = find_passing(g, rows, number, WIDTH);
            to[i] = (item *)p.to;
            items[i] = item();
            if (p.to && p.from)
                items[i] = *(const item *)p.from;
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (to[i])
                *to[i] = items[i];
    }
}

#endif
