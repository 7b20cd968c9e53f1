/* The CPU kernels: one table entry per instruction set, all made from rows_template.h. */
#ifndef TROPE_FWD_CPU_ROWS_H
#define TROPE_FWD_CPU_ROWS_H

#include "core/plan.h"
#include "varlen/row.h"

/* The coefficients of a row, by pair, in double so that one type serves every dtype. */
typedef struct trope_row_angles {
    const double *c1, *s1, *c2, *s2; /* in `values` */
    double values[4 * TROPE_MAX_PAIRS];
} trope_row_angles;

typedef struct trope_row_kernels {
    int32_t isa;
    const char *name;
    /* Rotates rows [begin, end) of every operand of the plan. */
    void (*rotate)(const trope_plan *plan, int64_t begin, int64_t end);
    /* The coefficients that `rotate` uses for a row. */
    void (*angles)(const trope_plan *plan, const trope_row *row, trope_row_angles *out);
    /* The window of a head of forward_src, normalised before the rotation as `rotate` does it: the gradient of the angles takes
     * it for x. OF_TOKEN: rstd, of a norm over the token. */
    void (*normalised)(const trope_plan *plan, const trope_plan_operand *o, const trope_row *row, const int64_t head[2],
                       double of_token, double *out);
} trope_row_kernels;

extern const trope_row_kernels trope_rows_portable, trope_rows_avx2, trope_rows_avx512;

/* The kernels for TROPE_ISA_..., NULL if this build or CPU does not have them. */
const trope_row_kernels *trope_find_row_kernels(int32_t isa);

#endif
