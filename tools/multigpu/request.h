/* Requests to the library: the args of a call with their operands, which are all [tokens, batch, heads, head_dim]. All
 * calls of trope_multigpu are made from requests. A request may be copied, because request_args sets all its pointers. */
#ifndef TESTS_MULTIGPU_REQUEST_H
#define TESTS_MULTIGPU_REQUEST_H

#include <stddef.h>
#include <stdint.h>

#include "trope/trope.h"

enum { REQUEST_OPERANDS = 2 };

typedef struct request {
    trope_args args;
    trope_operand operands[REQUEST_OPERANDS];
    trope_norm norms[REQUEST_OPERANDS]; /* one per operand; struct_size is 0 if there are no norms */
    const trope_norm *norm_list[REQUEST_OPERANDS];
} request;

/* Returns a request with half pairing, without operands, angles and device. */
request request_make(int32_t dtype, int64_t batch, int64_t tokens);

/* Returns the args with their operands and norms. They are valid until the request is moved or changed. */
const trope_args *request_args(request *q);

/* Adds an operand without tensors and returns it, so that the caller can move the rotary window. */
trope_operand *request_add(request *q, int32_t heads, int32_t head_dim, int32_t rotary_dim);

/* Sets the tensors that an operand reads and writes. dst may be NULL. For a gradient, x is what the operand read in the
 * forward call; otherwise it is NULL. */
void request_tensors(request *q, int operand, const void *src, void *dst, const void *x);

/* Sets the norm of an operand, without rstd: a scope, an order, and a weight in fp32, for all heads or for each head. */
void request_norm(request *q, int operand, int32_t scope, int32_t order, const float *weight);

/* Sets the tables in fp32 with columns of this kind: the angles, or their cosines and sines. */
void request_freqs(request *q, const float *freqs, int32_t columns, int64_t rows);
void request_tables(request *q, const float *cos, const float *sin, int32_t columns, int64_t rows);

/* Sets where the gradient of the angles goes: one double for each inv_freq, or a table with the shape of the angles. */
void request_gradient(request *q, void *d_angles, void *workspace, size_t workspace_size);

void request_starts(request *q, const int64_t *starts);
/* Sets ids [axes, tokens], which are the same for all batch entries. */
void request_ids(request *q, const int64_t *ids, int32_t axes, const uint8_t *pair_axis);

/* Sets cu_seqlens and, unless it is NULL, cu_seqlens_padded. */
void request_sequences(request *q, const int32_t *unpadded, const int32_t *stored, int64_t sequences, int32_t padding);

/* Sets the context parallel rank, size and layout. */
void request_ranks(request *q, int32_t size, int32_t rank, int32_t layout);

/* Returns a request for trope_positions alone, without starts and ids: it gives the index of each token of a batch entry in
 * its sequence. */
request request_positions(const request *q);

#endif
