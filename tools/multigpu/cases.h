/* What is proven: ways to split a training batch over ranks. */
#ifndef TESTS_MULTIGPU_CASES_H
#define TESTS_MULTIGPU_CASES_H

#include <stddef.h>
#include <stdint.h>

typedef enum case_packing {
    CASE_DENSE,
    CASE_PACKED, /* cu_seqlens, with empty sequences and tokens after the last one */
    CASE_PADDED, /* and cu_seqlens_padded, real lengths arbitrary */
    CASE_ALIGNED /* the same with real lengths that every layout can split: a call without the padded ones is not refused */
} case_packing;

typedef enum case_positions {
    CASE_INDEX,
    CASE_STARTS,   /* start_positions */
    CASE_IDS,      /* position_ids on three axes */
    CASE_IN_STREAM /* stream_positions */
} case_positions;

typedef enum case_angles { CASE_INV_FREQ, CASE_FREQS, CASE_TABLE } case_angles;

typedef enum case_keys {
    CASE_KEYS_SPLIT,      /* as many K heads as tensor parallel ranks, and more */
    CASE_KEYS_REPLICATED, /* fewer: several ranks have the same one */
    CASE_KEYS_SINGLE,     /* one for all */
    CASE_KEYS_SHARED      /* as many as Q heads, from one in memory that every rank has: MLA's k_pe */
} case_keys;

/* The norm of q and k. */
typedef enum case_norm {
    CASE_NORM_NONE,
    CASE_NORM_HEAD,  /* of each head, before the rotation, with one weight for all heads */
    CASE_NORM_AFTER, /* the same after the rotation */
    CASE_NORM_TOKEN  /* of all heads of a token, before the rotation, with a weight for each head */
} case_norm;

enum { SPLIT_DATA = 1, SPLIT_TENSOR = 2, SPLIT_CONTEXT = 4 };

typedef struct split_case {
    const char *split; /* "tp-x-cp" */
    char variant[40];  /* "zigzag-packed" */
    int32_t splits;    /* SPLIT_... of the dimensions that are cut */
    int32_t cp_layout;
    case_packing packing;
    case_positions positions;
    case_angles angles;
    case_keys keys;
    case_norm norm;
    int32_t accumulate; /* dx is added to what is there */
    int32_t pairing, pairing_out, rotary_dim, rotary_offset;
} split_case;

#define CASES_MAX 160

/* Writes all cases and returns their number. */
int cases_list(split_case *cases);

/* How the forward call's output is paired. */
int32_t case_pairing_out(const split_case *c);

/* "split/variant/dtype". */
void case_name(const split_case *c, int32_t dtype, char *name, size_t size);

/* Cuts `ranks` by the dimensions of the case: one gets all of them; of several, tensor parallel, or else data parallel,
 * gets the smallest factor; of three, data parallel the smallest of the rest. Returns nonzero if the number has not as
 * many factors over 1. */
typedef struct rank_grid {
    int32_t dp, tp, cp;
} rank_grid;
int case_grid(const split_case *c, int32_t ranks, rank_grid *grid);

#endif
