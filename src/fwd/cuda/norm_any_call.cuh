/* What the kernels that can normalise any head are told: one warp has a head. Shared by host and kernels. */
#ifndef TROPE_FWD_CUDA_NORM_ANY_CALL_CUH
#define TROPE_FWD_CUDA_NORM_ANY_CALL_CUH

#include "fwd/cuda/register_block.cuh"

/* Warps of a block. */
#define NORM_WARPS 4

/* A tensor of an operand: bytes. The two dimensions of rows are those of block_shape. */
struct head_tensor {
    char *base;
    int64_t outer, inner, group, head, element;
};

struct head_operand {
    head_tensor src, dst, x; /* x: forward_src */
    uint32_t heads, heads_per_group;
    int32_t head_dim, rotary_dim, rotary_offset, part_pairs;
    int32_t in_place, accumulate;
    trope_plan_norm norm;
    int64_t first_weight; /* of its sums among those of all operands */
};

struct norm_any_call {
    typedef int64_t stride;

    block_shape shape;
    cuda_plan plan;
    uint32_t operands, window_at, window_size; /* shared memory: bytes before the windows of the warps, and of each */
    int32_t rounding;                          /* of the caller's call: plan's is ONCE in backward */
    head_operand of[TROPE_MAX_OPERANDS];
    void *sums;       /* backward: [runs, NORM_WARPS, weights] of real, or NULL */
    int64_t weights;  /* of all operands whose d_weight is wanted */
    int64_t run_rows; /* rows of a run, which a block has */
};

#endif
