/* The gradient of the angles on CUDA: the launches of a call. */
#include "bwd/cuda/angle_gradient.h"

#include <math.h>

#include "bwd/cuda/head_sums.h"
#include "bwd/cuda/kernels.h"
#include "bwd/cuda/plan_gradient.cuh"

/* Maximum number of bytes of a token, whose elements are counted in 32 bits. */
#define MOST_BYTES 3.2e9

int trope_cuda_gradient_fits(const trope_plan *plan)
{
    const double units = (double)plan->batch * (double)plan->tokens, batch = plan->d_freqs_stride.batch ? plan->batch : 1,
                 buckets = plan->d_freqs ? (double)rows_of_gradient(*plan) * batch : 0;
    return elements_of_token(*plan) * plan->element_size < MOST_BYTES && fmax(units, buckets) * plan->pair_axes < INT32_MAX;
}

uint64_t trope_cuda_gradient_workspace(const trope_plan *plan)
{
    gradient_call g;
    angle_sums sums;
    if (!trope_has_angle_gradient(plan))
        return 0;
    plan_gradient(*plan, &g);
    return plan_sums(g, &sums);
}

const trope_cuda_kernel *trope_cuda_find_gradient(const trope_plan *plan)
{
    return &trope_backward_kernels_of(plan->dtype)->gradient[gradient_can_be_vectors(*plan)];
}

/* ---- launches ---- */

/* The state of a call's launches. After the first failed launch, nothing more is launched. */
struct gradient_launches {
    device_facts device;
    void *stream;
    cudaError_t error;
};

static void launch(gradient_launches *l, const void *kernel, const block_launch &size, void **arguments)
{
    if (l->error == cudaSuccess && size.blocks.x > 0)
        l->error =
            launch_early(l->device, kernel, size.blocks, size.threads, size.shared_memory_bytes, l->stream, arguments);
}

/* Launches an adder with enough blocks for `count` elements, `of_block` for each block. */
static void launch_adder(gradient_launches *l, const void *kernel, int64_t count, int64_t of_block, const angle_sums &s)
{
    const bool is_wide = kernel == trope_angle_sums.add_rows || kernel == trope_angle_sums.scan_counts;
    const uint32_t counted = kernel == trope_angle_sums.move_items ? SUMS_WARPS : kernel == trope_angle_sums.count_digits;
    block_launch size = {};
    size.blocks = dim3((unsigned)quotient_up(count, of_block));
    size.threads = dim3(is_wide ? WIDE_THREADS : (unsigned)SUMS_THREADS);
    size.shared_memory_bytes = counted * sizeof(uint32_t) << s.bits;
    void *arguments[] = {(void *)&s};
    launch(l, kernel, size, arguments);
}

template <class CALL>
static void launch_kernel_of_pass(const gradient_call &of, bool vectors, size_t shared_memory_bytes, gradient_launches *l)
{
    CALL g;
    static_cast<gradient_call &>(g) = of;
    plan_segments(vectors, &g);
    const uint32_t units = g.shape.tokens_of_block, threads = units * g.unit_threads.divisor;
    block_launch size = {};
    size.blocks = dim3((unsigned)quotient_up(g.shape.tokens, units));
    size.threads = dim3((unsigned)quotient_up(threads, 32) * 32);
    size.shared_memory_bytes = shared_memory_bytes;
    void *arguments[] = {&g, g.plan.plan.step};
    launch(l, trope_backward_kernels_of(g.plan.plan.dtype)->gradient[vectors].function, size, arguments);
}

static void launch_pass(const gradient_call &g, bool vectors, size_t shared_memory_bytes, gradient_launches *l)
{
    if (vectors)
        launch_kernel_of_pass<narrow_gradient>(g, true, shared_memory_bytes, l);
    else
        launch_kernel_of_pass<wide_gradient>(g, false, shared_memory_bytes, l);
}

/* Sorts the units of a call by rows of d_freqs, and adds the units of each row. */
static void launch_sorted(angle_sums *s, gradient_launches *l)
{
    uint32_t bits = 1;
    while ((uint32_t)s->plan.pair_axes * s->buckets >> bits)
        bits++;
    s->bits = (uint32_t)quotient_up(bits, quotient_up(bits, SORT_MAX_BITS));
    for (s->shift = 0; s->shift < bits; s->shift += s->bits, s->from = !s->from) {
        launch_adder(l, trope_angle_sums.count_digits, s->tiles, 1, *s);
        launch_adder(l, trope_angle_sums.scan_counts, 1, 1, *s);
        launch_adder(l, trope_angle_sums.move_items, s->tiles, 1, *s);
    }
    launch_adder(l, trope_angle_sums.join_runs, s->items, SUMS_WARPS * RUN_ITEMS, *s);
    launch_adder(l, trope_angle_sums.sum_rows, s->buckets, SUMS_WARPS, *s);
}

static void launch_all(const gradient_call &g, bool vectors, size_t shared_memory_bytes, angle_sums *s,
                       gradient_launches *l)
{
    const trope_plan &plan = g.plan.plan;
    const bool is_known = g.mode == GRADIENT_DIRECT || g.mode == GRADIENT_TOKENS;
    if (plan.d_freqs && (g.shape.tokens == 0 || (is_known && plan.tokens != plan.angles.rows)))
        launch_adder(l, trope_angle_sums.sum_rows, s->buckets, SUMS_WARPS, *s); /* without items, this writes zeros */
    launch_pass(g, vectors, shared_memory_bytes, l);
    if (g.mode == GRADIENT_TOTAL || g.mode == GRADIENT_TOKENS)
        launch_adder(l, trope_angle_sums.add_rows, s->width, WIDE_THREADS / s->column_threads, *s);
    else if (g.mode == GRADIENT_SEQUENCES && g.shape.tokens > 0)
        launch_adder(l, trope_angle_sums.add_sequences, s->buckets, SUMS_WARPS / s->row_warps, *s);
    else if (g.mode == GRADIENT_SORTED && g.shape.tokens > 0)
        launch_sorted(s, l);
}

/* Runs the operands whose dst receives a sum, as a separate call. */
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

/* Sums of heads are launched first. If they are too large for one launch, the call fails before it has written anything. */
trope_status trope_cuda_run_gradient(const char *function, const trope_plan *plan)
{
    gradient_call g;
    angle_sums sums;
    const size_t shared_memory_bytes = plan_gradient(*plan, &g);
    plan_sums(g, &sums);
    g.sums = sums.sums;
    g.keys = sums.keys[0];
    g.values = sums.values[0];
    const trope_status status = run_sums(function, *plan);
    if (status)
        return status;
    gradient_launches launches = {};
    launches.device = facts_of_device();
    launches.stream = plan->stream;
    launch_all(g, gradient_can_be_vectors(*plan), shared_memory_bytes, &sums, &launches);
    return launches.error == cudaSuccess ? TROPE_OK : fail_cuda(function, launches.error);
}
