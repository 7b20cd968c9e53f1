/* The gradient of the angles on CUDA, for any strides and alignment: a block has the units of a group one after another,
 * and a thread of it one pair of the heads of one slot. */
#ifndef TROPE_BWD_CUDA_GRADIENT_PAIRS_CUH
#define TROPE_BWD_CUDA_GRADIENT_PAIRS_CUH

#include "bwd/cuda/gradient_call.cuh"

#define GRADIENT_PAIR_THREADS                                                                                              \
    TROPE_MAX_PAIRS /* at most: so that the threads of a head are in one block, and read it at once */

__device__ __forceinline__ int64_t offset_of_head(const trope_plan &plan, const trope_plan_operand &o,
                                                  const int64_t *stride, int64_t batch, int64_t token, uint32_t head)
{
    const uint32_t group = head / (uint32_t)o.heads_per_group, in_group = head - group * (uint32_t)o.heads_per_group;
    return (batch * stride[TROPE_DIM_BATCH] + token * stride[TROPE_DIM_TOKEN] + group * stride[TROPE_DIM_GROUP] +
            in_group * stride[TROPE_DIM_HEAD]) *
           plan.element_size;
}

/* The offset in bytes of the first (0) or second (1) element of a pair in a head. */
__device__ __forceinline__ int64_t offset_of_element(const trope_plan &plan, const trope_plan_operand &o,
                                                     const int64_t *stride, int32_t interleaved, uint32_t pair, int which)
{
    const int32_t at = which ? trope_second_of_pair(interleaved, plan.parts, o.rotary_dim / 2, (int)pair)
                             : trope_first_of_pair(interleaved, plan.parts, o.rotary_dim / 2, (int)pair);
    return (o.rotary_offset + at) * stride[TROPE_DIM_ELEMENT] * plan.element_size;
}

template <int DTYPE> struct scalar_pair {
    typedef typename elements<DTYPE>::real real;
    typedef typename elements<DTYPE>::type element;

    element of[2];

    __device__ __forceinline__ void load(const trope_plan &plan, const trope_plan_operand &o, const char *head,
                                         const int64_t *stride, int32_t interleaved, uint32_t pair)
    {
        of[0] = *(const element *)(head + offset_of_element(plan, o, stride, interleaved, pair, 0));
        of[1] = *(const element *)(head + offset_of_element(plan, o, stride, interleaved, pair, 1));
    }

    __device__ __forceinline__ void store(const trope_plan &plan, const trope_plan_operand &o, char *head,
                                          int32_t interleaved, uint32_t pair) const
    {
        *(element *)(head + offset_of_element(plan, o, o.dst_stride, interleaved, pair, 0)) = of[0];
        *(element *)(head + offset_of_element(plan, o, o.dst_stride, interleaved, pair, 1)) = of[1];
    }
};

template <int DTYPE, typename REAL>
__device__ __forceinline__ typename pair_types<DTYPE>::pair
turn_pair(const gradient_call &g, typename pair_types<DTYPE>::pair dy, REAL c1, REAL s1, REAL c2, REAL s2)
{
    const trope_plan &plan = g.plan.plan;
    if (!g.native)
        return rotate_pair<DTYPE, false>(dy, {c1, s1, c2, s2});
    return rotate_pair<DTYPE, true>(
        dy, {round_native(plan, c1), round_native(plan, s1), round_native(plan, c2), round_native(plan, s2)});
}

/* One head: dx, and the products. For all threads of the block, because of those that rearrange a head in place. */
template <int DTYPE, bool OWN>
__device__ __forceinline__ void walk_head(const gradient_call &g, const trope_plan_operand &o, const trope_row &row,
                                          int64_t batch, uint32_t head, uint32_t pair, bool present,
                                          const turns_of<typename elements<DTYPE>::real, 1> &t, pair_sums<OWN> *sums)
{
    const trope_plan &plan = g.plan.plan;
    char *const dst = o.dst ? o.dst + offset_of_head(plan, o, o.dst_stride, batch, row.token, head) : NULL;
    scalar_pair<DTYPE> dy = {{0, 0}}, x = {{0, 0}};
    if (present) {
        dy.load(plan, o, o.src + offset_of_head(plan, o, o.src_stride, batch, row.token, head), o.src_stride,
                plan.interleaved_src, pair);
        x.load(plan, o, o.forward_src + offset_of_head(plan, o, o.forward_src_stride, batch, row.token, head),
               o.forward_src_stride, plan.interleaved_forward_src, pair);
    }
    if (o.in_place && plan.interleaved_src != plan.interleaved_dst)
        __syncthreads();
    if (!present)
        return;
    if (row.action != TROPE_ROW_ROTATE) { /* what is copied stays where it is in the head, whatever the pairings */
        if (row.action == TROPE_ROW_ZERO)
            dy.of[0] = dy.of[1] = 0;
        if (dst && (row.action == TROPE_ROW_ZERO || !o.in_place))
            dy.store(plan, o, dst, plan.interleaved_src, pair);
        return;
    }
    const typename pair_types<DTYPE>::pair from = {to_real<DTYPE>(dy.of[0]), to_real<DTYPE>(dy.of[1])};
    const typename pair_types<DTYPE>::pair turned = turn_pair<DTYPE>(g, from, t.c1[0], t.s1[0], t.c2[0], t.s2[0]);
    sums->add((double)from.first, (double)from.second, (double)to_real<DTYPE>(x.of[0]), (double)to_real<DTYPE>(x.of[1]));
    if (dst) {
        dy.of[0] = from_real<DTYPE>(turned.first);
        dy.of[1] = from_real<DTYPE>(turned.second);
        dy.store(plan, o, dst, plan.interleaved_dst, pair);
    }
}

/* What of a unit's heads is not rotated. */
template <int DTYPE>
__device__ __forceinline__ void copy_passing(const gradient_call &g, const trope_plan_operand &o, const trope_row &row,
                                             int64_t batch)
{
    typedef typename elements<DTYPE>::type element;
    const trope_plan &plan = g.plan.plan;
    const uint32_t passing = (uint32_t)(o.head_dim - o.rotary_dim),
                   count = passing * (uint32_t)(o.groups * o.heads_per_group);
    if (!o.dst || (o.in_place && row.action != TROPE_ROW_ZERO))
        return;
    for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
        const uint32_t head = i / passing, element_of_head = i - head * passing;
        const int64_t at = element_of_head + (element_of_head >= (uint32_t)o.rotary_offset ? o.rotary_dim : 0);
        const char *const from = o.src + offset_of_head(plan, o, o.src_stride, batch, row.token, head) +
                                 at * o.src_stride[TROPE_DIM_ELEMENT] * plan.element_size;
        char *const to = o.dst + offset_of_head(plan, o, o.dst_stride, batch, row.token, head) +
                         at * o.dst_stride[TROPE_DIM_ELEMENT] * plan.element_size;
        *(element *)to = row.action == TROPE_ROW_ZERO ? (element)0 : *(const element *)from;
    }
}

/* Adds the slots of a pair by halves. Slot 0 has the result. */
template <bool OWN>
__device__ __forceinline__ void add_slots(const gradient_call &g, uint32_t slot, bool works, pair_sums<OWN> *sums)
{
    __shared__ pair_sums<OWN> others[GRADIENT_PAIR_THREADS];
    for (uint32_t half = g.slots / 2; half > 0; half /= 2) {
        __syncthreads();
        others[threadIdx.x] = *sums;
        __syncthreads();
        if (works && slot < half)
            sums->add_from(others[threadIdx.x + half * (uint32_t)g.plan.plan.pairs]);
    }
}

struct paired_gradient {
    gradient_call g;
    trope_plan_operand operands[MAX_CUDA_OPERANDS]; /* whose groups are joined where they can be */
};

/* The steps of one part of a unit. */
template <int DTYPE, bool OWN>
__device__ __forceinline__ void walk_part(const paired_gradient &p, const trope_row &row, uint32_t part, uint32_t slot,
                                          uint32_t pair, const turns_of<typename elements<DTYPE>::real, 1> &t,
                                          pair_sums<OWN> *sums)
{
    const gradient_call &g = p.g;
    uint32_t step = 0;
    for (uint32_t entry = 0; entry < g.batch_per_unit; entry++) {
        const int64_t batch = row.batch * g.batch_per_unit + entry;
        for (int k = 0; k < g.plan.plan.operand_count; k++) {
            const trope_plan_operand &o = p.operands[k];
            const uint32_t heads = o.rotary_dim ? (uint32_t)(o.groups * o.heads_per_group) : 0;
            const bool has_pair = slot < g.slots && pair < (uint32_t)o.rotary_dim / 2 && batch < g.batch;
            for (uint32_t first = 0; first < heads; first += g.heads_of_step[k], step++) {
                const uint32_t end = min(first + g.heads_of_step[k], heads), before = first & ~(g.slots - 1);
                for (uint32_t head = before + slot; step % g.parts == part && head - slot < end; head += g.slots)
                    walk_head<DTYPE, OWN>(g, o, row, batch, head, pair, has_pair && head >= first && head < end, t, sums);
            }
        }
    }
}

template <int DTYPE, bool OWN>
__global__ void __launch_bounds__(GRADIENT_PAIR_THREADS)
    gradient_pairs_kernel(KERNEL_PARAMETER(paired_gradient) p, KERNEL_PARAMETER(cuda_steps<ANGLES_ANY>) steps)
{
    typedef typename elements<DTYPE>::real real;
    __shared__ trope_row found;
    const gradient_call &g = p.g;
    const trope_plan &plan = g.plan.plan;
    const uint32_t pairs = (uint32_t)plan.pairs, slot = threadIdx.x / pairs, pair = threadIdx.x - slot * pairs;
    const unit_group of_block = find_group(g, blockIdx.x);
    const bool works = slot < g.slots;
    double group = 0;
    take_turn();
    for (uint32_t unit = 0; unit < of_block.units; unit++) {
        __syncthreads();
        if (threadIdx.x < 32) {
            trope_row row;
            row.batch = of_block.batch;
            row.token = of_block.token + unit;
            find_row(plan, &row);
            if (threadIdx.x == 0) {
                found = row;
                if (g.mode == GRADIENT_SORTED)
                    emit_keys(g, row);
            }
        }
        __syncthreads();
        const trope_row row = found;
        turns_of<real, 1> t;
        if (works && row.action == TROPE_ROW_ROTATE)
            find_turns<ANGLES_ANY, false, real, 1>(
                g.plan, row, (int)pair,
                load_angles<ANGLES_ANY, false, real, 1>(g.plan, row, (int)pair, {steps.of, (int)pair}), &t);
        pair_sums<OWN> sums;
        for (uint32_t part = 0; part < g.parts; part++) {
            pair_sums<OWN> of_part;
            of_part.clear();
            walk_part<DTYPE, OWN>(p, row, part, slot, pair, t, &of_part);
            add_slots<OWN>(g, slot, works, &of_part);
            if (part == 0)
                sums = of_part;
            else
                sums.add_from(of_part);
        }
        for (uint32_t entry = 0; entry < g.batch_per_unit; entry++)
            for (int k = 0; k < plan.operand_count && row.batch * g.batch_per_unit + entry < g.batch; k++)
                copy_passing<DTYPE>(g, p.operands[k], row, row.batch * g.batch_per_unit + entry);
        if (works && slot == 0 && leaves_sums(g, row))
            emit_pair<OWN>(g, row, position_of_pair(g.plan, row, (int)pair), pair, sums, t.c1[0], t.s1[0], t.c2[0], t.s2[0],
                           &group);
    }
    if (g.mode == GRADIENT_FREQUENCIES && works && slot == 0)
        g.sums[(int64_t)blockIdx.x * pairs + pair] = group;
    if (plan.sequences.boundaries)
        check_sequences(plan);
}

#endif
