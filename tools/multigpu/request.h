/* What the library is asked for: the args of a call with their operands, which are all [tokens, batch, heads, head_dim].
 * Every call that trope_multigpu makes is filled in here. A request may be copied: request_args points to its own operands.
 */
#ifndef TESTS_MULTIGPU_REQUEST_H
#define TESTS_MULTIGPU_REQUEST_H

#include <stddef.h>
#include <stdint.h>

#include "trope/trope.h"

enum { REQUEST_OPERANDS = 2 };

typedef struct request {
    trope_args args;
    trope_operand operands[REQUEST_OPERANDS];
    trope_norm norms[REQUEST_OPERANDS]; /* of all operands; struct_size is 0 if they have none */
    const trope_norm *norm_list[REQUEST_OPERANDS];
} request;

/* Without operands, angles and device: half pairing. */
request request_make(int32_t dtype, int64_t batch, int64_t tokens);

/* The args, with their operands and norms. They are valid as long as the request is neither moved nor changed. */
const trope_args *request_args(request *q);

/* One more operand, without tensors; the rotary window can be moved in what is returned. */
trope_operand *request_add(request *q, int32_t heads, int32_t head_dim, int32_t rotary_dim);

/* What an operand reads and writes; dst may be NULL. `x`: what it read in the forward call, for a gradient, or NULL. */
void request_tensors(request *q, int operand, const void *src, void *dst, const void *x);

/* The norm of an operand, without rstd: a scope, an order, and a weight in fp32, for all heads or for each. */
void request_norm(request *q, int operand, int32_t scope, int32_t order, const float *weight);

/* Tables in fp32 with the columns of that kind: angles; or their cosines and sines. */
void request_freqs(request *q, const float *freqs, int32_t columns, int64_t rows);
void request_tables(request *q, const float *cos, const float *sin, int32_t columns, int64_t rows);

/* The gradient of the angles goes there: doubles for each inv_freq, or a table like that of the angles. */
void request_gradient(request *q, void *d_angles, void *workspace, size_t workspace_size);

void request_starts(request *q, const int64_t *starts);
/* ids [axes, tokens], the same for all batch entries. */
void request_ids(request *q, const int64_t *ids, int32_t axes, const uint8_t *pair_axis);

/* cu_seqlens and, unless it is NULL, cu_seqlens_padded. */
void request_sequences(request *q, const int32_t *real, const int32_t *stored, int64_t sequences, int32_t padding);

/* Context parallel. */
void request_ranks(request *q, int32_t size, int32_t rank, int32_t layout);

/* For trope_positions alone: the index of each token of a batch entry in its sequence, without starts and ids. */
request request_positions(const request *q);

#endif
