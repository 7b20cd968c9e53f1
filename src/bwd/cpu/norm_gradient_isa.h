/* The backward of norms, for one instruction set. */
#include "bwd/cpu/norm_gradient.h"
#include "fwd/cpu/isa.h"

#include "fwd/cpu/real_f32.h"
#include "fwd/cpu/elements_template.h"
#include "fwd/cpu/coefficients_template.h"
#include "fwd/cpu/pairs_template.h"
#include "fwd/cpu/part_template.h"
#include "fwd/cpu/norm_template.h"
#include "bwd/cpu/norm_gradient_template.h"

#include "fwd/cpu/real_f64.h"
#include "fwd/cpu/elements_template.h"
#include "fwd/cpu/coefficients_template.h"
#include "fwd/cpu/pairs_template.h"
#include "fwd/cpu/part_template.h"
#include "fwd/cpu/norm_template.h"
#include "bwd/cpu/norm_gradient_template.h"

static void gradient_of_tokens(const trope_plan *plan, int64_t begin, int64_t end, void *sums)
{
    plan->dtype == TROPE_F64 ? gradient_of_tokens_f64(plan, begin, end, sums)
                             : gradient_of_tokens_f32(plan, begin, end, sums);
}

static void gradient_of_window(const trope_plan *plan, const trope_plan_operand *o, const trope_token *token,
                               const trope_token_angles *angles, const int64_t head[2], const trope_token_norm *token_norm,
                               void *du)
{
    plan->dtype == TROPE_F64 ? gradient_of_window_f64(plan, o, token, angles, head, token_norm, du)
                             : gradient_of_window_f32(plan, o, token, angles, head, token_norm, du);
}

static trope_token_norm norm_of_token(const trope_plan *plan, const trope_plan_operand *o, const trope_token *token,
                                      const trope_token_angles *angles, void *window)
{
    return plan->dtype == TROPE_F64 ? norm_of_token_f64(plan, o, token, angles, window)
                                    : norm_of_token_f32(plan, o, token, angles, window);
}

const trope_norm_gradient_kernels PASTE(trope_norm_gradient_, ISA_NAME) = {gradient_of_tokens, gradient_of_window,
                                                                           norm_of_token};
