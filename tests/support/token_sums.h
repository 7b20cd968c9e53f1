/* token_sums of a call that has some of another call's rows (tokens that follow each other, batch entry by batch entry). The
 * array has heads outside rows, so the part gets a copy:
 *
 *     call part = ...;                                 with the batch and tokens of the part
 *     token_sums_take(&whole, &part, row);
 *     ... trope_forward(call_args(&part)) ...
 *     token_sums_return(&whole, &part, row);           copies what was written, and frees the part's arrays */
#ifndef TESTS_SUPPORT_TOKEN_SUMS_H
#define TESTS_SUPPORT_TOKEN_SUMS_H

#include "support/call.h"

void token_sums_take(const call *whole, call *part, int64_t row);
void token_sums_return(const call *whole, call *part, int64_t row);

/* Heads whose sums an operand's norm writes or reads, 0 without. */
int64_t token_sums_heads(const call *k, int operand);

#endif
