/* Chooses the kernel of a call with norms, and launches it. */
#include "fwd/cuda/norm.h"
#include <stdlib.h>

#include "fwd/cuda/kernels.h"
#include "fwd/cuda/plan_norm_any.cuh"
#include "fwd/cuda/plan_norms.cuh"

static const trope_norm_kernels *kernels_of(int32_t dtype)
{
    return dtype == TROPE_F32    ? &trope_norms_f32
           : dtype == TROPE_F16  ? &trope_norms_f16
           : dtype == TROPE_BF16 ? &trope_norms_bf16
                                 : &trope_norms_f64;
}

struct norm_choice {
    const trope_cuda_kernel *kernel;
    block_form form;
};

static norm_choice choose(const trope_plan &plan)
{
    const trope_norm_kernels *const kernels = kernels_of(plan.dtype);
    const bool has_table = plan.angles.source != TROPE_ANGLES_PHASE;
    row_kind rows = kind_of_rows(plan);
    norm_choice choice = {&kernels->elements, form_of_norms(plan)};
    block_form &form = choice.form;
    if (!form.vectors)
        return choice;
    const uint32_t lanes = (uint32_t)(usual_norm(plan).head->head_dim / form.pairs_of_lane / 2);
    if ((rows != ROWS_FROM_TOKENS && !rotates_plainly(plan)) || rows == ROWS_SEARCHED_GENERIC ||
        (rows == ROWS_SEARCHED && (!addresses_are_simple(plan) || lanes != power_of_two(lanes))))
        rows = ROWS_ANY;
    form.most = NORM_THREADS;
    form.threads = getenv("NT") ? atoi(getenv("NT")) : USUAL_THREADS;
    form.items = getenv("NI") ? atoi(getenv("NI")) : NORM_THREADS;
    choice.kernel = rows == ROWS_ANY ? &kernels->vectors : &kernels->fast[rows][has_table];
    return choice;
}

const trope_cuda_kernel *trope_cuda_find_norm(const trope_plan *plan)
{
    return choose(*plan).kernel;
}

static trope_status launch_any(const char *function, const trope_plan &plan, const void *kernel)
{
    norm_any_call call;
    const size_t shared_bytes = plan_norm_any(plan, 1, &call);
    REQUIRE(call.shape.rows <= INT32_MAX && shared_bytes <= ASKED_SHARED_BYTES, TROPE_ERROR_UNSUPPORTED,
            "the operands (%lld rows) are more than one launch can take", (long long)call.shape.rows);
    for (int i = 0; i < plan.operand_count; i++)
        if (moves_operand(plan, plan.operands[i]) || plan.operands[i].norm.rstd)
            call.of[call.operands++] = plan_head_operand(plan, plan.operands[i]);
    void *arguments[] = {&call, plan.step};
    const cudaError_t error = launch_early(facts_of_device(), kernel, dim3((unsigned)call.shape.rows),
                                           dim3(32 * NORM_WARPS), shared_bytes, plan.stream, arguments);
    return error == cudaSuccess ? TROPE_OK : fail_cuda(function, error);
}

trope_status trope_cuda_find_rstd(const char *function, const trope_plan *plan)
{
    return launch_any(function, *plan, kernels_of(plan->dtype)->elements.function);
}

trope_status trope_cuda_norm(const char *function, const trope_plan *plan)
{
    const norm_choice chosen = choose(*plan);
    return chosen.form.vectors
               ? launch_blocks<norm_call, norm_blocks>(function, *plan, chosen.form, chosen.kernel->function)
               : launch_any(function, *plan, chosen.kernel->function);
}
