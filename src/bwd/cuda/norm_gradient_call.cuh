/* The backward of norms on CUDA: what its kernels are told by the host, and in which order d_weight is added.
 *
 * Rows, numbered batch * tokens + token, are cut into runs, and the heads with a norm, counted through all operands, into slices. A
 * cell is a slice of a run, and one block has it. For each operand the block adds the terms of the cell in fp32 (f64: double), row by row
 * and head by head, to CELL_SUMS sums in turn, and leaves the total of each weight. Another kernel adds these in double. All this follows
 * from shapes alone, and the kernels by vectors and by elements have the same bits. */
#ifndef TROPE_BWD_CUDA_NORM_GRADIENT_CALL_CUH
#define TROPE_BWD_CUDA_NORM_GRADIENT_CALL_CUH

#include "fwd/cuda/norm_any_call.cuh"
#include "fwd/cuda/norm_call.cuh"

/* Floats from one element of all lanes to the next, in shared memory: room for all threads, and so many that those who add find their
 * terms in different banks. */
#define NORM_TERMS 388

/* Sums that terms are added to in turn, by their place in the cell: row * (heads of a slice) + head. */
#define CELL_SUMS 4

/* How rows and heads are cut. */
struct norm_cells {
    uint32_t run_rows, runs;
    uint32_t heads, slice_heads, slices; /* with a norm */
};

/* What the kernels know of an operand's d_weight. For each run an operand has one row of sums for each slice with heads of it; where each
 * head has weights of its own, one row for each head. */
struct operand_gradient {
    uint32_t is_wanted;              /* d_weight is */
    uint32_t first_head, after_head; /* in the count of all operands */
    uint32_t sums_at;                /* where its sums begin in a run's */
    uint32_t first_slice;            /* with heads of it */
    uint32_t slices;                 /* that leave sums of the same weights */
    uint32_t axes;                   /* bit a: axis a drives a pair of it */
};

/* What cells leave. */
struct left_sums {
    void *of_runs; /* f32 (f64 with f64): [runs, width]; NULL: no d_weight is wanted */
    uint32_t width;
    uint32_t counters; /* that the first block sets to 0 for the kernel that adds */
    uint32_t *counter;
};

struct norm_gradient_call : norm_call {
    left_sums sums;
    uint32_t terms_of_lane;                  /* floats from a lane to the next, for an element */
    block_tensor<int32_t> x[USUAL_SEGMENTS]; /* forward_src */
    uint32_t x_is_alike;                     /* lanes of each x are as far apart as those of its dy: */
    int64_t x_moved[USUAL_SEGMENTS];         /* bytes from a lane of dy to the same one of x */
    operand_gradient of[USUAL_SEGMENTS];
};

struct norm_gradient_any_call : norm_any_call {
    left_sums sums;
    norm_cells cells;
    int32_t rounding; /* of the call: dx that is added to dst may be rounded before */
    uint32_t rstd_at; /* shared memory: bytes before the rstd of a cell's heads */
    head_tensor x[TROPE_MAX_OPERANDS];
    operand_gradient gradient[TROPE_MAX_OPERANDS];
};

/* ---- what adds the sums of cells ---- */

#define WEIGHT_COLUMNS 32 /* of a block: weights of one operand */
#define WEIGHT_THREADS 1024
#define WEIGHT_PARTS   16 /* of the runs, at most: blocks that add them, of which the last adds what the others have left */
#define PART_RUNS      64 /* at least */

struct weight_sums {
    left_sums cells; /* counter: of each block of columns, the parts that have been added */
    uint32_t runs, is_f64;
    uint32_t parts;   /* of the runs */
    double *of_parts; /* [parts, weights of all operands] */
    uint32_t weights, operands;
    struct operand {
        void *d_weight;
        uint32_t weights, sums_at, slices;
    } of[TROPE_MAX_OPERANDS];
};

#endif
