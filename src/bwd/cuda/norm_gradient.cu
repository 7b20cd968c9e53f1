/* The backward of norms on CUDA: the launches of a call, and the kernel that adds what cells have left for d_weight. */
#include "bwd/cuda/norm_gradient.h"

#include "bwd/cuda/angle_gradient.h"
#include "bwd/cuda/head_sums.h"
#include "bwd/cuda/kernels.h"
#include "bwd/cuda/plan_norm_gradient.cuh"
#include "fwd/cuda/norm.h"
#include "fwd/cuda/rotate.h"

/* ---- the sums of d_weight ---- */

#define WEIGHT_ROWS (WEIGHT_THREADS / WEIGHT_COLUMNS)

/* The sum of the thread's weight over every WEIGHT_ROWS-th run from `first` on. */
template <typename REAL>
__device__ __forceinline__ double add_runs(const weight_sums &s, const weight_sums::operand &o, uint32_t weight,
                                           uint32_t first, uint32_t end)
{
    constexpr uint32_t TOGETHER = 16; /* that are on their way */
    double sum = 0;
    for (uint32_t slice = 0; slice < o.slices; slice++) {
        const REAL *const from = (const REAL *)s.cells.of_runs + o.sums_at + slice * o.weights + weight;
        for (uint32_t run = first; run < end; run += TOGETHER * WEIGHT_ROWS) {
            REAL loaded[TOGETHER];
#pragma unroll
            for (uint32_t i = 0; i < TOGETHER; i++)
                loaded[i] = from[(size_t)min(run + i * WEIGHT_ROWS, end - 1) * s.cells.width];
#pragma unroll
            for (uint32_t i = 0; i < TOGETHER; i++)
                sum += run + i * WEIGHT_ROWS < end ? (double)loaded[i] : 0;
        }
    }
    return sum;
}

/* The sum of the thread's weight over one part of the runs. Rows of threads add different runs, and then a warp adds the 32 rows of one
 * weight. */
__device__ __forceinline__ double add_part(const weight_sums &s, const weight_sums::operand &o, uint32_t weight,
                                           bool present)
{
    __shared__ double of_rows[WEIGHT_ROWS][WEIGHT_COLUMNS + 1]; /* (columns in different banks) */
    const uint32_t of_part = (s.runs + s.parts - 1) / s.parts, begin = min(blockIdx.y * of_part, s.runs),
                   end = min(begin + of_part, s.runs), row = threadIdx.x / WEIGHT_COLUMNS;
    double sum = 0;
    if (present)
        sum = s.is_f64 ? add_runs<double>(s, o, weight, begin + row, end) : add_runs<float>(s, o, weight, begin + row, end);
    of_rows[row][threadIdx.x % WEIGHT_COLUMNS] = sum;
    __syncthreads();
    sum = of_rows[threadIdx.x % WEIGHT_ROWS][threadIdx.x / WEIGHT_ROWS];
    for (int step = 1; step < WEIGHT_ROWS; step *= 2)
        sum += __shfl_xor_sync(UINT32_MAX, sum, step);
    of_rows[0][threadIdx.x / WEIGHT_ROWS] = sum;
    __syncthreads();
    return of_rows[0][threadIdx.x % WEIGHT_COLUMNS];
}

static __global__ void __launch_bounds__(WEIGHT_THREADS) add_weights_kernel(KERNEL_PARAMETER(weight_sums) s)
{
    __shared__ bool is_last;
    take_turn();
    uint32_t operand = 0, columns = blockIdx.x, before = 0;
    for (; columns >= (s.of[operand].weights + WEIGHT_COLUMNS - 1) / WEIGHT_COLUMNS; operand++) {
        columns -= (s.of[operand].weights + WEIGHT_COLUMNS - 1) / WEIGHT_COLUMNS;
        before += s.of[operand].weights;
    }
    const weight_sums::operand &o = s.of[operand];
    const uint32_t weight = columns * WEIGHT_COLUMNS + threadIdx.x % WEIGHT_COLUMNS;
    const bool present = weight < o.weights, stores = present && threadIdx.x < WEIGHT_COLUMNS;
    double sum = add_part(s, o, weight, present);
    if (s.parts > 1) {
        if (stores) {
            s.of_parts[(size_t)blockIdx.y * s.weights + before + weight] = sum;
            __threadfence();
        }
        __syncthreads();
        if (threadIdx.x == 0)
            is_last = atomicAdd(&s.cells.counter[blockIdx.x], 1u) == s.parts - 1;
        __syncthreads();
        if (!is_last)
            return;
        double of_part[WEIGHT_PARTS];
#pragma unroll
        for (uint32_t part = 0; part < WEIGHT_PARTS; part++)
            of_part[part] =
                __ldcg(s.of_parts + (size_t)min(part, s.parts - 1) * s.weights + before + min(weight, o.weights - 1));
        sum = 0;
#pragma unroll
        for (uint32_t part = 0; part < WEIGHT_PARTS; part++)
            sum += part < s.parts ? of_part[part] : 0;
    }
    if (stores && s.is_f64)
        ((double *)o.d_weight)[weight] = sum;
    else if (stores)
        ((float *)o.d_weight)[weight] = (float)sum;
}

/* ---- plans ---- */

/* Some operands of a plan, as a call of their own. */
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

/* The pass over heads with a norm, which rounds once: its rows have a fixed order. */
struct norm_pass : part_of_plan {
    block_form form;

    explicit norm_pass(const trope_plan &of) : part_of_plan(of)
    {
        plan.rounding = TROPE_ROUND_ONCE;
        plan.batch_outermost = 1;
        plan.d_freqs = NULL;
        plan.d_inv_freq = NULL;
        for (int i = 0; i < of.operand_count; i++)
            if (of.operands[i].norm.is_given && (of.operands[i].dst || of.operands[i].norm.d_weight))
                take(of.operands[i]);
        form = form_of_norm_gradient(plan);
    }
};

static const trope_cuda_kernel *find_pass(const norm_pass &pass)
{
    return find_norm_kernel(trope_backward_kernels_of(pass.plan.dtype)->norm, pass.plan, pass.form);
}

const trope_cuda_kernel *trope_cuda_find_norm_gradient(const trope_plan *plan)
{
    return find_pass(norm_pass(*plan));
}

int trope_cuda_norm_gradient_fits(const trope_plan *plan)
{
    operand_gradient of[TROPE_MAX_OPERANDS];
    if ((double)plan->batch * (double)plan->tokens >= INT32_MAX || elements_of_row(*plan) > INT32_MAX / 8)
        return 0;
    const norm_pass pass(*plan);
    const norm_cells cells = plan_cells(pass.plan);
    return plan_operand_gradients(pass.plan, cells, of) < INT32_MAX && cells.slices <= MOST_GRID_ROWS;
}

/* The rstd of heads whose rstd the caller does not give, for the gradient of the angles. Returns the bytes. */
static uint64_t plan_rstd(const trope_plan &plan, void *workspace, part_of_plan *heads)
{
    uint64_t size = 0;
    for (int i = 0; i < plan.operand_count; i++) {
        trope_plan_operand o = plan.operands[i];
        if (!o.norm.is_given || o.norm.rstd || !o.rotary_dim)
            continue;
        o.norm.rstd =
            take<char>(workspace, (uint64_t)(plan.batch * plan.tokens) * heads_of(o) * bytes_of_real(plan), &size);
        heads->take(o);
    }
    return size;
}

uint64_t trope_cuda_norm_gradient_workspace(const trope_plan *plan)
{
    part_of_plan heads(*plan);
    weight_sums sums;
    const uint64_t of_rstd = trope_has_angle_gradient(plan) ? plan_rstd(*plan, NULL, &heads) : 0;
    return of_rstd + std::max(trope_cuda_gradient_workspace(plan), plan_weight_sums(norm_pass(*plan).plan, NULL, &sums));
}

/* ---- launches ---- */

static trope_status result_of(const char *function, cudaError_t error)
{
    return error == cudaSuccess ? TROPE_OK : fail_cuda(function, error);
}

static trope_status launch_any_pass(const char *function, const norm_pass &pass, int32_t rounding, const left_sums &sums,
                                    const void *kernel)
{
    norm_gradient_any_call call;
    const trope_plan &plan = pass.plan;
    call.cells = plan_cells(plan);
    const size_t shared_bytes = plan_norm_any(plan, call.cells.run_rows, &call);
    call.shape.rotating_slices *= call.cells.slices;
    call.rounding = rounding;
    call.sums = sums;
    plan_operand_gradients(plan, call.cells, call.gradient);
    call.rstd_at = (uint32_t)quotient_up((int64_t)shared_bytes, 16) * 16;
    for (int i = 0; i < plan.operand_count; i++) {
        call.x[i] = plan_head_tensor(plan, plan.operands[i].forward_src, plan.operands[i].forward_src_stride);
        call.of[call.operands++] = plan_head_operand(plan, plan.operands[i]);
    }
    const size_t bytes = call.rstd_at + call.cells.run_rows * call.cells.slice_heads * bytes_of_real(plan);
    REQUIRE(bytes <= ASKED_SHARED_BYTES, TROPE_ERROR_UNSUPPORTED,
            "the operands (%lld rows) are more than one launch can take", (long long)(plan.batch * plan.tokens));
    void *arguments[] = {&call, plan.step};
    return result_of(function, launch_early(facts_of_device(), kernel, dim3(call.cells.runs, call.cells.slices),
                                            dim3(32 * NORM_WARPS), bytes, plan.stream, arguments));
}

static trope_status launch_vectors(const char *function, const norm_pass &pass, const left_sums &sums, const void *kernel)
{
    norm_gradient_call call;
    const trope_plan &plan = pass.plan;
    const block_launch l = plan_blocks<norm_gradient_blocks>(plan, pass.form, &call);
    call.sums = sums;
    REQUIRE(l.fits, TROPE_ERROR_UNSUPPORTED, "the operands (%lld rows) are more than one launch can take",
            (long long)(plan.batch * plan.tokens));
    void *arguments[] = {&call, plan.step};
    return result_of(function,
                     launch_early(facts_of_device(), kernel, l.blocks, l.threads, l.shared_bytes, plan.stream, arguments));
}

static trope_status launch_pass(const char *function, const norm_pass &pass, int32_t rounding, void *workspace)
{
    const trope_plan &plan = pass.plan;
    weight_sums sums;
    trope_status status = TROPE_OK;
    plan_weight_sums(plan, workspace, &sums);
    if (plan.operand_count && plan.batch * plan.tokens > 0) {
        const void *const kernel = find_pass(pass)->function;
        status = pass.form.vectors ? launch_vectors(function, pass, sums.cells, kernel)
                                   : launch_any_pass(function, pass, rounding, sums.cells, kernel);
    }
    if (status || !sums.operands)
        return status;
    void *arguments[] = {&sums};
    return result_of(function,
                     launch_early(facts_of_device(), (const void *)add_weights_kernel,
                                  dim3(sums.cells.counters, sums.parts), dim3(WEIGHT_THREADS), 0, plan.stream, arguments));
}

/* Operands without a norm. */
static trope_status run_others(const char *function, const trope_plan &plan)
{
    if (!moves_something(plan))
        return TROPE_OK;
    return trope_cuda_has_sums(&plan) ? trope_cuda_sum_heads(function, &plan) : trope_cuda_rotate(function, &plan);
}

/* The gradient of the angles comes first, because dx may take the place of dy: it takes x normalised, by an rstd that is known. It
 * moves the operands without a norm. */
static trope_status run_angles(const char *function, const trope_plan &of, void **workspace)
{
    part_of_plan heads(of), angles(of);
    const uint64_t size = plan_rstd(of, *workspace, &heads);
    const trope_plan_operand *found = heads.operands;
    for (int i = 0; i < of.operand_count; i++) {
        trope_plan_operand o = of.operands[i];
        if (o.norm.is_given) {
            o.dst = NULL;
            o.norm.d_weight = NULL;
            o.norm.rstd = o.norm.rstd || !o.rotary_dim ? o.norm.rstd : found++->norm.rstd;
            o.norm.reads_rstd = 1;
        }
        angles.take(o);
    }
    for (int i = 0; i < heads.plan.operand_count; i++) {
        trope_plan_operand *const o = &heads.operands[i];
        o->src = o->forward_src;
        memcpy(o->src_stride, o->forward_src_stride, sizeof o->src_stride);
        o->dst = NULL;
        o->norm.d_weight = NULL;
    }
    const trope_status status = heads.plan.operand_count ? trope_cuda_find_rstd(function, &heads.plan) : TROPE_OK;
    *workspace = (char *)*workspace + size;
    angles.plan.workspace = *workspace;
    return status ? status : trope_cuda_run_gradient(function, &angles.plan);
}

trope_status trope_cuda_run_norm_gradient(const char *function, const trope_plan *plan)
{
    norm_pass pass(*plan);
    part_of_plan others(*plan);
    void *workspace = plan->workspace;
    for (int i = 0; i < plan->operand_count; i++)
        if (!plan->operands[i].norm.is_given)
            others.take(plan->operands[i]);
    const trope_status status =
        trope_has_angle_gradient(plan) ? run_angles(function, *plan, &workspace) : run_others(function, others.plan);
    return status ? status : launch_pass(function, pass, plan->rounding, workspace);
}
