/* The parameters of the kernels that can normalise any head. One warp processes each head. Shared by host and kernels. */
#ifndef TROPE_FWD_CUDA_NORM_GENERIC_CALL_CUH
#define TROPE_FWD_CUDA_NORM_GENERIC_CALL_CUH

#include "fwd/cuda/register_block.cuh"

/* The number of warps of a block. */
#define NORM_WARPS 4

/* The number of heads of a token whose sums a block keeps at a time. It must be a multiple of 32. */
#define HEADS_AT_A_TIME 128

/* The strides of an operand's tensor, in bytes. The two dimensions of tokens are the same as in block_shape. */
struct head_tensor {
    char *base;
    int64_t outer, inner, group, head, element;
};

struct head_operand {
    head_tensor src, dst;
    uint32_t heads, heads_per_group;
    int32_t head_dim, rotary_dim, rotary_offset, in_place, accumulate;
    uint32_t axes; /* bit a: axis a drives a pair of the operand */
    trope_plan_norm norm;
};

struct norm_generic_call {
    block_shape shape;
    cuda_plan plan;
    uint32_t operands, window_at, window_size; /* of shared memory, in bytes: start and size of the warps' windows */
    head_operand of[TROPE_MAX_OPERANDS];
};

#endif
