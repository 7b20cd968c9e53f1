/* The speed of ranks while all of them run. */
#ifndef TESTS_MULTIGPU_TIMING_H
#define TESTS_MULTIGPU_TIMING_H

#include "rank.h"
#include "verify.h"

/* All ranks must call these functions. They return nonzero when the run is being ended. */

/* Measures how many bytes per second rank 0's device copies while the others wait, and sends the result to all ranks. Bytes
 * read and bytes written both count. */
int timing_copy(rank_context *r, double bytes, int32_t repeat);

/* Measures the bytes per second that each rank sends in a ring of all ranks, as the best of a few runs. 0 with one rank. */
int timing_link(rank_context *r, double *speed);

/* Measures the median time of the case's forward call, with about `bytes` per rank and all ranks at once. The result is the
 * time of the slowest rank. */
int timing_case(rank_context *r, const problem_choice *choice, double bytes, int32_t repeat, case_result *result);

/* Times the bench's headline call (bf16, 32 heads of 128), first on every rank alone and then on all ranks at once. */
typedef struct speed_row {
    double alone, together; /* median seconds of a call, the better of two measurements each */
} speed_row;

enum { SPEED_HEADS = 32, SPEED_DIM = 128 };

typedef struct speed_result {
    int64_t tokens;
    double bytes;    /* bytes that a call moves */
    speed_row *rows; /* of all ranks, on rank 0 */
} speed_result;

int timing_speed(rank_context *r, double bytes, int32_t repeat, speed_result *result);

#endif
