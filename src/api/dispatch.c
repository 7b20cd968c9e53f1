#include "api/dispatch.h"

#include "core/error.h"
#include "api/backend.h"

typedef unsigned long long ull;

const char *trope_dtype_name(int32_t dtype)
{
    static const char *const names[] = {"f32", "f16", "bf16", "f64"};
    return names[dtype];
}

const char *trope_pairing_name(const trope_plan *plan)
{
    if (plan->interleaved_src)
        return plan->interleaved_dst ? "interleaved" : "interleaved-to-half";
    return plan->interleaved_dst ? "half-to-interleaved" : "half";
}

/* NULL where this build has no such backend. */
static const trope_backend *backend_of(int32_t device)
{
#ifdef TROPE_CUDA
    if (device == TROPE_DEVICE_CUDA || (device == TROPE_DEVICE_AUTO && trope_cuda_device_count() > 0))
        return &trope_backend_cuda;
#endif
    return device == TROPE_DEVICE_CUDA ? NULL : &trope_backend_cpu;
}

/* Validates the call, makes its plan and finds the backend that can run it. */
static trope_status prepare(const char *function, const trope_args *args, int backward, trope_planned_call *call,
                            const trope_backend **backend)
{
    const trope_status status = trope_make_plan(function, args, backward, call);
    if (status)
        return status;
    *backend = backend_of(call->plan.device);
    if (!*backend)
        return trope_fail(TROPE_ERROR_UNSUPPORTED, "%s: device (%d) is CUDA, which this build does not have", function,
                          call->plan.device);
    return (*backend)->check(function, &call->plan);
}

static trope_status check_workspace(const char *function, const trope_plan *plan, uint64_t needed)
{
    const uint64_t given = plan->workspace_size;
    if (needed && !plan->workspace)
        return trope_fail(TROPE_ERROR_NULL, "%s: workspace is NULL and %llu bytes are needed", function, (ull)needed);
    if (given < needed)
        return trope_fail(TROPE_ERROR_ARGUMENT, "%s: workspace_size (%llu) must be at least %llu", function, (ull)given,
                          (ull)needed);
    return TROPE_OK;
}

trope_status trope_run(const char *function, const trope_args *args, int backward)
{
    trope_planned_call call;
    const trope_backend *backend;
    trope_status status = prepare(function, args, backward, &call, &backend);
    if (!status)
        status = check_workspace(function, &call.plan, backend->workspace(&call.plan));
    return status ? status : backend->run(function, &call.plan);
}

trope_status trope_workspace_size(const trope_args *args, uint64_t *bytes)
{
    static const char function[] = "trope_workspace_size";
    trope_planned_call call;
    const trope_backend *backend;
    const trope_status status = prepare(function, args, 1, &call, &backend);
    if (status)
        return status;
    if (!bytes)
        return trope_fail(TROPE_ERROR_NULL, "%s: bytes is NULL", function);
    *bytes = backend->workspace(&call.plan);
    return TROPE_OK;
}

trope_status trope_kernel_name(const trope_args *args, int32_t backward, char *name, size_t size)
{
    static const char function[] = "trope_kernel_name";
    trope_planned_call call;
    const trope_backend *backend;
    if (backward != 0 && backward != 1)
        return trope_fail(TROPE_ERROR_ARGUMENT, "%s: backward (%d) must be 0 or 1", function, backward);
    if (!name || !size)
        return trope_fail(TROPE_ERROR_NULL, "%s: name is NULL or size (%zu) is 0", function, size);
    const trope_status status = prepare(function, args, backward, &call, &backend);
    if (!status)
        backend->kernel_name(&call.plan, name, size);
    return status;
}
