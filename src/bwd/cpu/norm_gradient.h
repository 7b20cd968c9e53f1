/* The backward of norms on the CPU: dx, and the gradient of the weights.
 *
 * Tokens are numbered as batch * tokens + token, and divided into runs. The division depends only on the number of tokens.
 * A run adds the terms of its heads in order, in fp32 (f64: double). The sums of the runs are then added in double. */
#ifndef TROPE_BWD_CPU_NORM_GRADIENT_H
#define TROPE_BWD_CPU_NORM_GRADIENT_H

#include "core/plan.h"
#include "fwd/cpu/tokens.h"

/* The maximum number of runs. */
#define TROPE_NORM_RUNS 1024

/* rstd and k of a token with a norm over all of its heads. k is trope_norm_slope. */
typedef struct trope_token_norm {
    double rstd, k;
} trope_token_norm;

typedef struct trope_norm_gradient_kernels {
    /* Writes dst of tokens [begin, end) for every operand with a norm. `sums` has a sum for each weight of the operands
     * with d_weight, one operand after another, in f32 (f64 operands: f64). The function adds to these sums. `sums` is NULL
     * if no operand has d_weight. */
    void (*run)(const trope_plan *plan, int64_t begin, int64_t end, void *sums);
    /* For a norm after the rotation: computes the gradient of the rotated window of a head, in the order of dy. The
     * gradient of the angles uses it as dy. `angles` belong to the token, and are not rounded. `token_norm` is never NULL,
     * but matters only if the norm is over the token. `du` is f32 (f64 operands: f64). */
    void (*of_window)(const trope_plan *plan, const trope_plan_operand *o, const trope_token *token,
                      const trope_token_angles *angles, const int64_t head[2], const trope_token_norm *token_norm,
                      void *du);
    /* Finds rstd and k of a token with a norm over it. `window` is scratch memory for one window, of the type of du. */
    trope_token_norm (*of_token)(const trope_plan *plan, const trope_plan_operand *o, const trope_token *token,
                                 const trope_token_angles *angles, void *window);
} trope_norm_gradient_kernels;

extern const trope_norm_gradient_kernels trope_norm_gradient_portable, trope_norm_gradient_avx2, trope_norm_gradient_avx512,
    trope_norm_gradient_neon;

/* Returns the kernels for an instruction set that trope_find_token_kernels has chosen. */
const trope_norm_gradient_kernels *trope_find_norm_gradient(int32_t isa);

/* Returns the bytes of workspace for the sums of all runs. */
uint64_t trope_norm_gradient_workspace(const trope_plan *plan);

/* Runs the backward of all norms, with an instruction set that trope_find_token_kernels has chosen. */
void trope_norm_gradient(const trope_plan *plan, int32_t isa);

#endif
