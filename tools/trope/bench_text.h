/* A call given as text (src/api/call_text.h explains the form), which `trope bench --call` and the cases real-... time. */
#ifndef TOOLS_TROPE_BENCH_TEXT_H
#define TOOLS_TROPE_BENCH_TEXT_H

#include "trope/trope.h"

enum { BENCH_TEXT_ROLES = 3, BENCH_TEXT_AREAS = 12 };

/* The tensor in src, dst or forward_src of an operand: its area, -1 = none, and the bytes before its element 0. */
typedef struct bench_place {
    int32_t area;
    int64_t offset;
} bench_place;

/* Pointers of these structs are NULL if the array is absent. What they point to is never read. */
typedef struct bench_text {
    int32_t backward;
    trope_args args;
    trope_operand operands[TROPE_MAX_OPERANDS];
    int32_t has_norm[TROPE_MAX_OPERANDS];
    trope_norm norm[TROPE_MAX_OPERANDS];
    bench_place place[TROPE_MAX_OPERANDS][BENCH_TEXT_ROLES];
    uint8_t pair_axis[TROPE_MAX_ROTARY_DIM / 2];
} bench_text;

/* Reads a text. Returns nonzero after a complaint about `name`. */
int bench_read_text(const char *name, const char *text, bench_text *read);

/* Memory that a call reaches from a base address. */
typedef struct bench_extent {
    int64_t elements; /* up to the last one that it reaches */
    double distinct;  /* the number of elements, of which those that a stride of 0 repeats count once */
} bench_extent;

/* The extent of a tensor of an operand, of the table, and of the ids. The strides of contiguous layouts are filled in. */
bench_extent bench_text_tensor(const bench_text *t, int operand, int role);
bench_extent bench_text_table(const bench_text *t, int32_t layout, const int64_t *given);
bench_extent bench_text_ids(const bench_text *t);

/* The number of elements of a norm's weight, rstd and token_sums. */
int64_t bench_text_weights(const bench_text *t, int operand);
int64_t bench_text_rstds(const bench_text *t, int operand);
int64_t bench_text_sums(const bench_text *t, int operand);

/* The pairs and columns of the widest operand. */
int32_t bench_text_pairs(const bench_text *t);
int32_t bench_text_columns(const bench_text *t);
int bench_text_is_in_place(const bench_text *t, int operand);

#endif
