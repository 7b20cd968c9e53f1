/* The kernels of the gradient of the angles by tiles for more than 64 pairs. They take as long to compile as all others of
 * the gradient together, and so are a file of their own. */
#include "bwd/gradient_tiles_cuda.cuh"

#define WIDE_BLOCKS 1

#define WIDE(DTYPE)                                                                                                        \
    {                                                                                                                      \
        (const void *)gradient_tiles_kernel<DTYPE, ANGLES_ANY, ROWS_ANY, false, 2, WIDE_BLOCKS>,                           \
            (const void *)gradient_tiles_kernel<DTYPE, ANGLES_ANY, ROWS_ANY, true, 2, WIDE_BLOCKS>                         \
    }

static const void *const kernels[4][2] = {WIDE(TROPE_F32), WIDE(TROPE_F16), WIDE(TROPE_BF16), WIDE(TROPE_F64)};

const void *trope_wide_gradient_kernel(const trope_plan &plan)
{
    return kernels[plan.dtype][plan.angles.per_element != 0];
}
