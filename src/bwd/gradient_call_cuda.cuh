/* The gradient of the angles on CUDA: what a launch of its one pass is told, by the host. */
#ifndef TROPE_BWD_GRADIENT_CALL_CUDA_CUH
#define TROPE_BWD_GRADIENT_CALL_CUDA_CUH

#include "core/angles_cuda.cuh"

/* What becomes of the sums of a unit. */
enum gradient_mode {
    GRADIENT_DIRECT,     /* no other unit has its angles: they are the result */
    GRADIENT_PARTS,      /* `sums`, where units that follow each other in a known way are added */
    GRADIENT_SORTED,     /* `sums`, with the angle row of each unit in `keys` */
    GRADIENT_FREQUENCIES /* times the position, and the block's units added: a row of `sums` for each block */
};

/* The heads of one operand, and the items (vectors or elements) of a head that pass through. */
struct gradient_heads {
    uint32_t first; /* in a row */
    fast_divisor per_group;
    int64_t src_step, input_step, dst_step; /* bytes from a head to the next of the same slot and group */
    uint32_t first_passing;                 /* in a row */
    fast_divisor passing;
};

struct gradient_call {
    cuda_plan plan; /* its rows are units: plan.batch is how many units have the same token. plan.rounding is ONCE: */
    bool native;    /* what is turned by may be rounded to the dtype, what is summed with never is */
    gradient_heads operands[TROPE_MAX_OPERANDS];
    int64_t batch;           /* batch entries of the tensors */
    fast_divisor pair_lanes; /* coefficients: thread t has row t / pair_lanes and pair t % pair_lanes, */
    uint32_t pair_row_step;  /* and goes on by this */
    uint32_t batch_per_unit;
    uint32_t units_per_block;
    fast_divisor row_heads; /* heads of a row */
    fast_divisor slots;     /* of a unit */
    fast_divisor head_threads;
    uint32_t steps;       /* heads that a slot walks, at most */
    uint32_t row_passing; /* items of a row that pass through */
    fast_divisor unit_passing;
    uint32_t interleaved_gap; /* bytes from a thread's first vector to its second in a tensor of interleaved pairs */
    uint32_t spread;          /* a thread's vectors are half a window apart: see thread_pairs */
    uint32_t rearranges;      /* what a head's threads write in place, others of them read */
    gradient_mode mode;
    uint32_t key_axes;   /* axes with positions of their own */
    uint32_t angle_rows; /* SORTED: of all batch entries that have their own */
    uint32_t units;
    double *sums;            /* a row: the first elements of all pairs, then (per_element) the second */
    uint32_t *keys, *values; /* [key_axes, units] */
};

TROPE_HD uint32_t gradient_runs(const gradient_call &g)
{
    return g.plan.own_angles ? 2 : 1;
}

/* What is turned by is also what is summed with, in f64 and unless the position is a factor. */
TROPE_HD bool gradient_shares_turns(const gradient_call &g)
{
    return g.plan.plan.dtype == TROPE_F64 && g.mode != GRADIENT_FREQUENCIES;
}

#endif
