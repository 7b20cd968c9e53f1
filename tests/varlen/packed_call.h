/* A small call with packed sequences (support/call.h) and its buffers. All elements of an f32 tensor [tokens, 2 heads, 8]
 * are rotated out of place with inv_freq. Sources are random. Destinations begin as 0xFF bytes and have a guard token
 * before and after them. */
#ifndef TESTS_VARLEN_PACKED_CALL_H
#define TESTS_VARLEN_PACKED_CALL_H

#include "support/call.h"
#include "support/check.h"
#include "support/random.h"

#define ROW_ELEMENTS 16 /* elements of a token: 2 heads of 8 */

typedef struct packed_call {
    call c;
    double inv_freq[4];
    float *src, *dst; /* dst begins after the first guard token */
    float *memory;
} packed_call;

static inline void make_packed_call(packed_call *p, int64_t tokens, const int32_t *cu_seqlens, int64_t sequences)
{
    random_state random = {(uint64_t)tokens};
    p->src = malloc((size_t)tokens * ROW_ELEMENTS * sizeof(float));
    p->memory = malloc((size_t)(tokens + 2) * ROW_ELEMENTS * sizeof(float));
    p->dst = p->memory + ROW_ELEMENTS;
    for (int64_t i = 0; i < tokens * ROW_ELEMENTS; i++)
        p->src[i] = (float)random_real(&random);
    for (int i = 0; i < 4; i++)
        p->inv_freq[i] = 1.0 / (1 + 7 * i);
    memset(p->memory, 0xff, (size_t)(tokens + 2) * ROW_ELEMENTS * sizeof(float));
    p->c = call_make(TROPE_F32, 1, tokens);
    call_add(&p->c, p->dst, TROPE_THD, 2, 8, 8)->src = p->src;
    p->c.args.inv_freq = p->inv_freq;
    call_cu_seqlens(&p->c, cu_seqlens, TROPE_I32, sequences);
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

/* Returns whether nothing was written, not even to the guard tokens. */
static inline int is_untouched(const packed_call *p)
{
    return all_bytes_are_ff(p->memory, (size_t)(p->c.args.tokens + 2) * ROW_ELEMENTS * sizeof(float));
}

static inline int guards_are_intact(const packed_call *p)
{
    const size_t row = ROW_ELEMENTS * sizeof(float);
    return all_bytes_are_ff(p->memory, row) && all_bytes_are_ff(p->dst + p->c.args.tokens * ROW_ELEMENTS, row);
}

/* Rotates one token at a position, by a separate call without packed sequences. */
static inline void rotate_alone(const packed_call *p, int64_t token, int64_t position, float *y)
{
    call c = call_make(TROPE_F32, 1, 1);
    call_add(&c, y, TROPE_THD, 2, 8, 8)->src = p->src + token * ROW_ELEMENTS;
    c.args.inv_freq = p->inv_freq;
    c.args.start_positions = &position;
    c.args.position_dtype = TROPE_I64;
    CHECK_MESSAGE(trope_forward(call_args(&c)) == TROPE_OK, "%s", trope_last_error());
}

#endif
