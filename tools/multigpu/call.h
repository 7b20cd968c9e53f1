/* A share on a device, and the library's calls on it. */
#ifndef TESTS_MULTIGPU_CALL_H
#define TESTS_MULTIGPU_CALL_H

#include "rank.h"

/* What the library said. */
typedef struct outcome {
    int32_t status; /* TROPE_OK, ... */
    int32_t flags;  /* the status word */
    char message[160];
} outcome;

typedef struct call {
    rank_context *r;
    share s;
    mistake m;
    request q; /* with device memory, and without tensors */
    arena_mark mark;
    size_t bytes;    /* of x, dy, y and dx: Q, then K; of K heads that are one in memory, that one is the first */
    char *x, *dy;    /* in device memory, in this call's order of tokens */
    char *result[2]; /* y and dx, in right order, and behind y rstd */
    size_t result_bytes;
    float *rstd[PROBLEM_OPERANDS]; /* part of result[0], in this call's order of tokens */
    float *d_weight[PROBLEM_OPERANDS];
    /* token_sums of forward and backward, if the norm is split: this rank's, all, and its group's as the call reads them */
    float *sums[2][PROBLEM_OPERANDS], *all_sums[2][PROBLEM_OPERANDS], *group_sums[2][PROBLEM_OPERANDS];
    const struct call *peer; /* a call with all_sums that this one takes, instead of gathering with other ranks; or NULL */
    int32_t *flags;
    void *d_angles;
    int64_t angle_count; /* elements of d_angles, */
    int32_t angle_dtype; /* and their type */
    void *workspace;
    size_t workspace_size;
} call;

/* What fills the tensors: the right numbers, or any, for a call that is only timed. */
typedef enum call_data { CALL_RIGHT_DATA, CALL_ANY_DATA } call_data;

/* The request for y (backward = 0) or dx (1), which goes to result[backward]. */
request call_request(const call *c, int backward);

/* All that follow return nonzero after watch_fail. What the library refuses is no failure, but an outcome. */
int call_open(call *c, rank_context *r, const problem *p, const rank_place *place, mistake m);
int call_open_for_time(call *c, rank_context *r, const problem *p, const rank_place *place);
void call_close(call *c);

/* y (backward = 0) or dx (1) into result[backward]. What is not written keeps a pattern that no right result has. All ranks
 * take part in it if the norm is split; with a norm, backward needs the forward call's rstd. */
int call_run(call *c, int backward, outcome *o);
/* The same on this rank alone: with the forward call before backward, and with the token sums that `peer` has. */
int call_run_alone(call *c, const call *peer, int backward, outcome *o);

/* For timing: queues a forward call on the stream, with the two calls and the gather of a norm that is split. Returns nonzero
 * after a failure. */
int call_queue_forward(const call *c, void *stream);

/* The gradient of the angles of the operands that this share counts, into d_angles. */
int call_angles(call *c, outcome *o);

/* An operand of a tensor, converted. */
int call_load(const call *c, int tensor, int operand, double *values);
/* dx of an operand in fp32, which all numbers of 16 bits are, too. */
int call_load_dx(const call *c, int operand, float *dx);
/* Multiplies values in the order of x by rstd: x becomes what the weight multiplies. */
int call_scale_by_rstd(const call *c, int operand, double *x);

/* Bytes that a forward call reads and writes. */
double call_traffic(const call *c);

int outcome_equal(const outcome *a, const outcome *b);

#endif
