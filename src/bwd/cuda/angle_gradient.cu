#include "bwd/cuda/angle_gradient.h"

#include "core/error.h"

int trope_cuda_gradient_fits(const trope_plan *)
{
    return 1;
}

uint64_t trope_cuda_gradient_workspace(const trope_plan *)
{
    return 0;
}

trope_status trope_cuda_run_gradient(const char *function, const trope_plan *)
{
    return trope_fail(TROPE_ERROR_UNSUPPORTED, "%s: d_freqs", function);
}

void trope_cuda_gradient_name(const trope_plan *, char *, size_t)
{
}
