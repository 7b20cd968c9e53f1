#include "api/backend.h"

#include <stdio.h>

#include "bwd/cpu/angle_gradient.h"
#include "bwd/cpu/head_sums.h"
#include "core/error.h"
#include "core/threads.h"
#include "fwd/cpu/rows.h"
#include "varlen/check.h"

static trope_status check(const char *function, const trope_plan *plan)
{
    if (plan->stream)
        return trope_fail(TROPE_ERROR_ARGUMENT, "%s: stream (%p) must be NULL on the CPU", function, plan->stream);
    if (!trope_find_row_kernels(plan->isa))
        return trope_fail(TROPE_ERROR_UNSUPPORTED, "%s: isa (%d) is not an instruction set of this CPU", function,
                          plan->isa);
    return TROPE_OK;
}

typedef struct row_context {
    const trope_plan *plan;
    const trope_row_kernels *rotation;
    const trope_head_sum_kernels *sums; /* NULL: no operand is summed */
} row_context;

static void write_rows(const void *context, int64_t begin, int64_t end)
{
    const row_context *c = context;
    c->rotation->rotate(c->plan, begin, end);
    if (c->sums)
        c->sums->sum(c->plan, begin, end);
}

static int has_sums(const trope_plan *plan)
{
    int has = 0;
    for (int i = 0; i < plan->operand_count; i++)
        has |= trope_is_summed(&plan->operands[i]);
    return has;
}

static trope_status run(const char *function, const trope_plan *plan)
{
    const row_context context = {plan, trope_find_row_kernels(plan->isa),
                                 has_sums(plan) ? trope_find_head_sums(plan->isa) : NULL};
    trope_status status = trope_check_sequences(function, &plan->sequences);
    if (!status)
        status = trope_check_positions(function, plan);
    if (status)
        return status;
    /* The gradient reads dy, which dx may replace: so it goes first. */
    if (trope_has_angle_gradient(plan))
        trope_angle_gradient(plan, context.rotation);
    const int threads = trope_useful_threads(plan->threads, 2 * plan->bytes_written); /* and as much is read */
    trope_parallel_for(threads, plan->batch * plan->tokens, write_rows, &context);
    return TROPE_OK;
}

static void kernel_name(const trope_plan *plan, char *name, size_t size)
{
    snprintf(name, size, "cpu-%s-%s-%s", trope_find_row_kernels(plan->isa)->name, trope_dtype_name(plan->dtype),
             trope_pairing_name(plan));
}

const trope_backend trope_backend_cpu = {check, trope_angle_gradient_workspace, run, kernel_name};
