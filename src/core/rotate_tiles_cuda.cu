/* The kernels by tiles, and their launch. */
#include <stddef.h>
#include <string.h>

#include "core/plan_tiles_cuda.cuh"
#include "core/rotate_cuda.h"
#include "core/rotate_held_cuda.cuh"

template <int DTYPE, int ANGLES, tile_form FORM, tile_call_kind KIND> constexpr const void *find_held_kernel()
{
    if constexpr (angles_can_be_held(ANGLES) && FORM == FORM_HELD && KIND != KIND_ANY)
        return (const void *)rotate_held_kernel<DTYPE, ANGLES, KIND>;
    if constexpr (angles_can_be_held(ANGLES) && FORM == FORM_HELD_ROWS && KIND == KIND_PLAIN_SINGLE)
        return (const void *)rotate_held_rows_kernel<DTYPE, ANGLES>;
    return NULL;
}

#define KERNEL(DTYPE, ANGLES, FORM, KIND)                                                                                  \
    (const void *)rotate_tiles_kernel<DTYPE, ANGLES, form_of(ANGLES, FORM, KIND), KIND,                                    \
                                      blocks_of(ANGLES, form_of(ANGLES, FORM, KIND), KIND)>
#define KERNELS(DTYPE, ANGLES, KIND)                                                                                       \
    {                                                                                                                      \
        KERNEL(DTYPE, ANGLES, FORM_ROW, kind_of(ANGLES, KIND)), KERNEL(DTYPE, ANGLES, FORM_ROWS, kind_of(ANGLES, KIND)),   \
            KERNEL(DTYPE, ANGLES, FORM_HEAD, kind_of(ANGLES, KIND)), find_held_kernel<DTYPE, ANGLES, FORM_HELD, KIND>(),   \
            find_held_kernel<DTYPE, ANGLES, FORM_HELD_ROWS, KIND>()                                                        \
    }
#define USUAL(DTYPE, KIND)                                                                                                 \
    {                                                                                                                      \
        KERNELS(DTYPE, ANGLES_ANY, KIND), KERNELS(DTYPE, ANGLES_PHASE, KIND), KERNELS(DTYPE, ANGLES_FREQS, KIND),          \
            KERNELS(DTYPE, ANGLES_OWN_FREQS, KIND), KERNELS(DTYPE, ANGLES_TABLES, KIND)                                    \
    }
#define DTYPES(KIND)                                                                                                       \
    {                                                                                                                      \
        USUAL(TROPE_F32, KIND), USUAL(TROPE_F16, KIND), USUAL(TROPE_BF16, KIND),                                           \
        {                                                                                                                  \
            KERNELS(TROPE_F64, ANGLES_ANY, KIND)                                                                           \
        }                                                                                                                  \
    }

/* By kind of call, dtype, angles and form. */
static const void *const kernels[5][4][5][FORMS] = {DTYPES(KIND_ANY), DTYPES(KIND_PACKED), DTYPES(KIND_PACKED_SINGLE),
                                                    DTYPES(KIND_PLAIN), DTYPES(KIND_PLAIN_SINGLE)};

trope_status trope_cuda_rotate_tiles(const char *function, const trope_plan *plan)
{
    tiled_call call;
    tiled_operand operands[TROPE_MAX_OPERANDS];
    memset(&call, 0, offsetof(tiled_call, plan));
    memset(operands, 0, sizeof operands);
    if (plan->batch == 0 || plan->tokens == 0)
        return TROPE_OK;
    const device_facts device = facts_of_device();
    const tiled_launch launch = trope_cuda_plan_tiles(*plan, device, operands, &call);
    if (launch.blocks == 0)
        return TROPE_OK;
    fill_cuda_plan(*plan, &call.plan);
    void *arguments[] = {operands, &call, plan->step};
    const cudaError_t error = launch_early(device, kernels[launch.kind][plan->dtype][kind_of_angles(*plan)][launch.form],
                                           dim3((unsigned)launch.blocks), TILE_THREADS, launch.shared_bytes,
                                           launch.of_multiprocessor, plan->stream, arguments);
    return error == cudaSuccess ? TROPE_OK : fail_cuda(function, error);
}
