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

/* Threads of a block that has whole tokens, at most; heads of a token that it can add; and floats of shared memory of a row of it
 * (token_sums.cuh). */
#define TOKEN_THREADS     (3 * NORM_THREADS)
#define MOST_TOKEN_HEADS  1024
#define TOKEN_ROOM(heads) ((heads) + USUAL_SEGMENTS)

/* The norm of a segment. */
struct block_norm {
    uint32_t is_given, rotates;
    uint32_t weight_of_head; /* elements from a head's weights to the next head's */
    uint32_t reads_rstd;
    const char *weight; /* NULL: none */
    float *rstd;        /* NULL: kept nowhere */
    uint32_t axes;      /* bit a: axis a drives a pair of it, without whose position nothing of the head is a number */
    /* Over a token: */
    uint32_t heads_at;  /* where the sums of its heads begin, in a row of the block */
    uint32_t sums_read; /* heads of all ranks */
    float elements;     /* of all its heads */
    float *sums;        /* the caller's token_sums, or NULL */
    const float *slope; /* backward: of each token, or NULL: the block finds it */
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
    uint32_t has_rstd;   /* some segment has */
    uint32_t reads_rstd; /* all that have a norm read it */
    uint32_t is_token;   /* the norms are over tokens */
    uint32_t adds_heads; /* and the block adds their heads */
    uint32_t token_heads;
    block_norm norms[USUAL_SEGMENTS];
};

#endif
