/* trope_token describes one token of one batch entry. This header finds what a call does with a token, and which positions
 * select its angles. */
#ifndef TROPE_VARLEN_TOKEN_H
#define TROPE_VARLEN_TOKEN_H

#include "core/plan.h"
#include "varlen/position.h"

typedef enum trope_token_action {
    TROPE_TOKEN_ROTATE,
    TROPE_TOKEN_COPY,
    TROPE_TOKEN_ZERO,
    TROPE_TOKEN_POISON, /* CUDA: filled with NaN, because it is padding without a policy; the CPU refuses such calls */
    TROPE_TOKEN_INVALID /* CUDA: rotated by NaN, because its sequence is not valid; the CPU refuses such calls */
} trope_token_action;

typedef struct trope_token {
    int64_t batch, index;
    int64_t position[TROPE_MAX_AXES]; /* with freqs and tables: the row of the table, always in range */
    trope_token_action action;
    uint32_t poisoned; /* bit a: axis a is out of range, and its pairs become NaN */
} trope_token;

/* Tokens are numbered in memory order: number = outer * trope_inner_tokens() + inner. */
TROPE_HD int64_t trope_inner_tokens(const trope_plan *plan)
{
    return plan->batch_outermost ? plan->tokens : plan->batch;
}

TROPE_HD void trope_locate_token(const trope_plan *plan, int64_t number, trope_token *token)
{
    const int64_t size = trope_inner_tokens(plan);
    int64_t outer = 0;
    if (number >= size) /* 64-bit divisions are slow, above all on GPUs */
        outer = number <= UINT32_MAX ? (int64_t)((uint32_t)number / (uint32_t)size) : number / size;
    const int64_t inner = number - outer * size;
    token->batch = plan->batch_outermost ? outer : inner;
    token->index = plan->batch_outermost ? inner : outer;
}

/* Moves to the next token without the divisions. */
TROPE_HD void trope_step_token(const trope_plan *plan, trope_token *token)
{
    if (plan->batch_outermost) {
        token->batch += ++token->index == plan->tokens;
        token->index = token->index == plan->tokens ? 0 : token->index;
    } else {
        token->index += ++token->batch == plan->batch;
        token->batch = token->batch == plan->batch ? 0 : token->batch;
    }
}

/* Moves a position into the range of the angle rows. Returns whether the call poisons it instead of using that row. */
TROPE_HD int trope_limit_position(const trope_plan *plan, int64_t *position)
{
    const int64_t rows = plan->angles.rows;
    if (plan->angles.source == TROPE_ANGLES_PHASE || (*position >= 0 && *position < rows))
        return 0;
    *position = *position < 0 ? 0 : rows - 1;
    return plan->angles.out_of_range == TROPE_RANGE_POISON;
}

/* Returns whether any pair of the operand has a poisoned position. */
TROPE_HD int trope_is_poisoned(const trope_plan *plan, const trope_plan_operand *o, const trope_token *token)
{
    for (int32_t pair = 0; token->poisoned && pair < o->rotary_dim / 2; pair++)
        if (token->poisoned >> trope_pair_axis(plan, pair) & 1)
            return 1;
    return 0;
}

/* Returns the action for a token that is padding. */
TROPE_HD trope_token_action trope_action_of_padding(const trope_position_source *s)
{
    switch (s->padding) {
    case TROPE_PADDING_ROTATE:
        return TROPE_TOKEN_ROTATE;
    case TROPE_PADDING_ZERO:
        return TROPE_TOKEN_ZERO;
    case TROPE_PADDING_COPY:
        return TROPE_TOKEN_COPY;
    default:
        return TROPE_TOKEN_POISON;
    }
}

/* Fills in the rest of a trope_token whose batch and index are set. `span` is the span of the previous token, or {0}. */
TROPE_HD void trope_find_token(const trope_plan *plan, trope_span *span, trope_token *token)
{
    const trope_position_source *s = &plan->position_source;
    token->poisoned = 0;
    token->action = TROPE_TOKEN_ROTATE;
    if (plan->position_is_token) {
        token->position[0] = token->index;
        return;
    }
    const int same_sequence =
        token->index >= span->begin && token->index < span->end && (s->boundaries || span->sequence == token->batch);
    if (!same_sequence)
        *span = trope_find_span(s, token->batch, token->index);
    const int64_t index = trope_index_in_sequence(s, span, token->index);
    if (trope_is_padding(span, index))
        token->action = trope_action_of_padding(s);
    if (token->action != TROPE_TOKEN_ROTATE || plan->angles.source == TROPE_ANGLES_NONE)
        return;
    for (int axis = 0; axis < plan->pair_axes; axis++) {
        if (!(plan->used_axes >> axis & 1))
            continue;
        token->position[axis] = trope_position(s, span, index, token->batch, token->index, axis);
        token->poisoned |= (uint32_t)trope_limit_position(plan, &token->position[axis]) << axis;
    }
}

#endif
