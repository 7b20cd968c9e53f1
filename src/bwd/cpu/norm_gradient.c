#include "bwd/cpu/norm_gradient.h"

#include <string.h>

#include "core/element.h"
#include "core/scalar.h"
#include "core/threads.h"

static const trope_norm_gradient_kernels *const kernels[] = {
    [TROPE_ISA_PORTABLE] = &trope_norm_gradient_portable,
#if defined(__x86_64__)
    [TROPE_ISA_AVX2] = &trope_norm_gradient_avx2,
    [TROPE_ISA_AVX512] = &trope_norm_gradient_avx512,
#elif defined(__aarch64__)
    [TROPE_ISA_NEON] = &trope_norm_gradient_neon,
#endif
};

const trope_norm_gradient_kernels *trope_find_norm_gradient(int32_t isa)
{
    return kernels[isa];
}

typedef struct norm_gradient {
    const trope_plan *plan;
    const trope_norm_gradient_kernels *kernels;
    int64_t tokens, run_tokens, runs; /* run_tokens: the length of each run except the last one */
    int64_t weights;                  /* the weights of all operands that have d_weight */
} norm_gradient;

/* Returns the number of weights of an operand that has d_weight, otherwise 0. */
static int64_t wanted_weights(const trope_plan_operand *o)
{
    return o->norm.d_weight ? trope_count_weights(o) : 0;
}

static norm_gradient plan_runs(const trope_plan *plan)
{
    norm_gradient g = {.plan = plan, .tokens = plan->batch * plan->tokens};
    g.run_tokens = (g.tokens + TROPE_NORM_RUNS - 1) / TROPE_NORM_RUNS;
    g.runs = g.tokens ? (g.tokens + g.run_tokens - 1) / g.run_tokens : 0;
    for (int i = 0; i < plan->operand_count; i++)
        g.weights += wanted_weights(&plan->operands[i]);
    return g;
}

/* Returns the size of a sum in bytes. Sums are f32, or f64 with f64 operands. */
static int64_t real_size(const trope_plan *plan)
{
    return trope_element_size(trope_gradient_dtype(plan->dtype));
}

uint64_t trope_norm_gradient_workspace(const trope_plan *plan)
{
    const norm_gradient g = plan_runs(plan);
    return (uint64_t)g.runs * (uint64_t)g.weights * (uint64_t)real_size(plan);
}

static void run_runs(const void *context, int64_t begin, int64_t end)
{
    const norm_gradient *g = context;
    const size_t bytes = (size_t)(g->weights * real_size(g->plan));
    for (int64_t run = begin; run < end; run++) {
        const int64_t first = run * g->run_tokens,
                      after = first + g->run_tokens < g->tokens ? first + g->run_tokens : g->tokens;
        char *const sums = g->weights ? (char *)g->plan->workspace + (size_t)run * bytes : NULL;
        if (sums)
            memset(sums, 0, bytes);
        g->kernels->run(g->plan, first, after, sums);
    }
}

/* Returns the sum over all runs for weight i. */
static double sum_of_runs(const norm_gradient *g, int64_t i)
{
    double sum = 0;
    for (int64_t run = 0; run < g->runs; run++)
        sum += g->plan->dtype == TROPE_F64 ? ((const double *)g->plan->workspace)[run * g->weights + i]
                                           : (double)((const float *)g->plan->workspace)[run * g->weights + i];
    return sum;
}

static void store_weights(const norm_gradient *g)
{
    int64_t first = 0;
    for (int i = 0; i < g->plan->operand_count; i++) {
        const trope_plan_operand *o = &g->plan->operands[i];
        for (int64_t e = 0; e < wanted_weights(o); e++) {
            if (g->plan->dtype == TROPE_F64)
                ((double *)o->norm.d_weight)[e] = sum_of_runs(g, first + e);
            else
                ((float *)o->norm.d_weight)[e] = trope_canonical((float)sum_of_runs(g, first + e));
        }
        first += wanted_weights(o);
    }
}

void trope_norm_gradient(const trope_plan *plan, int32_t isa)
{
    norm_gradient g = plan_runs(plan);
    g.kernels = kernels[isa];
    const int threads = trope_useful_threads(plan->threads, 3 * plan->bytes_written); /* x and dy are read, too */
    trope_parallel_for(threads, g.runs, run_runs, &g);
    store_weights(&g);
}
