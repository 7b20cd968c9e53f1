/* The transpose: what backward is of forward. M = [c1 -s1; s2 c2] read as M' = [c1 s2; -s1 c2] is M with its sines traded and
 * their signs turned. Nothing below the plan knows a direction. */
#ifndef TROPE_BWD_TRANSPOSE_H
#define TROPE_BWD_TRANSPOSE_H

#include "core/plan.h"

/* Sets how the plan's coefficients are read: as M, or transposed. */
static inline void trope_set_direction(trope_plan *plan, int transposed)
{
    plan->cosine_scale = plan->mscale;
    plan->sine_scale = !transposed == !plan->inverse ? plan->mscale : -plan->mscale;
    plan->swap_sines = transposed;
}

#endif
