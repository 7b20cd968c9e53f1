/* The CUDA kernel of the rotation for any strides and alignment: a thread has one pair, or one element that passes through,
 * of a few heads of a row, which all turn by the same angles. It shares nothing with other threads, except that a block
 * looks its rows up together where positions do not follow from the tokens. */
#ifndef TROPE_FWD_CUDA_ROTATE_PAIRS_CUH
#define TROPE_FWD_CUDA_ROTATE_PAIRS_CUH

#include "core/cuda/early_launch.cuh"
#include "fwd/cuda/rows.cuh"

#define PAIR_THREADS 512 /* of a block: all pairs of the widest head, which a rearrangement in place needs */
#define PAIR_BLOCKS  2   /* that a multiprocessor should hold */

/* One tensor of an operand. Distances are in bytes. */
struct paired_tensor {
    char *base;
    int64_t outer, inner;
    int64_t group, head;
    int64_t element;
};

/* How the lanes of an operand's heads are dealt out. Lanes are numbered through: pairs first, then elements that pass
 * through. A thread has one lane of as many heads as a vector has elements: heads chunk, chunk + chunks, ..., or if heads
 * are neighbours in memory (`adjacent`), a vector of them. */
struct paired_operand {
    paired_tensor src, dst;
    uint32_t adjacent;
    uint32_t rotating, lanes;
    uint32_t heads, chunks;
    uint32_t slice_groups; /* of a y of the grid, so that 32 bits number the threads of each */
    fast_divisor columns;  /* of a row: lanes times chunks, and maybe some that are empty */
    fast_divisor lanes_of_chunk;
    fast_divisor heads_per_group;
    uint32_t in_place;
    int32_t rotary_dim, rotary_offset;
};

/* What varies fastest over neighbouring threads: what is nearest in memory. */
enum pair_order { ORDER_LANES, ORDER_HEADS, ORDER_ROWS };

/* Each operand has blocks of its own. Their threads are numbered through: number = group * columns + column, or
 * column * groups + group, where a group are rows_per_thread rows that follow each other. */
struct paired_call {
    cuda_rows rows;
    int64_t row_groups;
    uint32_t first_blocks[MAX_CUDA_OPERANDS]; /* UINT32_MAX where there is no operand */
    uint32_t rows_per_thread;
    uint32_t order;
    uint32_t rearranges; /* in place: what a head's threads write, others of them read */
    paired_operand operands[MAX_CUDA_OPERANDS];
    cuda_plan plan;
};

/* ---- places ---- */

/* What a thread has: a group of rows of its slice, a lane, and a chunk of heads. Threads that have nothing load what others
 * do, and write nothing. */
struct thread_place {
    uint32_t group;
    uint32_t lane, chunk;
    bool present;
};

/* `number` of a thread among those of its operand and slice. */
__device__ __forceinline__ thread_place find_place(const paired_call &call, const paired_operand &o, uint32_t number)
{
    thread_place p;
    uint32_t column;
    if (call.order == ORDER_ROWS) {
        column = number / o.slice_groups;
        p.group = number - column * o.slice_groups;
    } else {
        p.group = o.columns.divide(number);
        column = number - p.group * o.columns.divisor;
    }
    const uint32_t outer = o.lanes_of_chunk.divide(column), inner = column - outer * o.lanes_of_chunk.divisor;
    const bool heads_first = call.order == ORDER_HEADS;
    p.lane = heads_first ? outer : inner;
    p.chunk = heads_first ? inner : outer;
    p.present = p.group < o.slice_groups && (int64_t)blockIdx.y * o.slice_groups + p.group < call.row_groups &&
                column < o.columns.divisor && p.lane < o.lanes && p.chunk < o.chunks;
    p.lane = p.present ? p.lane : 0;
    p.chunk = p.present ? p.chunk : 0;
    return p;
}

/* The groups of rows that a block has: `count` from `first` on, after the slice's last one the first. */
struct block_groups {
    uint32_t first, count, slice;

    __device__ __forceinline__ block_groups(const paired_call &call, const paired_operand &o, uint32_t first_thread)
        : slice(o.slice_groups)
    {
        if (call.order == ORDER_ROWS) {
            first = first_thread % slice;
            count = blockDim.x < slice ? blockDim.x : slice;
        } else {
            first = o.columns.divide(first_thread);
            count = o.columns.divide(first_thread + blockDim.x - 1) - first + 1;
        }
    }

    __device__ __forceinline__ uint32_t group(uint32_t i) const
    {
        return first + i < slice ? first + i : first + i - slice;
    }

    __device__ __forceinline__ uint32_t index(uint32_t group) const
    {
        return group >= first ? group - first : group + slice - first;
    }
};

/* Looks the block's rows up, one a thread, so that those who rotate them need not. */
__device__ __forceinline__ void find_block_rows(const paired_call &call, const paired_operand &o,
                                                const block_groups &groups, trope_row *rows)
{
    const uint32_t count = groups.count * call.rows_per_thread;
    for (uint32_t base = threadIdx.x / 32 * 32; base < count; base += blockDim.x) {
        const uint32_t i = base + threadIdx.x % 32 < count ? base + threadIdx.x % 32 : count - 1;
        const uint32_t group = i / call.rows_per_thread;
        const int64_t number = ((int64_t)blockIdx.y * o.slice_groups + groups.group(group)) * call.rows_per_thread +
                               (i - group * call.rows_per_thread);
        trope_row row;
        set_row(call.rows,
                locate_row<false>(call.rows, call.plan.plan, number < call.rows.count ? number : call.rows.count - 1),
                &row);
        find_row(call.plan.plan, &row);
        if (base + threadIdx.x % 32 < count)
            rows[i] = row;
    }
    __syncthreads();
}

/* ---- lanes ---- */

/* Elements of the head in src, and where they go if they are rotated. */
struct lane_place {
    int32_t from[2], to[2];
    int pair;
};

__device__ __forceinline__ lane_place locate_lane(const trope_plan &plan, const paired_operand &o, uint32_t lane)
{
    const int32_t pairs = o.rotary_dim / 2, offset = o.rotary_offset;
    lane_place p;
    p.pair = (int)lane;
    if (lane < o.rotating) {
        p.from[0] = offset + trope_first_of_pair(plan.interleaved_src, plan.parts, pairs, p.pair);
        p.from[1] = offset + trope_second_of_pair(plan.interleaved_src, plan.parts, pairs, p.pair);
        p.to[0] = offset + trope_first_of_pair(plan.interleaved_dst, plan.parts, pairs, p.pair);
        p.to[1] = offset + trope_second_of_pair(plan.interleaved_dst, plan.parts, pairs, p.pair);
    } else {
        const int32_t i = (int32_t)(lane - o.rotating);
        p.from[0] = p.from[1] = p.to[0] = p.to[1] = i + (i >= offset ? o.rotary_dim : 0);
    }
    return p;
}

/* One pair of each of a thread's heads. Heads that it has not are its first one. */
template <int DTYPE> struct thread_pairs_of {
    typedef typename elements<DTYPE>::real real;
    typedef typename elements<DTYPE>::type element;
    enum { HEADS = 16 / sizeof(element) };

    union heads {
        uint4 vector;
        element of[HEADS];
    } a, b;

    static __device__ __forceinline__ int64_t offset_of_head(const paired_operand &o, const paired_tensor &t,
                                                             uint32_t chunk, int k)
    {
        uint32_t head = chunk + k * o.chunks;
        head = head < o.heads ? head : chunk;
        const uint32_t group = o.heads_per_group.divide(head);
        return group * t.group + (head - group * o.heads_per_group.divisor) * t.head;
    }

    __device__ __forceinline__ void load(const paired_operand &o, const char *row, uint32_t chunk, const lane_place &at)
    {
        const int64_t first = at.from[0] * o.src.element, second = at.from[1] * o.src.element;
        if (o.adjacent) {
            a.vector = __ldcs((const uint4 *)(row + first) + chunk);
            b.vector = __ldcs((const uint4 *)(row + second) + chunk);
            return;
        }
#pragma unroll
        for (int k = 0; k < HEADS; k++) {
            const char *const from = row + offset_of_head(o, o.src, chunk, k);
            a.of[k] = *(const element *)(from + first);
            b.of[k] = *(const element *)(from + second);
        }
    }

    __device__ __forceinline__ void store(const paired_operand &o, char *row, uint32_t chunk, const int32_t *at) const
    {
        const int64_t first = at[0] * o.dst.element, second = at[1] * o.dst.element;
        if (o.adjacent) {
            __stcs((uint4 *)(row + first) + chunk, a.vector);
            __stcs((uint4 *)(row + second) + chunk, b.vector);
            return;
        }
#pragma unroll
        for (int k = 0; k < HEADS; k++) {
            if (chunk + k * o.chunks >= o.heads)
                break;
            char *const to = row + offset_of_head(o, o.dst, chunk, k);
            *(element *)(to + first) = a.of[k];
            *(element *)(to + second) = b.of[k];
        }
    }

    __device__ __forceinline__ void clear()
    {
        a.vector = b.vector = make_uint4(0, 0, 0, 0);
    }

    __device__ __forceinline__ void rotate(const cuda_plan &plan, const turns_of<real, 1> &t)
    {
        const typename pair_types<DTYPE>::turn turn = {t.c1[0], t.s1[0], t.c2[0], t.s2[0]};
#pragma unroll
        for (int k = 0; k < HEADS; k++) {
            const typename pair_types<DTYPE>::pair x = {to_real<DTYPE>(a.of[k]), to_real<DTYPE>(b.of[k])};
            const typename pair_types<DTYPE>::pair y = plan.plan.rounding == TROPE_ROUND_NATIVE
                                                           ? rotate_pair<DTYPE, true>(x, turn)
                                                           : rotate_pair<DTYPE, false>(x, turn);
            a.of[k] = from_real<DTYPE>(y.first);
            b.of[k] = from_real<DTYPE>(y.second);
        }
    }
};

/* ---- the kernel ---- */

__device__ __forceinline__ char *row_of_tensor(const paired_tensor &t, const row_place<false> &p)
{
    return t.base + p.inner * t.inner + p.outer * t.outer;
}

/* PLAIN: nothing is to be looked up for a row. */
template <int DTYPE, bool PLAIN>
__global__ void __launch_bounds__(PAIR_THREADS, PAIR_BLOCKS)
    rotate_pairs_kernel(KERNEL_PARAMETER(paired_call) call, KERNEL_PARAMETER(cuda_steps<ANGLES_ANY>) steps)
{
    typedef typename elements<DTYPE>::real real;
    extern __shared__ __align__(16) char shared[];
    const uint32_t operand = operand_of_block(call.first_blocks, blockIdx.x);
    const paired_operand &o = call.operands[operand];
    const uint32_t first_thread = (blockIdx.x - call.first_blocks[operand]) * PAIR_THREADS;
    const thread_place place = find_place(call, o, first_thread + threadIdx.x);
    const lane_place at = locate_lane(call.plan.plan, o, place.lane);
    const bool rotating = place.lane < o.rotating;
    const int64_t first_row = ((int64_t)blockIdx.y * o.slice_groups + place.group) * call.rows_per_thread;
    const trope_row *looked_up = (const trope_row *)shared;
    take_turn();
    if (!PLAIN) {
        const block_groups groups(call, o, first_thread);
        find_block_rows(call, o, groups, (trope_row *)shared);
        looked_up += place.present ? groups.index(place.group) * call.rows_per_thread : 0;
    }

    for (uint32_t i = 0; i < call.rows_per_thread; i++) {
        const bool present = place.present && first_row + i < call.rows.count;
        const row_place<false> from = locate_row<false>(call.rows, call.plan.plan, present ? first_row + i : 0);
        const trope_row row = PLAIN ? find_plain_row(call.rows, from) : looked_up[i];
        const bool zero = row.action == TROPE_ROW_ZERO, turns = row.action == TROPE_ROW_ROTATE && rotating;

        /* Loads come back in the order in which they were issued: those that others wait for go first. */
        angles_of<real, 1> angles;
        if (turns)
            angles = load_angles<ANGLES_ANY, PLAIN, real, 1>(call.plan, row, at.pair, {steps.of, at.pair});
        thread_pairs_of<DTYPE> pairs;
        pairs.load(o, row_of_tensor(o.src, from), place.chunk, at);
        if (call.rearranges)
            __syncthreads();

        if (!present || (o.in_place && !turns && !zero))
            continue;
        if (turns) {
            turns_of<real, 1> t;
            find_turns<ANGLES_ANY, false, real, 1>(call.plan, row, at.pair, angles, &t);
            pairs.rotate(call.plan, t);
        }
        if (zero)
            pairs.clear();
        pairs.store(o, row_of_tensor(o.dst, from), place.chunk, turns ? at.to : at.from);
    }
    if (!PLAIN && call.plan.plan.sequences.boundaries)
        check_sequences(call.plan.plan);
}

#endif
