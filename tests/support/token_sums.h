/* token_sums for a call on some tokens of another call. The tokens follow each other, batch entry by batch entry, and
 * `row` is the index of the first token. The array has heads outside tokens, so the part gets a copy:
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

/* The number of heads whose sums the norm of an operand writes or reads; 0 without token_sums. */
int64_t token_sums_heads(const call *k, int operand);

#endif
