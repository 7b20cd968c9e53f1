/* A case with its sizes: the whole tensors, as one device would have them, and the calls of one rank or of the whole. All
 * ranks make the same problem from the same seed; nothing is exchanged. */
#ifndef TESTS_MULTIGPU_PROBLEM_H
#define TESTS_MULTIGPU_PROBLEM_H

#include <stdint.h>

#include "cases.h"
#include "request.h"
#include "trope/trope.h"

enum { PROBLEM_Q, PROBLEM_K, PROBLEM_OPERANDS = REQUEST_OPERANDS };
/* x of the forward call, dy of the backward call, and what is where a call that accumulates adds its dx. */
enum { PROBLEM_X, PROBLEM_DY, PROBLEM_BEFORE };

typedef struct problem {
    const split_case *c;
    rank_grid grid;
    int32_t dtype;
    uint64_t seed;
    int64_t batch;                   /* of a data parallel replica */
    int64_t tokens;                  /* of a replica and batch entry, over all context parallel ranks */
    int64_t sequences;               /* of a replica's cu_seqlens, 0 = dense */
    int32_t heads[PROBLEM_OPERANDS]; /* over all tensor parallel ranks */
    int32_t head_dim;
    int32_t weight_heads[PROBLEM_OPERANDS]; /* heads with weights of their own, or 1 */
    float *weights[PROBLEM_OPERANDS];       /* of the norms: [weight_heads, head_dim], or NULL */
    int32_t *real, *stored; /* cu_seqlens of all replicas, one after the other; stored is NULL unless padded */
    int64_t *starts;        /* start_positions of all batch entries */
    double *inv_freq;
    uint8_t *pair_axis; /* of the ids of three axes, or NULL */
    float *angles[2];   /* freqs, or cos and sin: [rows, cols] */
    int64_t rows;
    int32_t cols;    /* of angles, or 0 */
    int32_t columns; /* TROPE_COLUMNS_... */
} problem;

typedef struct problem_choice {
    const split_case *c;
    rank_grid grid;
    int32_t dtype;
    uint64_t seed;
} problem_choice;

/* Sizes for about `tokens` in the whole. Returns nonzero if memory is short. */
int problem_make(problem *p, const problem_choice *choice, int64_t tokens);
void problem_free(problem *p);

/* A mistake in a rank's call, as people make them. Its data is always that of the right rank. */
typedef enum mistake_kind {
    MISTAKE_NONE,
    MISTAKE_RANK,       /* cp_rank is `value` */
    MISTAKE_LAYOUT,     /* cp_layout is `value` */
    MISTAKE_CHUNK,      /* the two chunks of each sequence lie the other way round in memory */
    MISTAKE_SIN,        /* the sine's sign */
    MISTAKE_CU_SEQLENS, /* cu_seqlens_padded is not given */
    MISTAKE_LOCAL,      /* the call knows nothing of context parallel */
    MISTAKE_GATHER,     /* token_sums has this rank's sums and zeros: they were not gathered */
    MISTAKE_AXIS,       /* token_sums was gathered along the tokens, not along the heads */
    MISTAKE_REDUCE,     /* d_weight is not added over the ranks of dimension `value`, a SPLIT_... */
    MISTAKE_BIT         /* one bit of the last rank's result: nobody's mistake, but a machine's */
} mistake_kind;

typedef struct mistake {
    mistake_kind kind;
    int32_t value;
} mistake;

/* The mistake of that kind that rank `cp_rank` would make here: MISTAKE_NONE if it could not. */
mistake mistake_of_rank(const problem *p, mistake_kind kind, int32_t cp_rank);

/* Who holds what. */
typedef struct rank_place {
    int32_t dp, tp, cp;
} rank_place;

/* Tensor parallel ranks are neighbours, data parallel ones farthest apart: Megatron's order tp-cp-dp. */
rank_place problem_place(const problem *p, int32_t rank);
int32_t problem_rank(const problem *p, rank_place place);

/* The elements of a pair in a head that is paired like that. */
void problem_pair(const problem *p, int32_t pairing, int32_t pair, int32_t element[2]);

/* Operands of y or dx that the ranks share out. The others are dx of keys that are one in memory: each rank has a sum over
 * its own heads there. */
int problem_split_operands(const problem *p, int backward);

/* What a call is about: a rank's share, or (is_whole) all of it. */
typedef struct share {
    const problem *p;
    int is_whole;
    rank_place place;
    int64_t batch, tokens;
    int64_t first_batch, first_token; /* in the whole */
    int32_t heads[PROBLEM_OPERANDS], first_head[PROBLEM_OPERANDS];
    int counts_keys;    /* of the ranks that have the same K heads, this is the first */
    int64_t *in_whole;  /* [tokens] where each token is in a batch entry of the whole */
    int64_t *in_memory; /* [tokens] where each token is in this rank's memory: itself, but with MISTAKE_CHUNK */
    int64_t *ids;       /* [3, tokens] or NULL */
    int32_t *real, *stored;
    int is_norm_split; /* the norm is over heads of other ranks, too */
    /* Heads with weights of their own, or 1 for all; and rstd is [batch, tokens, rstd_heads]. */
    int32_t weight_heads[PROBLEM_OPERANDS], first_weight[PROBLEM_OPERANDS], rstd_heads[PROBLEM_OPERANDS];
    request q; /* with host arrays, and without tensors */
} share;

/* Both return nonzero after a failure whose line is in trope_last_error(), or is about memory. */
int share_make(share *s, const problem *p, rank_place place, mistake m);
int share_make_whole(share *s, const problem *p);
void share_free(share *s);

/* Elements of an operand, and of a token of it over the batch. */
int64_t share_elements(const share *s, int operand);
int64_t share_token_elements(const share *s, int operand);
int64_t share_all_elements(const share *s);

/* Where the elements of a token and batch entry begin: in the share, counted in right order, and in the whole. */
int64_t share_row(const share *s, int operand, int64_t token, int64_t batch);
int64_t share_row_in_whole(const share *s, int operand, int64_t token, int64_t batch);

/* Heads of an operand in a tensor (one, if they are one in memory), and its elements there. */
int32_t share_tensor_heads(const share *s, int tensor, int operand);
int64_t share_tensor_elements(const share *s, int tensor, int operand);

/* Where the elements of a token and batch entry begin in the whole tensor, and how many that has. */
int64_t share_tensor_row_in_whole(const share *s, int tensor, int operand, int64_t token, int64_t batch);
int64_t problem_tensor_elements(const problem *p, int tensor, int operand);

/* Writes an operand of a tensor as it lies in this share's memory. */
void share_fill(const share *s, int tensor, int operand, void *memory);
/* From memory order to right order: undoes what MISTAKE_CHUNK does to y, which is shaped like dy, and to dx, like x. */
void share_put_in_order(const share *s, int tensor, int operand, const void *memory, void *ordered);

#endif
