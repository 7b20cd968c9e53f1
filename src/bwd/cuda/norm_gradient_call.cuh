/* The backward of norms on CUDA: the parameters of the kernels, and the order in which d_weight is added.
 *
 * The tokens of all batch entries, numbered batch * tokens + token, are cut into runs. A unit is NORM_HEADS neighbouring
 * heads of an operand (the last unit may have fewer). The units that have a norm are counted through all operands and cut
 * into slices. A cell is one slice of one run, and one block processes it.
 *
 * If heads share weights, each unit of a token has one sum for each weight, over its heads, in fp32 (f64: double). For each
 * operand, the block distributes these sums over CELL_SUMS partial sums by their places (norm_cells), and leaves the total.
 * If each head has its own weights, the terms of a run are added one after another. Another kernel adds the totals of all
 * cells in double.
 *
 * The whole order follows from shapes alone, so the vector and element kernels give the same bits. */
#ifndef TROPE_BWD_CUDA_NORM_GRADIENT_CALL_CUH
#define TROPE_BWD_CUDA_NORM_GRADIENT_CALL_CUH

#include "fwd/cuda/norm_generic_call.cuh"
#include "fwd/cuda/norm_call.cuh"

/* Distance in shared memory, in floats, between two elements of a thread's vectors. It has room for the terms of all
 * threads of a head, and threads that add neighbouring elements read different banks. */
#define NORM_TERMS 404

/* With one head for each thread (token_gradient.cuh): the most threads of a block, the most heads of an operand, and how
 * many threads add one kind of sums over an operand's heads. Kinds are the sums of squares and of products. (Shared memory
 * has room for fewer threads, but the bound of 1024 gives each thread at most 64 registers.) */
#define ONE_HEAD_THREADS 1024
#define MOST_ADDED_HEADS 128
#define ADDING_LANES     16
enum { SQUARES, PRODUCTS };

/* Number of partial sums of a cell. A term is added to number `place` modulo CELL_SUMS. */
#define CELL_SUMS 4

/* How tokens and units are cut. Unit u of token t (units are counted in the cell) has the place u + t * (units of its
 * operand) + operand_gradient.places_at. In runs of several tokens, the places of an operand are consecutive and begin
 * at a multiple of CELL_SUMS. */
struct norm_cells {
    uint32_t run_tokens, runs;
    uint32_t units, slice_units, slices; /* units that have a norm */
    uint32_t places;                     /* places of a cell */
};

/* The parameters for the d_weight of an operand. For each run, an operand has one row of sums for each slice that has
 * some of its units. If each head has its own weights, it has one row for all slices. */
struct operand_gradient {
    uint32_t is_wanted;              /* whether the call wants d_weight */
    uint32_t first_unit, after_unit; /* its units, counted through all operands */
    uint32_t places_at;              /* place of unit 0 of token 0 */
    uint32_t sums_at, columns;       /* its first column of sums, and the columns of one row */
    uint32_t first_slice;            /* the first slice that has units of the operand */
    uint32_t slices;                 /* slices that leave sums for the same weights */
};

/* The sums that cells leave: columns of COLUMN_SUMS consecutive sums, so that sums that are added together are close in
 * memory. */
#define COLUMN_SUMS 8

struct left_sums {
    void *of_columns; /* f32 (f64 with f64): [columns, runs, COLUMN_SUMS]; NULL: no d_weight is wanted */
    uint32_t runs;

    /* Returns the address of sum e of an operand, in row `row` of its sums of a run. */
    template <typename REAL>
    __device__ __forceinline__ REAL *sum(const operand_gradient &o, uint32_t row, uint32_t run, uint32_t e) const
    {
        const uint32_t column = o.sums_at + row * o.columns + e / COLUMN_SUMS;
        return (REAL *)of_columns + ((size_t)column * runs + run) * COLUMN_SUMS + e % COLUMN_SUMS;
    }
};

struct norm_gradient_call : norm_call {
    left_sums sums;
    uint32_t thread_sums_at; /* offset of thread_sums in shared memory, in bytes */
    uint32_t terms_of_item;  /* distance in floats between the terms of neighbouring threads, for one element */
    block_tensor<int32_t> x[NARROW_SEGMENTS]; /* forward_src */
    uint32_t x_is_alike;                      /* each x has the same strides as its dy, so one distance suffices: */
    int64_t x_moved[NARROW_SEGMENTS];         /* bytes from dy to x */
    operand_gradient of[NARROW_SEGMENTS];
    /* The kernel of token_gradient.cuh: */
    uint32_t one_head;         /* block_form.one_head */
    uint32_t vectors_ahead_at; /* offset of vectors_ahead in shared memory, in bytes */
    uint32_t token_sums;       /* the number of floats for one sum of each head */
    struct {
        uint32_t at;        /* where the sums of an operand's heads begin, in floats */
        uint32_t lane_sums; /* how many neighbouring sums a thread adds */
    } exchanged[NARROW_SEGMENTS];
};

struct norm_gradient_generic_call : norm_generic_call {
    left_sums sums;
    norm_cells cells;
    int32_t rounding;      /* the call's rounding: it may round dx before dx is added to dst */
    uint32_t rstd_at;      /* offset of the rstd of a cell's heads in shared memory, in bytes */
    uint32_t finds_tokens; /* the launch runs only find_tokens */
    head_tensor x[TROPE_MAX_OPERANDS];
    operand_gradient gradient[TROPE_MAX_OPERANDS];
};

/* ---- the kernel that adds the sums of cells: one block for each column ---- */

#define COLUMN_THREADS 1024

struct weight_sums {
    left_sums cells;
    uint32_t columns, operands; /* columns of all operands; operands that want d_weight */
    int32_t is_f64;
    struct operand {
        void *d_weight;
        uint32_t weights, sums_at, columns, slices;
    } of[TROPE_MAX_OPERANDS];
};

#endif
