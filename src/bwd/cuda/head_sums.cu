/* Which kernel sums, and its launch. */
#include "bwd/cuda/head_sums.h"

#include <stdio.h>

#include "bwd/cuda/kernels.h"
#include "fwd/cuda/plan_blocks.cuh"

trope_status trope_cuda_sum_heads(const char *function, const trope_plan *plan)
{
    const block_form form = form_of(*plan, true);
    return launch_blocks<general_call>(function, *plan, form, trope_backward_kernels_of(plan->dtype)->sums[form.vectors]);
}

void trope_cuda_sums_name(const trope_plan *plan, char *name, size_t size)
{
    snprintf(name, size, "%s-sums", form_of(*plan, true).vectors ? "vectors" : "elements");
}
