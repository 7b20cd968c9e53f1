/* Which kernel sums heads, and its launch. */
#include "bwd/cuda/head_sums.h"

#include "bwd/cuda/kernels.h"
#include "fwd/cuda/plan_blocks.cuh"
#include "fwd/cuda/rotate.h"

/* Those operands of a plan whose heads are added, or those whose are not. */
struct some_operands {
    trope_plan plan;
    trope_plan_operand operands[TROPE_MAX_OPERANDS];

    some_operands(const trope_plan &of, bool summed) : plan(of)
    {
        plan.operands = operands;
        plan.operand_count = 0;
        for (int i = 0; i < of.operand_count; i++)
            if ((of.operands[i].summed_heads != 0) == summed)
                operands[plan.operand_count++] = of.operands[i];
    }
};

const trope_cuda_kernel *trope_cuda_find_sums(const trope_plan *plan)
{
    const some_operands summed(*plan, true);
    return &trope_backward_kernels_of(plan->dtype)->sums[form_of(summed.plan, true).vectors];
}

static trope_status launch_sums(const char *function, const trope_plan &plan, bool only_asks)
{
    const block_form form = form_of(plan, true);
    const void *const kernel = only_asks ? NULL : trope_backward_kernels_of(plan.dtype)->sums[form.vectors].function;
    return form.vectors ? launch_blocks<usual_call>(function, plan, form, kernel)
                        : launch_blocks<wide_call>(function, plan, form, kernel);
}

/* The sums, and before them, by a launch of its own that has no use for so many registers a thread, the rest. If either is
 * more than one launch can take, nothing is written. */
trope_status trope_cuda_sum_heads(const char *function, const trope_plan *plan)
{
    const some_operands summed(*plan, true), others(*plan, false);
    const bool has_sums = moves_something(summed.plan), has_others = moves_something(others.plan);
    trope_status status = has_sums && has_others ? launch_sums(function, summed.plan, true) : TROPE_OK;
    if (!status && has_others)
        status = trope_cuda_rotate(function, &others.plan);
    return status || !has_sums ? status : launch_sums(function, summed.plan, false);
}
