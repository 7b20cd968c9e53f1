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

/* The kernel of a plan, and what is asked of its blocks. */
struct rotation_choice {
    const trope_cuda_kernel *kernel;
    block_form form;
};

/* Whether one head alone rotates. Threads that wait for nobody can take no head apart whose pairs change their places in it. */
static bool rotates_one_head(const trope_plan &plan)
{
    bool accumulates = false;
    for (int i = 0; i < plan.operand_count; i++)
        accumulates = accumulates || plan.operands[i].accumulate;
    return rotating_heads(plan) == 1 && plan.rounding == TROPE_ROUND_ONCE && !accumulates && !rearranges_in_place(plan);
}

static rotation_choice choose(const trope_plan &plan)
{
    const trope_rotation_kernels *const kernels = kernels_of(plan.dtype);
    const bool has_table = plan.angles.source != TROPE_ANGLES_PHASE;
    row_kind rows = kind_of_rows(plan);
    block_form form = form_of(plan, false);
    if (!form.vectors)
        return {&kernels->elements, form};
    if (rows == ROWS_FROM_TOKENS && !has_table && pairs_are_usual(plan) && rotates_one_head(plan)) {
        form.whole_warps = true;
        form.splits = false;
        return {&kernels->alone, form};
    }
    if ((rows != ROWS_FROM_TOKENS && !rotates_plainly(plan)) || (!has_table && !pairs_are_usual(plan)))
        rows = ROWS_ANY;
    else if (rows == ROWS_SEARCHED && !addresses_are_simple(plan))
        rows = ROWS_SEARCHED_GENERIC;
    form.most = (uint32_t)block_limits(rows, false).threads;
    form.threads = SMALL_THREADS;
    /* (What must not be cut becomes a power of two.) */
    form.items = rearranges_in_place(plan) ? USUAL_THREADS : MOST_ITEMS;
    return {&kernels->vectors[rows][has_table], form};
}

const trope_cuda_kernel *trope_cuda_find_rotation(const trope_plan *plan)
{
    return choose(*plan).kernel;
}

trope_status trope_cuda_rotate(const char *function, const trope_plan *plan)
{
    const rotation_choice chosen = choose(*plan);
    return chosen.form.vectors ? launch_blocks<usual_call>(function, *plan, chosen.form, chosen.kernel->function)
                               : launch_blocks<wide_call>(function, *plan, chosen.form, chosen.kernel->function);
}
