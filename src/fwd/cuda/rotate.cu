/* Which kernel rotates a call, and its launch. */
#include "fwd/cuda/rotate.h"

#include "fwd/cuda/kernels.h"
#include "fwd/cuda/plan_blocks.cuh"

static const trope_rotation_kernels *kernels_of(int32_t dtype)
{
    return dtype == TROPE_F32    ? &trope_rotations_f32
           : dtype == TROPE_F16  ? &trope_rotations_f16
           : dtype == TROPE_BF16 ? &trope_rotations_bf16
                                 : &trope_rotations_f64;
}

/* That of a usual call whose rows have one head to rotate, which shares its coefficients with nobody. */
static const trope_cuda_kernel *find_alone(const trope_plan &plan)
{
    int64_t heads = 0;
    for (int i = 0; i < plan.operand_count; i++)
        if (plan.operands[i].rotary_dim)
            heads += (int64_t)plan.operands[i].groups * plan.operands[i].heads_per_group;
    const trope_cuda_kernel *const kernel =
        &kernels_of(plan.dtype)->alone[kind_of_rows(plan)][plan.angles.source != TROPE_ANGLES_PHASE];
    return heads == 1 && kernel->function ? kernel : NULL;
}

const trope_cuda_kernel *trope_cuda_find_rotation(const trope_plan *plan)
{
    const trope_rotation_kernels *const kernels = kernels_of(plan->dtype);
    if (!is_usual(*plan))
        return &kernels->any[form_of(*plan, false).vectors];
    const trope_cuda_kernel *const alone = find_alone(*plan);
    return alone ? alone : &kernels->vectors[kind_of_rows(*plan)][plan->angles.source != TROPE_ANGLES_PHASE];
}

trope_status trope_cuda_rotate(const char *function, const trope_plan *plan)
{
    const void *const kernel = trope_cuda_find_rotation(plan)->function;
    block_form form = form_of(*plan, false);
    if (!form.vectors)
        return launch_blocks<wide_call>(function, *plan, form, kernel);
    if (!is_usual(*plan))
        return launch_blocks<usual_call>(function, *plan, form, kernel);
    if (find_alone(*plan)) {
        form.whole_warps = true;
    } else {
        const row_kind rows = kind_of_rows(*plan);
        form.held = (uint32_t)block_limits(rows, false, false).held;
        form.threads = rows == ROWS_SEARCHED ? SEARCHED_THREADS : USUAL_THREADS;
        form.items = rows == ROWS_SEARCHED ? SEARCHED_THREADS : MOST_ITEMS;
    }
    return launch_blocks<usual_call>(function, *plan, form, kernel);
}
