/* All kernels of the rotation, for one instruction set. */
#include "fwd/cpu/isa.h"
#include "fwd/cpu/tokens.h"
#include "fwd/cpu/vector_rotate.h"

/* CHUNK_TOKENS is the number of tokens in a chunk, whose coefficients are in memory at the same time. CHUNK_BYTES is the
 * limit for the size of these coefficients (one token of f64 can use all of it). Both are small, so that the
 * coefficients and the prefetched data stay in an L1 cache, and the arithmetic of one token hides the memory accesses of
 * another. */
#define CHUNK_TOKENS 16
#define CHUNK_BYTES  16384

/* Heads of at most this many bytes are assembled in a buffer before they are streamed out. */
#define STAGE_BYTES 4096

/* Windows are prefetched this many heads ahead. The hardware does not prefetch them if they are only parts of heads, or if
 * the heads are far apart. */
#define PREFETCH_HEADS 32

/* The addresses of a head in src and dst. */
typedef struct head_place {
    const char *src;
    char *dst;
} head_place;

static inline void prefetch_run(const char *at, uint64_t ahead, int64_t bytes)
{
    for (int64_t line = 0; line < bytes; line += 64)
        __builtin_prefetch((const void *)((uintptr_t)at + ahead + (uintptr_t)line));
}

#include "fwd/cpu/real_f32.h"
#include "fwd/cpu/elements_template.h"
#include "fwd/cpu/coefficients_template.h"
#include "fwd/cpu/pairs_template.h"
#include "fwd/cpu/part_template.h"
#include "fwd/cpu/norm_template.h"
#include "fwd/cpu/tokens_template.h"

#include "fwd/cpu/real_f64.h"
#include "fwd/cpu/elements_template.h"
#include "fwd/cpu/coefficients_template.h"
#include "fwd/cpu/pairs_template.h"
#include "fwd/cpu/part_template.h"
#include "fwd/cpu/norm_template.h"
#include "fwd/cpu/tokens_template.h"

static void normalised_window(const trope_plan *plan, const trope_plan_operand *o, const trope_token *token,
                              const int64_t head[2], double of_token, double *out)
{
    plan->dtype == TROPE_F64 ? normalised_window_f64(plan, o, token, head, of_token, out)
                             : normalised_window_f32(plan, o, token, head, of_token, out);
}

static void rotate_tokens(const trope_plan *plan, int64_t begin, int64_t end)
{
    plan->dtype == TROPE_F64 ? rotate_tokens_f64(plan, begin, end) : rotate_tokens_f32(plan, begin, end);
}

static void token_angles(const trope_plan *plan, const trope_token *token, trope_token_angles *out)
{
    plan->dtype == TROPE_F64 ? token_angles_f64(plan, token, out) : token_angles_f32(plan, token, out);
}

const trope_token_kernels PASTE(trope_tokens_, ISA_NAME) = {ISA_ID, STRING(ISA_NAME), rotate_tokens, token_angles,
                                                            normalised_window};
