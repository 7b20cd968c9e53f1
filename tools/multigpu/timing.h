/* How fast ranks are while all of them run. */
#ifndef TESTS_MULTIGPU_TIMING_H
#define TESTS_MULTIGPU_TIMING_H

#include "rank.h"
#include "verify.h"

/* All ranks call these. They return nonzero when the run is being ended. */

/* Bytes a second that rank 0's device copies (read and written both count) while the others wait; to all ranks. */
int timing_copy(rank_context *r, double bytes, int32_t repeat);

/* Bytes a second that each rank sends round a ring of all ranks, the fastest of a few times; 0 with one rank. */
int timing_link(rank_context *r, double *speed);

/* The median time of the case's forward call on about `bytes` a rank, all ranks at once; that of the slowest rank. */
int timing_case(rank_context *r, const problem_choice *choice, double bytes, int32_t repeat, case_result *result);

/* The bench's headline call, bf16 and 32 heads of 128, on every rank alone and then on all at once. */
typedef struct speed_row {
    double alone, together; /* median seconds of a call, the better of two times each */
} speed_row;

enum { SPEED_HEADS = 32, SPEED_DIM = 128 };

typedef struct speed_result {
    int64_t tokens;
    double bytes;    /* that a call moves */
    speed_row *rows; /* of all ranks, on rank 0 */
} speed_result;

int timing_speed(rank_context *r, double bytes, int32_t repeat, speed_result *result);

#endif
