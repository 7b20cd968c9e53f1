/* The gradient of the angles on CUDA: what its kernels are told by the host, and where sums go.
 *
 * A unit is a token, with as many batch entries as share its angles and are taken together. Its heads are one list: batch
 * entry by batch entry those of each operand that rotates. A thread has a lane of a head, PAIRS pairs, and a slot, which is
 * every so manieth head of the list, and adds them in their order. The slots of a warp are then added by halves, and the
 * warps in order. So the order depends on shapes and options alone, and is the same by vectors and by elements. */
#ifndef TROPE_BWD_CUDA_GRADIENT_CALL_CUH
#define TROPE_BWD_CUDA_GRADIENT_CALL_CUH

#include "fwd/cuda/register_block.cuh"

/* What becomes of the sums of a unit. */
enum gradient_mode {
    GRADIENT_DIRECT,    /* they are the gradient: no other unit has its row of d_freqs */
    GRADIENT_TOKENS,    /* they are left, and the units of each token are added */
    GRADIENT_SEQUENCES, /* they are left, and the tokens at one place of their sequences are added */
    GRADIENT_SORTED,    /* they are left, and units are sorted by rows of d_freqs and added */
    GRADIENT_TOTAL      /* those of a block are added and left, and these added: d_inv_freq, or d_freqs of one row */
};

/* The rows of `shape` are units: outer is a run of batch entries, inner the token. */
struct gradient_call {
    block_shape shape;
    cuda_plan plan;   /* whose rounding is ONCE: */
    int32_t rounding; /* dx is rotated by coefficients that may be rounded, the sums take them as they are */
    gradient_mode mode;
    uint32_t batch, entries; /* batch entries: all, and those of a unit at most */
    trope_divisor heads_of_entry, unit_threads;
    uint32_t lane_bits;            /* a head has 2^lane_bits lanes */
    uint32_t slots, slots_of_warp; /* of a unit; a warp has a power of two */
    uint32_t rounds;               /* heads of a slot, at most */
    uint32_t shares;               /* of a unit, each of which leaves sums: its warps, or slots of more than a warp */
    uint32_t rearranges;           /* a head in place is stored elsewhere in itself, when all of it has been loaded */
    uint32_t left_at;              /* bytes of shared memory before what shares leave */
    trope_divisor columns;         /* of sums: the first elements of all pairs, then (per_element) the second ones */
    double *sums;                  /* [units, columns]; TOTAL: [columns, blocks] */
    uint32_t *keys, *values;       /* SORTED: [axes, units] */
    uint32_t buckets;              /* rows of d_freqs, of all batch entries that have their own */
    uint32_t windows, segments;    /* these are windows first, then what passes through */
};

/* With what the pass moves. */
template <typename OF_STRIDE, int SEGMENTS, int WINDOWS> struct gradient_segments : gradient_call {
    typedef OF_STRIDE stride;

    block_segment<stride> segment[SEGMENTS]; /* dst without a base is not written */
    block_tensor<stride> x[WINDOWS];         /* forward_src of each window */
};

typedef gradient_segments<int32_t, USUAL_SEGMENTS, USUAL_SEGMENTS> usual_gradient;

/* The first 4 bytes of the slope of a head that is poisoned, and adds nothing: of a NaN that no arithmetic makes. */
#define POISONED_SLOPE 0x7fc0005eu

struct wide_gradient : gradient_segments<int64_t, MOST_SEGMENTS, TROPE_MAX_OPERANDS> {
    trope_plan_norm norm[TROPE_MAX_OPERANDS]; /* of each window: x is normalised by an rstd that is read */
    int32_t window_at[TROPE_MAX_OPERANDS];    /* its first element in a head */
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

/* Rows of d_freqs that a batch entry has: a stride of 0 receives the sum. */
__host__ __device__ __forceinline__ int64_t rows_of_gradient(const trope_plan &plan)
{
    return plan.d_freqs_stride.row ? plan.angles.rows : 1;
}

/* For inverse the angle that is rotated by is -a. (0 - x, so that an angle that nothing uses gets 0 and not -0.) */
__device__ __forceinline__ double signed_sum(const trope_plan &plan, double sum)
{
    return plan.inverse ? 0 - sum : sum;
}

/* A column of d_freqs. */
struct angle_column {
    const trope_plan &plan;
    int32_t planes, plane; /* all, and the one that drives the pair */
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

    /* Stores the sum of a row in the plane that drives the pair, and 0 in the others. Results should not stay in L2 (nor should
     * sums of units, although they are read once). */
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

/* ---- what adds sums ---- */

/* Threads of a block of the pass; lanes of f64 may be twice as many. */
#define GRADIENT_THREADS 128

#define SUMS_THREADS    256
#define SUMS_WARPS      (SUMS_THREADS / 32)
#define WIDE_THREADS    1024
#define MOST_LANES      256 /* of a column: with fewer columns a block would read less than a sector of a row */
#define LOADED_TOGETHER 8   /* numbers that a thread loads before it adds the first of them */
#define SORT_MAX_BITS   10  /* a digit: a warp's counters are 4 KiB */
#define RUN_ITEMS       32  /* sorted units that are added first, where they have one key */

/* What the kernels that add sums are told. Those that sort look at keys[from] and values[from], and write the others. */
struct angle_sums {
    trope_plan plan;
    double *sums;
    int64_t rows, width; /* of what is added in order: blocks; TOKENS: units of a token, all tokens' columns */
    int64_t row_stride, column_stride;
    uint32_t lanes;                /* that add one column of it: a power of two */
    uint32_t row_warps;            /* SEQUENCES: that add one row: a power of two */
    uint32_t *keys[2], *values[2]; /* [axes, units] */
    uint32_t *counts;              /* [digits, tiles] */
    uint32_t from, items, buckets;
    uint32_t tiles, warp_items; /* of a tile, which a block has */
    uint32_t shift, bits;       /* one digit */
};

#endif
