/* The gradient of the angles on CUDA: the launches of a call. */
#include "bwd/cuda/angle_gradient.h"

#include <stdio.h>

#include "bwd/cuda/head_sums.h"
#include "bwd/cuda/kernels.h"
#include "bwd/cuda/plan_gradient.cuh"

/* Elements of a token that are counted in 32 bits. */
#define MOST_BYTES_OF_TOKEN 3.2e9

int trope_cuda_gradient_fits(const trope_plan *plan)
{
    const double limit = INT32_MAX, units = (double)plan->batch * (double)plan->tokens;
    const double buckets =
        plan->d_freqs ? (double)rows_of_gradient(*plan) * (plan->d_freqs_stride.batch ? (double)plan->batch : 1) : 0;
    return elements_of_row(*plan) * plan->element_size < MOST_BYTES_OF_TOKEN && units * plan->axes < limit &&
           buckets * plan->axes < limit;
}

uint64_t trope_cuda_gradient_workspace(const trope_plan *plan)
{
    gradient_call g;
    if (!trope_has_angle_gradient(plan))
        return 0;
    plan_gradient(*plan, &g);
    return lay_out(g).size;
}

void trope_cuda_gradient_name(const trope_plan *plan, char *name, size_t size)
{
    static const char *const modes[] = {"direct", "parts", "packed", "sorted", "frequencies"};
    gradient_call g;
    plan_gradient(*plan, &g);
    snprintf(name, size, "%s-gradient-%s", gradient_has_vectors(*plan) ? "vectors" : "elements", modes[g.mode]);
}

/* ---- launches ---- */

/* The launches of a call, up to the first that fails. */
struct gradient_launches {
    device_facts device;
    void *stream;
    cudaError_t error;
};

struct launch_size {
    int64_t blocks;
    uint32_t threads;
    size_t shared_bytes;
};

static void launch_with(gradient_launches *l, const void *kernel, launch_size size, void **arguments)
{
    if (l->error == cudaSuccess && size.blocks > 0)
        l->error = launch_early(l->device, kernel, dim3((unsigned)size.blocks), size.threads, size.shared_bytes, l->stream,
                                arguments);
}

template <typename ARGUMENT>
static void launch(gradient_launches *l, const void *kernel, launch_size size, const ARGUMENT &argument)
{
    void *arguments[] = {(void *)&argument};
    launch_with(l, kernel, size, arguments);
}

static const trope_backward_kernels *kernels_of(int32_t dtype)
{
    return dtype == TROPE_F32    ? &trope_backward_f32
           : dtype == TROPE_F16  ? &trope_backward_f16
           : dtype == TROPE_BF16 ? &trope_backward_bf16
                                 : &trope_backward_f64;
}

static void launch_pass(gradient_call *g, size_t shared_bytes, gradient_launches *l)
{
    const trope_plan &plan = g->plan.plan;
    const bool vectors = gradient_has_vectors(plan);
    const uint32_t threads = g->shape.rows_of_block * g->unit_threads.divisor;
    plan_gradient_operands(vectors, g);
    void *arguments[] = {g, plan.step};
    launch_with(l, kernels_of(plan.dtype)->gradient[vectors],
                {blocks_of_pass(*g), (uint32_t)quotient_up(threads, 32) * 32, shared_bytes}, arguments);
}

static void launch_clear(const gradient_call &g, gradient_launches *l)
{
    const int64_t blocks = quotient_up(g.buckets, SUMS_WARPS);
    launch(l, trope_angle_sums.clear, {std::min<int64_t>(blocks, 65536), SUMS_THREADS, 0}, g.plan.plan);
}

/* Adds sums that follow each other in a known way. */
static void launch_known(const gradient_call &g, gradient_launches *l)
{
    const int64_t tokens = g.plan.plan.tokens, columns = g.columns.divisor;
    left_sums sums = {g.plan.plan, g.sums, blocks_of_pass(g)};
    if (g.mode == GRADIENT_FREQUENCIES)
        launch(l, trope_angle_sums.add_frequencies, {quotient_up(columns, FREQUENCY_PAIRS), FREQUENCY_THREADS, 0}, sums);
    if (g.mode == GRADIENT_PACKED && tokens > 0)
        launch(l, trope_angle_sums.add_packed, {quotient_up(g.buckets, SUMS_WARPS), SUMS_THREADS, 0}, sums);
    sums.rows = quotient_up(g.batch, g.entries);
    if (g.mode == GRADIENT_PARTS)
        launch(l, trope_angle_sums.add_parts, {quotient_up(tokens * columns, SUMS_THREADS), SUMS_THREADS, 0}, sums);
}

static void launch_digit(const sort_pass &s, gradient_launches *l)
{
    const size_t counters = sizeof(uint32_t) << s.bits;
    launch(l, trope_angle_sums.count_digits, {s.tiles, SUMS_THREADS, counters}, s);
    launch(l, trope_angle_sums.scan_counts, {1, SCAN_THREADS, 0}, s);
    launch(l, trope_angle_sums.move_items, {s.tiles, SUMS_THREADS, SUMS_WARPS * counters}, s);
}

/* Sorts the units of a call, and adds them by rows of d_freqs. */
static void launch_sorted(const gradient_call &g, const gradient_workspace &w, gradient_launches *l)
{
    char *const base = (char *)g.plan.plan.workspace;
    uint32_t bits = 0, passes;
    while ((uint32_t)g.plan.plan.axes * g.buckets >> bits)
        bits++;
    passes = (uint32_t)quotient_up(bits, SORT_MAX_BITS);
    sorted_sums sums = {g.plan.plan, g.sums, g.keys, g.values, sort_items(g), g.buckets};
    sort_pass s;
    memset(&s, 0, sizeof s);
    s.counts = (uint32_t *)(base + w.counts);
    s.items = sums.items;
    s.tiles = sort_tiles(g);
    s.bits = (uint32_t)quotient_up(bits, passes);
    s.warp_items = sort_warp_items(g);
    for (uint32_t pass = 0; pass < passes; pass++, s.shift += s.bits) {
        const int to = pass % 2 ? 0 : 1;
        s.keys = sums.keys;
        s.values = sums.values;
        sums.keys = s.sorted_keys = (uint32_t *)(base + w.keys[to]);
        sums.values = s.sorted_values = (uint32_t *)(base + w.values[to]);
        launch_digit(s, l);
    }
    launch(l, trope_angle_sums.join_runs, {quotient_up(sums.items, SUMS_WARPS * RUN_ITEMS), SUMS_THREADS, 0}, sums);
    launch(l, trope_angle_sums.sum_rows, {quotient_up(sums.buckets, SUMS_WARPS), SUMS_THREADS, 0}, sums);
}

static void launch_all(gradient_call *g, const gradient_workspace &w, size_t shared_bytes, gradient_launches *l)
{
    const trope_plan &plan = g->plan.plan;
    const bool is_known = g->mode == GRADIENT_DIRECT || g->mode == GRADIENT_PARTS;
    if (plan.d_freqs && (g->shape.rows == 0 || (is_known && plan.tokens != plan.angles.rows)))
        launch_clear(*g, l);
    launch_pass(g, shared_bytes, l);
    launch_known(*g, l);
    if (g->mode == GRADIENT_SORTED && g->shape.rows > 0)
        launch_sorted(*g, w, l);
}

/* The operands whose dst receives a sum, as a call of their own. */
static trope_status run_sums(const char *function, const trope_plan &plan)
{
    trope_plan_operand operands[TROPE_MAX_OPERANDS];
    trope_plan sums = plan;
    sums.operands = operands;
    sums.operand_count = 0;
    for (int i = 0; i < plan.operand_count; i++)
        if (plan.operands[i].dst && trope_is_summed(&plan.operands[i]))
            operands[sums.operand_count++] = plan.operands[i];
    return sums.operand_count && plan.tokens > 0 ? trope_cuda_sum_heads(function, &sums) : TROPE_OK;
}

/* Sums first: where they are more than one launch can take nothing has been written. */
trope_status trope_cuda_run_gradient(const char *function, const trope_plan *plan)
{
    gradient_call g;
    const size_t shared_bytes = plan_gradient(*plan, &g);
    const gradient_workspace w = lay_out(g);
    char *const base = (char *)plan->workspace;
    g.sums = (double *)(base + w.sums);
    g.keys = (uint32_t *)(base + w.keys[0]);
    g.values = (uint32_t *)(base + w.values[0]);
    const trope_status status = run_sums(function, *plan);
    if (status)
        return status;
    gradient_launches launches = {facts_of_device(), plan->stream, cudaSuccess};
    launch_all(&g, w, shared_bytes, &launches);
    return launches.error == cudaSuccess ? TROPE_OK : fail_cuda(function, launches.error);
}
