/* The register block: a short-lived block takes a row, or a few, with all heads of all operands. Each thread has an item: one
 * lane of one head, the elements of a few pairs in two vectors (or one pair in two elements), from its loads to its stores.
 * What is the same for all heads of a row, its coefficients, the threads find together meanwhile: see rotate.cuh. */
#ifndef TROPE_FWD_CUDA_REGISTER_BLOCK_CUH
#define TROPE_FWD_CUDA_REGISTER_BLOCK_CUH

#include "core/divide.h"
#include "fwd/cuda/coefficients.cuh"

/* Threads of a block at most. */
#define BLOCK_THREADS 512

/* What the parameters of the usual kernels have room for: every kilobyte of them costs the host 0.1 to 0.3 us. */
#define USUAL_OPERANDS 4
#define USUAL_PAIRS    128

/* A tensor, with bytes from one of each dimension to the next. The two dimensions of rows, batch and token, are called outer
 * and inner: rows are numbered as operand 0 has them in memory. */
struct block_tensor {
    char *base;
    int64_t outer, inner, group, head, element;
};

struct block_operand {
    block_tensor src, dst;
    trope_divisor lanes;           /* of a head, and those that idle after them */
    trope_divisor heads_per_group; /* of as many groups as there are */
    uint32_t heads;                /* of all groups */
    uint32_t places;               /* for heads in a row's items: as many, but for sums */
    uint32_t rotating, copying;    /* lanes that rotate, and after them those that copy */
    uint32_t copied;               /* vectors (or elements) of these */
    uint32_t offset, window;       /* the rotary window, in elements */
    uint32_t part_pairs;
    uint32_t in_place;
    uint32_t stays; /* in L2 until it is stored: a part of a line that is changed in place */
    /* Of sums (bwd/cuda/head_sums.cuh): heads of one; those that are added at once, a power of two. */
    uint32_t terms, slots;
    uint32_t is_sum, accumulate;
};

/* Rows, and how they are cut: block b has items [s * items_of_block, ...) of rows [g * rows_of_block, ...), where s is b modulo
 * slices and g the rest. */
struct block_shape {
    int64_t rows;
    trope_divisor slices, items_of_block;
    trope_divisor inner; /* rows of the inner dimension, if there are fewer than 2^31 */
    int64_t inner_rows;
    uint32_t rows_of_block;
    uint32_t items;              /* of a row */
    uint32_t batch_outermost;    /* outer is batch, inner token; else the other way */
    uint32_t neighbours;         /* what is nearest in memory: NEAR_... */
    uint32_t couples_of_row;     /* that there is room for in shared memory */
    uint32_t lanes_of_row;       /* vectors: lanes of the widest operand */
    trope_divisor columns;       /* of a row: runs of 32 pairs, each found by a warp */
    uint32_t second_at;          /* where couples of second elements begin, in couples */
    uint32_t rows_at, terms_at;  /* bytes of shared memory before the actions of rows, and before the terms of sums */
    /* Of head sums: */
    uint32_t slots, rounds; /* the most of any operand */
    uint32_t least_slots; /* of those with several rounds */
    uint32_t levels;      /* sums that may wait for those of other rounds */
};

/* Which threads follow each other: lanes of a head, heads, or rows. */
enum { NEAR_LANES, NEAR_HEADS, NEAR_ROWS };

template <int OPERANDS> struct block_call {
    block_shape shape;
    uint32_t first_item[OPERANDS]; /* of each operand; UINT32_MAX where there is none */
    block_operand operands[OPERANDS];
    cuda_plan plan;
};

/* Phase steps, as a parameter. Where they begin in the middle of 64 bytes, small calls take 0.13 us longer. */
template <int PAIRS> struct alignas(64) phase_steps {
    uint64_t of[PAIRS];
};

/* ---- what a thread has ---- */

struct block_item {
    uint32_t operand, head, lane;
    uint32_t row; /* of the block */
    bool present;
};

template <int OPERANDS>
__device__ __forceinline__ uint32_t find_operand(const block_call<OPERANDS> &call, uint32_t item)
{
    uint32_t operand = 0;
#pragma unroll
    for (int i = 1; i < (OPERANDS < USUAL_OPERANDS ? OPERANDS : USUAL_OPERANDS); i++)
        operand += item >= call.first_item[i];
#pragma unroll 1
    for (int i = USUAL_OPERANDS; i < OPERANDS && i < call.plan.plan.operand_count; i++)
        operand += item >= call.first_item[i];
    return operand;
}

/* ANY_ORDER: not only lanes may be neighbours. */
template <bool ANY_ORDER, int OPERANDS>
__device__ __forceinline__ block_item find_item(const block_call<OPERANDS> &call, uint32_t slice, uint32_t rows)
{
    const block_shape &shape = call.shape;
    const uint32_t items = shape.items_of_block.divisor;
    block_item it;
    uint32_t item;
    if (ANY_ORDER && shape.neighbours == NEAR_ROWS) {
        item = threadIdx.x / shape.rows_of_block;
        it.row = threadIdx.x - item * shape.rows_of_block;
    } else {
        it.row = trope_divide(&shape.items_of_block, threadIdx.x);
        item = threadIdx.x - it.row * items;
    }
    const bool inside = it.row < rows && item < items;
    item += slice * items;
    it.operand = find_operand(call, item);
    const block_operand &o = call.operands[it.operand];
    const uint32_t of_operand = item - call.first_item[it.operand];
    if (ANY_ORDER && shape.neighbours == NEAR_HEADS) {
        it.lane = of_operand / o.heads;
        it.head = of_operand - it.lane * o.heads;
    } else {
        it.head = trope_divide(&o.lanes, of_operand);
        it.lane = of_operand - it.head * o.lanes.divisor;
    }
    it.present = inside && item < shape.items && it.head < o.places && it.lane < o.rotating + o.copying;
    return it;
}

/* A row of the call. INDEX: uint32_t where rows are fewer than 2^31. */
template <typename INDEX> struct block_row {
    INDEX outer, inner;

    __device__ __forceinline__ int64_t batch(const block_shape &shape) const
    {
        return shape.batch_outermost ? outer : inner;
    }

    __device__ __forceinline__ int64_t token(const block_shape &shape) const
    {
        return shape.batch_outermost ? inner : outer;
    }
};

template <typename INDEX> __device__ __forceinline__ block_row<INDEX> find_row(const block_shape &shape, int64_t number)
{
    block_row<INDEX> row = {0, (INDEX)number};
    if (number >= shape.inner_rows) {
        if (sizeof(INDEX) == 4 || shape.rows <= INT32_MAX)
            row.outer = trope_divide(&shape.inner, (uint32_t)number);
        else
            row.outer = (INDEX)(number / shape.inner_rows);
        row.inner = (INDEX)(number - (int64_t)row.outer * shape.inner_rows);
    }
    return row;
}

template <typename INDEX>
__device__ __forceinline__ char *address_of_head(const block_operand &o, const block_tensor &t, const block_row<INDEX> &row,
                                                 uint32_t head)
{
    char *p = t.base + row.outer * t.outer + row.inner * t.inner;
    if (o.heads_per_group.divisor < o.heads) {
        const uint32_t group = trope_divide(&o.heads_per_group, head);
        p += group * t.group;
        head -= group * o.heads_per_group.divisor;
    }
    return p + head * t.head;
}

/* ---- a lane ---- */

/* Where the two vectors (or elements) of a lane are in a head, in elements; what is copied may be one. */
struct lane_place {
    uint32_t first, second;
    bool has_second;
};

template <int PAIRS>
__device__ __forceinline__ lane_place find_place(const block_operand &o, uint32_t lane, bool interleaved)
{
    lane_place at = {0, 0, true};
    if (lane < o.rotating) {
        const uint32_t pair = lane * PAIRS;
        at.first = o.offset + (interleaved ? 2 * pair
                                           : pair + (uint32_t)part_of_pair((int32_t)o.part_pairs, (int32_t)pair) * o.part_pairs);
        at.second = at.first + (interleaved ? PAIRS : o.part_pairs);
        return at;
    }
    const uint32_t first = (lane - o.rotating) * PAIRS, second = first + o.copying * PAIRS;
    at.first = first < o.offset ? first : first + o.window;
    at.second = second < o.offset ? second : second + o.window;
    at.has_second = lane - o.rotating + o.copying < o.copied;
    return at;
}

#endif
