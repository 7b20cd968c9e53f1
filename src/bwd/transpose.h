/* The transpose, which turns forward into backward. The transpose of M = [c1 -s1; s2 c2] is M' = [c1 s2; -s1 c2]: its sines
 * are exchanged and change their signs. Code below the plan does not know the direction. */
#ifndef TROPE_BWD_TRANSPOSE_H
#define TROPE_BWD_TRANSPOSE_H

#include "core/plan.h"

/* Sets how the plan's coefficients are read: as M, or as its transpose. */
static inline void trope_set_direction(trope_plan *plan, int transposed)
{
    plan->cosine_scale = plan->mscale;
    plan->sine_scale = !transposed == !plan->inverse ? plan->mscale : -plan->mscale;
    plan->swap_sines = transposed;
}

#endif
