/* The gradient of the angles on CUDA: the parameters of the kernels, and where sums go.
 *
 * A unit is a token with the batch entries that share its angles and are processed together. The heads of a unit form
 * one list, ordered by batch entry, then by operand (only operands that rotate). A thread has an item, which is PAIRS
 * pairs of a head, and a slot, which is every n-th head of the list. The thread adds the heads of its slot in order.
 * Then the slots of a warp are added pairwise (in a tree), and the sums of the warps in order. So the order depends only
 * on shapes and options, and the vector and element kernels add in the same order. */
#ifndef TROPE_BWD_CUDA_GRADIENT_CALL_CUH
#define TROPE_BWD_CUDA_GRADIENT_CALL_CUH

#include "fwd/cuda/register_block.cuh"

/* What happens to the sums of a unit. */
enum gradient_mode {
    GRADIENT_DIRECT,    /* they are the gradient: no other unit has the same row of d_freqs */
    GRADIENT_TOKENS,    /* they go to the workspace, and an adder adds the units of each token */
    GRADIENT_SEQUENCES, /* they go to the workspace, and an adder adds equal positions of all sequences */
    GRADIENT_SORTED,    /* they go to the workspace; units are sorted by row of d_freqs and added */
    GRADIENT_TOTAL      /* each block adds its units, and an adder adds the blocks: d_inv_freq, or d_freqs of one row */
};

/* Parameters of the pass. In `shape`, the tokens are units. The outer index of a unit is the run of batch entries, and
 * its inner index is the token. */
struct gradient_call {
    block_shape shape;
    cuda_plan plan;   /* with rounding ONCE; the call's own rounding: */
    int32_t rounding; /* applies to the coefficients that rotate dx, but not to the coefficients in the sums */
    gradient_mode mode;
    uint32_t batch, entries; /* number of batch entries, and maximum number in a unit */
    trope_divisor heads_of_entry, unit_threads;
    uint32_t item_bits;            /* a head has 2^item_bits items */
    uint32_t slots, slots_of_warp; /* slots of a unit, and of a warp (a power of two) */
    uint32_t rounds;               /* maximum number of heads in a slot */
    uint32_t shares;            /* partial sums of a unit: one for each warp, or for each slot that is larger than a warp */
    uint32_t rearranges;        /* in place, with other pairing: a head must be loaded completely before it is stored */
    uint32_t left_at;           /* offset of the shares in shared memory, in bytes */
    trope_divisor columns;      /* columns of sums: the first elements of all pairs, then (per_element) the second ones */
    double *sums;               /* [units, columns]; TOTAL: [columns, blocks] */
    uint32_t *keys, *values;    /* SORTED: [axes, units] */
    uint32_t buckets;           /* rows of d_freqs, in all batch entries that have their own rows */
    uint32_t windows, segments; /* counts; the windows come first, then the segments that pass through */
};

/* The parameters with the segments that the pass moves. */
template <typename OF_STRIDE, int SEGMENTS, int WINDOWS> struct gradient_segments : gradient_call {
    typedef OF_STRIDE stride;

    block_segment<stride> segment[SEGMENTS]; /* not stored if dst has no base */
    block_tensor<stride> x[WINDOWS];         /* forward_src of each window */
};

typedef gradient_segments<int32_t, NARROW_SEGMENTS, NARROW_SEGMENTS> narrow_gradient;

/* Marks the slope of a poisoned head, which adds nothing to the gradient: the first 4 bytes of a NaN that arithmetic never
 * produces. */
#define POISONED_SLOPE 0x7fc0005eu

struct wide_gradient : gradient_segments<int64_t, MOST_SEGMENTS, TROPE_MAX_OPERANDS> {
    trope_plan_norm norm[TROPE_MAX_OPERANDS]; /* norm of each window: x is normalised by an rstd that the kernel reads */
    int32_t window_at[TROPE_MAX_OPERANDS];    /* first element of each window in its head */
};

/* ---- results ---- */

__host__ __device__ __forceinline__ uint32_t columns_of(const trope_plan &plan)
{
    return (uint32_t)plan.pairs * (plan.angles.per_element ? 2 : 1);
}

/* The pair of a column of sums. */
__device__ __forceinline__ uint32_t pair_of_column(const trope_plan &plan, uint32_t column)
{
    return column < (uint32_t)plan.pairs ? column : column - (uint32_t)plan.pairs;
}

/* Returns the number of rows of d_freqs for each batch entry. A row stride of 0 means one row, which receives the sum. */
__host__ __device__ __forceinline__ int64_t rows_of_gradient(const trope_plan &plan)
{
    return plan.d_freqs_stride.row ? plan.angles.rows : 1;
}

/* Inverse calls rotate by -a, so the sum changes its sign. (0 - x gives 0, not -0, for an angle that nothing uses.) */
__device__ __forceinline__ double signed_sum(const trope_plan &plan, double sum)
{
    return plan.inverse ? 0 - sum : sum;
}

/* A column of d_freqs. */
struct angle_column {
    const trope_plan &plan;
    int32_t planes, plane; /* the number of planes, and the plane that drives the pair */
    int64_t offset;

    __device__ __forceinline__ angle_column(const trope_plan &of, uint32_t column) : plan(of), planes(1), plane(0)
    {
        const int32_t pair = (int32_t)pair_of_column(plan, column);
        int32_t at = pair;
        if (plan.angles.per_element)
            at = column < (uint32_t)plan.pairs
                     ? trope_first_of_pair(plan.interleaved_columns, plan.parts, plan.pairs, pair)
                     : trope_second_of_pair(plan.interleaved_columns, plan.parts, plan.pairs, pair);
        if (plan.d_freqs_stride.axis) {
            planes = plan.planes;
            plane = trope_pair_plane(&plan, pair);
        }
        offset = at * plan.d_freqs_stride.column;
    }

    /* Stores the sum of a row in the plane that drives the pair, and 0 in the other planes. The stores are streaming,
     * because results should not stay in L2. (Sums of units should not stay there either, although they are read once.) */
    __device__ __forceinline__ void store(int64_t batch, int64_t row, double sum) const
    {
        const trope_table_stride &stride = plan.d_freqs_stride;
#pragma unroll 1
        for (int32_t i = 0; i < planes; i++) {
            const int64_t at = offset + i * stride.axis + batch * stride.batch + row * stride.row;
            const double value = i == plane ? signed_sum(plan, sum) : 0;
            if (plan.dtype == TROPE_F64)
                __stcs((double *)plan.d_freqs + at, value);
            else
                __stcs((float *)plan.d_freqs + at, (float)value);
        }
    }
};

__device__ __forceinline__ uint32_t axis_of_column(const trope_plan &plan, uint32_t column)
{
    return (uint32_t)trope_pair_axis(&plan, (int32_t)pair_of_column(plan, column));
}

/* ---- adders ---- */

/* Threads of a block of the pass. f64 may have twice as many. */
#define GRADIENT_THREADS 128

#define SUMS_THREADS        256
#define SUMS_WARPS          (SUMS_THREADS / 32)
#define WIDE_THREADS        1024
#define MOST_COLUMN_THREADS 256 /* threads that share a column; with more, a block would read less than a sector of a row */
#define LOADED_TOGETHER     8   /* numbers that a thread loads before it adds the first of them */
#define SORT_MAX_BITS       10  /* bits of a digit: a warp's counters take 4 KiB */
#define RUN_ITEMS           32  /* sorted units that are added first if they all have the same key */

/* Parameters of the adders. The sorting kernels read keys[from] and values[from], and write the other two arrays. */
struct angle_sums {
    trope_plan plan;
    double *sums;
    /* The size of the table whose rows are added. TOTAL: each block has a row. TOKENS: each unit of a token has a row, with
     * the columns of all tokens. */
    int64_t rows, width;
    int64_t row_stride, column_stride;
    uint32_t column_threads;       /* threads that add one column: a power of two */
    uint32_t row_warps;            /* SEQUENCES: warps that add one row, a power of two */
    uint32_t *keys[2], *values[2]; /* [axes, units] */
    uint32_t *counts;              /* [digits, tiles] */
    uint32_t from, items, buckets;
    uint32_t tiles, warp_items; /* number of tiles, one for each block; number of items of a warp in its tile */
    uint32_t shift, bits;       /* position and width of the current digit */
};

#endif
