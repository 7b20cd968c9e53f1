/* The calls of trope bench's CUDA cases, for who wants to know what they are without making them. */
#ifndef TOOLS_TROPE_BENCH_CALLS_H
#define TOOLS_TROPE_BENCH_CALLS_H

#include <stdint.h>

#include "trope/trope.h"

/* A call as the bench makes it. Its addresses, of operands, tables, indices and workspace, are made up: they are aligned as
 * those of the bench and apart from each other, and nothing is there. `device` is TROPE_DEVICE_CUDA. */
typedef struct bench_made_call {
    const char *name; /* case/dtype */
    const trope_args *args;
    int32_t backward; /* 1: it is for trope_backward */
} bench_made_call;

/* Calls `visit` for each dtype of each case. Stops at the first nonzero result, and returns that; nonzero, too, after a
 * complaint about a case that cannot be made. */
int bench_visit_cuda_calls(int (*visit)(void *context, const bench_made_call *call), void *context);

#endif
