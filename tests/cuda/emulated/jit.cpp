/* Replaces src/jit: the body of the compiled kernels with the constants of the call in memory. TROPE_JIT=0 leaves the calls
 * to the kernels that are made ahead of time. */
#include <stdlib.h>
#include <string.h>

#include "fwd/cuda/block.cuh"
#include "jit/jit.h"

template <int DTYPE>
static void rotate_call(const call_values &values, const call_steps<CALL_PAIRS> &steps, const call_constants &constants)
{
    rotate_block(generic_call<DTYPE>{values, constants}, steps.of);
}

trope_jit_mode trope_jit_get_mode(void)
{
    const char *const mode = getenv("TROPE_JIT");
    return mode && !strcmp(mode, "0") ? TROPE_JIT_OFF : TROPE_JIT_ON;
}

trope_status trope_jit_find(const char *, const trope_jit_request *request, int, const trope_jit_kernel **kernel)
{
    static const trope_jit_kernel kernels[] = {{(const void *)rotate_call<TROPE_F32>, 13000, 1, NULL},
                                               {(const void *)rotate_call<TROPE_F16>, 13000, 1, NULL},
                                               {(const void *)rotate_call<TROPE_BF16>, 13000, 1, NULL}};
    const int32_t dtype = ((const call_constants *)request->key)->dtype;
    *kernel = kernels + (dtype == TROPE_F32 ? 0 : dtype == TROPE_F16 ? 1 : 2);
    return TROPE_OK;
}
