/* Which kernel sums, and its launch. */
#include "bwd/cuda/head_sums.h"

#include <stdio.h>

#include "bwd/cuda/kernels.h"
#include "fwd/cuda/plan_blocks.cuh"

static const trope_backward_kernels *kernels_of(int32_t dtype)
{
    return dtype == TROPE_F32    ? &trope_backward_f32
           : dtype == TROPE_F16  ? &trope_backward_f16
           : dtype == TROPE_BF16 ? &trope_backward_bf16
                                 : &trope_backward_f64;
}

trope_status trope_cuda_sum_heads(const char *function, const trope_plan *plan)
{
    const block_form form = form_of(*plan, true);
    return launch_blocks<general_call>(function, *plan, form, kernels_of(plan->dtype)->sums[form.vectors]);
}

void trope_cuda_sums_name(const trope_plan *plan, char *name, size_t size)
{
    snprintf(name, size, "%s-sums", form_of(*plan, true).vectors ? "vectors" : "elements");
}
