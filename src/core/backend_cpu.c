#include "core/backend.h"

#include <stdio.h>

#include "api/error.h"
#include "bwd/angle_gradient.h"
#include "core/rows.h"
#include "core/threads.h"
#include "varlen/positions.h"

static trope_status check(const char *function, const trope_plan *plan)
{
    if (plan->stream)
        return trope_fail(TROPE_ERROR_ARGUMENT, "%s: stream (%p) must be NULL on the CPU", function, plan->stream);
    if (!trope_find_row_kernels(plan->isa))
        return trope_fail(TROPE_ERROR_UNSUPPORTED, "%s: isa (%d) is not an instruction set of this CPU", function,
                          plan->isa);
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
    return trope_useful_threads(plan->threads, bytes);
}

static trope_status run(const char *function, const trope_plan *plan)
{
    const rotate_context context = {plan, trope_find_row_kernels(plan->isa)};
    trope_status status = trope_check_sequences(function, &plan->sequences);
    if (!status)
        status = trope_check_positions(function, plan);
    if (status)
        return status;
    /* The gradient reads dy, which dx may replace: so it goes first. */
    if (trope_has_angle_gradient(plan))
        trope_angle_gradient(plan, context.kernels);
    trope_parallel_for(useful_threads(plan), plan->batch * plan->tokens, rotate_range, &context);
    return TROPE_OK;
}

static void kernel_name(const trope_plan *plan, char *name, size_t size)
{
    snprintf(name, size, "cpu-%s-%s-%s", trope_find_row_kernels(plan->isa)->name, trope_dtype_name(plan->dtype),
             trope_pairing_name(plan));
}

const trope_backend trope_backend_cpu = {check, trope_angle_gradient_workspace, run, kernel_name};
