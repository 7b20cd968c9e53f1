/* One case: every rank computes its share, rank 0 computes the whole and compares. */
#ifndef TESTS_MULTIGPU_VERIFY_H
#define TESTS_MULTIGPU_VERIFY_H

#include "call.h"

/* Deliberate damage to a rank, to prove that the run ends. */
typedef enum failure_kind { FAILURE_NONE, FAILURE_DIE, FAILURE_HANG, FAILURE_NO_DEVICE } failure_kind;

typedef struct verify_options {
    mistake_kind broken;  /* what every rank that can does wrong */
    failure_kind failure; /* what happens to */
    int32_t failing_rank; /* this one, in its first case */
} verify_options;

typedef struct case_result {
    int64_t compared;     /* elements of y and dx */
    int64_t wrong[2];     /* elements of y with rstd and of dx that differ in any bit from the one device's */
    int64_t scores;       /* q . k that were compared, */
    int64_t scores_wrong; /* and that differ */
    double angle_error;   /* of the gradient of the angles: the largest error, in parts of its bound */
    int angles_repeat;    /* a second run gave the same bits */
    double sum_error;     /* of dx of keys that are one in memory, or of d_weight, like angle_error */
    int refused;          /* ranks whose call the library refused or flagged */
    int is_broken;        /* a mistake was made on purpose */
    uint32_t causes;      /* 1 << mistake_kind of each that explains what is wrong */
    char cause[400];      /* the same in words */
    double seconds;       /* of a forward call on a larger problem, on the slowest rank; 0 = not timed */
    double bytes;         /* that it moved on a rank */
} case_result;

int case_holds(const case_result *result);

/* Runs a case on all ranks. The result is complete on rank 0. Returns nonzero when the run is being ended. */
int verify_case(rank_context *r, const problem *p, const verify_options *options, case_result *result);

/* ---- the parts, each of which all ranks call ---- */

/* What rank 0 has collected of a direction. */
typedef struct gathered {
    char *results;     /* of all ranks, call.result_bytes each */
    outcome *outcomes; /* of all ranks */
} gathered;

/* q . k between this rank's queries and the keys of all context parallel ranks, which go round a ring. */
int verify_scores(call *mine, const call *whole, case_result *result);

/* The sum over the ranks of the gradient of the angles, twice. */
int verify_angles(call *mine, call *whole, case_result *result);

/* The sum over the ranks of dx of keys that are one in memory; dx has to be there. Does nothing in other cases. */
int verify_sums(call *mine, const call *whole, case_result *result);

/* Adds the magnitudes of a head's terms; |cos| and |sin| are at most 1. An element of the window gets those of both elements of
 * its pair, which may have another place in the other pairing. An element outside the window gets its own. */
void verify_add_head(const problem *p, int32_t from, int32_t to, const double *head, double *magnitude);

/* The caller's all-reduce: the sum over all ranks, in place. */
int verify_add(call *mine, float *values, int64_t count);
/* The largest error in parts of its bound; an error that is not a number is infinite. */
double verify_largest_error(const float *sum, const float *expected, const double *bound, int64_t count);

/* The sum over the ranks of the gradient of the norms' weights. Does nothing in cases without norms. */
int verify_weights(call *mine, const call *whole, case_result *result);

/* On rank 0: tries the usual mistakes on the ranks that are wrong, and says which give the very bits that were found. */
int diagnose(call *mine, const gathered *found, int backward, case_result *result);
/* On rank 0, for a rank's y and rstd (backward = 0) or dx (1) and the whole's: elements that differ. `first` becomes the
 * first one's place in the share, unless none differs. */
int64_t count_wrong(const share *s, int backward, const char *result, const char *whole, int64_t *first);

#endif
