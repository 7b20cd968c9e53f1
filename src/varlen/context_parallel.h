/* Context parallel layouts: the positions that a rank holds. A new layout needs only a new case in trope_plan_cp. All other
 * code uses the numbers that this function fills in. */
#ifndef TROPE_VARLEN_CONTEXT_PARALLEL_H
#define TROPE_VARLEN_CONTEXT_PARALLEL_H

#include <stdint.h>

#include "core/divide.h"
#include "core/host_device.h"
#include "core/plan.h"

#ifndef __CUDACC_RTC__
/* Host only. `tokens` is the number of tokens of a batch entry on this rank. */
static inline trope_cp trope_plan_cp(int32_t layout, int32_t size, int32_t rank, int64_t tokens)
{
    trope_cp cp = {size, 1, 0, 1, {0, 0}, {(uint32_t)size, 0, 0}, 0};
    switch (size > 1 ? layout : 0) {
    case TROPE_CP_CONTIGUOUS:
        cp.lead[0] = cp.lead[1] = rank;
        break;
    case TROPE_CP_ZIGZAG: /* chunks rank and 2 * size - 1 - rank of all 2 * size chunks */
        cp.chunks = 2;
        cp.lead[0] = rank;
        cp.lead[1] = 2 * size - 2 - rank;
        break;
    case TROPE_CP_STRIPED:
        cp.step = size;
        cp.first = rank;
        break;
    case TROPE_CP_FLAT: /* splits the stream, not the sequences */
        cp.split.divisor = 1;
        cp.skipped = rank * tokens;
        break;
    default:
        break;
    }
    cp.split = trope_make_divisor(cp.split.divisor);
    return cp;
}
#endif

/* Returns a number. The length of a sequence, on all ranks together, must be a multiple of it. */
TROPE_HD int64_t trope_cp_divisor(const trope_cp *cp)
{
    return (int64_t)cp->split.divisor * cp->chunks;
}

#endif
