/* Calls as rows of tables. A call_case describes one call. Its tensors, tables and indices lie in one block of memory, in
 * regions with gaps between them, so that the same call can be filled in for a block of the host or of a device. */
#ifndef TESTS_CUDA_CALL_CASE_H
#define TESTS_CUDA_CALL_CASE_H

#include <stddef.h>
#include <stdint.h>

#include "support/call.h"
#include "support/random.h"

enum { CASE_OPERANDS = 4, CASE_STATUS_BEFORE = 0x100 };

typedef enum angle_source { INV_FREQ, FREQS, TABLES } angle_source;                        /* TABLES: cos and sin */
typedef enum angle_gradient { NO_GRADIENT, WITH_GRADIENT, GRADIENT_ALONE } angle_gradient; /* ALONE: no dst */

typedef struct case_operand {
    int32_t heads, head_dim, rotary_dim, rotary_offset;
} case_operand;

/* A field that is 0 means what its comment says, or that the call does not have it. */
typedef struct call_case {
    const char *name;
    int32_t dtype, layout;
    int64_t batch, tokens;
    case_operand operands[CASE_OPERANDS]; /* the first one without heads ends them */
    int32_t step, first;                  /* the distance of neighbouring elements, 0 is 1; elements before a tensor */
    int32_t token_step;                   /* from a token to the next, less than its elements where tokens overlap in
                                             memory; 0 is all of them. For GRADIENT_ALONE. */
    int32_t pairing;                      /* 0 is TROPE_PAIRING_HALF */
    int in_place, backward;
    int forward_src;         /* every operand has one, as backward needs with norms */
    angle_gradient gradient; /* of the angles: d_freqs or d_inv_freq */
    int any_numbers;         /* elements are any numbers, not whole ones */
    angle_source angles;
    int32_t columns;      /* 0 is TROPE_COLUMNS_PAIR */
    int64_t rows;         /* of a table; ids are less than it */
    int32_t row_stride;   /* of a table, 0 is one without gaps */
    int per_batch;        /* a table for each batch entry */
    int32_t out_of_range; /* TROPE_RANGE_... */
    int32_t cu_dtype;     /* of cu_seqlens */
    int64_t sequences;    /* how many */
    int64_t longest;      /* none has more tokens, 0 is `rows` */
    int32_t gap;          /* up to so many tokens are before the first sequence and behind the last one; 0: the
                                sequences fill the tokens */
    int32_t padding;      /* TROPE_PADDING_... */
    int32_t ids_dtype;    /* of position_ids */
    int32_t starts_dtype; /* of start_positions: TROPE_I32 */
    size_t weight_bytes;  /* room for what else the call reads, and writes, which only a test can use */
    size_t rstd_bytes;
} call_case;

/* Regions of a block. The first ones are what a call reads, the indices before the tables and these before the tensors. */
enum {
    REGION_CU_SEQLENS,
    REGION_PADDED, /* room for cu_seqlens_padded, which only a test can use */
    REGION_IDS,
    REGION_STARTS,
    REGION_WEIGHTS,
    REGION_SINES,
    REGION_TABLE,
    REGION_FORWARD_SRC,
    REGION_SRC = REGION_FORWARD_SRC + CASE_OPERANDS,
    REGION_DST = REGION_SRC + CASE_OPERANDS,
    REGION_SUMS = REGION_DST + CASE_OPERANDS,
    REGION_RSTD,
    REGION_STATUS,
    REGIONS
};

typedef struct case_region {
    size_t at, bytes; /* 0 bytes: the call has no such region */
} case_region;

typedef struct case_map {
    case_region regions[REGIONS];
    size_t end;
    double inv_freq[TROPE_MAX_ROTARY_DIM / 2];
} case_map;

/* Where everything lies. No offset is 0. A call without tokens has room for some all the same. */
case_map case_plan(const call_case *k);

/* Room for so many bytes at the end of a block, with a gap behind them. */
case_region case_take(size_t *end, size_t bytes);

/* Draws what the call reads. The other regions and the gaps stay as they are.
 *
 * Elements are whole numbers of both signs up to 3. With a gradient, angles are from 0.1 to 1.4, unless frequencies are
 * multiplied by positions beyond 14. Sines and cosines in fp32 are then multiples of 2^-27, and a sum of up to 2^20 terms
 * has less than 53 bits: it is exact in any order. Tables of sines and cosines are quarters if there is a gradient, and
 * sums of 2^40 terms are exact. `any_numbers` draws elements of which this does not hold, the same ones for every layout
 * of the same shape. */
void case_draw(const call_case *k, const case_map *m, void *memory, uint64_t seed);

/* Stores element i of an array of indices. */
void case_store_index(int32_t dtype, void *to, int64_t i, int64_t value);

/* The call on a block of memory, without a workspace. It holds a pointer to the map. */
call case_call(const call_case *k, const case_map *m, void *memory, int32_t device);

/* Whether the call goes backward. */
int case_is_backward(const call_case *k);

/* Lets the tokens of a tensor come in the reverse order. */
void case_reverse(int64_t tokens, size_t element, unsigned char **base, int64_t *stride);

#endif
