/* From a plan to the backend that runs it. */
#ifndef TROPE_API_DISPATCH_H
#define TROPE_API_DISPATCH_H

#include "core/plan.h"

/* Validates the call, makes its plan and runs it. */
trope_status trope_run(const char *function, const trope_args *args, int backward);

#endif
