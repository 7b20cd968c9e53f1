/* What chains are made of: places in memory, and what is brought to them while the chain runs. Tables and indices are
 * brought just before they are needed, by calls of the library, which admit kernels early, and by the runtime. */
#ifndef TESTS_CUDA_CHAIN_PARTS_H
#define TESTS_CUDA_CHAIN_PARTS_H

#include "cuda/chain.h"
#include "support/random.h"

enum { CHAIN_MOST_PAIRS = 64 };

typedef enum angle_source { INV_FREQ, FREQS, OWN_FREQS, TABLES } angle_source; /* OWN: of elements; TABLES: cos and sin */
typedef enum position_source { FROM_TOKENS, PACKED, IDS } position_source;

/* What calls read, and the two that are brought there in turn. 0 bytes: nothing. */
typedef struct source {
    size_t live, from[2], bytes;
} source;

/* The tables and indices of a chain's calls. */
typedef struct chain_angles {
    angle_source angles;
    position_source positions;
    int64_t tokens, rows, indices; /* boundaries or ids */
    int32_t columns;
    source table, sines, index;
} chain_angles;

/* Room for so many bytes at the end of a block, which grows; and for what chain_copy_by_call writes. */
size_t chain_take(size_t *end, size_t bytes);
size_t chain_take_target(size_t *end, size_t bytes);
source chain_take_source(size_t *end, size_t bytes);

/* From tokens there is a row for each, of others there are `most_rows`: no sequence is longer, no id higher. */
chain_angles chain_plan_angles(angle_source angles, position_source positions, int64_t tokens, int64_t most_rows,
                               int32_t rotary_dim, size_t *end);

/* Draws the sources `which`. Angles are from 0.1 to 1.4. */
void chain_draw_angles(const chain_angles *t, int which, unsigned char *memory, random_state *random);

/* A call without operands that has frequencies of its own; and what makes it one that reads the tables and indices. */
call chain_begin_call(int32_t dtype, int64_t batch, int64_t tokens);
void chain_set_angles(const chain_angles *t, chain_place at, call *c);

/* Brings what a round needs. */
void chain_bring(const source *s, chain_place at, int round);
void chain_bring_angles(const chain_angles *t, chain_place at, int round);

/* Copies as many bytes as were taken for these, by a call: the last ones first, the reverse of how they are read. */
void chain_copy_by_call(chain_place at, size_t to, size_t from, size_t bytes);

/* Lets the tokens come in the reverse order. */
void chain_reverse(int64_t tokens, size_t element, unsigned char **base, int64_t *stride);

#endif
