/* Checks the position maps of 1 to 4096 ranks and of sequences of up to 2^31 tokens, without tensors. */
#ifndef TESTS_MULTIGPU_SIMULATE_H
#define TESTS_MULTIGPU_SIMULATE_H

#include <stdint.h>

/* Prints a table, and writes JSON to `path`. With `json`, JSON replaces the table. Returns an exit status. */
int simulate(int json, const char *path);

/* ---- the parts ---- */

enum { SIMULATE_RANKS = 4096, SIMULATE_LAYOUTS = 4 };
extern const int32_t simulate_layouts[SIMULATE_LAYOUTS];

/* The result for one split. Work is causal: the query at position p has p + 1 keys. */
typedef struct simulation {
    int holds;        /* each position 0 .. n-1 is on exactly one rank, and the work is balanced as the layout promises */
    double imbalance; /* the largest work of a rank, divided by the mean */
    int64_t tokens;   /* tokens of a rank, the same for all ranks */
} simulation;

/* Checks one sequence of n tokens by its runs of evenly spaced positions. n must be divisible by 2 * ranks. */
simulation simulate_sequence(int32_t layout, int64_t ranks, int64_t n);
/* Checks the same position by position. */
simulation simulate_every_position(int32_t layout, int64_t ranks, int64_t n);
/* Checks a packed stream of many sequences with about n tokens. */
simulation simulate_stream(int32_t layout, int64_t ranks, int64_t n);

#endif
