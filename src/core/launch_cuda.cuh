/* What all launches of the CUDA backend ask and say: whether tensors can be moved by 16-byte vectors, and what has failed.
 */
#ifndef TROPE_CORE_LAUNCH_CUDA_CUH
#define TROPE_CORE_LAUNCH_CUDA_CUH

#include <math.h>

#include "api/error.h"
#include "core/plan.h"

static inline bool is_multiple(int64_t value, int64_t of)
{
    return value % of == 0;
}

/* Of a block, on any device without asking for more. */
#define MAX_SHARED_BYTES (48u << 10)

/* Whether every head of a tensor is made of whole vectors. Offsets in a row are counted in vectors, in 32 bits. */
static inline bool tensor_is_vector(const trope_plan &plan, const trope_plan_operand &o, const void *base,
                                    const int64_t *stride)
{
    const int64_t count = 16 / plan.element_size;
    const int64_t size[] = {plan.batch, plan.tokens, o.groups, o.heads_per_group};
    for (int d = 0; d < TROPE_DIM_ELEMENT; d++)
        if (size[d] > 1 && !is_multiple(stride[d], count))
            return false;
    return stride[TROPE_DIM_ELEMENT] == 1 && is_multiple((int64_t)(uintptr_t)base, 16) &&
           (double)size[TROPE_DIM_GROUP] * fabs((double)stride[TROPE_DIM_GROUP]) +
                   (double)size[TROPE_DIM_HEAD] * fabs((double)stride[TROPE_DIM_HEAD]) <
               (double)count * INT32_MAX;
}

/* Of src and dst, and of the parts of a head. */
static inline bool operand_is_vector(const trope_plan &plan, const trope_plan_operand &o)
{
    const int64_t count = 16 / plan.element_size;
    return is_multiple(o.head_dim, count) && is_multiple(o.rotary_offset, count) && is_multiple(o.window_pairs, count) &&
           tensor_is_vector(plan, o, o.src, o.src_stride) && (!o.dst || tensor_is_vector(plan, o, o.dst, o.dst_stride));
}

static inline trope_status fail_cuda(const char *function, cudaError_t error)
{
    return trope_fail(TROPE_ERROR_DEVICE, "%s: CUDA says: %s", function, cudaGetErrorString(error));
}

#endif
