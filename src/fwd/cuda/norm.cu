/* Chooses the kernel of a call with norms, and launches it. */
#include "fwd/cuda/norm.h"

#include "fwd/cuda/kernels.h"
#include "fwd/cuda/plan_norm_generic.cuh"
#include "fwd/cuda/plan_norms.cuh"

static const trope_norm_kernels *kernels_of(int32_t dtype)
{
    return dtype == TROPE_F32    ? &trope_norms_f32
           : dtype == TROPE_F16  ? &trope_norms_f16
           : dtype == TROPE_BF16 ? &trope_norms_bf16
                                 : &trope_norms_f64;
}

const trope_cuda_kernel *trope_cuda_find_norm(const trope_plan *plan)
{
    return find_norm_kernel(*kernels_of(plan->dtype), *plan, form_of_norms(*plan));
}

static trope_status launch_generic(const char *function, const trope_plan &plan, const void *kernel)
{
    norm_generic_call call;
    const size_t shared_memory_bytes = plan_norm_generic(plan, 1, &call);
    REQUIRE(call.shape.tokens <= INT32_MAX && shared_memory_bytes <= ASKED_SHARED_MEMORY, TROPE_ERROR_UNSUPPORTED,
            "operands (%lld tokens) are too large for one launch", (long long)call.shape.tokens);
    for (int i = 0; i < plan.operand_count; i++)
        if (moves_operand(plan, plan.operands[i]))
            call.of[call.operands++] = plan_head_operand(plan, plan.operands[i]);
    void *arguments[] = {&call, plan.step};
    const cudaError_t error = launch_early(facts_of_device(), kernel, dim3((unsigned)call.shape.tokens),
                                           dim3(32 * NORM_WARPS), shared_memory_bytes, plan.stream, arguments);
    return error == cudaSuccess ? TROPE_OK : fail_cuda(function, error);
}

trope_status trope_cuda_norm(const char *function, const trope_plan *plan)
{
    const block_form form = form_of_norms(*plan);
    const void *const kernel = trope_cuda_find_norm(plan)->function;
    return form.vectors ? launch_blocks<norm_call, norm_blocks>(function, *plan, form, kernel)
                        : launch_generic(function, *plan, kernel);
}
