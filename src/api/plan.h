/* Makes the plan of a valid call. */
#ifndef TROPE_API_PLAN_H
#define TROPE_API_PLAN_H

#include "api/args.h"
#include "core/plan.h"

/* The layouts of `call` must have been expanded. */
void trope_make_plan(const trope_call *call, int backward, trope_planned_call *planned);

#endif
