/* The plan: a validated call as numbers, the same for both backends. A POD that a kernel can take by value, with what it
 * needs of the arrays beside it. api/plan.c makes it. */
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
    int32_t is_given;     /* 0: there is none, and nothing else is set */
    int32_t weight_dtype; /* 0: no weight */
    const void *weight;
    int64_t weight_of_head; /* elements from a head's weights to the next head's, 0 if all heads have the same */
    int32_t plus_one;       /* the factor is 1 + weight */
    int32_t is_after;       /* the rotation, not before it */
    int32_t is_token;       /* of all heads of a token, not of each head */
    int64_t elements;       /* that one rstd is of: of a head, or of a token */
    int32_t rounding;       /* TROPE_NORM_ROUND_..., 0 = nothing is rounded before the store */
    double eps;
    void *rstd;          /* [batch, tokens, heads], of tokens [batch, tokens], NULL = computed and kept nowhere */
    int32_t reads_rstd;  /* else rstd is written */
    int32_t is_backward; /* src is dy: dst receives dx, and d_weight its sum */
    void *d_weight;      /* NULL = not wanted */
    char *sums;          /* [heads, batch, tokens], of each head; NULL = computed and kept nowhere */
    int64_t sums_read;   /* of so many heads, of all ranks. 0 = those of the operand are written if there are sums */
    void *slope;         /* CUDA's backward: trope_norm_slope, of the shape of rstd. NULL = not wanted */
} trope_plan_norm;

/* Strides of size-1 dimensions are 0 (1 for elements), so that no address is made of a number that nobody looked at. Of heads
 * that are one in memory the strides are 0. */
typedef struct trope_plan_operand {
    const char *src;
    char *dst;
    const char *forward_src;
    int64_t src_stride[TROPE_MAX_DIMS], dst_stride[TROPE_MAX_DIMS], forward_src_stride[TROPE_MAX_DIMS]; /* elements */
    int32_t groups, heads_per_group, head_dim;
    int32_t rotary_dim; /* 0 = copied */
    int32_t rotary_offset;
    int32_t part_pairs; /* in each of the plan's parts */
    int32_t in_place;
    int32_t summed_heads; /* backward: TROPE_SHARED_..., the heads whose sum dst receives */
    int32_t accumulate;   /* dst is added to */
    trope_plan_norm norm;
} trope_plan_operand;

/* Elements from one entry of a table to the next. */
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
    int32_t per_element;  /* two columns a pair */
    int32_t out_of_range; /* TROPE_RANGE_... */
} trope_plan_angles;

/* What a context parallel layout gives a rank of each sequence, or of each batch entry without cu_seqlens: equal chunks of
 * consecutive positions, or every step-th position. varlen/context_parallel.h fills it in and uses it. */
typedef struct trope_cp {
    int32_t size;        /* ranks */
    int32_t step, first; /* position = (tokens in chunks before it) * step + first */
    int32_t chunks;      /* of a sequence on one rank: 1 or 2 */
    int32_t lead[2];     /* how many chunks the positions of each chunk are ahead of its tokens */
    trope_divisor split; /* the ranks that share each sequence */
    int64_t skipped;     /* tokens of the stream that are on the ranks before this one */
} trope_cp;

/* Where tokens belong and which positions they have. */
typedef struct trope_sequences {
    const void *boundaries; /* cu_seqlens_padded, or else cu_seqlens: where sequences are stored; NULL = dense */
    int64_t count;
    int64_t tokens;  /* per batch entry on this rank */
    int32_t padding; /* TROPE_PADDING_..., 0 = none */
    int32_t axes;
    const void *unpadded; /* cu_seqlens: how long they are */
    const void *starts;
    const void *ids;
    int64_t id_axis_stride, id_batch_stride, id_token_stride;
    int32_t boundaries_64, starts_64, ids_64; /* whether those are int64 */
    int32_t stream;                           /* positions count from the start of the packed stream */
    trope_cp cp;
} trope_sequences;

typedef struct trope_plan {
    int32_t dtype, element_size, rounding;
    int32_t device, threads, isa;
    int32_t operand_count;
    int64_t batch, tokens;
    double bytes_written;      /* by all operands (a double: expanded tensors can have more than an integer holds) */
    int32_t batch_outermost;   /* in memory (also of one entry): rows are walked in the order in which they are stored */
    int32_t stream_stores;     /* what is written is too much to stay in a cache */
    int32_t angles_shared;     /* a token has the same angles in every batch entry */
    int32_t position_is_token; /* the most usual case, in which there is nothing to look up for a row */
    trope_plan_operand *operands;

    /* How src and dst are paired, in the direction of this call, and how the columns of a per-element table and `forward_src`
     * are. */
    int32_t interleaved_src, interleaved_dst, interleaved_columns, interleaved_forward_src;
    int32_t parts;
    int32_t pairs;      /* of the widest operand */
    int32_t axes;       /* position axes, up to the last that a pair uses; with 1, all pairs use axis 0 */
    uint32_t used_axes; /* bit a: some pair uses position axis a */
    int32_t planes;     /* of a gradient with an axis stride: up to the last that a pair uses or ids have */
    uint32_t axis_bits[TROPE_MAX_PAIRS / 16]; /* two bits a pair: its axis */

    /* The direction: cos is multiplied by cosine_scale, sin by sine_scale, and swap_sines trades those of the pair. */
    double mscale, cosine_scale, sine_scale;
    int32_t inverse, swap_sines;

    trope_plan_angles angles;
    uint64_t *step; /* TROPE_ANGLES_PHASE: turns per position of each pair */
    int32_t *status;
    void *stream;
    trope_sequences sequences;

    void *d_freqs;
    trope_table_stride d_freqs_stride;
    double *d_inv_freq;
    void *workspace;
    uint64_t workspace_size;
} trope_plan;

/* A plan and what it points to. */
typedef struct trope_planned_call {
    trope_plan plan;
    trope_plan_operand operands[TROPE_MAX_OPERANDS];
    alignas(16) uint64_t step[TROPE_MAX_PAIRS]; /* (CUDA reads two at once) */
} trope_planned_call;

TROPE_HD int trope_has_angle_gradient(const trope_plan *plan)
{
    return plan->d_freqs || plan->d_inv_freq;
}

/* Whether any operand has a norm. */
static inline int trope_has_norm(const trope_plan *plan)
{
    for (int i = 0; i < plan->operand_count; i++)
        if (plan->operands[i].norm.is_given)
            return 1;
    return 0;
}

/* Whether the sums of heads are all that a norm gives. */
static inline int trope_writes_sums(const trope_plan_operand *o)
{
    return o->norm.sums && !o->norm.sums_read;
}

static inline int64_t trope_heads_of_token(const trope_plan_operand *o)
{
    return (int64_t)o->groups * o->heads_per_group;
}

/* Weights of an operand's norm: of a head, or of all heads. */
static inline int64_t trope_count_weights(const trope_plan_operand *o)
{
    return o->norm.weight_of_head ? o->norm.weight_of_head * trope_heads_of_token(o) : o->head_dim;
}

/* Whether dst receives a sum: of heads, or with what it holds. */
TROPE_HD int trope_is_summed(const trope_plan_operand *o)
{
    return o->summed_heads || o->accumulate;
}

/* What writes the dst of an operand on the CPU. */
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

/* The axis that was said for a pair: the plane of a table that has planes. `pair` counts through all parts. */
TROPE_HD int32_t trope_pair_plane(const trope_plan *plan, int32_t pair)
{
    return (int32_t)(plan->axis_bits[(uint32_t)pair / 16] >> (2 * ((uint32_t)pair % 16)) & 3);
}

/* The position axis that drives a pair. */
TROPE_HD int32_t trope_pair_axis(const trope_plan *plan, int32_t pair)
{
    return plan->axes == 1 ? 0 : trope_pair_plane(plan, pair);
}

#endif
