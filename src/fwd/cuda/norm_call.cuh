/* What a kernel with norms has of a call besides what the rotation has: shared by host and kernels.
 *
 * Segment of an operand with a norm: all of each head. A lane has vectors that are `join` vectors apart, so that the tree over a
 * head (trope.h, trope_norm) is one over the first vectors of `join` lanes, one over their second vectors, the sum of the two, and
 * then the same over the next lanes. */
#ifndef TROPE_FWD_CUDA_NORM_CALL_CUH
#define TROPE_FWD_CUDA_NORM_CALL_CUH

#include "fwd/cuda/register_block.cuh"

/* Heads of a thread, a unit of a block; threads of a block at most. */
#define NORM_HEADS   2
#define NORM_THREADS 160

/* The norm of a segment. */
struct block_norm {
    uint32_t is_given, rotates;
    uint32_t weight_of_head; /* elements from a head's weights to the next head's */
    uint32_t reads_rstd;
    const char *weight; /* NULL: none */
    float *rstd;        /* NULL: kept nowhere */
};

/* What all heads with a norm have in common. */
struct norm_call : usual_call {
    uint32_t head_lanes, join;         /* powers of two */
    uint32_t first_lane, window_lanes; /* those that rotate, where anything does */
    uint32_t any_idles;                /* lanes of a head that it does not need */
    uint32_t is_after;                 /* the rotation */
    int32_t weight_dtype, plus_one, rounding;
    uint32_t head_dim;
    float reciprocal; /* of head_dim, if that is a power of two: a division is one product */
    float eps;
    uint32_t has_rstd; /* some segment has */
    block_norm norms[USUAL_SEGMENTS];
};

#endif
