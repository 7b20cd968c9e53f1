/* trope_row describes one token of one batch entry. This header finds what a call does with a token, and which positions
 * select its angles. */
#ifndef TROPE_VARLEN_TOKEN_H
#define TROPE_VARLEN_TOKEN_H

#include "core/plan.h"
#include "varlen/position.h"

typedef enum trope_row_action {
    TROPE_ROW_ROTATE,
    TROPE_ROW_COPY,
    TROPE_ROW_ZERO,
    TROPE_ROW_POISON, /* CUDA: filled with NaN, because it is padding without a policy; the CPU refuses such calls */
    TROPE_ROW_INVALID /* CUDA: rotated by NaN, because its sequence is not valid; the CPU refuses such calls */
} trope_row_action;

typedef struct trope_row {
    int64_t batch, token;
    int64_t position[TROPE_MAX_AXES]; /* with freqs and tables: the row of the table, in range unless poisoned */
    trope_row_action action;
    uint32_t poisoned; /* bit a: axis a is out of range, and its pairs become NaN */
} trope_row;

/* Tokens are numbered in memory order: number = outer * trope_inner_rows() + inner. */
TROPE_HD int64_t trope_inner_rows(const trope_plan *plan)
{
    return plan->batch_outermost ? plan->tokens : plan->batch;
}

TROPE_HD void trope_locate_row(const trope_plan *plan, int64_t number, trope_row *row)
{
    const int64_t size = trope_inner_rows(plan);
    int64_t outer = 0;
    if (number >= size) /* 64-bit divisions are slow, above all on GPUs */
        outer = number <= UINT32_MAX ? (int64_t)((uint32_t)number / (uint32_t)size) : number / size;
    const int64_t inner = number - outer * size;
    row->batch = plan->batch_outermost ? outer : inner;
    row->token = plan->batch_outermost ? inner : outer;
}

/* Moves to the next token without the divisions. */
TROPE_HD void trope_step_row(const trope_plan *plan, trope_row *row)
{
    if (plan->batch_outermost) {
        row->batch += ++row->token == plan->tokens;
        row->token = row->token == plan->tokens ? 0 : row->token;
    } else {
        row->token += ++row->batch == plan->batch;
        row->batch = row->batch == plan->batch ? 0 : row->batch;
    }
}

/* Moves a position into the range of the angle rows. Returns whether the position is poisoned instead. */
TROPE_HD int trope_limit_position(const trope_plan *plan, int64_t *position)
{
    const int64_t rows = plan->angles.rows;
    if (plan->angles.source == TROPE_ANGLES_PHASE || (*position >= 0 && *position < rows))
        return 0;
    *position = *position < 0 ? 0 : rows - 1;
    return plan->angles.out_of_range == TROPE_RANGE_POISON;
}

/* Returns whether any pair of the operand has a poisoned position. */
TROPE_HD int trope_is_poisoned(const trope_plan *plan, const trope_plan_operand *o, const trope_row *row)
{
    for (int32_t pair = 0; row->poisoned && pair < o->rotary_dim / 2; pair++)
        if (row->poisoned >> trope_pair_axis(plan, pair) & 1)
            return 1;
    return 0;
}

/* Returns the action for a token that is padding. */
TROPE_HD trope_row_action trope_action_of_padding(const trope_position_source *s)
{
    switch (s->padding) {
    case TROPE_PADDING_ROTATE:
        return TROPE_ROW_ROTATE;
    case TROPE_PADDING_ZERO:
        return TROPE_ROW_ZERO;
    case TROPE_PADDING_COPY:
        return TROPE_ROW_COPY;
    default:
        return TROPE_ROW_POISON;
    }
}

/* Fills in the rest of a trope_row whose batch and token are set. `span` is the span of the previous token, or {0}. */
TROPE_HD void trope_find_row(const trope_plan *plan, trope_span *span, trope_row *row)
{
    const trope_position_source *s = &plan->position_source;
    row->poisoned = 0;
    row->action = TROPE_ROW_ROTATE;
    if (plan->position_is_token) {
        row->position[0] = row->token;
        return;
    }
    const int same_sequence =
        row->token >= span->begin && row->token < span->end && (s->boundaries || span->sequence == row->batch);
    if (!same_sequence)
        *span = trope_find_span(s, row->batch, row->token);
    const int64_t index = trope_index_in_sequence(s, span, row->token);
    if (trope_is_padding(span, index))
        row->action = trope_action_of_padding(s);
    if (row->action != TROPE_ROW_ROTATE || plan->angles.source == TROPE_ANGLES_NONE)
        return;
    for (int axis = 0; axis < plan->pair_axes; axis++) {
        if (!(plan->used_axes >> axis & 1))
            continue;
        row->position[axis] = trope_position(s, span, index, row->batch, row->token, axis);
        row->poisoned |= (uint32_t)trope_limit_position(plan, &row->position[axis]) << axis;
    }
}

#endif
