/* The gradient checks of tests/gradcheck on the GPU. Each call uploads the buffers of a config and downloads them again.
 *
 *     cuda_gradcheck [PART] [--seed S] [--count N] */
#include "gradcheck/gradcheck.h"

#include "cuda/device_call.h"

const char *const gradcheck_program = "cuda_gradcheck";
const char *const gradcheck_default_parts[] = {"random", "adjoint", "finite_difference", "norm_difference", NULL};

static device_arena *arena;

void gradcheck_start(void)
{
    device_require();
    arena = device_arena_new(0);
}

trope_status gradcheck_run(config *c, const call *k, int backward)
{
    arena->align = c->seed % 4 < 3;
    return device_run(arena, c, k, backward);
}
