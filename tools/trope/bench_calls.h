/* The calls of trope bench's CUDA cases, for code that inspects them without running them. */
#ifndef TOOLS_TROPE_BENCH_CALLS_H
#define TOOLS_TROPE_BENCH_CALLS_H

#include <stdint.h>

#include "trope/trope.h"

/* A call as the bench makes it. The addresses of operands, tables, indices and workspace are invented: they have the
 * bench's alignment and do not overlap, but there is no memory behind them. `device` is TROPE_DEVICE_CUDA. */
typedef struct bench_made_call {
    const char *name; /* case/dtype */
    const trope_args *args;
    int32_t backward; /* 1: for trope_backward */
} bench_made_call;

/* Calls `visit` for each dtype of each case. Stops at the first nonzero result and returns it. Also returns nonzero after a
 * complaint about a case that cannot be made. */
int bench_visit_cuda_calls(int (*visit)(void *context, const bench_made_call *call), void *context);

#endif
