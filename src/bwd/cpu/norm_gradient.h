/* The backward of norms on the CPU: dx, and the gradient of the weights.
 *
 * Rows, numbered batch entry by batch entry, are cut into runs that depend on their number alone. A run adds the terms of its heads
 * in order, in fp32 (f64: double), and the sums of the runs are added in double. */
#ifndef TROPE_BWD_CPU_NORM_GRADIENT_H
#define TROPE_BWD_CPU_NORM_GRADIENT_H

#include "core/plan.h"
#include "fwd/cpu/rows.h"

/* Runs at most. */
#define TROPE_NORM_RUNS 1024

/* rstd and k of a token whose norm is over all of its heads. */
typedef struct trope_token_norm {
    double rstd, k;
} trope_token_norm;

typedef struct trope_norm_gradient_kernels {
    /* Writes dst of rows [begin, end) of every operand with a norm. SUMS: of the weights of the operands that want d_weight, one
     * operand after another, f32 (f64 with f64), to be added to; NULL if none does. */
    void (*run)(const trope_plan *plan, int64_t begin, int64_t end, void *sums);
    /* For a norm after the rotation: the gradient of the rotated window of a head, in the order of dy. The gradient of the angles
     * takes it for dy. ANGLES: of the row, not rounded. TOKEN: of a norm over the token, else not looked at. DU: f32 (f64 with f64). */
    void (*of_window)(const trope_plan *plan, const trope_plan_operand *o, const trope_row *row,
                      const trope_row_angles *angles, const int64_t head[2], const trope_token_norm *token, void *du);
    /* WINDOW: room for one, as for du. */
    trope_token_norm (*of_token)(const trope_plan *plan, const trope_plan_operand *o, const trope_row *row,
                                 const trope_row_angles *angles, void *window);
} trope_norm_gradient_kernels;

extern const trope_norm_gradient_kernels trope_norm_gradient_portable, trope_norm_gradient_avx2, trope_norm_gradient_avx512;

/* The kernels for an instruction set that trope_find_row_kernels has chosen. */
const trope_norm_gradient_kernels *trope_find_norm_gradient(int32_t isa);

/* Bytes of workspace: for the sums of all runs. */
uint64_t trope_norm_gradient_workspace(const trope_plan *plan);

/* Runs the backward of all norms, with an instruction set that trope_find_row_kernels has chosen. */
void trope_norm_gradient(const trope_plan *plan, int32_t isa);

#endif
