/* Prepares a call: copies the args of a caller of any version, validates them, and expands layouts to strides. */
#ifndef TROPE_API_ARGS_H
#define TROPE_API_ARGS_H

#include "trope/trope.h"

/* The library's own copy of a call. args.operands points to `operands`. args.norms points to `norms`, whose entries point
 * to `norm`. args.norms is NULL if no operand has a norm. */
typedef struct trope_call {
    trope_args args;
    trope_operand operands[TROPE_MAX_OPERANDS];
    trope_norm norm[TROPE_MAX_OPERANDS];
    const trope_norm *norms[TROPE_MAX_OPERANDS];
    /* The structs in the caller's memory. No result of the call may overlap them. */
    const trope_args *callers;
    const trope_operand *callers_operands;
    const trope_norm *const *callers_norms;
} trope_call;

/* Copies a caller's struct (the argument `name`) to the library's copy of `size` bytes. The struct's first member is its
 * struct_size, which must be at least `size`. All bytes after the first `size` must be 0. */
trope_status trope_copy_struct(const char *function, const char *name, void *to, size_t size, const void *from);

/* Copies the args with their operands and norms, and replaces each 0 that stands for a default. */
trope_status trope_copy_call(const char *function, const trope_args *callers, trope_call *call);

/* Copies the args without their operands, which trope_positions does not need. */
trope_status trope_copy_positions(const char *function, const trope_args *callers, trope_args *args);

/* Validates the numbers of a call, and which of its pointers are NULL. trope_validate_memory validates where they point. */
trope_status trope_validate(const char *function, const trope_args *args, int backward);

/* The part of trope_validate that covers positions and sequences. trope_positions needs only this part. */
trope_status trope_validate_positions(const char *function, const trope_args *args);

/* Writes the strides of tensors, tables and ids in a contiguous layout. The numbers must have been validated. */
void trope_expand_layouts(trope_call *call, int backward);
void trope_expand_ids(trope_args *args);

/* Validates the memory of a call: pointers are aligned, all elements lie in the 64-bit address space, and no result
 * overlaps itself or other memory of the call, except that dst may be src. Layouts must have been expanded. */
trope_status trope_validate_memory(const char *function, const trope_call *call, int backward);

/* Memory at an address. */
typedef struct trope_buffer {
    const void *base;
    int64_t bytes;
} trope_buffer;

/* For callers whose numbers are not trusted: validates that each array and struct of the call begins at the base of one of
 * the buffers and ends where the buffer ends, and that each tensor has as many elements as its buffer. Layouts must have
 * been expanded. */
trope_status trope_validate_buffers(const char *function, const trope_call *call, int backward, const trope_buffer *buffers,
                                    int count);

/* The same for trope_positions: validates the memory of position_ids, start_positions, cu_seqlens and the results.
 * `callers` points to the caller's args. */
trope_status trope_validate_position_memory(const char *function, const trope_args *args, const trope_args *callers,
                                            const int64_t *positions, const int32_t *sequences);

/* trope_validate_norm validates the norm of an operand. trope_validate_no_rotation checks that a call in which no operand
 * rotates has no rotation fields. Both are in validate_norm.c. */
trope_status trope_validate_norm(const char *function, const trope_args *args, int operand, int backward);
trope_status trope_validate_no_rotation(const char *function, const trope_args *args);

/* The norm of an operand, or NULL. */
static inline const trope_norm *trope_norm_of(const trope_args *args, int operand)
{
    return args->norms ? args->norms[operand] : NULL;
}

/* Whether any operand rotates. A rotary_dim of 0 counts too: validation refuses it later. */
int trope_rotates(const trope_args *args);

/* The number of heads of an operand, in all groups. */
static inline int64_t trope_count_heads(const trope_operand *o)
{
    return (int64_t)o->groups * o->heads_per_group;
}

/* The number of pairs of the widest operand. */
int32_t trope_widest_pairs(const trope_args *args);

/* The number of columns of the call's table. */
int64_t trope_count_columns(const trope_args *args);

/* trope_specified_axis returns the axis of a pair, from pair_axis or else from parts. trope_count_axes returns the
 * number of axes up to the last one that a pair uses. */
int32_t trope_specified_axis(const trope_args *args, int32_t pairs, int32_t pair);
int32_t trope_count_axes(const trope_args *args);

/* The number of planes of a gradient with axes: enough for the axes of all pairs and of the ids. */
int32_t trope_count_planes(const trope_args *args);

/* Whether the source of the angles is a table. */
static inline int trope_has_table(const trope_args *args)
{
    return args->freqs || args->cos;
}

/* ---- the tensors of an operand (layout.c) ---- */

typedef enum trope_tensor_role { TROPE_TENSOR_SRC, TROPE_TENSOR_DST, TROPE_TENSOR_FORWARD_SRC } trope_tensor_role;

/* One tensor of an operand. With shared heads, a dimension that the tensor lacks has size 1. */
typedef struct trope_tensor {
    const char *name;
    const void *base;
    int32_t layout;
    int64_t *stride;
    int64_t size[TROPE_MAX_DIMS];
} trope_tensor;

trope_tensor trope_tensor_of(const trope_args *args, int operand, trope_tensor_role role, int backward);

/* Whether dst and src of an operand have the same address, sizes and strides. Layouts must have been expanded. */
int trope_operand_is_in_place(const trope_args *args, int operand, int backward);

/* Writes the strides of a contiguous tensor; `shape` is batch, tokens and heads. The group stride covers all heads. Returns
 * 0 if a stride overflows. */
int trope_contiguous_strides(int64_t *stride, int32_t layout, const int64_t shape[3], int64_t head_dim);

#endif
