/* A caller's call, as callers of any version pass it and as the library uses it: copied, checked, its layouts as strides. */
#ifndef TROPE_API_ARGS_H
#define TROPE_API_ARGS_H

#include "trope/trope.h"

/* The library's own copy of a call. args.operands points to `operands`; args.norms to `norms`, whose entries point to `norm`, or is
 * NULL if no operand has one. */
typedef struct trope_call {
    trope_args args;
    trope_operand operands[TROPE_MAX_OPERANDS];
    trope_norm norm[TROPE_MAX_OPERANDS];
    const trope_norm *norms[TROPE_MAX_OPERANDS];
    const trope_args *callers; /* where they were, to be written over by nothing */
    const trope_operand *callers_operands;
    const trope_norm *const *callers_norms;
} trope_call;

/* Copies a caller's struct, the argument `name`, whose first member is its struct_size, into the library's own of `size` bytes. Its size is this
 * version's, or a larger one with zeros behind. */
trope_status trope_copy_struct(const char *function, const char *name, void *to, size_t size, const void *from);

/* Copies the args and their operands, and puts the value that a 0 stands for in place of the 0. */
trope_status trope_copy_call(const char *function, const trope_args *callers, trope_call *call);

/* Copies the args without their operands, which trope_positions has no use for. */
trope_status trope_copy_positions(const char *function, const trope_args *callers, trope_args *args);

/* Checks the numbers of a call: what can be known without its pointers. */
trope_status trope_validate(const char *function, const trope_args *args, int backward);

/* The part of it that concerns positions and sequences, all that trope_positions needs. */
trope_status trope_validate_positions(const char *function, const trope_args *args);

/* Writes the strides of every tensor, table and ids that has a contiguous layout. The numbers must be valid. */
void trope_expand_layouts(trope_call *call, int backward);
void trope_expand_ids(trope_args *args);

/* Checks the pointers: what must be there is there, aligned, within 64 bits, and nothing is written that anything else of the
 * call reads or writes. Layouts must have been expanded. */
trope_status trope_validate_memory(const char *function, const trope_call *call, int backward);

/* Of that, what concerns position_ids, start_positions, cu_seqlens and the results of trope_positions. `callers` is where the
 * caller has the args. */
trope_status trope_validate_position_memory(const char *function, const trope_args *args, const trope_args *callers,
                                            const int64_t *positions, const int32_t *sequences);

/* Checks the norm of an operand, and that a call in which nothing rotates says nothing of a rotation (validate_norm.c). */
trope_status trope_validate_norm(const char *function, const trope_args *args, int operand, int backward);
trope_status trope_validate_no_rotation(const char *function, const trope_args *args);

/* The norm of an operand, or NULL. */
static inline const trope_norm *trope_norm_of(const trope_args *args, int operand)
{
    return args->norms ? args->norms[operand] : NULL;
}

/* Whether an operand rotates (or lacks its rotary_dim, which is refused). */
int trope_rotates(const trope_args *args);

/* Heads of an operand, in all groups. */
static inline int64_t trope_count_heads(const trope_operand *o)
{
    return (int64_t)o->groups * o->heads_per_group;
}

/* Pairs of the widest operand. */
int32_t trope_widest_pairs(const trope_args *args);

/* Columns of its table. */
int64_t trope_count_columns(const trope_args *args);

/* The axis that is said for one of the call's pairs, and how many axes pairs use. */
int32_t trope_said_axis(const trope_args *args, int32_t pairs, int32_t pair);
int32_t trope_count_axes(const trope_args *args);

/* The planes of a gradient that has axes: those, and all that ids have. */
int32_t trope_count_planes(const trope_args *args);

/* Whether the angles are a table. */
static inline int trope_has_table(const trope_args *args)
{
    return args->freqs || args->cos;
}

/* ---- the tensors of an operand (layout.c) ---- */

typedef enum trope_tensor_role { TROPE_TENSOR_SRC, TROPE_TENSOR_DST, TROPE_TENSOR_FORWARD_SRC } trope_tensor_role;

/* One tensor of an operand. Of dimensions that it has once for several heads the size is 1. */
typedef struct trope_tensor {
    const char *name;
    const void *base;
    int32_t layout;
    int64_t *stride;
    int64_t size[TROPE_MAX_DIMS];
} trope_tensor;

trope_tensor trope_tensor_of(const trope_args *args, int operand, trope_tensor_role role, int backward);

/* Whether an operand's dst is its src. Layouts must have been expanded. */
int trope_operand_is_in_place(const trope_args *args, int operand, int backward);

/* The strides of a contiguous tensor of `heads` heads; 0 if they do not fit. The group stride is that of all heads. */
int trope_contiguous_strides(int64_t *stride, int32_t layout, const int64_t shape[3], int64_t head_dim);

#endif
