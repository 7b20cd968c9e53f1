/* The CUDA backend: what a plan is run by, and what devices there are. */
#include <stdio.h>

#include "api/error.h"
#include "bwd/angle_gradient_cuda.h"
#include "core/backend.h"
#include "core/launch_cuda.cuh"
#include "core/rotate_cuda.h"

static void kernel_name(const trope_plan *plan, char *name, size_t size)
{
    snprintf(name, size, "cuda-%s-%s-%s", trope_cuda_has_tiles(plan) ? "vector" : "scalar", trope_dtype_name(plan->dtype),
             trope_pairing_name(plan));
}

static trope_status run(const char *function, const trope_plan *plan)
{
    if (plan->d_freqs || plan->d_inv_freq)
        return trope_cuda_run_gradient(function, plan);
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

static trope_status check(const char *function, const trope_plan *plan)
{
    (void)plan;
    if (trope_cuda_device_count() > 0)
        return TROPE_OK;
    return trope_fail(TROPE_ERROR_UNSUPPORTED, "%s: device is CUDA, and there is no CUDA device or no driver", function);
}

const trope_backend trope_backend_cuda = {check, trope_cuda_gradient_workspace, run, kernel_name};
