/* From a caller's args to the backend that runs them. */
#ifndef TROPE_API_DISPATCH_H
#define TROPE_API_DISPATCH_H

#include "trope/trope.h"

/* Validates the call, makes its plan and runs it, in the default floating-point environment. */
trope_status trope_run(const char *function, const trope_args *args, int backward);

#endif
