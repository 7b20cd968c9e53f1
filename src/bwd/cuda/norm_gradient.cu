/* The backward of norms on CUDA: the launches of a call, and the kernel that adds the sums of cells for d_weight. */
#include "bwd/cuda/norm_gradient.h"

#include "bwd/cuda/angle_gradient.h"
#include "bwd/cuda/head_sums.h"
#include "bwd/cuda/kernels.h"
#include "bwd/cuda/plan_norm_gradient.cuh"
#include "fwd/cuda/norm.h"
#include "fwd/cuda/rotate.h"

/* ---- the sums of d_weight ---- */

/* The 16 bytes of a column that a thread loads at a time. */
template <typename REAL> struct alignas(16) sums_of_thread {
    static constexpr uint32_t COUNT = 16 / sizeof(REAL);
    REAL of[COUNT];
};

/* Adds a column over all runs. Threads add different runs. They add four float sums in float before they convert the
 * result to double. Then one warp adds the results of all warps for one weight. */
template <typename REAL>
__device__ __forceinline__ void add_column(const weight_sums &s, const weight_sums::operand &o, uint32_t column)
{
    typedef sums_of_thread<REAL> part;
    constexpr uint32_t PARTS = COLUMN_SUMS / part::COUNT, RUN_STEP = COLUMN_THREADS / PARTS, TOGETHER = 8, FOUR = 4;
    __shared__ double of_warps[COLUMN_THREADS / 32][COLUMN_SUMS];
    const uint32_t first_run = threadIdx.x / PARTS, lane = threadIdx.x % 32, warp = threadIdx.x / 32, runs = s.cells.runs;
    double sum[part::COUNT] = {};
    for (uint32_t slice = 0; slice < o.slices; slice++) {
        const part *const from = (const part *)s.cells.of_columns +
                                 (size_t)(o.sums_at + slice * o.columns + column) * runs * PARTS + threadIdx.x % PARTS;
        for (uint32_t run = first_run; run < runs; run += TOGETHER * RUN_STEP) {
            part loaded[TOGETHER];
#pragma unroll
            for (uint32_t i = 0; i < TOGETHER; i++)
                loaded[i] = from[(size_t)min(run + i * RUN_STEP, runs - 1) * PARTS];
#pragma unroll
            for (uint32_t i = 0; i < TOGETHER; i += FOUR)
#pragma unroll
                for (uint32_t e = 0; e < part::COUNT; e++) {
                    REAL of_four[FOUR];
#pragma unroll
                    for (uint32_t j = 0; j < FOUR; j++)
                        of_four[j] = run + (i + j) * RUN_STEP < runs ? loaded[i + j].of[e] : 0;
                    sum[e] += (double)(of_four[0] + of_four[1] + (of_four[2] + of_four[3]));
                }
        }
    }
#pragma unroll
    for (uint32_t e = 0; e < part::COUNT; e++) {
        for (uint32_t step = PARTS; step < 32; step *= 2)
            sum[e] += __shfl_xor_sync(UINT32_MAX, sum[e], (int)step);
        if (lane < PARTS)
            of_warps[warp][lane * part::COUNT + e] = sum[e];
    }
    __syncthreads();
    const uint32_t weight = column * COLUMN_SUMS + warp;
    if (warp >= COLUMN_SUMS || weight >= o.weights)
        return;
    double total = of_warps[lane][warp];
    for (int step = 1; step < 32; step *= 2)
        total += __shfl_xor_sync(UINT32_MAX, total, step);
    if (lane == 0)
        ((REAL *)o.d_weight)[weight] = (REAL)total;
}

static __global__ void __launch_bounds__(COLUMN_THREADS) add_weights_kernel(KERNEL_PARAMETER(weight_sums) s)
{
    take_turn();
    uint32_t operand = 0, column = blockIdx.x;
    for (; column >= s.of[operand].columns; operand++)
        column -= s.of[operand].columns;
    if (s.is_f64)
        add_column<double>(s, s.of[operand], column);
    else
        add_column<float>(s, s.of[operand], column);
}

/* ---- plans ---- */

/* Some operands of a plan, as a separate call. */
struct part_of_plan {
    trope_plan plan;
    trope_plan_operand operands[TROPE_MAX_OPERANDS];

    explicit part_of_plan(const trope_plan &of) : plan(of)
    {
        plan.operands = operands;
        plan.operand_count = 0;
    }

    part_of_plan(const part_of_plan &) = delete;

    void take(const trope_plan_operand &o)
    {
        operands[plan.operand_count++] = o;
    }
};

/* The pass over heads that have a norm. It rounds once, and numbers tokens in a fixed order (batch entries outermost). */
struct norm_pass : part_of_plan {
    int32_t rounding; /* the call's rounding */

    /* finds_slopes takes all operands that have a norm, even without other results. */
    explicit norm_pass(const trope_plan &of, bool finds_slopes = false) : part_of_plan(of), rounding(of.rounding)
    {
        plan.rounding = TROPE_ROUND_ONCE;
        plan.batch_outermost = 1;
        plan.d_freqs = NULL;
        plan.d_inv_freq = NULL;
        for (int i = 0; i < of.operand_count; i++)
            if (of.operands[i].norm.is_given && (finds_slopes || moves_operand(of, of.operands[i])))
                take(of.operands[i]);
        if (!rotating_heads(plan))
            plan.pairs = 0; /* a rotating operand without a norm may have pairs that are not whole vectors */
    }
};

static const trope_cuda_kernel *find_pass(const norm_pass &pass, const block_form &form)
{
    const trope_backward_kernels *const kernels = trope_backward_kernels_of(pass.plan.dtype);
    if (!form.vectors)
        return &kernels->norm.elements;
    const trope_plan_norm &n = common_norm(pass.plan).head->norm;
    if (form.walks)
        return &kernels->walk[form.one_head];
    return n.is_token ? &kernels->norm.vectors : find_norm_kernel(kernels->norm, pass.plan, form);
}

static block_form form_of_pass(const norm_pass &pass)
{
    return form_of_norm_gradient(pass.plan, pass.rounding);
}

/* Some calls need launches that find rstd (if the caller does not give it) and the slope of heads or tokens, because
 * later launches read them. These launches come first, because dx may overwrite dy. The vector kernel finds both for its
 * own tokens, unless the gradient of the angles needs them too. */
struct norm_plans {
    part_of_plan heads, tokens; /* operands whose rstd and slopes separate launches find */
    part_of_plan known;         /* the whole plan, which reads these results */
    uint64_t size;              /* bytes of workspace for these results */

    norm_plans(const trope_plan &plan, void *workspace) : heads(plan), tokens(plan), known(plan), size(0)
    {
        const bool knows_tokens = !trope_has_angle_gradient(&plan) && form_of_pass(norm_pass(plan)).vectors;
        for (int i = 0; i < plan.operand_count; i++) {
            trope_plan_operand o = plan.operands[i];
            const bool has_angles = trope_has_angle_gradient(&plan) && o.rotary_dim,
                       is_token = o.norm.is_token && !knows_tokens,
                       finds_slope =
                           o.norm.is_given && !trope_writes_sums(&o) && (is_token || (has_angles && o.norm.is_after)),
                       finds_rstd = o.norm.is_given && (is_token || has_angles) && !o.norm.rstd;
            const uint64_t bytes =
                (uint64_t)(plan.batch * plan.tokens) * (is_token ? 1 : trope_heads_of_token(&o)) * bytes_of_real(plan);
            if (finds_rstd)
                o.norm.rstd = take<char>(workspace, bytes, &size);
            if (finds_slope)
                o.norm.slope = take<char>(workspace, bytes, &size);
            if (finds_rstd || finds_slope || (is_token && o.norm.sums))
                (is_token ? tokens : heads).take(without_results(o, !finds_rstd));
            if (is_token)
                o.norm.sums = NULL;
            o.norm.reads_rstd = o.norm.is_given && o.norm.rstd;
            known.take(o);
        }
    }

    static trope_plan_operand without_results(trope_plan_operand o, bool reads_rstd)
    {
        o.dst = NULL;
        o.norm.d_weight = NULL;
        o.norm.reads_rstd = reads_rstd;
        return o;
    }
};

/* A dummy workspace for plans that are not launched. With NULL, a plan would have no slopes. */
#define NOWHERE ((void *)16)

uint64_t trope_cuda_norm_gradient_workspace(const trope_plan *plan)
{
    weight_sums sums;
    const norm_plans plans(*plan, NOWHERE);
    return plans.size +
           std::max(trope_cuda_gradient_workspace(plan), plan_weight_sums(norm_pass(plans.known.plan).plan, NULL, &sums));
}

const trope_cuda_kernel *trope_cuda_find_norm_gradient(const trope_plan *plan)
{
    const norm_plans plans(*plan, NOWHERE);
    const norm_pass pass(plans.known.plan);
    return find_pass(pass, form_of_pass(pass));
}

int trope_cuda_norm_gradient_fits(const trope_plan *plan)
{
    if ((double)plan->batch * (double)plan->tokens >= INT32_MAX || elements_of_token(*plan) > INT32_MAX / 8)
        return 0;
    const norm_plans plans(*plan, NOWHERE);
    return plan_cells(norm_pass(plans.known.plan).plan).slices <= MOST_GRID_Y;
}

/* ---- launches ---- */

static trope_status result_of(const char *function, cudaError_t error)
{
    return error == cudaSuccess ? TROPE_OK : fail_cuda(function, error);
}

static trope_status launch_generic_pass(const char *function, const norm_pass &pass, const norm_cells &cells,
                                        const left_sums &sums, bool finds_tokens)
{
    norm_gradient_generic_call call;
    const trope_plan &plan = pass.plan;
    const void *const kernel = trope_backward_kernels_of(plan.dtype)->norm.elements.function;
    call.cells = cells;
    call.finds_tokens = finds_tokens;
    const size_t shared_memory_bytes = plan_norm_generic(plan, call.cells.run_tokens, &call);
    call.shape.rotating_slices *= call.cells.slices;
    call.rounding = pass.rounding;
    call.sums = sums;
    plan_operand_gradients(plan, call.cells, call.gradient);
    call.rstd_at = (uint32_t)quotient_up((int64_t)shared_memory_bytes, 16) * 16;
    for (int i = 0; i < plan.operand_count; i++) {
        call.x[i] = plan_head_tensor(plan, plan.operands[i].forward_src, plan.operands[i].forward_src_stride);
        call.of[call.operands++] = plan_head_operand(plan, plan.operands[i]);
    }
    const size_t heads = finds_tokens ? 0 : call.cells.run_tokens * call.cells.slice_units * NORM_HEADS,
                 bytes = call.rstd_at + heads * bytes_of_real(plan);
    REQUIRE(bytes <= ASKED_SHARED_MEMORY, TROPE_ERROR_UNSUPPORTED, "operands (%lld tokens) are too large for one launch",
            (long long)(plan.batch * plan.tokens));
    void *arguments[] = {&call, plan.step};
    return result_of(function, launch_early(facts_of_device(), kernel, dim3(call.cells.runs, call.cells.slices),
                                            dim3(32 * NORM_WARPS), bytes, plan.stream, arguments));
}

static trope_status launch_vectors(const char *function, const norm_pass &pass, const block_form &form,
                                   const left_sums &sums)
{
    norm_gradient_call call;
    const trope_plan &plan = pass.plan;
    const void *const kernel = find_pass(pass, form)->function;
    const block_launch l = plan_blocks<norm_gradient_blocks>(plan, form, &call);
    call.sums = sums;
    const unsigned threads = l.threads.x * l.threads.y;
    if (form.walks) {
        call.vectors_ahead_at = (uint32_t)(l.shared_memory_bytes - bytes_of_vectors_ahead(form, threads));
        call.thread_sums_at = (uint32_t)(call.vectors_ahead_at - bytes_of_thread_sums(form, threads));
    }
    REQUIRE(l.fits, TROPE_ERROR_UNSUPPORTED, "operands (%lld tokens) are too large for one launch",
            (long long)(plan.batch * plan.tokens));
    void *arguments[] = {&call, plan.step};
    return result_of(function, launch_early(facts_of_device(), kernel, l.blocks, l.threads, l.shared_memory_bytes,
                                            plan.stream, arguments));
}

static trope_status launch_pass(const char *function, const norm_pass &pass, void *workspace)
{
    const trope_plan &plan = pass.plan;
    weight_sums sums;
    trope_status status = TROPE_OK;
    plan_weight_sums(plan, workspace, &sums);
    if (plan.operand_count && plan.batch * plan.tokens > 0) {
        const block_form form = form_of_pass(pass);
        status = form.vectors ? launch_vectors(function, pass, form, sums.cells)
                              : launch_generic_pass(function, pass, plan_cells(plan), sums.cells, false);
    }
    if (status || !sums.operands)
        return status;
    void *arguments[] = {&sums};
    return result_of(function, launch_early(facts_of_device(), (const void *)add_weights_kernel, dim3(sums.columns),
                                            dim3(COLUMN_THREADS), 0, plan.stream, arguments));
}

/* Runs the operands that have no norm. */
static trope_status run_others(const char *function, const trope_plan &plan)
{
    if (!moves_something(plan))
        return TROPE_OK;
    return trope_cuda_has_sums(&plan) ? trope_cuda_sum_heads(function, &plan) : trope_cuda_rotate(function, &plan);
}

/* Finds the rstd and slopes of heads, or of tokens. For tokens, each token is one cell. */
static trope_status find_slopes(const char *function, const trope_plan &plan, bool of_tokens)
{
    const norm_pass pass(plan, true);
    norm_cells cells = plan_cells(pass.plan);
    if (!pass.plan.operand_count || plan.batch * plan.tokens == 0)
        return TROPE_OK;
    if (of_tokens)
        cells = {1, (uint32_t)(plan.batch * plan.tokens), cells.units, cells.units, 1, cells.units};
    return launch_generic_pass(function, pass, cells, left_sums{}, of_tokens);
}

/* Runs the gradient of the angles, which also moves the operands without a norm. */
static trope_status run_angles(const char *function, const trope_plan &known, void *workspace)
{
    part_of_plan angles(known);
    angles.plan.workspace = workspace;
    for (int i = 0; i < known.operand_count; i++)
        angles.take(known.operands[i].norm.is_given ? norm_plans::without_results(known.operands[i], true)
                                                    : known.operands[i]);
    return trope_cuda_run_gradient(function, &angles.plan);
}

trope_status trope_cuda_run_norm_gradient(const char *function, const trope_plan *plan)
{
    const norm_plans plans(*plan, plan->workspace);
    const trope_plan &known = plans.known.plan;
    void *const workspace = (char *)plan->workspace + plans.size;
    part_of_plan others(*plan);
    for (int i = 0; i < plan->operand_count; i++)
        if (!plan->operands[i].norm.is_given)
            others.take(plan->operands[i]);
    trope_status status = find_slopes(function, plans.heads.plan, false);
    status = status ? status : find_slopes(function, plans.tokens.plan, true);
    if (!status)
        status =
            trope_has_angle_gradient(plan) ? run_angles(function, known, workspace) : run_others(function, others.plan);
    return status ? status : launch_pass(function, norm_pass(known), workspace);
}
