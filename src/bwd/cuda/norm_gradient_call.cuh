/* The backward of norms on CUDA: what its kernels are told by the host, and in which order d_weight is added.
 *
 * Rows, numbered batch * tokens + token, are cut into runs. A unit is NORM_HEADS heads of an operand that follow each other (the last one
 * may have fewer), and the units with a norm, counted through all operands, are cut into slices. A cell is a slice of a run, and one
 * block has it. For each weight that heads share, a unit of a row has one sum of its heads' terms, in fp32 (f64: double). For each operand
 * the block adds these, from place to place (norm_cells), to CELL_SUMS sums in turn, and leaves their total. For each weight of a head, the
 * terms of a run are added one after another. Another kernel adds the totals in double.
 * All this follows from shapes alone, and the kernels by vectors and by elements have the same bits. */
#ifndef TROPE_BWD_CUDA_NORM_GRADIENT_CALL_CUH
#define TROPE_BWD_CUDA_NORM_GRADIENT_CALL_CUH

#include "fwd/cuda/norm_any_call.cuh"
#include "fwd/cuda/norm_call.cuh"

/* Floats from one element of a lane to the next, in shared memory: room for the terms of all lanes, and so many that threads that
 * add neighbouring elements read different banks. */
#define NORM_TERMS 404

/* Sums that terms are added to in turn, by their place. */
#define CELL_SUMS 4

/* How rows and units are cut. Unit u of row r (units are counted in the cell) has place u + r * (units of its operand) +
 * operand_gradient.places_at: in runs of several rows those of an operand follow each other, from a multiple of CELL_SUMS on. */
struct norm_cells {
    uint32_t run_rows, runs;
    uint32_t units, slice_units, slices; /* with a norm */
    uint32_t places;                     /* of a cell */
};

/* What the kernels know of an operand's d_weight. For each run an operand has one row of sums for each slice with units of it; where each
 * head has weights of its own, one row for all of them. */
struct operand_gradient {
    uint32_t is_wanted;              /* d_weight is */
    uint32_t first_unit, after_unit; /* in the count of all operands */
    uint32_t places_at;              /* of unit 0 of row 0 */
    uint32_t sums_at, columns;       /* its first column of sums, and those of a row */
    uint32_t first_slice;            /* with units of it */
    uint32_t slices;                 /* that leave sums of the same weights */
};

/* What cells leave: columns of COLUMN_SUMS sums that follow each other, so that what is added together lies together. */
#define COLUMN_SUMS 8

struct left_sums {
    void *of_columns; /* f32 (f64 with f64): [columns, runs, COLUMN_SUMS]; NULL: no d_weight is wanted */
    uint32_t runs;

    /* The sum of an operand's number e, in row `row` of its sums of a run. */
    template <typename REAL>
    __device__ __forceinline__ REAL *sum(const operand_gradient &o, uint32_t row, uint32_t run, uint32_t e) const
    {
        const uint32_t column = o.sums_at + row * o.columns + e / COLUMN_SUMS;
        return (REAL *)of_columns + ((size_t)column * runs + run) * COLUMN_SUMS + e % COLUMN_SUMS;
    }
};

struct norm_gradient_call : norm_call {
    left_sums sums;
    uint32_t thread_sums_at;                 /* bytes of shared memory before the sums of threads */
    uint32_t terms_of_lane;                  /* floats from a lane to the next, for an element */
    block_tensor<int32_t> x[USUAL_SEGMENTS]; /* forward_src */
    uint32_t x_is_alike;                     /* lanes of each x are as far apart as those of its dy: */
    int64_t x_moved[USUAL_SEGMENTS];         /* bytes from a lane of dy to the same one of x */
    operand_gradient of[USUAL_SEGMENTS];
};

struct norm_gradient_any_call : norm_any_call {
    left_sums sums;
    norm_cells cells;
    int32_t rounding;      /* of the call: dx that is added to dst may be rounded before */
    uint32_t rstd_at;      /* shared memory: bytes before the rstd of a cell's heads */
    uint32_t finds_tokens; /* find_tokens, and nothing else */
    head_tensor x[TROPE_MAX_OPERANDS];
    operand_gradient gradient[TROPE_MAX_OPERANDS];
};

/* ---- what adds the sums of cells: a block a column ---- */

#define COLUMN_THREADS 1024

struct weight_sums {
    left_sums cells;
    uint32_t columns, operands; /* of all operands */
    int32_t is_f64;
    struct operand {
        void *d_weight;
        uint32_t weights, sums_at, columns, slices;
    } of[TROPE_MAX_OPERANDS];
};

#endif
