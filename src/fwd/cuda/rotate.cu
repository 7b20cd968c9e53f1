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

static bool rotates_one_head_once(const trope_plan &plan)
{
    bool accumulates = false;
    for (int i = 0; i < plan.operand_count; i++)
        accumulates = accumulates || plan.operands[i].accumulate;
    return rotating_heads(plan) == 1 && plan.rounding == TROPE_ROUND_ONCE && !accumulates;
}

/* Whether a thread can load the freqs of its pairs as vectors. */
static bool has_freq_vectors(const trope_plan &plan)
{
    const trope_plan_angles &a = plan.angles;
    return a.source == TROPE_ANGLES_FREQS && !a.per_element && a.dtype == TROPE_F32 && a.stride.column == 1 &&
           !a.stride.axis && a.stride.row % 4 == 0 && a.stride.batch % 4 == 0 && (uintptr_t)a.freqs % 16 == 0;
}

static rotation_choice choose(const trope_plan &plan)
{
    const trope_rotation_kernels *const kernels = kernels_of(plan.dtype);
    const row_kind rows = kind_of_rows(plan);
    const bool has_table = plan.angles.source != TROPE_ANGLES_PHASE;
    block_form form = form_of(plan, false);
    if (!form.vectors || !is_usual(plan))
        return {&kernels->any[form.vectors], form};
    const trope_cuda_kernel *const alone = &kernels->alone[rows][has_table];
    if (alone->function && rotates_one_head_once(plan) &&
        (!has_table || has_freq_vectors(plan))) { /* which shares its coefficients with nobody */
        form.whole_warps = true;
        form.splits = false;
        return {alone, form};
    }
    form.held = (uint32_t)block_limits(rows, has_table ? ANGLES_TABLE : ANGLES_PHASE, false).held;
    form.threads = rows == ROWS_SEARCHED ? SEARCHED_THREADS : USUAL_THREADS;
    form.items = rows == ROWS_SEARCHED ? SEARCHED_THREADS : MOST_ITEMS;
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
