/* trope_forward, trope_backward, trope_workspace_size and trope_kernel_name. They make the plan of a call and pass it to a
 * backend. They run in the default floating-point environment, and restore the caller's environment afterwards. */
#include "api/args.h"
#include "api/backend.h"
#include "api/log.h"
#include "api/plan.h"
#include "core/environment.h"
#include "core/error.h"
#include "core/require.h"

typedef unsigned long long ull;

const char *trope_dtype_name(int32_t dtype)
{
    static const char *const names[] = {
        [TROPE_F32] = "f32", [TROPE_F16] = "f16", [TROPE_BF16] = "bf16", [TROPE_F64] = "f64"};
    return names[dtype];
}

const char *trope_pairing_name(const trope_plan *plan)
{
    if (plan->interleaved_src)
        return plan->interleaved_dst ? "interleaved" : "interleaved-to-half";
    return plan->interleaved_dst ? "half-to-interleaved" : "half";
}

/* Returns NULL if this build has no backend for the device. */
static const trope_backend *backend_of(int32_t device)
{
#ifdef TROPE_CUDA
    if (device == TROPE_DEVICE_CUDA || (device == TROPE_DEVICE_AUTO && trope_cuda_device_count() > 0))
        return &trope_backend_cuda;
#endif
    return device == TROPE_DEVICE_CUDA ? NULL : &trope_backend_cpu;
}

typedef struct prepared_call {
    trope_planned_call planned;
    const trope_backend *backend;
} prepared_call;

/* Copies the call, validates it, makes its plan and finds the backend that can run it. The function is not inlined, so the
 * copy of the call is off the stack before the plan runs. */
static __attribute__((noinline)) trope_status prepare(const char *function, const trope_args *args, int backward,
                                                      prepared_call *p)
{
    trope_call call;
    CHECK(trope_copy_call(function, args, &call));
    CHECK(trope_validate(function, &call.args, backward));
    trope_expand_layouts(&call, backward);
    CHECK(trope_validate_memory(function, &call, backward));
    p->backend = backend_of(call.args.device);
    REQUIRE(p->backend, TROPE_ERROR_UNSUPPORTED, "device (%d) is CUDA, which this build does not have", call.args.device);
    trope_make_plan(&call, backward, &p->planned);
    return p->backend->check(function, &p->planned.plan);
}

static trope_status check_workspace(const char *function, const trope_plan *plan, uint64_t needed)
{
    const uint64_t given = plan->workspace_size;
    REQUIRE(!needed || plan->workspace, TROPE_ERROR_NULL,
            "workspace is NULL, but %llu bytes are needed: see trope_workspace_size", (ull)needed);
    REQUIRE(given >= needed, TROPE_ERROR_ARGUMENT, "workspace_size (%llu) must be at least %llu: see trope_workspace_size",
            (ull)given, (ull)needed);
    return TROPE_OK;
}

static void log_call(const trope_args *args, int backward, const prepared_call *p)
{
    char kernel[64];
    p->backend->kernel_name(&p->planned.plan, kernel, sizeof kernel);
    trope_log_call(args, backward, kernel);
}

static trope_status run(const char *function, const trope_args *args, int backward)
{
    prepared_call p;
    CHECK(prepare(function, args, backward, &p));
    CHECK(check_workspace(function, &p.planned.plan, p.backend->workspace(&p.planned.plan)));
    if (trope_is_logging())
        log_call(args, backward, &p);
    return p.backend->run(function, &p.planned.plan);
}

static trope_status find_workspace_size(const char *function, const trope_args *args, uint64_t *bytes)
{
    prepared_call p;
    CHECK(prepare(function, args, 1, &p));
    REQUIRE(bytes, TROPE_ERROR_NULL, "%s", "bytes is NULL");
    REQUIRE((uintptr_t)bytes % sizeof *bytes == 0, TROPE_ERROR_ARGUMENT, "bytes (%p) must be aligned to 8 bytes",
            (void *)bytes);
    *bytes = p.backend->workspace(&p.planned.plan);
    return TROPE_OK;
}

static trope_status find_kernel_name(const char *function, const trope_args *args, int backward, char *name, size_t size)
{
    prepared_call p;
    REQUIRE(backward == 0 || backward == 1, TROPE_ERROR_ARGUMENT, "backward (%d) must be 0 or 1", backward);
    REQUIRE(name, TROPE_ERROR_NULL, "%s", "name is NULL");
    REQUIRE(size, TROPE_ERROR_ARGUMENT, "size (%zu) must be at least 1", size);
    CHECK(prepare(function, args, backward, &p));
    p.backend->kernel_name(&p.planned.plan, name, size);
    return TROPE_OK;
}

trope_status trope_forward(const trope_args *args)
{
    const trope_environment saved = trope_set_default_environment();
    const trope_status status = run("trope_forward", args, 0);
    trope_restore_environment(saved);
    return status;
}

trope_status trope_backward(const trope_args *args)
{
    const trope_environment saved = trope_set_default_environment();
    const trope_status status = run("trope_backward", args, 1);
    trope_restore_environment(saved);
    return status;
}

trope_status trope_workspace_size(const trope_args *args, uint64_t *bytes)
{
    const trope_environment saved = trope_set_default_environment();
    const trope_status status = find_workspace_size("trope_workspace_size", args, bytes);
    trope_restore_environment(saved);
    return status;
}

trope_status trope_kernel_name(const trope_args *args, int32_t backward, char *name, size_t size)
{
    const trope_environment saved = trope_set_default_environment();
    const trope_status status = find_kernel_name("trope_kernel_name", args, backward, name, size);
    trope_restore_environment(saved);
    return status;
}
