/* Which kernel rotates a call, and its launch. */
#include "fwd/cuda/rotate.h"

#include <stdio.h>

#include "fwd/cuda/kernels.h"
#include "fwd/cuda/plan_blocks.cuh"

static const trope_rotation_kernels *kernels_of(int32_t dtype)
{
    return dtype == TROPE_F32    ? &trope_rotations_f32
           : dtype == TROPE_F16  ? &trope_rotations_f16
           : dtype == TROPE_BF16 ? &trope_rotations_bf16
                                 : &trope_rotations_f64;
}

/* Whether rows have one head to rotate, which shares its coefficients with nobody, and a kernel of their own. */
static bool is_alone(const trope_plan &plan)
{
    int64_t heads = 0;
    for (int i = 0; i < plan.operand_count; i++)
        if (plan.operands[i].rotary_dim)
            heads += (int64_t)plan.operands[i].groups * plan.operands[i].heads_per_group;
    return heads == 1 &&
           kernels_of(plan.dtype)->alone[kind_of_rows(plan)][plan.angles.source != TROPE_ANGLES_PHASE] != NULL;
}

void trope_cuda_rotation_name(const trope_plan *plan, char *name, size_t size)
{
    static const char *const rows[] = {"from-tokens", "read", "searched"};
    const bool vectors = form_of(*plan, false).vectors;
    if (is_usual(*plan))
        snprintf(name, size, "%s-%s-%s", is_alone(*plan) ? "alone" : "vectors", rows[kind_of_rows(*plan)],
                 plan->angles.source == TROPE_ANGLES_PHASE ? "phase" : "table");
    else
        snprintf(name, size, "%s-any", vectors ? "vectors" : "elements");
}

trope_status trope_cuda_rotate(const char *function, const trope_plan *plan)
{
    const trope_rotation_kernels *const kernels = kernels_of(plan->dtype);
    block_form form = form_of(*plan, false);
    if (is_usual(*plan)) {
        const row_kind rows = kind_of_rows(*plan);
        const int has_table = plan->angles.source != TROPE_ANGLES_PHASE;
        if (is_alone(*plan))
            return launch_blocks<usual_call>(function, *plan, form, kernels->alone[rows][has_table]);
        form.held = (uint32_t)block_limits(false, rows).held;
        form.threads = rows == ROWS_SEARCHED ? SEARCHED_THREADS : USUAL_THREADS;
        return launch_blocks<usual_call>(function, *plan, form, kernels->usual[rows][has_table]);
    }
    return launch_blocks<general_call>(function, *plan, form, kernels->general[form.vectors]);
}
