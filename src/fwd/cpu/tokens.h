/* The CPU kernels. Each instruction set has one table of them. tokens_template.h is the source of all of them. */
#ifndef TROPE_FWD_CPU_TOKENS_H
#define TROPE_FWD_CPU_TOKENS_H

#include "core/plan.h"
#include "varlen/token.h"

/* The coefficients of a token, by pair. They are in double, so that one type serves every dtype. */
typedef struct trope_token_angles {
    const double *c1, *s1, *c2, *s2; /* pointers into `values` */
    double values[4 * TROPE_MAX_PAIRS];
} trope_token_angles;

typedef struct trope_token_kernels {
    int32_t isa;
    const char *name;
    /* Rotates tokens [begin, end) of every operand of the plan. */
    void (*rotate)(const trope_plan *plan, int64_t begin, int64_t end);
    /* Finds the coefficients that `rotate` uses for a token. */
    void (*angles)(const trope_plan *plan, const trope_token *token, trope_token_angles *out);
    /* Computes the window of a head of forward_src, normalised before the rotation as in `rotate`. The gradient of the
     * angles uses it as x. `of_token` is the rstd of a norm over the token. */
    void (*normalised)(const trope_plan *plan, const trope_plan_operand *o, const trope_token *token, const int64_t head[2],
                       double of_token, double *out);
} trope_token_kernels;

extern const trope_token_kernels trope_tokens_portable, trope_tokens_avx2, trope_tokens_avx512, trope_tokens_neon;

/* Returns the kernels for TROPE_ISA_..., or NULL if this build or CPU does not have them. */
const trope_token_kernels *trope_find_token_kernels(int32_t isa);

#endif
