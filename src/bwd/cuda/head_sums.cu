/* Chooses the kernel that sums heads, and launches it. */
#include "bwd/cuda/head_sums.h"

#include "bwd/cuda/kernels.h"
#include "bwd/cuda/plan_sums.cuh"

int trope_cuda_has_sums(const trope_plan *plan)
{
    for (int i = 0; i < plan->operand_count; i++)
        if (plan->operands[i].dst && plan->operands[i].summed_heads)
            return 1;
    return 0;
}

const trope_cuda_kernel *trope_cuda_find_sums(const trope_plan *plan)
{
    return &trope_backward_kernels_of(plan->dtype)->sums[form_of_sums(*plan).vectors];
}

trope_status trope_cuda_sum_heads(const char *function, const trope_plan *plan)
{
    const block_form form = form_of_sums(*plan);
    const void *const kernel = trope_backward_kernels_of(plan->dtype)->sums[form.vectors].function;
    return form.vectors ? launch_blocks<narrow_call, sum_blocks>(function, *plan, form, kernel)
                        : launch_blocks<wide_call, sum_blocks>(function, *plan, form, kernel);
}
