/* A call_case describes one call. Tests have tables of them. The tensors, tables and indices of the call are regions of one
 * block of memory, with gaps between them. So the same call can be made for a block of host memory or of device memory. */
#ifndef TESTS_CUDA_CALL_CASE_H
#define TESTS_CUDA_CALL_CASE_H

#include <stddef.h>
#include <stdint.h>

#include "support/call.h"
#include "support/random.h"

enum { CASE_OPERANDS = 4, CASE_STATUS_BEFORE = 0x100 };

typedef enum case_angles { INV_FREQ, FREQS, TABLES } case_angles;                          /* TABLES: cos and sin */
typedef enum angle_gradient { NO_GRADIENT, WITH_GRADIENT, GRADIENT_ALONE } angle_gradient; /* ALONE: no dst */

typedef struct case_operand {
    int32_t heads, head_dim, rotary_dim, rotary_offset;
} case_operand;

/* The comment of a field says what 0 means. Without such a comment, 0 means that the call does not use the field. */
typedef struct call_case {
    const char *name;
    int32_t dtype, layout;
    int64_t batch, tokens;
    case_operand operands[CASE_OPERANDS]; /* an operand with 0 heads ends the list */
    int32_t step, first;                  /* the stride of elements, 0 = 1; the number of elements before a tensor */
    int32_t token_step;                   /* the stride of tokens, 0 = the number of elements of a token. Tokens may
                                             overlap in memory. Only for GRADIENT_ALONE. */
    int32_t pairing;                      /* 0 = TROPE_PAIRING_HALF */
    int in_place, backward;
    int forward_src;         /* every operand has a forward_src; backward requires it with norms */
    angle_gradient gradient; /* the gradient of the angles: d_freqs or d_inv_freq */
    int any_numbers;         /* elements are real numbers instead of whole numbers */
    case_angles angles;
    int32_t columns;      /* 0 = TROPE_COLUMNS_PAIR */
    int64_t rows;         /* the number of rows of a table; ids are below it */
    int32_t row_stride;   /* the stride of the rows of a table, 0 = no gaps */
    int per_batch;        /* a table for each batch entry */
    int32_t out_of_range; /* TROPE_RANGE_... */
    int32_t cu_dtype;     /* the dtype of cu_seqlens */
    int64_t sequences;    /* the number of sequences */
    int64_t longest;      /* the largest number of tokens of a sequence, 0 = `rows` */
    int32_t gap;          /* the largest number of tokens before the first sequence, and after the last one;
                                0: the sequences contain all tokens */
    int32_t padding;      /* TROPE_PADDING_... */
    int32_t ids_dtype;    /* the dtype of position_ids */
    int32_t starts_dtype; /* the dtype of start_positions: TROPE_I32 */
    size_t weight_bytes;  /* the size of REGION_WEIGHTS: input that the test itself adds to the call */
    size_t rstd_bytes;    /* the size of REGION_RSTD: results that the test itself adds to the call */
} call_case;

/* Regions of a block. The inputs of a call come first: indices, then tables, then tensors. */
enum {
    REGION_CU_SEQLENS,
    REGION_PADDED, /* for cu_seqlens_padded, if the test itself adds them to the call */
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

/* Returns the offset of each region. No offset is 0. Tensors of a call without tokens still get memory for a few tokens. */
case_map case_plan(const call_case *k);

/* Reserves a region of `bytes` bytes at the end of a block, and a gap after it. */
case_region case_take(size_t *end, size_t bytes);

/* Draws the inputs of the call. Other regions and the gaps do not change.
 *
 * Elements are whole numbers from -3 to 3. With a gradient, angles are 0 or between 0.1 and 1.5, unless a frequency is
 * multiplied by a position greater than 14. The sines and cosines in fp32 are then multiples of 2^-27. A sum of up to 2^20
 * terms has less than 53 bits, so it is exact in any order. Tables of sines and cosines contain multiples of 1/4 if there
 * is a gradient, so sums of 2^40 terms are exact. With `any_numbers`, elements are real numbers, and sums are not exact.
 * All layouts of a shape get the same elements. */
void case_draw(const call_case *k, const case_map *m, void *memory, uint64_t seed);

/* Stores element i of an array of indices. */
void case_store_index(int32_t dtype, void *to, int64_t i, int64_t value);

/* Returns the call on a block of memory, without a workspace. The call keeps a pointer to the map. */
call case_call(const call_case *k, const case_map *m, void *memory, int32_t device);

/* Returns whether the call is a backward call. */
int case_is_backward(const call_case *k);

/* Reverses the order of a tensor's tokens. */
void case_reverse(int64_t tokens, size_t element, unsigned char **base, int64_t *stride);

#endif
