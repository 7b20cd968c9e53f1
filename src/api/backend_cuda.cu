/* The CUDA backend: selects the kernels that run a plan, and describes the devices. */
#include <stdio.h>

#include "api/backend.h"
#include "bwd/cuda/angle_gradient.h"
#include "bwd/cuda/head_sums.h"
#include "bwd/cuda/kernels.h"
#include "bwd/cuda/norm_gradient.h"
#include "core/require.h"
#include "fwd/cuda/compiled.h"
#include "fwd/cuda/kernels.h"
#include "fwd/cuda/launch.cuh"
#include "fwd/cuda/norm.h"
#include "fwd/cuda/rotate.h"
#include "jit/jit.h"
#include "varlen/cuda/search.cuh"

/* Whether a plan is a backward call with a norm. */
static bool is_norm_gradient(const trope_plan &plan)
{
    bool is = false;
    for (int i = 0; i < plan.operand_count; i++)
        is = is || plan.operands[i].norm.is_backward;
    return is;
}

/* Returns the plan as the kernels take it: with a source of angles. If nothing rotates, the source becomes PHASE:
 * without pairs, kernels then compute no phases. */
static trope_plan with_angles(const trope_plan &plan)
{
    trope_plan p = plan;
    if (p.angles.source == TROPE_ANGLES_NONE)
        p.angles.source = TROPE_ANGLES_PHASE;
    return p;
}

static void kernel_name(const trope_plan *of, char *name, size_t size)
{
    const trope_plan with = with_angles(*of), *const plan = &with;
    const trope_cuda_kernel *const kernel = is_norm_gradient(*plan)          ? trope_cuda_find_norm_gradient(plan)
                                            : trope_has_norm(plan)           ? trope_cuda_find_norm(plan)
                                            : trope_has_angle_gradient(plan) ? trope_cuda_find_gradient(plan)
                                            : trope_cuda_has_sums(plan)      ? trope_cuda_find_sums(plan)
                                                                             : trope_cuda_find_rotation(plan);
    const bool is_rotation = !trope_has_norm(plan) && !trope_has_angle_gradient(plan) && !trope_cuda_has_sums(plan);
    if (!is_rotation || !trope_cuda_name_compiled(plan, name, size))
        snprintf(name, size, "%s", kernel->name);
}

/* A kernel may have several places in a table. */
static void list_kernels(const void *table, size_t bytes, const char **names, int *count)
{
    const trope_cuda_kernel *const kernels = (const trope_cuda_kernel *)table;
    for (size_t i = 0; i < bytes / sizeof *kernels; i++) {
        bool is_new = kernels[i].function != NULL;
        for (size_t j = 0; is_new && j < i; j++)
            is_new = kernels[j].function != kernels[i].function;
        if (is_new)
            names[(*count)++] = kernels[i].name;
    }
}

const char *const *trope_cuda_list_kernels(int *count)
{
    static const trope_rotation_kernels *const rotations[] = {&trope_rotations_f32, &trope_rotations_f16,
                                                              &trope_rotations_bf16, &trope_rotations_f64};
    static const trope_backward_kernels *const backwards[] = {&trope_backward_f32, &trope_backward_f16,
                                                              &trope_backward_bf16, &trope_backward_f64};
    static const trope_norm_kernels *const norms[] = {&trope_norms_f32, &trope_norms_f16, &trope_norms_bf16,
                                                      &trope_norms_f64};
    static const char *names[4 * (sizeof **rotations + sizeof **norms + sizeof **backwards) / sizeof(trope_cuda_kernel)];
    *count = 0;
    for (int i = 0; i < 4; i++) {
        list_kernels(rotations[i], sizeof *rotations[i], names, count);
        list_kernels(norms[i], sizeof *norms[i], names, count);
        list_kernels(backwards[i], sizeof *backwards[i], names, count);
    }
    return names;
}

/* ---- calls that move nothing ---- */

#define CHECK_THREADS 256
#define CHECK_BLOCKS  1024 /* at most */

static __global__ void __launch_bounds__(CHECK_THREADS) check_kernel(KERNEL_PARAMETER(trope_plan) plan)
{
    take_turn();
    check_sequences<true>(plan.position_source, plan.status);
}

/* Reports invalid sequences of a call that moves nothing. */
static trope_status check_only(const char *function, const trope_plan &plan)
{
    if (!plan.position_source.boundaries || !plan.status)
        return TROPE_OK;
    const int64_t blocks = quotient_up(plan.position_source.count + 1, CHECK_THREADS);
    void *arguments[] = {(void *)&plan};
    const cudaError_t error = launch_early(facts_of_device(), (const void *)check_kernel,
                                           dim3((unsigned)(blocks < CHECK_BLOCKS ? blocks : CHECK_BLOCKS)), CHECK_THREADS,
                                           0, plan.stream, arguments);
    return error == cudaSuccess ? TROPE_OK : fail_cuda(function, error);
}

static trope_status run(const char *function, const trope_plan *of)
{
    const trope_plan with = with_angles(*of), *const plan = &with;
    const bool moves = moves_something(*plan);
    const trope_status status = moves ? TROPE_OK : check_only(function, *plan);
    if (status)
        return status;
    if (is_norm_gradient(*plan))
        return trope_cuda_run_norm_gradient(function, plan); /* it writes gradients even if nothing moves */
    if (trope_has_angle_gradient(plan))
        return trope_cuda_run_gradient(function, plan);
    if (!moves)
        return TROPE_OK;
    if (trope_has_norm(plan))
        return trope_cuda_norm(function, plan);
    return trope_cuda_has_sums(plan) ? trope_cuda_sum_heads(function, plan) : trope_cuda_rotate(function, plan);
}

/* ---- devices ---- */

int trope_cuda_device_count(void)
{
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess)
        return count;
    cudaGetLastError(); /* clears the error, which the caller's next launch would report as its own */
    return 0;
}

void trope_cuda_describe_driver(char *text, size_t size)
{
    int count = 0, driver = 0, runtime = 0;
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    const cudaError_t error = cudaGetDeviceCount(&count);
    cudaGetLastError();
    const int major = driver / 1000, minor = driver % 1000 / 10, needed = runtime / 1000;
    if (!driver)
        snprintf(text, size, "none was found");
    else if (major < needed)
        snprintf(text, size, "CUDA %d.%d, and this build needs CUDA %d.0 (driver r%d)", major, minor, needed,
                 needed < 13 ? 525 : 580);
    else if (error != cudaSuccess)
        snprintf(text, size, "CUDA %d.%d, which says: %s", major, minor, cudaGetErrorString(error));
    else
        snprintf(text, size, "CUDA %d.%d", major, minor);
}

void trope_cuda_describe(char *text, size_t size)
{
    const int count = trope_cuda_device_count();
    size_t used = 0;
    if (size)
        text[0] = 0;
    for (int i = 0; i < count && used < size; i++) {
        cudaDeviceProp p;
        if (cudaGetDeviceProperties(&p, i) == cudaSuccess)
            used += (size_t)snprintf(text + used, size - used, "%s%s (sm_%d%d, %d multiprocessors)", i ? ", " : "", p.name,
                                     p.major, p.minor, p.multiProcessorCount);
    }
}

static trope_status check(const char *function, const trope_plan *plan)
{
    const trope_status status = trope_jit_check(function);
    if (status)
        return status;
    if (trope_cuda_device_count() == 0) {
        char driver[160];
        trope_cuda_describe_driver(driver, sizeof driver);
        return trope_fail(TROPE_ERROR_UNSUPPORTED, "%s: device (%d) is CUDA, and there is no CUDA device (driver: %s)",
                          function, plan->device, driver);
    }
    REQUIRE(!is_norm_gradient(*plan) || trope_cuda_norm_gradient_fits(plan), TROPE_ERROR_UNSUPPORTED,
            "batch * tokens (%lld * %lld) with these heads is more than the backward of norms can take in one call",
            (long long)plan->batch, (long long)plan->tokens);
    REQUIRE(!trope_has_angle_gradient(plan) || trope_cuda_gradient_fits(plan), TROPE_ERROR_UNSUPPORTED,
            "batch * tokens (%lld * %lld) or angle_rows (%lld) with these heads is more than the gradient of the angles "
            "can take in one call",
            (long long)plan->batch, (long long)plan->tokens, (long long)plan->angles.rows);
    return TROPE_OK;
}

static uint64_t workspace(const trope_plan *plan)
{
    return is_norm_gradient(*plan) ? trope_cuda_norm_gradient_workspace(plan) : trope_cuda_gradient_workspace(plan);
}

const trope_backend trope_backend_cuda = {check, workspace, run, kernel_name};
