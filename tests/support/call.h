/* The only builder of calls that tests fill in by hand. It holds args and operands in one place, and sets the fields
 * that every call needs.
 *
 *     call c = call_make(TROPE_F32, 1, TOKENS);
 *     call_add(&c, q, TROPE_SBHD, HEADS, DIM, DIM);                      in place; else set src or dst of the new operand
 *     c.args.inv_freq = inv_freq;
 *     trope_forward(call_args(&c))
 *
 * A call may be copied, because call_args sets the pointers to its own operands and norms each time. */
#ifndef TESTS_SUPPORT_CALL_H
#define TESTS_SUPPORT_CALL_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trope/trope.h"

typedef struct call {
    trope_args args;
    trope_operand operands[TROPE_MAX_OPERANDS];
#ifndef HEADER_WITHOUT_NORMS             /* the header of 0.2 has no norms */
    trope_norm norm[TROPE_MAX_OPERANDS]; /* for each operand; struct_size 0: no norm */
    const trope_norm *norms[TROPE_MAX_OPERANDS];
#endif
} call;

/* A call on the CPU with one thread and half pairing. It has no operands and no angles yet. */
static inline call call_make(int32_t dtype, int64_t batch, int64_t tokens)
{
    call c;
    memset(&c, 0, sizeof c);
    c.args.struct_size = sizeof c.args;
    c.args.operand_size = sizeof c.operands[0];
    c.args.device = TROPE_DEVICE_CPU;
    c.args.threads = 1;
    c.args.dtype = dtype;
    c.args.pairing = TROPE_PAIRING_HALF;
    c.args.batch = batch;
    c.args.tokens = tokens;
    return c;
}

/* The args, with pointers to the operands and norms in this call. */
static inline trope_args *call_args(call *c)
{
    c->args.operands = c->operands;
#ifndef HEADER_WITHOUT_NORMS
    for (int i = 0; i < TROPE_MAX_OPERANDS; i++) {
        c->norms[i] = c->norm[i].struct_size ? &c->norm[i] : NULL;
        if (c->norms[i])
            c->args.norms = c->norms;
    }
#endif
    return &c->args;
}

/* Adds an operand: x [.., heads, head_dim], in place. */
static inline trope_operand *call_add(call *c, void *x, int32_t layout, int32_t heads, int32_t head_dim, int32_t rotary_dim)
{
    trope_operand *o = &c->operands[c->args.operand_count++];
    if (trope_fill_operand(o, x, layout, heads, head_dim, rotary_dim)) {
        fprintf(stderr, "call_add: %s\n", trope_last_error());
        abort();
    }
    return o;
}

/* Sets the angles to a table [rows, cols] of radians in f32. */
static inline void call_freqs(call *c, const void *freqs, int32_t columns, int64_t rows)
{
    c->args.freqs = freqs;
    c->args.angle_dtype = TROPE_F32;
    c->args.angle_columns = columns;
    c->args.angle_layout = TROPE_TABLE_ROWS;
    c->args.angle_rows = rows;
}

/* Sets the angles to tables [rows, cols] of cos and sin. */
static inline void call_tables(call *c, const void *cos, const void *sin, int32_t dtype, int32_t columns, int64_t rows)
{
    call_freqs(c, NULL, columns, rows);
    c->args.cos = cos;
    c->args.sin = sin;
    c->args.angle_dtype = dtype;
}

static inline void call_cu_seqlens(call *c, const void *cu_seqlens, int32_t dtype, int64_t sequences)
{
    c->args.cu_seqlens = cu_seqlens;
    c->args.cu_seqlens_dtype = dtype;
    c->args.sequences = sequences;
}

#endif
