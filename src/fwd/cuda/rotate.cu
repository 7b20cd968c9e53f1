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

void trope_cuda_rotation_name(const trope_plan *plan, char *name, size_t size)
{
    static const char *const rows[] = {"from-tokens", "read", "searched"};
    const bool vectors = form_of(*plan, false).vectors;
    if (is_usual(*plan))
        snprintf(name, size, "vectors-%s-%s", rows[kind_of_rows(*plan)],
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
        form.held = (uint32_t)block_limits(false, rows).held;
        form.threads = rows == ROWS_SEARCHED ? SEARCHED_THREADS : USUAL_THREADS;
        return launch_blocks<usual_call>(function, *plan, form,
                                         kernels->usual[rows][plan->angles.source != TROPE_ANGLES_PHASE]);
    }
    return launch_blocks<general_call>(function, *plan, form, kernels->general[form.vectors]);
}
