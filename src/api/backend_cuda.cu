/* The CUDA backend: what a plan is run by, and what devices there are. */
#include <stdio.h>

#include "api/backend.h"
#include "bwd/cuda/angle_gradient.h"
#include "core/require.h"
#include "fwd/cuda/launch.cuh"
#include "fwd/cuda/rotate.h"

static void kernel_name(const trope_plan *plan, char *name, size_t size)
{
    const bool has_tiles =
        trope_has_angle_gradient(plan) ? trope_cuda_gradient_has_tiles(plan) : trope_cuda_has_tiles(plan);
    snprintf(name, size, "cuda-%s-%s-%s", has_tiles ? "vector" : "scalar", trope_dtype_name(plan->dtype),
             trope_pairing_name(plan));
}

/* ---- calls that move nothing ---- */

#define CHECK_THREADS 256
#define CHECK_BLOCKS  1024 /* at most */

static __global__ void __launch_bounds__(CHECK_THREADS) check_kernel(KERNEL_PARAMETER(trope_plan) plan)
{
    take_turn();
    check_sequences(plan);
}

static bool moves_something(const trope_plan &plan)
{
    bool moves = false;
    for (int i = 0; i < plan.operand_count; i++)
        moves = moves || plan.operands[i].rotary_dim > 0 || writes_rest(plan, plan.operands[i]);
    return moves && plan.batch > 0 && plan.tokens > 0;
}

/* Their sequences may be wrong all the same. */
static trope_status check_only(const char *function, const trope_plan &plan)
{
    if (!plan.sequences.boundaries || !plan.status)
        return TROPE_OK;
    const int64_t blocks = quotient_up(plan.sequences.count + 1, CHECK_THREADS);
    void *arguments[] = {(void *)&plan};
    const cudaError_t error = launch_early(facts_of_device(), (const void *)check_kernel,
                                           dim3((unsigned)(blocks < CHECK_BLOCKS ? blocks : CHECK_BLOCKS)), CHECK_THREADS,
                                           0, 0, plan.stream, arguments);
    return error == cudaSuccess ? TROPE_OK : fail_cuda(function, error);
}

static trope_status run(const char *function, const trope_plan *plan)
{
    const bool moves = moves_something(*plan);
    const trope_status status = moves ? TROPE_OK : check_only(function, *plan);
    if (status)
        return status;
    if (trope_has_angle_gradient(plan))
        return trope_cuda_run_gradient(function, plan); /* of what is not moved it is 0 */
    if (!moves)
        return TROPE_OK;
    return trope_cuda_has_tiles(plan) ? trope_cuda_rotate_tiles(function, plan) : trope_cuda_rotate_pairs(function, plan);
}

/* ---- devices ---- */

int trope_cuda_device_count(void)
{
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess)
        return count;
    cudaGetLastError(); /* no driver or no device is an answer, not a failure of the caller's next launch */
    return 0;
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

/* ---- what a call may not ask for ---- */

#define UNSUPPORTED TROPE_ERROR_UNSUPPORTED

static trope_status check_operands(const char *function, const trope_plan &plan)
{
    REQUIRE(plan.operand_count <= MAX_CUDA_OPERANDS, UNSUPPORTED, "operand_count (%d) must be at most %d on CUDA",
            plan.operand_count, MAX_CUDA_OPERANDS);
    for (int i = 0; i < plan.operand_count; i++) {
        const trope_plan_operand &o = plan.operands[i];
        REQUIRE(!o.summed_heads, UNSUPPORTED, "operands[%d].shared_heads must be 0 on CUDA", i);
        REQUIRE(!o.accumulate, UNSUPPORTED, "operands[%d].accumulate must be 0 on CUDA", i);
    }
    return TROPE_OK;
}

static bool same_stride(const trope_table_stride &a, const trope_table_stride &b)
{
    return a.axis == b.axis && a.batch == b.batch && a.row == b.row && a.column == b.column;
}

static trope_status check_table(const char *function, const trope_plan &plan)
{
    const trope_plan_angles &a = plan.angles;
    const int interleaved_out = plan.swap_sines ? plan.interleaved_src : plan.interleaved_dst;
    if (a.source == TROPE_ANGLES_PHASE)
        return TROPE_OK;
    const bool is_native = a.dtype == plan.dtype && (a.source == TROPE_ANGLES_TABLE || plan.dtype == TROPE_F64);
    REQUIRE(a.dtype == TROPE_F32 || is_native, UNSUPPORTED,
            "angle_dtype (%d) must be TROPE_F32 on CUDA, or the operands' with cos and sin", a.dtype);
    REQUIRE(!a.per_element || plan.interleaved_columns == interleaved_out, UNSUPPORTED,
            "angle_columns must be %s on CUDA, as pairing_out has elements",
            interleaved_out ? "TROPE_COLUMNS_INTERLEAVED" : "TROPE_COLUMNS_HALF");
    REQUIRE(a.stride.axis == 0 && a.stride.column == 1, UNSUPPORTED,
            "angle_layout must have no axes and a column stride of 1 on CUDA, not %lld and %lld", (long long)a.stride.axis,
            (long long)a.stride.column);
    REQUIRE(!plan.d_freqs || (same_stride(a.stride, plan.d_freqs_stride) && a.stride.row > 0), UNSUPPORTED,
            "d_freqs_layout must be that of the table on CUDA%s", ", with rows apart");
    return TROPE_OK;
}

static trope_status check_rotation(const char *function, const trope_plan &plan)
{
    REQUIRE(plan.rounding != TROPE_ROUND_NATIVE_F32, UNSUPPORTED,
            "rounding (%d) must be TROPE_ROUND_ONCE or NATIVE on CUDA", plan.rounding);
    REQUIRE(plan.parts <= MAX_CUDA_AXES, UNSUPPORTED, "parts (%d) must be at most %d on CUDA", plan.parts, MAX_CUDA_AXES);
    REQUIRE(plan.axes <= MAX_CUDA_AXES, UNSUPPORTED, "position_axes (%d) must be at most %d on CUDA", plan.axes,
            MAX_CUDA_AXES);
    REQUIRE(!plan.sequences.boundaries || plan.sequences.padding, UNSUPPORTED,
            "padding (%d) must be given with cu_seqlens on CUDA", plan.sequences.padding);
    return TROPE_OK;
}

static trope_status check(const char *function, const trope_plan *plan)
{
    REQUIRE(trope_cuda_device_count() > 0, UNSUPPORTED, "device (%d) is CUDA, and there is no CUDA device or no driver",
            plan->device);
    CHECK(check_operands(function, *plan));
    CHECK(check_rotation(function, *plan));
    CHECK(check_table(function, *plan));
    REQUIRE(!trope_has_angle_gradient(plan) || trope_cuda_gradient_fits(plan), UNSUPPORTED,
            "batch * tokens (%lld * %lld) or angle_rows (%lld) with these heads is more than the gradient of the angles "
            "can take "
            "in one call",
            (long long)plan->batch, (long long)plan->tokens, (long long)plan->angles.rows);
    return TROPE_OK;
}

const trope_backend trope_backend_cuda = {check, trope_cuda_gradient_workspace, run, kernel_name};
