/* The text of a call: one line of the header's own words, from which the same kind of call can be made again.
 *
 *     forward dtype=bf16 batch=1 tokens=4096 pairing=half inv_freq operand src=a dst=a src_layout=bshd dst_layout=bshd
 *     heads_per_group=32 head_dim=128 rotary_dim=128 norm weight weight_dtype=bf16 scope=head order=before eps=1e-06 operand ...
 *
 * Fields that are 0, or that have their default, are absent. `operand` begins an operand, and `norm` the norm of that
 * operand. An array is shown by its name. A tensor is shown by the area of memory that it lies in (a letter), and by its
 * distance in bytes from the area's beginning: dst=a+256. Tensors of one area overlap or interleave. */
#ifndef TROPE_API_CALL_TEXT_H
#define TROPE_API_CALL_TEXT_H

#include "api/args.h"

/* The tensors of a call: src, dst and forward_src of each operand. */
enum { TROPE_TENSOR_ROLES = 3, TROPE_CALL_TEXT_BYTES = 32768 };

typedef struct trope_places {
    int32_t area[TROPE_MAX_OPERANDS][TROPE_TENSOR_ROLES]; /* 0 for the first area; -1 = no tensor */
    int64_t offset[TROPE_MAX_OPERANDS][TROPE_TENSOR_ROLES];
} trope_places;

/* Writes the text of a call before its layouts are expanded. With is_kind, the text lacks what changes from step to step
 * (sizes of batch and sequence, eps and mscale, outer strides): calls with equal texts are of one kind. Returns the number of
 * bytes that the whole text has, like snprintf. */
size_t trope_format_call(const trope_call *call, const trope_places *places, int backward, int is_kind, char *text,
                         size_t size);

#endif
