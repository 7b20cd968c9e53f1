/* The plan: a validated call in the form that both backends use. api/plan.c makes it. The struct is plain data, so a CUDA
 * kernel can take it by value, with copies of the arrays that it points to. */
#ifndef TROPE_CORE_PLAN_H
#define TROPE_CORE_PLAN_H

#include <stdalign.h>
#include <stdint.h>

#include "core/divide.h"
#include "core/host_device.h"
#include "core/pairs.h"
#include "trope/trope.h"

#define TROPE_MAX_PAIRS (TROPE_MAX_ROTARY_DIM / 2)

typedef enum trope_angle_source {
    TROPE_ANGLES_NONE,
    TROPE_ANGLES_FREQS,
    TROPE_ANGLES_TABLE,
    TROPE_ANGLES_PHASE
} trope_angle_source;

/* The norm of an operand. */
typedef struct trope_plan_norm {
    int32_t is_given;     /* 0: the operand has no norm, and the other fields are not set */
    int32_t weight_dtype; /* 0: no weight */
    const void *weight;
    int64_t weight_of_head; /* the distance in elements between the weights of two heads; 0 if all heads share them */
    int32_t plus_one;       /* the factor is 1 + weight */
    int32_t is_after;       /* 1: the norm comes after the rotation; 0: before it */
    int32_t is_token;       /* 1: the norm is over all heads of a token; 0: over each head */
    int64_t elements;       /* the number of elements that are normalised together: of a head, or of a token */
    int32_t rounding;       /* TROPE_NORM_ROUND_..., 0 = nothing is rounded before the store */
    double eps;
    void *rstd;          /* [batch, tokens, heads], with is_token [batch, tokens]; NULL = it is not kept */
    int32_t reads_rstd;  /* 1: rstd is read; 0: it is written */
    int32_t is_backward; /* 1: src is dy, dst receives dx, and d_weight the gradient of the weight */
    void *d_weight;      /* NULL = it is not computed */
    char *sums;          /* [heads, batch, tokens], the sum of each head; NULL = they are not kept */
    int64_t sums_read;   /* the number of heads in `sums`, on all ranks; 0 = the call writes `sums`, unless NULL */
    void *slope;         /* backward on CUDA: trope_norm_slope, in the shape of rstd; NULL = not computed */
} trope_plan_norm;

/* A dimension of size 1 has stride 0 (the element dimension: 1), so that no address is computed from an unchecked number.
 * The strides of shared heads are 0. */
typedef struct trope_plan_operand {
    const char *src;
    char *dst;
    const char *forward_src;
    int64_t src_stride[TROPE_MAX_DIMS], dst_stride[TROPE_MAX_DIMS], forward_src_stride[TROPE_MAX_DIMS]; /* in elements */
    int32_t groups, heads_per_group, head_dim;
    int32_t rotary_dim; /* 0 = no element rotates */
    int32_t rotary_offset;
    int32_t part_pairs; /* the number of pairs in each part of the window */
    int32_t in_place;
    int32_t summed_heads; /* backward: TROPE_SHARED_..., the heads whose sum dst receives */
    int32_t accumulate;   /* the result is added to old_dst */
    trope_plan_norm norm;
} trope_plan_operand;

/* The distances between the entries of a table, in elements. */
typedef struct trope_table_stride {
    int64_t axis, batch, row, column;
} trope_table_stride;

typedef struct trope_plan_angles {
    trope_angle_source source;
    const void *cos, *sin;
    int64_t rows;
    const void *freqs;
    trope_table_stride stride;
    int32_t dtype;
    int32_t per_element;  /* the table has two columns for each pair */
    int32_t out_of_range; /* TROPE_RANGE_... */
} trope_plan_angles;

/* The tokens of a sequence that a rank holds: equal chunks of consecutive positions, or every step-th position. Without
 * cu_seqlens, each batch entry is a sequence. varlen/context_parallel.h fills this in and uses it. */
typedef struct trope_cp {
    int32_t size;        /* the number of ranks */
    int32_t step, first; /* position = (lead * chunk length + local index) * step + first */
    int32_t chunks;      /* the number of chunks of a sequence on one rank: 1 or 2 */
    int32_t lead[2];     /* the number of chunks of other ranks before each chunk of this rank */
    trope_divisor split; /* the number of ranks that share each sequence */
    int64_t skipped;     /* the number of tokens of the stream on the ranks before this one */
} trope_cp;

/* Where the positions of a call come from: its sequences, ids, start positions and ranks. */
typedef struct trope_position_source {
    const void *boundaries; /* where sequences are stored: cu_seqlens_padded or else cu_seqlens; NULL: none are packed */
    int64_t count;
    int64_t tokens;  /* of each batch entry on this rank */
    int32_t padding; /* TROPE_PADDING_..., 0 = no policy */
    int32_t position_axes;
    const void *unpadded; /* cu_seqlens: the unpadded lengths */
    const void *starts;
    const void *ids;
    int64_t id_axis_stride, id_batch_stride, id_token_stride;
    int32_t boundaries_64, starts_64, ids_64; /* whether these arrays are int64 */
    int32_t stream;                           /* positions are indices in the whole packed stream */
    trope_cp cp;
} trope_position_source;

typedef struct trope_plan {
    int32_t dtype, element_size, rounding;
    int32_t device, threads, isa;
    int32_t operand_count;
    int64_t batch, tokens;
    double bytes_written;    /* for all operands (a double: expanded tensors can have more bytes than an integer holds) */
    int32_t batch_outermost; /* 1: memory has batch outside tokens (also if batch is 1); the work follows this order */
    int32_t stream_stores;   /* the results are too large to stay in a cache */
    int32_t same_angles_in_batch; /* a token has the same angles in every batch entry */
    int32_t position_is_token;    /* the position is the token's index (the most common case) */
    trope_plan_operand *operands;

    /* Whether pairs are interleaved in: src and dst of this call, forward or backward; the columns of a table with a column
     * for each element; and forward_src. */
    int32_t interleaved_src, interleaved_dst, interleaved_columns, interleaved_forward_src;
    int32_t parts;
    int32_t pairs;      /* the number of pairs of the widest operand */
    int32_t pair_axes;  /* the number of position axes up to the last one that a pair uses; 1: all pairs use axis 0 */
    uint32_t used_axes; /* bit a: a pair uses position axis a */
    int32_t planes;     /* the number of planes of d_freqs with an axis stride; covers the axes of pairs and of ids */
    uint32_t axis_bits[TROPE_MAX_PAIRS / 16]; /* two bits for each pair: its axis */

    /* The direction. cos is multiplied by cosine_scale and sin by sine_scale. swap_sines exchanges the two sines of a
     * pair. */
    double mscale, cosine_scale, sine_scale;
    int32_t inverse, swap_sines;

    trope_plan_angles angles;
    uint64_t *step; /* TROPE_ANGLES_PHASE: the phase step of each pair */
    int32_t *status;
    void *stream;
    trope_position_source position_source;

    void *d_freqs;
    trope_table_stride d_freqs_stride;
    double *d_inv_freq;
    void *workspace;
    uint64_t workspace_size;
} trope_plan;

/* A plan with the arrays that it points to. */
typedef struct trope_planned_call {
    trope_plan plan;
    trope_plan_operand operands[TROPE_MAX_OPERANDS];
    alignas(16) uint64_t step[TROPE_MAX_PAIRS]; /* aligned because CUDA reads two at once */
} trope_planned_call;

TROPE_HD int trope_has_angle_gradient(const trope_plan *plan)
{
    return plan->d_freqs || plan->d_inv_freq;
}

static inline int trope_has_norm(const trope_plan *plan)
{
    for (int i = 0; i < plan->operand_count; i++)
        if (plan->operands[i].norm.is_given)
            return 1;
    return 0;
}

/* Returns whether the call only writes the sums of heads for this norm (TROPE_SUMS_WRITE). */
static inline int trope_writes_sums(const trope_plan_operand *o)
{
    return o->norm.sums && !o->norm.sums_read;
}

static inline int64_t trope_heads_of_token(const trope_plan_operand *o)
{
    return (int64_t)o->groups * o->heads_per_group;
}

/* Returns the number of weights of an operand's norm: the weights of one head, or of all heads. */
static inline int64_t trope_count_weights(const trope_plan_operand *o)
{
    return o->norm.weight_of_head ? o->norm.weight_of_head * trope_heads_of_token(o) : o->head_dim;
}

/* Returns whether dst receives a sum: over heads, or of the result and old_dst. */
TROPE_HD int trope_is_summed(const trope_plan_operand *o)
{
    return o->summed_heads || o->accumulate;
}

/* The CPU code that writes the dst of an operand. */
typedef enum trope_writer {
    TROPE_WRITER_NONE,
    TROPE_WRITER_ROTATION,
    TROPE_WRITER_SUM,
    TROPE_WRITER_NORM_GRADIENT
} trope_writer;

static inline trope_writer trope_writer_of(const trope_plan_operand *o)
{
    return o->norm.is_backward    ? TROPE_WRITER_NORM_GRADIENT
           : trope_writes_sums(o) ? TROPE_WRITER_ROTATION
           : !o->dst              ? TROPE_WRITER_NONE
           : trope_is_summed(o)   ? TROPE_WRITER_SUM
                                  : TROPE_WRITER_ROTATION;
}

/* Returns the axis that the call's pair_axis or parts give a pair. It is also the pair's plane in a table with axes. `pair`
 * counts through all parts. */
TROPE_HD int32_t trope_pair_plane(const trope_plan *plan, int32_t pair)
{
    return (int32_t)(plan->axis_bits[(uint32_t)pair / 16] >> (2 * ((uint32_t)pair % 16)) & 3);
}

/* Returns the position axis of a pair. */
TROPE_HD int32_t trope_pair_axis(const trope_plan *plan, int32_t pair)
{
    return plan->pair_axes == 1 ? 0 : trope_pair_plane(plan, pair);
}

#endif
