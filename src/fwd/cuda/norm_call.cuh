/* What a kernel with norms has of each segment besides what the rotation has: shared by host and kernels.
 *
 * Segment of an operand with a norm: all of each head. A lane has vectors that are `join` vectors apart, so that the tree over a
 * head (trope.h, trope_norm) is one over the first vectors of `join` lanes, one over their second vectors, the sum of the two, and
 * then the same over the next lanes. */
#ifndef TROPE_FWD_CUDA_NORM_CALL_CUH
#define TROPE_FWD_CUDA_NORM_CALL_CUH

#include "fwd/cuda/register_block.cuh"

struct block_norm {
    uint32_t is_given;
    uint32_t join;                     /* lanes after which first and second vectors are added: a power of two */
    uint32_t first_lane, window_lanes; /* those that rotate */
    int32_t weight_dtype;              /* 0: no weight */
    uint32_t weight_of_head;           /* elements from a head's weights to the next head's */
    int32_t plus_one, rounding;
    float head_dim, eps;
    uint32_t reads_rstd;
    const char *weight;
    float *rstd; /* NULL: kept nowhere */
};

struct norm_call : usual_call {
    uint32_t most_lanes, most_join; /* of a head with a norm: powers of two */
    uint32_t heads_are_alike;       /* all heads with a norm have these */
    block_norm norms[USUAL_SEGMENTS];
};

#endif
