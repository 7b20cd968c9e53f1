/* The plan: a validated call as numbers, the same for both backends. A POD that a kernel can take by value, with what it
 * needs of the arrays beside it. */
#ifndef TROPE_CORE_PLAN_H
#define TROPE_CORE_PLAN_H

#include <stdint.h>

#include "trope/trope.h"
#include "varlen/position.h"

#define TROPE_MAX_PAIRS (TROPE_MAX_ROTARY_DIM / 2)

typedef enum trope_angle_source {
    TROPE_ANGLES_NONE,
    TROPE_ANGLES_FREQS,
    TROPE_ANGLES_TABLE,
    TROPE_ANGLES_PHASE
} trope_angle_source;

typedef struct trope_plan_operand {
    const char *src;
    char *dst;
    const char *input;
    int64_t src_stride[TROPE_MAX_DIMS], dst_stride[TROPE_MAX_DIMS], input_stride[TROPE_MAX_DIMS]; /* elements */
    int32_t groups, heads_per_group, head_dim, rotary_dim, rotary_offset;
    int32_t window_pairs; /* in each of the plan's windows */
    int32_t in_place;
} trope_plan_operand;

typedef struct trope_plan_angles {
    trope_angle_source source;
    const void *cos, *sin;
    int64_t rows;
    const void *freqs;
    int64_t row_stride, batch_stride;
    int32_t dtype;
    int32_t per_element;  /* two columns a pair, at its elements of the forward call's output */
    int32_t out_of_range; /* TROPE_RANGE_... */
} trope_plan_angles;

typedef struct trope_plan {
    int32_t dtype, element_size, rounding;
    int32_t device, threads, isa;
    int32_t operand_count;
    int64_t batch, tokens;
    int32_t batch_outermost;   /* in memory (also of one entry): rows are walked in the order in which they are stored */
    int32_t stream_stores;     /* what is written is too much to stay in a cache */
    int32_t angles_shared;     /* a token has the same angles in every batch entry */
    int32_t position_is_token; /* the most usual case, in which there is nothing to look up for a row */
    trope_plan_operand *operands;

    /* How src and dst are paired, in the direction of this call, and how the columns of a per-element table and `input`
     * are. */
    int32_t interleaved_src, interleaved_dst, interleaved_columns, interleaved_input;
    int32_t windows;
    int32_t pairs;      /* of the widest operand; 0 = nothing rotates */
    int32_t axes;       /* position axes, up to the last that a pair uses; with 1, all pairs use axis 0 */
    uint32_t used_axes; /* bit a: some pair uses axis a */
    int32_t axis_map, axis_sections[TROPE_MAX_AXES];

    /* The direction: cos is multiplied by cosine_scale, sin by sine_scale, and swap_sines trades those of the pair. */
    double mscale, cosine_scale, sine_scale;
    int32_t inverse, swap_sines;

    trope_plan_angles angles;
    uint64_t *step; /* TROPE_ANGLES_PHASE: turns per position of each pair */
    int32_t *status;
    void *stream;
    trope_sequences sequences;

    void *d_freqs;
    double *d_inv_freq;
    void *workspace;
    uint64_t workspace_size;
} trope_plan;

/* A plan and what it points to. */
typedef struct trope_planned_call {
    trope_plan plan;
    trope_plan_operand operands[TROPE_MAX_OPERANDS];
    uint64_t step[TROPE_MAX_PAIRS];
} trope_planned_call;

TROPE_HD int trope_has_angle_gradient(const trope_plan *plan)
{
    return plan->d_freqs || plan->d_inv_freq;
}

/* The axis that drives a pair; `pair` counts through all windows. */
TROPE_HD int32_t trope_pair_axis(const trope_plan *plan, int32_t pair)
{
    const int32_t *sections = plan->axis_sections;
    if (plan->axes == 1)
        return 0;
    switch (plan->axis_map) {
    case TROPE_AXES_SECTIONS:
        return pair < sections[0] ? 0 : pair < sections[0] + sections[1] ? 1 : 2;
    case TROPE_AXES_INTERLEAVED:
        return pair < 3 * sections[pair % 3] ? pair % 3 : 0;
    default:
        return plan->windows > 1 ? pair / (plan->pairs / plan->windows) : 0;
    }
}

/* The two elements of a pair, counted from the start of the rotary window: where they are in a tensor, and which columns
 * of a per-element table hold their angles. `pairs` is that of the operand (or of the table). */
TROPE_HD int32_t trope_first_of_pair(int32_t interleaved, int32_t windows, int32_t pairs, int32_t pair)
{
    const int32_t per_window = pairs / windows;
    return interleaved ? 2 * pair : pair + pair / per_window * per_window;
}

TROPE_HD int32_t trope_second_of_pair(int32_t interleaved, int32_t windows, int32_t pairs, int32_t pair)
{
    return trope_first_of_pair(interleaved, windows, pairs, pair) + (interleaved ? 1 : pairs / windows);
}

#ifdef __cplusplus
extern "C" {
#endif

/* Validates `args` (see validate.c) and makes the plan of a forward (backward = 0) or backward call. */
trope_status trope_make_plan(const char *function, const trope_args *args, int backward, trope_planned_call *call);

/* The plan's sequences, from args with their defaults filled in. */
trope_sequences trope_plan_sequences(const trope_args *args);

/* Sets the direction in which the plan's coefficients are read. */
void trope_set_direction(trope_plan *plan, int transposed);

#ifdef __cplusplus
}
#endif

#endif
