/* The position maps of 1 to 4096 ranks and of sequences of up to 2^31 tokens, without tensors. */
#ifndef TESTS_MULTIGPU_SIMULATE_H
#define TESTS_MULTIGPU_SIMULATE_H

#include <stdint.h>

/* Prints a table, and JSON to `path` or (json) instead of the table. Returns an exit status. */
int simulate(int json, const char *path);

/* ---- the parts ---- */

enum { SIMULATE_RANKS = 4096, SIMULATE_LAYOUTS = 4 };
extern const int32_t simulate_layouts[SIMULATE_LAYOUTS];

/* What of a split was checked. Work is causal: the query at position p has p + 1 keys. */
typedef struct simulation {
    int holds;        /* the ranks' positions are each of 0 .. n-1 once, and the work is as it should be */
    double imbalance; /* work of the rank that has most, over the mean */
    int64_t tokens;   /* of a rank, the same for all */
} simulation;

/* One sequence of n tokens, n divisible by 2 * ranks: from its runs of evenly spaced positions. */
simulation simulate_sequence(int32_t layout, int64_t ranks, int64_t n);
/* The same, position by position. */
simulation simulate_every_position(int32_t layout, int64_t ranks, int64_t n);
/* A packed stream of many sequences, of about n tokens. */
simulation simulate_stream(int32_t layout, int64_t ranks, int64_t n);

#endif
