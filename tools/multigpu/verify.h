/* Verifies one case: every rank computes its share; rank 0 computes the whole and compares. */
#ifndef TESTS_MULTIGPU_VERIFY_H
#define TESTS_MULTIGPU_VERIFY_H

#include "call.h"

/* A deliberate failure of a rank, to prove that the run ends. */
typedef enum failure_kind { FAILURE_NONE, FAILURE_DIE, FAILURE_HANG, FAILURE_NO_DEVICE } failure_kind;

typedef struct verify_options {
    mistake_kind broken;  /* a mistake that every rank makes if it can */
    failure_kind failure; /* a failure of failing_rank */
    int32_t failing_rank; /* fails in its first case */
} verify_options;

typedef struct case_result {
    int64_t compared;     /* number of elements of y and dx */
    int64_t wrong[2];     /* elements of y (with rstd) and of dx that differ in any bit from the result of one device */
    int64_t scores;       /* number of q . k that were compared */
    int64_t scores_wrong; /* number of them that differ */
    double angle_error;   /* largest error of the gradient of the angles, divided by its bound */
    int angles_repeat;    /* a second run gave the same bits */
    double sum_error;     /* the same as angle_error for dx of shared keys, or for d_weight */
    int refused;          /* number of ranks whose call the library refused or flagged */
    int is_broken;        /* the mistake was deliberate */
    uint32_t causes;      /* 1 << mistake_kind of each mistake that explains the error */
    char cause[400];      /* the causes in words */
    double seconds;       /* time of a forward call on a larger problem, on the slowest rank; 0 = not timed */
    double bytes;         /* bytes that this call moved on a rank */
} case_result;

int case_holds(const case_result *result);

/* Runs a case on all ranks. The result is complete on rank 0 only. Returns nonzero when the run is being ended. */
int verify_case(rank_context *r, const problem *p, const verify_options *options, case_result *result);

/* ---- the parts; all ranks call each of them ---- */

/* What rank 0 has collected for one direction. */
typedef struct gathered {
    char *results;     /* of all ranks, call.result_bytes each */
    outcome *outcomes; /* of all ranks */
} gathered;

/* Compares q . k between this rank's queries and the keys of all context parallel ranks. The keys travel round a ring. */
int verify_scores(call *mine, const call *whole, case_result *result);

/* Compares the sum over the ranks of the gradient of the angles. Computes it twice. */
int verify_angles(call *mine, call *whole, case_result *result);

/* Compares the sum over the ranks of dx of shared keys. dx must have been computed. Does nothing in other cases. */
int verify_sums(call *mine, const call *whole, case_result *result);

/* Adds the magnitudes of a head's terms. |cos| and |sin| are at most 1, so an element of the window gets the magnitudes of
 * both elements of its pair; the other pairing may place these elsewhere. An element outside the window gets its own
 * magnitude. */
void verify_add_head(const problem *p, int32_t from, int32_t to, const double *head, double *magnitude);

/* Acts as the caller's all-reduce: computes the sum over all ranks, in place. */
int verify_add(call *mine, float *values, int64_t count);
/* Returns the largest error, divided by its bound. A NaN error counts as infinite. */
double verify_largest_error(const float *sum, const float *expected, const double *bound, int64_t count);

/* Compares the sum over the ranks of the gradient of the norms' weights. Does nothing in cases without norms. */
int verify_weights(call *mine, const call *whole, case_result *result);

/* On rank 0: tries the common mistakes on the wrong ranks and reports those that give exactly the bits that were found. */
int diagnose(call *mine, const gathered *found, int backward, case_result *result);
/* On rank 0: counts the elements that differ between a rank's y and rstd (backward = 0) or dx (1) and the whole's. If any
 * differ, `first` becomes the place of the first one in the share. */
int64_t count_wrong(const share *s, int backward, const char *result, const char *whole, int64_t *first);

#endif
