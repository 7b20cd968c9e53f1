/* A rank's share in device memory, and the library calls on it. */
#ifndef TESTS_MULTIGPU_CALL_H
#define TESTS_MULTIGPU_CALL_H

#include "rank.h"

/* The library's answer to a call. */
typedef struct outcome {
    int32_t status; /* TROPE_OK, ... */
    int32_t flags;  /* the status word */
    char message[160];
} outcome;

typedef struct call {
    rank_context *r;
    share s;
    mistake m;
    request q; /* has device memory, but no tensors */
    arena_mark mark;
    size_t bytes;    /* of x, dy, y and dx: Q, then K; if the K heads are shared, the shared head comes first */
    char *x, *dy;    /* in device memory, in this call's order of tokens */
    char *result[2]; /* y and dx in token order; rstd follows y */
    size_t result_bytes;
    float *rstd[PROBLEM_OPERANDS]; /* part of result[0], in this call's order of tokens */
    float *d_weight[PROBLEM_OPERANDS];
    /* token_sums of forward and backward, if the norm is split: this rank's sums, the sums of all ranks, and the sums of
     * this rank's group as the call reads them */
    float *sums[2][PROBLEM_OPERANDS], *all_sums[2][PROBLEM_OPERANDS], *group_sums[2][PROBLEM_OPERANDS];
    const struct call *peer; /* if not NULL, use the all_sums of `peer` instead of gathering */
    int32_t *flags;
    void *d_angles;
    int64_t angle_count; /* number of elements of d_angles */
    int32_t angle_dtype; /* type of these elements */
    void *workspace;
    size_t workspace_size;
} call;

/* Contents of the tensors: the right numbers, or any numbers for a call that is only timed. */
typedef enum call_data { CALL_RIGHT_DATA, CALL_ANY_DATA } call_data;

/* Returns the request for y (backward = 0) or dx (1). The result goes to result[backward]. */
request call_request(const call *c, int backward);

/* All functions below return nonzero after watch_fail. A call that the library refuses is not a failure: it is recorded in
 * the outcome. */
int call_open(call *c, rank_context *r, const problem *p, const rank_place *place, mistake m);
int call_open_for_time(call *c, rank_context *r, const problem *p, const rank_place *place);
void call_close(call *c);

/* Computes y (backward = 0) or dx (1) into result[backward]. Bytes that the call does not write keep a pattern that no
 * right result contains. If the norm is split, all ranks must call this function. With a norm, backward needs the rstd that
 * the forward call wrote. */
int call_run(call *c, int backward, outcome *o);
/* Does the same on this rank alone: runs the forward call before backward, and uses the token sums of `peer`. */
int call_run_alone(call *c, const call *peer, int backward, outcome *o);

/* Queues a forward call on the stream, for timing. If the norm is split, this includes both library calls and the gather.
 * Returns nonzero after a failure. */
int call_queue_forward(const call *c, void *stream);

/* Writes the gradient of the angles to d_angles. It covers the operands that this share counts. */
int call_angles(call *c, outcome *o);

/* Loads an operand of a tensor and converts it to double. */
int call_load(const call *c, int tensor, int operand, double *values);
/* Loads dx of an operand as fp32, which represents every 16-bit number exactly. */
int call_load_dx(const call *c, int operand, float *dx);
/* Multiplies values in the order of x by rstd. The products are the numbers that the weight multiplies. */
int call_scale_by_rstd(const call *c, int operand, double *x);

/* Returns the number of bytes that a forward call reads and writes. */
double call_traffic(const call *c);

int outcome_equal(const outcome *a, const outcome *b);

#endif
