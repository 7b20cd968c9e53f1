/* The gradients of operands whose dst receives a sum: over several heads, or of the result and old_dst. */
#ifndef TROPE_BWD_CPU_HEAD_SUMS_H
#define TROPE_BWD_CPU_HEAD_SUMS_H

#include "core/plan.h"

typedef struct trope_head_sum_kernels {
    /* Writes tokens [begin, end) of every operand whose writer is TROPE_WRITER_SUM. */
    void (*sum)(const trope_plan *plan, int64_t begin, int64_t end);
} trope_head_sum_kernels;

extern const trope_head_sum_kernels trope_head_sums_portable, trope_head_sums_avx2, trope_head_sums_avx512,
    trope_head_sums_neon;

/* Returns the kernels for an instruction set that trope_find_token_kernels has chosen. */
const trope_head_sum_kernels *trope_find_head_sums(int32_t isa);

#endif
