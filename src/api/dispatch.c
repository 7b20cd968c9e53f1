#include "api/dispatch.h"

#include <stdio.h>
#include <string.h>

#include "api/error.h"
#include "bwd/angle_gradient.h"
#include "core/rows.h"
#include "core/threads.h"
#include "varlen/positions.h"

/* Bytes that a thread should have to move before it is worth waking. */
#define BYTES_PER_THREAD ((int64_t)128 << 10)

typedef unsigned long long ull;

static trope_status find_kernels(const char *function, const trope_plan *plan, const trope_row_kernels **kernels)
{
    if (plan->device == TROPE_DEVICE_CUDA)
        return trope_fail(TROPE_ERROR_UNSUPPORTED, "%s: device (%d) is CUDA, which this build does not have", function,
                          plan->device);
    if (plan->stream)
        return trope_fail(TROPE_ERROR_ARGUMENT, "%s: stream (%p) must be NULL on the CPU", function, plan->stream);
    *kernels = trope_find_row_kernels(plan->isa);
    if (!*kernels)
        return trope_fail(TROPE_ERROR_UNSUPPORTED, "%s: isa (%d) is not an instruction set of this CPU", function,
                          plan->isa);
    return TROPE_OK;
}

static trope_status check_workspace(const char *function, const trope_plan *plan)
{
    const uint64_t needed = trope_angle_gradient_workspace(plan), given = plan->workspace_size;
    if (needed && !plan->workspace)
        return trope_fail(TROPE_ERROR_NULL, "%s: workspace is NULL and %llu bytes are needed", function, (ull)needed);
    if (given < needed)
        return trope_fail(TROPE_ERROR_ARGUMENT, "%s: workspace_size (%llu) must be at least %llu", function, (ull)given,
                          (ull)needed);
    return TROPE_OK;
}

typedef struct rotate_context {
    const trope_plan *plan;
    const trope_row_kernels *kernels;
} rotate_context;

static void rotate_range(const void *context, int64_t begin, int64_t end)
{
    const rotate_context *c = context;
    c->kernels->rotate(c->plan, begin, end);
}

static int useful_threads(const trope_plan *plan)
{
    int64_t bytes = 0;
    for (int i = 0; i < plan->operand_count; i++) {
        const trope_plan_operand *o = &plan->operands[i];
        bytes += 2 * plan->batch * plan->tokens * o->groups * o->heads_per_group * o->head_dim * plan->element_size;
    }
    const int64_t worth = 1 + bytes / BYTES_PER_THREAD, offered = plan->threads ? plan->threads : trope_default_threads();
    return (int)(worth < offered ? worth : offered);
}

static trope_status run_on_cpu(const char *function, const trope_plan *plan, const trope_row_kernels *kernels)
{
    trope_status status = trope_check_sequences(function, &plan->sequences);
    if (!status)
        status = trope_check_positions(function, plan);
    if (status)
        return status;
    /* The gradient reads dy, which dx may replace: so it goes first. */
    if (plan->d_freqs || plan->d_inv_freq)
        trope_angle_gradient(plan, kernels);
    const rotate_context context = {plan, kernels};
    trope_parallel_for(useful_threads(plan), plan->batch * plan->tokens, rotate_range, &context);
    return TROPE_OK;
}

trope_status trope_run(const char *function, const trope_args *args, int backward)
{
    trope_plan plan;
    const trope_row_kernels *kernels;
    trope_status status = trope_make_plan(function, args, backward, &plan);
    if (!status)
        status = find_kernels(function, &plan, &kernels);
    if (!status)
        status = check_workspace(function, &plan);
    return status ? status : run_on_cpu(function, &plan, kernels);
}

trope_status trope_workspace_size(const trope_args *args, uint64_t *bytes)
{
    static const char function[] = "trope_workspace_size";
    trope_plan plan;
    const trope_status status = trope_make_plan(function, args, 1, &plan);
    if (status)
        return status;
    if (!bytes)
        return trope_fail(TROPE_ERROR_NULL, "%s: bytes is NULL", function);
    *bytes = trope_angle_gradient_workspace(&plan);
    return TROPE_OK;
}

static const char *pairing_name(const trope_plan *plan)
{
    if (plan->interleaved_src)
        return plan->interleaved_dst ? "interleaved" : "interleaved-to-half";
    return plan->interleaved_dst ? "half-to-interleaved" : "half";
}

trope_status trope_kernel_name(const trope_args *args, int32_t backward, char *name, size_t size)
{
    static const char function[] = "trope_kernel_name";
    static const char *const dtypes[] = {"f32", "f16", "bf16", "f64"};
    trope_plan plan;
    const trope_row_kernels *kernels;
    if (backward != 0 && backward != 1)
        return trope_fail(TROPE_ERROR_ARGUMENT, "%s: backward (%d) must be 0 or 1", function, backward);
    if (!name || !size)
        return trope_fail(TROPE_ERROR_NULL, "%s: name is NULL or size (%zu) is 0", function, size);
    trope_status status = trope_make_plan(function, args, backward, &plan);
    if (!status)
        status = find_kernels(function, &plan, &kernels);
    if (!status)
        snprintf(name, size, "cpu-%s-%s-%s", kernels->name, dtypes[plan.dtype], pairing_name(&plan));
    return status;
}
