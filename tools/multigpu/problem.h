/* A case with its sizes: the whole tensors as one device would hold them, and the calls for one rank or for the whole. All
 * ranks make the same problem from the same seed, without communication. */
#ifndef TESTS_MULTIGPU_PROBLEM_H
#define TESTS_MULTIGPU_PROBLEM_H

#include <stdint.h>

#include "cases.h"
#include "request.h"
#include "trope/trope.h"

enum { PROBLEM_Q, PROBLEM_K, PROBLEM_OPERANDS = REQUEST_OPERANDS };
/* x of the forward call, dy of the backward call, and old_dst of a call that accumulates dx. */
enum { PROBLEM_X, PROBLEM_DY, PROBLEM_BEFORE };

typedef struct problem {
    const split_case *c;
    rank_grid grid;
    int32_t dtype;
    uint64_t seed;
    int64_t batch;                   /* batch size of one data parallel replica */
    int64_t tokens;                  /* per replica and batch entry, summed over the context parallel ranks */
    int64_t sequences;               /* number of sequences in one replica's cu_seqlens, 0 = dense */
    int32_t heads[PROBLEM_OPERANDS]; /* summed over the tensor parallel ranks */
    int32_t head_dim;
    int32_t weight_heads[PROBLEM_OPERANDS]; /* number of heads with their own weights, or 1 */
    float *weights[PROBLEM_OPERANDS];       /* norm weights [weight_heads, head_dim], or NULL */
    int32_t *unpadded, *stored; /* cu_seqlens of all replicas, one after the other; stored is NULL unless padded */
    int64_t *starts;            /* start_positions of all batch entries */
    double *inv_freq;
    uint8_t *pair_axis; /* axis of each pair for position ids with three axes, or NULL */
    float *angles[2];   /* freqs, or cos and sin: [rows, cols] */
    int64_t rows;
    int32_t cols;    /* columns of angles, or 0 */
    int32_t columns; /* TROPE_COLUMNS_... */
} problem;

typedef struct problem_choice {
    const split_case *c;
    rank_grid grid;
    int32_t dtype;
    uint64_t seed;
} problem_choice;

/* Chooses sizes with about `tokens` tokens in the whole. Returns nonzero if memory allocation fails. */
int problem_make(problem *p, const problem_choice *choice, int64_t tokens);
void problem_free(problem *p);

/* A mistake in a rank's call, of a kind that users make. The data always belongs to the right rank. */
typedef enum mistake_kind {
    MISTAKE_NONE,
    MISTAKE_RANK,       /* cp_rank is `value` */
    MISTAKE_LAYOUT,     /* cp_layout is `value` */
    MISTAKE_CHUNK,      /* the two chunks of each sequence are swapped in memory */
    MISTAKE_SIN,        /* sin has the wrong sign */
    MISTAKE_CU_SEQLENS, /* cu_seqlens_padded is missing */
    MISTAKE_LOCAL,      /* the call ignores context parallelism */
    MISTAKE_GATHER,     /* token_sums holds this rank's sums and zeros, because they were not gathered */
    MISTAKE_AXIS,       /* token_sums was gathered along the tokens instead of the heads */
    MISTAKE_REDUCE,     /* d_weight is not summed over the ranks of dimension `value`, a SPLIT_... */
    MISTAKE_BIT         /* one bit of the last rank's result is flipped: a hardware fault, not a user's mistake */
} mistake_kind;

typedef struct mistake {
    mistake_kind kind;
    int32_t value;
} mistake;

/* Returns the mistake of this kind that rank `cp_rank` would make, or MISTAKE_NONE if the kind does not apply here. */
mistake mistake_of_rank(const problem *p, mistake_kind kind, int32_t cp_rank);

/* A rank's coordinates: which share of the tensors it holds. */
typedef struct rank_place {
    int32_t dp, tp, cp;
} rank_place;

/* Tensor parallel ranks are neighbours and data parallel ranks are farthest apart: Megatron's order tp-cp-dp. */
rank_place problem_place(const problem *p, int32_t rank);
int32_t problem_rank(const problem *p, rank_place place);

/* Writes the two elements of a pair in a head with this pairing. */
void problem_pair(const problem *p, int32_t pairing, int32_t pair, int32_t element[2]);

/* Returns the number of operands of y or dx that are split over the ranks. The remaining operand is dx of shared keys,
 * where each rank has a sum over its own heads. */
int problem_split_operands(const problem *p, int backward);

/* The tokens and heads of a call: a rank's share or, with is_whole, all of them. */
typedef struct share {
    const problem *p;
    int is_whole;
    rank_place place;
    int64_t batch, tokens;
    int64_t first_batch, first_token; /* offset in the whole */
    int32_t heads[PROBLEM_OPERANDS], first_head[PROBLEM_OPERANDS];
    int counts_keys;    /* this is the first of the ranks that have the same K heads */
    int64_t *in_whole;  /* [tokens] index of each token in its batch entry of the whole */
    int64_t *in_memory; /* [tokens] index of token i in this rank's memory: i, except with MISTAKE_CHUNK */
    int64_t *ids;       /* [3, tokens] or NULL */
    int32_t *unpadded, *stored;
    int is_norm_split; /* the norm also covers heads of other ranks */
    /* Number of heads with their own weights, or 1 for all heads. rstd is [batch, tokens, rstd_heads]. */
    int32_t weight_heads[PROBLEM_OPERANDS], first_weight[PROBLEM_OPERANDS], rstd_heads[PROBLEM_OPERANDS];
    request q; /* has host arrays, but no tensors */
} share;

/* Both return nonzero after a failure. The reason is in trope_last_error(), or memory allocation failed. */
int share_make(share *s, const problem *p, rank_place place, mistake m);
int share_make_whole(share *s, const problem *p);
void share_free(share *s);

/* Return the number of elements of an operand, and of one token of an operand summed over the batch. */
int64_t share_elements(const share *s, int operand);
int64_t share_token_elements(const share *s, int operand);
int64_t share_all_elements(const share *s);

/* Return the first element of a token in a batch entry: in the share (in token order), and in the whole. */
int64_t share_token(const share *s, int operand, int64_t token, int64_t batch);
int64_t share_token_in_whole(const share *s, int operand, int64_t token, int64_t batch);

/* Return the number of heads of an operand in a tensor (1 for shared heads), and the number of its elements. */
int32_t share_tensor_heads(const share *s, int tensor, int operand);
int64_t share_tensor_elements(const share *s, int tensor, int operand);

/* Return the first element of a token of a batch entry in the whole tensor, and the size of the whole tensor. */
int64_t share_tensor_token_in_whole(const share *s, int tensor, int operand, int64_t token, int64_t batch);
int64_t problem_tensor_elements(const problem *p, int tensor, int operand);

/* Writes an operand of a tensor in the order of this share's memory. */
void share_fill(const share *s, int tensor, int operand, void *memory);
/* Converts memory order to token order, which undoes MISTAKE_CHUNK. `tensor` gives the shape: PROBLEM_DY for y, PROBLEM_X
 * for dx. */
void share_put_in_order(const share *s, int tensor, int operand, const void *memory, void *ordered);

#endif
