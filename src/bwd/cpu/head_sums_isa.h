/* The kernel of sums over heads, for one instruction set. */
#include "bwd/cpu/head_sums.h"
#include "fwd/cpu/isa.h"

/* The number of elements that are summed at a time, which take 128 bytes. In a window, one half of them are the first
 * elements of pairs, and the other half the second elements. */
#define SUM_WIDTH ((int)(128 / sizeof(REAL)))

/* The maximum number of sums that wait for their neighbour: one for each level of the tree. Heads are counted in 64
 * bits. */
#define SUM_LEVELS 64

#include "fwd/cpu/real_f32.h"
#include "fwd/cpu/elements_template.h"
#include "fwd/cpu/coefficients_template.h"
#include "fwd/cpu/pairs_template.h"
#include "bwd/cpu/head_sums_template.h"

#include "fwd/cpu/real_f64.h"
#include "fwd/cpu/elements_template.h"
#include "fwd/cpu/coefficients_template.h"
#include "fwd/cpu/pairs_template.h"
#include "bwd/cpu/head_sums_template.h"

static void sum_tokens(const trope_plan *plan, int64_t begin, int64_t end)
{
    plan->dtype == TROPE_F64 ? sum_tokens_f64(plan, begin, end) : sum_tokens_f32(plan, begin, end);
}

const trope_head_sum_kernels PASTE(trope_head_sums_, ISA_NAME) = {sum_tokens};
