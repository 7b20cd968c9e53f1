/* The register block: a short-lived block takes a row, or a few, with all heads of all operands. Each thread has an item: one
 * lane of a head, the elements of a few pairs in two vectors (or one pair in two elements), from its loads to its stores.
 * What is the same for all heads of a row, its coefficients, the threads find together meanwhile: see rotate.cuh.
 *
 * A block lives 1 or 2 us, and what comes before its first load is time lost. So the host cuts operands into segments, in
 * which an address is a sum of products, and threads are numbered in two dimensions, which spares them divisions. */
#ifndef TROPE_FWD_CUDA_REGISTER_BLOCK_CUH
#define TROPE_FWD_CUDA_REGISTER_BLOCK_CUH

#include "core/divide.h"
#include "fwd/cuda/coefficients.cuh"

/* Threads of a block at most; with rows of one head, or few (rotate_alone.cuh); with sums by vectors (bwd/cuda/head_sums.cuh). */
#define BLOCK_THREADS 512
#define ALONE_THREADS 256
#define SUM_THREADS   256
#define SUM_COPIES    4 /* lanes of what passes through beside sums that a thread copies at a time */

/* What a kernel is compiled for: threads of a block at most, and how many such blocks a multiprocessor should hold, which
 * says how many registers a thread may have. */
struct block_limit {
    int threads, blocks;
};

constexpr block_limit block_limits(int rows, bool is_wide)
{
    return is_wide ? block_limit{BLOCK_THREADS, 2} : rows == ROWS_ANY ? block_limit{320, 4} : block_limit{384, 4};
}

/* What the parameters of the usual kernels have room for: every kilobyte of them costs the host 0.1 to 0.3 us. */
#define USUAL_SEGMENTS 6
#define USUAL_PAIRS    128
/* An operand is a window, and what passes through before and after it. */
#define MOST_SEGMENTS (3 * TROPE_MAX_OPERANDS)

/* Where the lanes of a segment are: bytes from one to the next of each dimension, and from a lane's first vector to its
 * second. The two dimensions of rows, batch and token, are called outer and inner: rows are numbered as operand 0 has them in
 * memory. */
template <typename STRIDE> struct block_tensor {
    char *base;
    STRIDE inner, head, lane, second;
    STRIDE outer, group;
    STRIDE part; /* what a lane of the second part is further away, and so on */
};

/* A run of every head of an operand that is rotated, or copied. */
template <typename STRIDE> struct block_segment {
    block_tensor<STRIDE> src, dst;
    STRIDE kept_lane, kept_second, kept_part; /* of dst, where elements stay where src has them in a head */
    int64_t moved;                            /* bytes from a lane in src to the same one in dst, if `alike` */
    trope_divisor lanes;                      /* of a head, and those that idle after them */
    trope_divisor heads_per_group;            /* of as many groups as there are */
    uint32_t heads;                           /* of all groups */
    uint32_t places;                          /* for heads in a row's items (more for sums) */
    uint32_t working;                         /* lanes that do not idle */
    uint32_t part_lanes;                      /* of each part of a window */
    uint32_t is_intricate;                    /* it has groups, parts or lanes that idle: one question for what is rare */
    uint32_t is_loaded;                       /* in place, what passes through is only overwritten */
    uint32_t rotates, in_place;
    uint32_t is_plain; /* it rotates, rounds once, and overwrites dst: one question for what is usual */
    uint32_t alike;    /* lanes of dst are as far apart as those of src, and have the same elements */
    uint32_t is_odd;   /* copied: lane 0 has one vector, and its second is another lane's first */
    /* Of sums (bwd/cuda/head_sums.cuh): heads of one; slots that share them; rounds, heads of a slot, 0 of what is no sum. */
    uint32_t terms, slot_bits, rounds;
    uint32_t accumulate;
};

/* Rows and items, and how they are cut: a block has a slice of items_of_block items of rows_of_block rows. */
struct block_shape {
    int64_t rows;
    int64_t inner_rows;
    trope_divisor inner;     /* these, if they are below 2^31 */
    uint32_t two_dimensions; /* there is more than one outer */
    uint32_t rows_of_block, items_of_block;
    uint32_t items;             /* of a row */
    uint32_t is_uniform;        /* all heads have the same number of lanes, so that no thread divides */
    uint32_t is_simple;         /* it is uniform, and addresses are simple (ADDRESSES_SIMPLE) */
    uint32_t units;             /* of a row: its heads, or else its items */
    uint32_t units_of_block;    /* of a row */
    uint32_t any_is_intricate;  /* of the segments */
    uint32_t all_are_alike;     /* of the segments that have items */
    uint16_t segments;          /* that have items */
    uint16_t rest;              /* segments after these, which have none: REST in plan_blocks.cuh */
    uint32_t rotating_slices;   /* of items_of_block each, the first ones: after them items are only copied */
    uint32_t slices_first;      /* blocks of the same rows follow each other in the grid, and so in time, as in memory */
    uint32_t batch_outermost;   /* outer is batch, inner token; else the other way */
    uint32_t neighbours;        /* what is nearest in memory: NEAR_... */
    uint32_t couples_of_row;    /* that there is room for in shared memory */
    trope_divisor lanes;        /* of the widest window */
    uint32_t splits;            /* the second half of a lane's pairs is so many lanes further: see block_form */
    uint32_t second_at;         /* where couples of second elements begin, in couples */
    uint32_t rows_at, terms_at; /* bytes of shared memory before the rows, and before the terms of sums */
    /* Of sums: */
    uint32_t summing_slices; /* the first ones, which have items of sums */
    uint32_t slots, rounds;  /* the most of any operand, powers of two */
    uint32_t most_lanes;     /* of a head */
    uint32_t terms;          /* that shared memory has room for */
};

/* Which threads follow each other: lanes of a head, heads, or rows. */
enum { NEAR_LANES, NEAR_HEADS, NEAR_ROWS };

template <typename OF_STRIDE, int SEGMENTS> struct block_call {
    typedef OF_STRIDE stride;

    block_shape shape;
    uint32_t first_unit[SEGMENTS]; /* of each segment; UINT32_MAX where there is none */
    block_segment<stride> segments[SEGMENTS];
    cuda_plan plan;
};

typedef block_call<int32_t, USUAL_SEGMENTS> usual_call;
typedef block_call<int64_t, MOST_SEGMENTS> wide_call;

/* Phase steps, as a parameter. Where they begin in the middle of 64 bytes, small calls take 0.13 us longer. */
template <int PAIRS> struct alignas(64) phase_steps {
    uint64_t of[PAIRS];
};

/* ---- what a block has ---- */

/* Its run of rows, and its slice of their items. */
__device__ __forceinline__ uint32_t block_of_rows(const block_shape &shape)
{
    return shape.slices_first ? blockIdx.y : blockIdx.x;
}

__device__ __forceinline__ uint32_t slice_of_block(const block_shape &shape)
{
    return shape.slices_first ? blockIdx.x : blockIdx.y;
}

template <typename INDEX> __device__ __forceinline__ INDEX first_row_of_block(const block_shape &shape)
{
    return (INDEX)block_of_rows(shape) * (INDEX)shape.rows_of_block;
}

/* The last block may have fewer rows than the others. */
template <typename INDEX> __device__ __forceinline__ uint32_t count_rows(const block_shape &shape, INDEX first_row)
{
    return (uint32_t)min((INDEX)shape.rows_of_block, (INDEX)shape.rows - first_row);
}

/* ---- what a thread has ---- */

struct block_item {
    uint32_t segment, head, lane;
    uint32_t row; /* of the block */
    bool present;
};

template <class CALL> __device__ __forceinline__ uint32_t find_segment(const CALL &call, uint32_t unit)
{
    uint32_t segment = (unit >= call.first_unit[1]) + (unit >= call.first_unit[2]);
#pragma unroll 1
    for (uint32_t i = 3; i < call.shape.segments; i++)
        segment += unit >= call.first_unit[i];
    return segment;
}

/* What an address may be made of: the token, head and lane of one batch entry (addresses_are_simple in usual.cuh); also of a group
 * and a part of the window; and of a batch entry. */
enum address_kind { ADDRESSES_SIMPLE, ADDRESSES_OF_ONE_ENTRY, ADDRESSES_ANY };

/* ANY_ORDER: not only lanes may be neighbours. */
template <bool ANY_ORDER, int ADDRESSES, class CALL>
__device__ __forceinline__ block_item find_item(const CALL &call, uint32_t rows, uint32_t row)
{
    const block_shape &shape = call.shape;
    const bool is_uniform = ADDRESSES == ADDRESSES_SIMPLE || shape.is_uniform,
               by_rows = ANY_ORDER && shape.neighbours == NEAR_ROWS;
    const uint32_t unit =
        slice_of_block(shape) * shape.units_of_block + (is_uniform || by_rows ? threadIdx.y : threadIdx.x);
    block_item it;
    it.row = by_rows ? threadIdx.x : row;
    it.segment = find_segment(call, unit);
    const auto &s = call.segments[it.segment];
    const uint32_t of_segment = unit - call.first_unit[it.segment];
    if (is_uniform) {
        it.lane = threadIdx.x;
        it.head = of_segment;
    } else if (ANY_ORDER && shape.neighbours == NEAR_HEADS) {
        it.lane = of_segment / s.heads;
        it.head = of_segment - it.lane * s.heads;
    } else {
        it.head = trope_divide(&s.lanes, of_segment);
        it.lane = of_segment - it.head * s.lanes.divisor;
    }
    it.present = it.row < rows && unit < shape.units;
    if (ADDRESSES != ADDRESSES_SIMPLE && shape.any_is_intricate && s.is_intricate)
        it.present = it.present && it.head < s.places && it.lane < s.working;
    return it;
}

/* A row of the call. INDEX: int32_t where rows are fewer than 2^31. */
template <typename INDEX> struct block_row {
    INDEX outer, inner;

    /* (By products, or the compiler would make two kernels of one.) */
    __device__ __forceinline__ int64_t batch(const block_shape &shape) const
    {
        return inner + (outer - inner) * (INDEX)shape.batch_outermost;
    }

    __device__ __forceinline__ int64_t token(const block_shape &shape) const
    {
        return outer + (inner - outer) * (INDEX)shape.batch_outermost;
    }
};

template <int ADDRESSES, typename INDEX>
__device__ __forceinline__ block_row<INDEX> find_row(const block_shape &shape, INDEX number)
{
    block_row<INDEX> row = {0, number};
    if (ADDRESSES != ADDRESSES_ANY)
        return row;
    /* (With one outer, too: the compiler would load the divisor under a condition, and wait for it with the data.) */
    if (sizeof(INDEX) == 4 || shape.rows <= INT32_MAX)
        row.outer = (INDEX)trope_divide(&shape.inner, (uint32_t)number);
    else
        row.outer = (INDEX)(number / shape.inner_rows);
    row.inner = (INDEX)(number - row.outer * (INDEX)shape.inner_rows);
    return row;
}

/* Of a lane of a head. */
template <int ADDRESSES, typename STRIDE, typename INDEX>
__device__ __forceinline__ char *find_address(const block_shape &shape, const block_segment<STRIDE> &s,
                                              const block_tensor<STRIDE> &t, const block_row<INDEX> &row, uint32_t head,
                                              uint32_t lane)
{
    char *p = t.base + (int64_t)row.inner * t.inner + (int64_t)(int32_t)lane * t.lane;
    if (ADDRESSES == ADDRESSES_ANY && shape.two_dimensions)
        p += (int64_t)row.outer * t.outer;
    if (ADDRESSES != ADDRESSES_SIMPLE && shape.any_is_intricate && s.is_intricate) {
        const uint32_t group = trope_divide(&s.heads_per_group, head);
        p += (int64_t)(int32_t)group * t.group;
        head -= group * s.heads_per_group.divisor;
        p += part_of_pair((int32_t)s.part_lanes, (int32_t)lane) * (int64_t)t.part;
    }
    return p + (int64_t)(int32_t)head * t.head;
}

/* dst of a row that is not rotated: its elements stay where they are in a head, whatever the pairings. */
template <typename STRIDE> __device__ __forceinline__ block_tensor<STRIDE> unrotated_dst(const block_segment<STRIDE> &s)
{
    block_tensor<STRIDE> t = s.dst;
    t.lane = s.kept_lane;
    t.second = s.kept_second;
    t.part = s.kept_part;
    return t;
}

#endif
