#include "api/backend.h"

#include <stdio.h>

#include "bwd/cpu/angle_gradient.h"
#include "bwd/cpu/head_sums.h"
#include "bwd/cpu/norm_gradient.h"
#include "core/error.h"
#include "core/threads.h"
#include "fwd/cpu/tokens.h"
#include "varlen/check.h"

static trope_status check(const char *function, const trope_plan *plan)
{
    if (plan->stream)
        return trope_fail(TROPE_ERROR_ARGUMENT, "%s: stream (%p) must be NULL on the CPU", function, plan->stream);
    if (!trope_find_token_kernels(plan->isa))
        return trope_fail(TROPE_ERROR_UNSUPPORTED, "%s: isa (%d) is not an instruction set of this CPU", function,
                          plan->isa);
    return TROPE_OK;
}

typedef struct write_context {
    const trope_plan *plan;
    const trope_token_kernels *rotation; /* NULL if no operand has TROPE_WRITER_ROTATION */
    const trope_head_sum_kernels *sums;  /* NULL if no operand has TROPE_WRITER_SUM */
} write_context;

static void write_tokens(const void *context, int64_t begin, int64_t end)
{
    const write_context *c = context;
    if (c->rotation)
        c->rotation->rotate(c->plan, begin, end);
    if (c->sums)
        c->sums->sum(c->plan, begin, end);
}

/* Whether any operand has this writer. */
static int has_writer(const trope_plan *plan, trope_writer writer)
{
    for (int i = 0; i < plan->operand_count; i++)
        if (trope_writer_of(&plan->operands[i]) == writer)
            return 1;
    return 0;
}

/* The gradient of the angles is done before the gradient of the norms starts, so both use the same workspace. */
static uint64_t workspace(const trope_plan *plan)
{
    const uint64_t of_angles = trope_angle_gradient_workspace(plan), of_norms = trope_norm_gradient_workspace(plan);
    return of_angles > of_norms ? of_angles : of_norms;
}

static trope_status run(const char *function, const trope_plan *plan)
{
    const trope_token_kernels *kernels = trope_find_token_kernels(plan->isa);
    const write_context context = {.plan = plan,
                                   .rotation = has_writer(plan, TROPE_WRITER_ROTATION) ? kernels : NULL,
                                   .sums = has_writer(plan, TROPE_WRITER_SUM) ? trope_find_head_sums(kernels->isa) : NULL};
    trope_status status = trope_check_sequences(function, &plan->position_source);
    if (!status)
        status = trope_check_positions(function, plan);
    if (status)
        return status;
    /* The gradient of the angles reads dy. In place, dx overwrites dy, so this gradient comes first. */
    if (trope_has_angle_gradient(plan))
        trope_angle_gradient(plan, kernels);
    if (has_writer(plan, TROPE_WRITER_NORM_GRADIENT))
        trope_norm_gradient(plan, kernels->isa);
    if (!context.rotation && !context.sums)
        return TROPE_OK;
    /* The call reads about as many bytes as it writes. */
    const int threads = trope_useful_threads(plan->threads, 2 * plan->bytes_written);
    trope_parallel_for(threads, plan->batch * plan->tokens, write_tokens, &context);
    return TROPE_OK;
}

static void kernel_name(const trope_plan *plan, char *name, size_t size)
{
    snprintf(name, size, "cpu-%s-%s-%s", trope_find_token_kernels(plan->isa)->name, trope_dtype_name(plan->dtype),
             trope_pairing_name(plan));
}

const trope_backend trope_backend_cpu = {.check = check, .workspace = workspace, .run = run, .kernel_name = kernel_name};
