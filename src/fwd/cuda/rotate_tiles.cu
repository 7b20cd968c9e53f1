/* The kernels by tiles, and their launch. */
#include <stddef.h>
#include <string.h>

#include "fwd/cuda/plan_tiles.cuh"
#include "fwd/cuda/rotate.h"
#include "fwd/cuda/rotate_held.cuh"

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

static const void *find_kernel(const trope_plan &plan, const tiled_launch &launch)
{
    return kernels[launch.kind][plan.dtype - TROPE_F32][kind_of_angles(plan)][launch.form];
}

/* Whether all blocks have places at the same time: shared memory, of which the launch asks for as much then, and registers.
 */
static bool run_at_once(const trope_plan &plan, const device_facts &device, const tiled_launch &launch)
{
    int blocks = 0; /* of a multiprocessor */
    return launch.of_multiprocessor > 0 &&
           cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, find_kernel(plan, launch), TILE_THREADS, 0) ==
               cudaSuccess &&
           launch.blocks <= (int64_t)blocks * device.multiprocessors;
}

/* Whether there is nothing to be had from larger tiles: they are not in shared memory, or a device never has room for all
 * of them. */
static bool has_best_tiles(const device_facts &device, const tiled_launch &launch, const tiled_call &call)
{
    return launch.form == FORM_HELD || launch.form == FORM_HELD_ROWS || device.major < 9 ||
           launch.blocks * call.turns_at > (int64_t)device.multiprocessors * device.shared_bytes;
}

static tiled_launch plan_anew(const trope_plan &plan, const device_facts &device, uint32_t tile_bytes,
                              tiled_operand *operands, tiled_call *call)
{
    memset(call, 0, offsetof(tiled_call, plan));
    memset(operands, 0, MAX_CUDA_OPERANDS * sizeof *operands);
    return trope_cuda_plan_tiles(plan, device, tile_bytes, operands, call);
}

/* Tiles are of the usual size, or of the first larger one of which all run at once where they otherwise just would not: the
 * last blocks of such a call would leave most of a device idle, and the next call would begin late. (Where heads are
 * further apart than rows, the largest tiles are turned too slowly to be worth it.) */
static tiled_launch plan_launch(const trope_plan &plan, const device_facts &device, tiled_operand *operands,
                                tiled_call *call)
{
    const uint32_t step = TILE_BYTES / 4;
    for (uint32_t bytes = TILE_BYTES; bytes <= MOST_TILE_BYTES; bytes += step) {
        const tiled_launch launch = plan_anew(plan, device, bytes, operands, call);
        if (has_best_tiles(device, launch, *call) || run_at_once(plan, device, launch))
            return launch;
        if (operands[0].tiles.rows_first && bytes + step >= MOST_TILE_BYTES)
            break;
    }
    return plan_anew(plan, device, TILE_BYTES, operands, call);
}

trope_status trope_cuda_rotate_tiles(const char *function, const trope_plan *plan)
{
    tiled_call call;
    tiled_operand operands[MAX_CUDA_OPERANDS];
    const device_facts device = facts_of_device();
    const tiled_launch launch = plan_launch(*plan, device, operands, &call);
    fill_cuda_plan(*plan, &call.plan);
    void *arguments[] = {operands, &call, plan->step};
    const cudaError_t error = launch_early(device, find_kernel(*plan, launch), dim3((unsigned)launch.blocks), TILE_THREADS,
                                           launch.shared_bytes, launch.of_multiprocessor, plan->stream, arguments);
    return error == cudaSuccess ? TROPE_OK : fail_cuda(function, error);
}
