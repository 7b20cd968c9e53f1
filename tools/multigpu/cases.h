/* The test cases: ways to split a training batch over ranks. */
#ifndef TESTS_MULTIGPU_CASES_H
#define TESTS_MULTIGPU_CASES_H

#include <stddef.h>
#include <stdint.h>

typedef enum case_packing {
    CASE_DENSE,
    CASE_PACKED, /* cu_seqlens, with empty sequences and tokens after the last one */
    CASE_PADDED, /* also cu_seqlens_padded, with arbitrary unpadded lengths */
    CASE_ALIGNED /* the same, but a call without cu_seqlens_padded is valid: every layout can split the unpadded lengths */
} case_packing;

typedef enum case_positions {
    CASE_INDEX,
    CASE_STARTS,   /* start_positions */
    CASE_IDS,      /* position_ids on three axes */
    CASE_IN_STREAM /* stream_positions */
} case_positions;

typedef enum case_angles { CASE_INV_FREQ, CASE_FREQS, CASE_TABLE } case_angles;

typedef enum case_keys {
    CASE_KEYS_SPLIT,      /* at least as many K heads as tensor parallel ranks */
    CASE_KEYS_REPLICATED, /* fewer: several ranks have the same head */
    CASE_KEYS_SINGLE,     /* one K head for all ranks */
    CASE_KEYS_SHARED      /* as many K heads as Q heads, but one in memory, which every rank has, like MLA's k_pe */
} case_keys;

/* The norm of Q and K. */
typedef enum case_norm {
    CASE_NORM_NONE,
    CASE_NORM_HEAD,  /* over each head, before the rotation, with one weight for all heads */
    CASE_NORM_AFTER, /* over each head, after the rotation, with one weight for all heads */
    CASE_NORM_TOKEN  /* over all heads of a token, before the rotation, with a weight for each head */
} case_norm;

enum { SPLIT_DATA = 1, SPLIT_TENSOR = 2, SPLIT_CONTEXT = 4 };

typedef struct split_case {
    const char *split; /* such as "tp-x-cp" */
    char variant[40];  /* such as "zigzag-packed" */
    int32_t splits;    /* SPLIT_... of the dimensions that are split */
    int32_t cp_layout;
    case_packing packing;
    case_positions positions;
    case_angles angles;
    case_keys keys;
    case_norm norm;
    int32_t accumulate; /* dx is added to old_dst */
    int32_t pairing, pairing_out, rotary_dim, rotary_offset;
} split_case;

#define CASES_MAX 160

/* Writes all cases and returns how many there are. */
int cases_list(split_case *cases);

/* Returns the pairing of the forward call's output. */
int32_t case_pairing_out(const split_case *c);

/* Writes the name "split/variant/dtype". */
void case_name(const split_case *c, int32_t dtype, char *name, size_t size);

/* Factors `ranks` over the dimensions that the case splits. A single dimension gets all ranks. With two, tensor parallel
 * (or else data parallel) gets the smallest factor. With three, data parallel gets the smallest factor of the rest. Returns
 * nonzero if `ranks` has fewer factors above 1 than there are dimensions. */
typedef struct rank_grid {
    int32_t dp, tp, cp;
} rank_grid;
int case_grid(const split_case *c, int32_t ranks, rank_grid *grid);

#endif
