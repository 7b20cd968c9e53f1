/* A small packed call to write tests with: f32, [tokens, 2 heads, 8], all of it rotated, out of place, by inv_freq. Sources
 * are random; destinations start as 0xFF and have a guard row before and after. */
#ifndef TESTS_VARLEN_PACKED_CALL_H
#define TESTS_VARLEN_PACKED_CALL_H

#include <stdlib.h>
#include <string.h>

#include "support/check.h"
#include "support/random.h"
#include "trope/trope.h"

#define ROW_ELEMENTS 16 /* a token: 2 heads of 8 */

typedef struct packed_call {
    trope_args args;
    double inv_freq[4];
    float *src, *dst; /* dst without its guard rows */
    float *memory;
} packed_call;

static inline void make_packed_call(packed_call *p, int64_t tokens, const int32_t *cu_seqlens, int64_t sequences)
{
    random_state random = {(uint64_t)tokens};
    memset(p, 0, sizeof *p);
    p->src = malloc((size_t)tokens * ROW_ELEMENTS * sizeof(float));
    p->memory = malloc((size_t)(tokens + 2) * ROW_ELEMENTS * sizeof(float));
    p->dst = p->memory + ROW_ELEMENTS;
    for (int64_t i = 0; i < tokens * ROW_ELEMENTS; i++)
        p->src[i] = (float)random_real(&random);
    for (int i = 0; i < 4; i++)
        p->inv_freq[i] = 1.0 / (1 + 7 * i);
    memset(p->memory, 0xff, (size_t)(tokens + 2) * ROW_ELEMENTS * sizeof(float));
    trope_args *a = &p->args;
    a->struct_size = sizeof *a;
    a->device = TROPE_DEVICE_CPU;
    a->operand_count = 1;
    a->batch = 1;
    a->tokens = tokens;
    a->inv_freq = p->inv_freq;
    a->cu_seqlens = cu_seqlens;
    a->sequences = sequences;
    a->operands[0] = (trope_operand){.src = p->src, .dst = p->dst, .heads_per_group = 2, .head_dim = 8, .rotary_dim = 8};
    trope_fill_strides(a->operands[0].src_stride, TROPE_THD, 1, tokens, 2, 8);
    trope_fill_strides(a->operands[0].dst_stride, TROPE_THD, 1, tokens, 2, 8);
}

static inline void free_packed_call(packed_call *p)
{
    free(p->src);
    free(p->memory);
}

static inline int all_bytes_are_ff(const void *memory, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (((const unsigned char *)memory)[i] != 0xff)
            return 0;
    return 1;
}

/* Nothing was written, guard rows included. */
static inline int is_untouched(const packed_call *p)
{
    return all_bytes_are_ff(p->memory, (size_t)(p->args.tokens + 2) * ROW_ELEMENTS * sizeof(float));
}

static inline int guards_are_intact(const packed_call *p)
{
    const size_t row = ROW_ELEMENTS * sizeof(float);
    return all_bytes_are_ff(p->memory, row) && all_bytes_are_ff(p->dst + p->args.tokens * ROW_ELEMENTS, row);
}

/* A token at a position, rotated by a call of its own without any sequences. */
static inline void rotate_alone(const packed_call *p, int64_t token, int64_t position, float *y)
{
    trope_args a = {.struct_size = sizeof a, .device = TROPE_DEVICE_CPU, .operand_count = 1, .batch = 1, .tokens = 1};
    a.inv_freq = p->inv_freq;
    a.position_dtype = TROPE_I64;
    a.position_ids = &position;
    a.operands[0] = p->args.operands[0];
    a.operands[0].src = p->src + token * ROW_ELEMENTS;
    a.operands[0].dst = y;
    CHECK_MESSAGE(trope_forward(&a) == TROPE_OK, "%s", trope_last_error());
}

#endif
