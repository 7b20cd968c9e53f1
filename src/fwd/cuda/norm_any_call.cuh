/* What the kernels that can normalise any head are told: one warp has a head. Shared by host and kernels. */
#ifndef TROPE_FWD_CUDA_NORM_ANY_CALL_CUH
#define TROPE_FWD_CUDA_NORM_ANY_CALL_CUH

#include "fwd/cuda/register_block.cuh"

/* Warps of a block. */
#define NORM_WARPS 4

/* Heads of a token whose sums a block has at a time: a multiple of 32. */
#define HEADS_AT_A_TIME 128

/* A tensor of an operand: bytes. The two dimensions of rows are those of block_shape. */
struct head_tensor {
    char *base;
    int64_t outer, inner, group, head, element;
};

struct head_operand {
    head_tensor src, dst;
    uint32_t heads, heads_per_group;
    int32_t head_dim, rotary_dim, rotary_offset, in_place, accumulate;
    uint32_t axes; /* bit a: axis a drives a pair of it */
    trope_plan_norm norm;
};

struct norm_any_call {
    block_shape shape;
    cuda_plan plan;
    uint32_t operands, window_at, window_size; /* shared memory: bytes before the windows of the warps, and of each */
    head_operand of[TROPE_MAX_OPERANDS];
};

#endif
