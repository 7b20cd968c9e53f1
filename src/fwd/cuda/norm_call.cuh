/* The parameters that kernels with norms have in addition to the parameters of the rotation. Shared by host and kernels.
 *
 * The segment of an operand with a norm has all elements of each head. The two vectors of an item are `join` vectors
 * apart. So the tree over a head (trope.h, trope_norm) first adds the first vectors of `join` items and, separately,
 * their second vectors. Then it adds these two sums, and then the sums of neighbouring groups of items. */
#ifndef TROPE_FWD_CUDA_NORM_CALL_CUH
#define TROPE_FWD_CUDA_NORM_CALL_CUH

#include "fwd/cuda/register_block.cuh"

/* The number of heads of a thread (together they are one unit of a block), and the maximum number of threads of a block. */
#define NORM_HEADS   2
#define NORM_THREADS 160

/* For blocks with whole tokens (token_sums.cuh): the maximum number of threads, the maximum number of heads of a token,
 * and the floats of shared memory for each token. */
#define TOKEN_THREADS     (3 * NORM_THREADS)
#define MOST_TOKEN_HEADS  1024
#define TOKEN_ROOM(heads) ((heads) + NARROW_SEGMENTS)

/* The norm of a segment. */
struct block_norm {
    uint32_t is_given, rotates;
    uint32_t weight_of_head; /* the distance between the weights of neighbouring heads, in elements */
    uint32_t reads_rstd;
    const char *weight; /* NULL: no weight */
    float *rstd;        /* NULL: not stored */
    uint32_t axes; /* bit a: axis a drives a pair of the segment; if the axis has no position, the whole head becomes NaN */
    /* For norms over tokens: */
    uint32_t heads_at;  /* where the sums of its heads begin, in the shared memory of a token */
    uint32_t sums_read; /* the number of heads of all ranks, if the sums are read */
    float elements;     /* the number in all its heads */
    float *sums;        /* the caller's token_sums, or NULL */
    const float *slope; /* backward: the slope of each token, or NULL if the block computes it */
};

/* The properties that all heads with a norm share. */
struct norm_call : narrow_call {
    uint32_t head_items, join;                /* powers of two */
    uint32_t first_window_item, window_items; /* the items that rotate, if any head does */
    uint32_t any_idles;                       /* a head has idle items */
    uint32_t is_after;                        /* the norm comes after the rotation */
    int32_t weight_dtype, plus_one, rounding;
    uint32_t head_dim;
    float reciprocal; /* 1 / head_dim if it is a power of two, so that a product replaces a division; else 0 */
    float eps;
    uint32_t has_rstd;   /* any segment has rstd */
    uint32_t reads_rstd; /* all segments with a norm read rstd */
    uint32_t is_token;   /* the norms are over tokens */
    uint32_t adds_heads; /* the block adds the heads of a token */
    uint32_t token_heads;
    block_norm norms[NARROW_SEGMENTS];
};

#endif
