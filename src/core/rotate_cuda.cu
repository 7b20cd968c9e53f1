/* Which kernel a plan gets, with what geometry, and its launch. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "api/error.h"
#include "bwd/angle_gradient_cuda.h"
#include "core/backend.h"
#include "core/launch_cuda.cuh"
#include "core/rotate_cuda.cuh"

#define MANY_HEADS 2 /* of a thread, where an operand has as many */

/* Threads of a block, and blocks that a multiprocessor should hold. A block of the scalar kernel can hold all pairs of the
 * widest head, which a rearrangement in place needs. */
#define VECTOR_THREADS 128
#define PLAIN_BLOCKS   8
#define LOOKUP_BLOCKS  6
#define ANY_BLOCKS     4
#define SCALAR_THREADS 512
#define SCALAR_BLOCKS  2
#define SCALAR_HEADS   4

#define MAX_SLICES       65535 /* of a grid, in y */

/* Threads with which a device is full several times over: rows are then taken several to a thread. */
#define ENOUGH_THREADS      ((int64_t)1 << 17)
#define MAX_ROWS_PER_THREAD 4

/* ---- vectors or pairs ---- */

static bool plan_is_vector(const trope_plan &plan)
{
    bool vector = true;
    for (int i = 0; i < plan.operand_count; i++)
        vector = vector && operand_is_vector(plan, plan.operands[i]);
    return vector;
}

/* ---- geometry ---- */

static uint32_t power_of_two(uint32_t at_least)
{
    uint32_t p = 1;
    while (p < at_least)
        p *= 2;
    return p;
}

static bool rearranges_in_place(const trope_plan &plan)
{
    bool in_place = false;
    for (int i = 0; i < plan.operand_count; i++)
        in_place = in_place || plan.operands[i].in_place;
    return in_place && plan.interleaved_src != plan.interleaved_dst;
}

/* Where a head is rearranged in place, all that it reads must be read before anything is written: the lanes that rotate are
 * then of one block, because lanes are a power of two and come first. */
static bool use_vectors(const trope_plan &plan)
{
    return plan_is_vector(plan) && !(rearranges_in_place(plan) && plan.pairs > VECTOR_THREADS * 16 / plan.element_size);
}

static int64_t magnitude(int64_t x)
{
    return x < 0 ? -x : x;
}

static uint32_t nearest(const trope_plan &plan, bool vector)
{
    if (vector || rearranges_in_place(plan))
        return ORDER_LANES;
    const trope_plan_operand &o = plan.operands[0];
    const int64_t element = magnitude(o.src_stride[TROPE_DIM_ELEMENT]), head = magnitude(o.src_stride[TROPE_DIM_HEAD]);
    const int64_t row = magnitude(o.src_stride[plan.batch_outermost ? TROPE_DIM_TOKEN : TROPE_DIM_BATCH]);
    if (o.heads_per_group > 1 && head < element && head <= row)
        return ORDER_HEADS;
    return row < element ? ORDER_ROWS : ORDER_LANES;
}

static cuda_tensor plan_tensor(const trope_plan &plan, const void *base, const int64_t *stride, bool vector)
{
    const int64_t bytes = plan.element_size, unit = vector ? 16 : 1;
    const int outer = plan.batch_outermost ? TROPE_DIM_BATCH : TROPE_DIM_TOKEN,
              inner = plan.batch_outermost ? TROPE_DIM_TOKEN : TROPE_DIM_BATCH;
    return {(char *)base,
            stride[outer] * bytes,
            stride[inner] * bytes,
            stride[TROPE_DIM_GROUP] * bytes / unit,
            stride[TROPE_DIM_HEAD] * bytes / unit,
            stride[TROPE_DIM_ELEMENT] * bytes};
}

static cuda_operand plan_operand(const trope_plan &plan, const trope_plan_operand &from, bool vector)
{
    const uint32_t width = vector ? 16 / plan.element_size : 1;
    const bool passes = from.dst && (!from.in_place || (plan.sequences.boundaries && plan.padding == TROPE_PADDING_ZERO));
    const uint32_t passing = passes ? (from.head_dim - from.rotary_dim) / width : 0;
    cuda_operand o;
    memset(&o, 0, sizeof o);
    o.src = plan_tensor(plan, from.src, from.src_stride, vector);
    o.dst = plan_tensor(plan, from.dst, from.dst_stride, vector);
    o.rotating = from.dst ? from.rotary_dim / 2 / width : 0;
    o.lanes = o.rotating + (vector ? (passing + 1) / 2 : passing);
    o.heads = from.groups * from.heads_per_group;
    o.heads_per_group.set(from.heads_per_group);
    o.groups = from.groups;
    o.in_place = from.in_place;
    o.head_dim = from.head_dim;
    o.rotary_dim = from.rotary_dim;
    o.rotary_offset = from.rotary_offset;
    o.window_pairs = from.window_pairs;
    o.low_step = plan.interleaved_src ? width / 2 : width;
    o.high_gap = plan.interleaved_src ? from.window_pairs / 2 : width / 2;
    return o;
}

/* The columns of a row. Where heads are rearranged in place, every head starts at a multiple of its lanes. */
static void number_columns(uint32_t order, bool rearranges, uint32_t heads_per_thread, cuda_operand *o)
{
    const uint32_t lanes = rearranges ? power_of_two(o->lanes) : o->lanes ? o->lanes : 1;
    o->chunks = o->lanes ? (o->heads + heads_per_thread - 1) / heads_per_thread : 0;
    o->lanes_of_chunk.set(order == ORDER_HEADS && o->chunks ? o->chunks : lanes);
    o->columns.set(o->chunks ? lanes * o->chunks : 1);
}

static int64_t quotient_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* What kernels for plain rows can have: see find_place. */
static bool is_plain(const trope_plan &plan, const cuda_call &call)
{
    bool one_slice = true;
    for (int i = 0; i < plan.operand_count; i++)
        one_slice = one_slice && call.rows < (INT32_MAX - SCALAR_THREADS) / (int64_t)call.operands[i].columns.divisor;
    return one_slice && plan.position_is_token && plan.windows == 1 && plan.axes == 1 && !call.rearranges;
}

/* Threads that look rows up should have some that follow each other, and so do those with little else to do; but there
 * should be enough of them. */
static uint32_t choose_rows_per_thread(const trope_plan &plan, const cuda_call &call)
{
    int64_t threads = 0;
    for (int i = 0; i < plan.operand_count; i++)
        threads += call.rows * call.operands[i].chunks * call.operands[i].lanes;
    const int64_t rows = threads / ENOUGH_THREADS;
    return rows < 1 ? 1 : (uint32_t)(rows < MAX_ROWS_PER_THREAD ? rows : MAX_ROWS_PER_THREAD);
}

/* Rows of a group that a block looks up, at most. */
static uint32_t groups_of_block(const cuda_call &call, uint32_t threads)
{
    uint32_t most = 1;
    for (int i = 0; i < TROPE_MAX_OPERANDS; i++) {
        const cuda_operand &o = call.operands[i];
        const uint32_t groups = call.order == ORDER_ROWS ? threads : o.chunks ? (threads - 1) / o.columns.divisor + 2 : 1;
        most = groups > most ? groups : most;
    }
    return most < threads ? most : threads;
}

/* What a grid has: blocks of all operands, and slices. */
struct cuda_grid {
    int64_t blocks, slices;
    bool plain;
    size_t shared_bytes;
};

static void number_blocks(const cuda_call &call, uint32_t threads, cuda_operand *o, cuda_grid *grid)
{
    if (o->chunks == 0)
        return;
    const int64_t most = (INT32_MAX - threads) / o->columns.divisor;
    o->slice_groups = (uint32_t)(call.row_groups < most ? call.row_groups : most);
    const int64_t slices = quotient_up(call.row_groups, o->slice_groups);
    grid->blocks += quotient_up((int64_t)o->slice_groups * o->columns.divisor, threads);
    grid->slices = slices > grid->slices ? slices : grid->slices;
}

static cuda_grid plan_grid(const trope_plan &plan, bool vector, uint32_t heads_per_thread, cuda_call *call)
{
    const int64_t length = plan.batch_outermost ? plan.tokens : plan.batch;
    const uint32_t threads = vector ? VECTOR_THREADS : SCALAR_THREADS;
    cuda_grid grid = {0, 0, false, 0};
    call->rearranges = rearranges_in_place(plan);
    call->batch_outermost = plan.batch_outermost;
    call->interleaved_src = plan.interleaved_src;
    call->interleaved_dst = plan.interleaved_dst;
    call->order = nearest(plan, vector);
    call->rows = plan.batch * plan.tokens;
    call->has_outer = call->rows > length;
    call->row_length.set((uint32_t)(length < INT32_MAX ? length : INT32_MAX));
    for (int i = 0; i < plan.operand_count; i++) {
        call->operands[i] = plan_operand(plan, plan.operands[i], vector);
        number_columns(call->order, call->rearranges, heads_per_thread, &call->operands[i]);
    }
    grid.plain = is_plain(plan, *call);
    call->rows_per_thread = grid.plain && vector && heads_per_thread > 1 ? 1 : choose_rows_per_thread(plan, *call);
    if (!grid.plain) {
        const size_t group_bytes = groups_of_block(*call, threads) * sizeof(trope_row);
        while (call->rows_per_thread > 1 && call->rows_per_thread * group_bytes > MAX_SHARED_BYTES)
            call->rows_per_thread--;
        grid.shared_bytes = call->rows_per_thread * group_bytes;
    }
    call->row_groups = quotient_up(call->rows, call->rows_per_thread);
    for (int i = 0; i < TROPE_MAX_OPERANDS; i++) {
        call->first_blocks[i] = i < plan.operand_count ? (uint32_t)grid.blocks : UINT32_MAX;
        if (i < plan.operand_count)
            number_blocks(*call, threads, &call->operands[i], &grid);
    }
    return grid;
}

/* Whether neighbouring columns of a table can be loaded as vectors of fp32. */
static bool table_is_vector(const trope_plan &plan)
{
    const trope_plan_angles &a = plan.angles;
    const uintptr_t bases = (uintptr_t)a.freqs | (uintptr_t)a.cos | (uintptr_t)a.sin;
    return plan.dtype != TROPE_F64 && a.dtype == TROPE_F32 && plan.axes == 1 && bases % 16 == 0 &&
           is_multiple(a.row_stride, 4) && is_multiple(a.batch_stride, 4);
}

void trope_fill_cuda_plan(const trope_plan *plan, cuda_plan *p)
{
    p->plan = *plan;
    p->cosine_scale = (float)plan->cosine_scale;
    p->sine_scale = (float)plan->sine_scale;
    p->scaled = plan->cosine_scale != 1 || plan->sine_scale != 1;
    p->own_angles = plan->angles.per_element;
    p->window_pairs = plan->pairs / plan->windows;
    p->table_vectors = table_is_vector(*plan);
}

/* ---- launch ---- */

#define VECTOR(DTYPE, ANGLES, PLAIN, HEADS, BLOCKS)                                                                        \
    (const void *)rotate_kernel<vector_lane<DTYPE, ANGLES, HEADS>, PLAIN, HEADS, VECTOR_THREADS, BLOCKS>
#define SCALAR(DTYPE, PLAIN)                                                                                               \
    (const void *)                                                                                                         \
        rotate_kernel<scalar_lane<DTYPE, ANGLES_ANY, SCALAR_HEADS>, PLAIN, SCALAR_HEADS, SCALAR_THREADS, SCALAR_BLOCKS>
#define SCALARS(PLAIN)                                                                                                     \
    {                                                                                                                      \
        SCALAR(TROPE_F32, PLAIN), SCALAR(TROPE_F16, PLAIN), SCALAR(TROPE_BF16, PLAIN), SCALAR(TROPE_F64, PLAIN)            \
    }
#define MANY(DTYPE, ANGLES, PLAIN)                                                                                         \
    VECTOR(DTYPE, ANGLES, PLAIN, MANY_HEADS, ANGLES == ANGLES_ANY ? ANY_BLOCKS : PLAIN ? PLAIN_BLOCKS : LOOKUP_BLOCKS)
#define FEW(DTYPE, ANGLES, PLAIN)                                                                                          \
    VECTOR(DTYPE, ANGLES, PLAIN, 1, ANGLES == ANGLES_ANY ? ANY_BLOCKS : PLAIN ? PLAIN_BLOCKS : LOOKUP_BLOCKS)
#define USUAL(DTYPE, PLAIN)                                                                                                \
    {                                                                                                                      \
        {MANY(DTYPE, ANGLES_ANY, PLAIN), MANY(DTYPE, ANGLES_PHASE, PLAIN), MANY(DTYPE, ANGLES_FREQS, PLAIN),               \
         MANY(DTYPE, ANGLES_OWN_FREQS, PLAIN)},                                                                            \
        {                                                                                                                  \
            MANY(DTYPE, ANGLES_ANY, PLAIN), FEW(DTYPE, ANGLES_PHASE, PLAIN), FEW(DTYPE, ANGLES_FREQS, PLAIN),              \
                FEW(DTYPE, ANGLES_OWN_FREQS, PLAIN)                                                                        \
        }                                                                                                                  \
    }
#define DTYPES(PLAIN)                                                                                                      \
    {                                                                                                                      \
        USUAL(TROPE_F32, PLAIN), USUAL(TROPE_F16, PLAIN), USUAL(TROPE_BF16, PLAIN),                                        \
        {                                                                                                                  \
            {MANY(TROPE_F64, ANGLES_ANY, PLAIN)},                                                                          \
            {                                                                                                              \
                MANY(TROPE_F64, ANGLES_ANY, PLAIN)                                                                         \
            }                                                                                                              \
        }                                                                                                                  \
    }

/* By whether rows are plain, dtype and, for vectors, whether heads are few, angles. */
static const void *const scalar_kernels[2][4] = {SCALARS(false), SCALARS(true)};
static const void *const vector_kernels[2][4][2][4] = {DTYPES(false), DTYPES(true)};

static int kind_of_angles(const trope_plan &plan)
{
    if (plan.dtype == TROPE_F64 || plan.rounding == TROPE_ROUND_NATIVE)
        return ANGLES_ANY;
    if (plan.angles.source == TROPE_ANGLES_PHASE || plan.angles.source == TROPE_ANGLES_NONE)
        return ANGLES_PHASE;
    if (plan.angles.source != TROPE_ANGLES_FREQS || !table_is_vector(plan))
        return ANGLES_ANY;
    return plan.angles.per_element ? ANGLES_OWN_FREQS : ANGLES_FREQS;
}

static bool has_many_heads(const trope_plan &plan)
{
    bool many = false;
    for (int i = 0; i < plan.operand_count; i++)
        many = many || (int64_t)plan.operands[i].groups * plan.operands[i].heads_per_group >= MANY_HEADS;
    return many;
}

static void kernel_name(const trope_plan *plan, char *name, size_t size)
{
    snprintf(name, size, "cuda-%s-%s-%s", use_vectors(*plan) ? "vector" : "scalar", trope_dtype_name(plan->dtype),
             trope_pairing_name(plan));
}

static trope_status run(const char *function, const trope_plan *plan)
{
    if (plan->d_freqs || plan->d_inv_freq)
        return trope_cuda_run_gradient(function, plan);
    const bool vector = use_vectors(*plan);
    const int angles = kind_of_angles(*plan);
    const bool few = vector && angles != ANGLES_ANY && !has_many_heads(*plan);
    cuda_call call;
    memset(&call, 0, offsetof(cuda_call, plan));
    const cuda_grid grid = plan_grid(*plan, vector, few ? 1 : vector ? MANY_HEADS : SCALAR_HEADS, &call);
    if (call.rows == 0 || grid.blocks == 0)
        return TROPE_OK;
    if (grid.blocks > INT32_MAX || grid.slices > MAX_SLICES)
        return trope_fail(TROPE_ERROR_UNSUPPORTED, "%s: the operands (%lld rows) are more than one launch can take",
                          function, (long long)call.rows);
    trope_fill_cuda_plan(plan, &call.plan);
    void *arguments[] = {&call};
    const void *kernel =
        vector ? vector_kernels[grid.plain][plan->dtype][few][angles] : scalar_kernels[grid.plain][plan->dtype];
    const cudaError_t error = cudaLaunchKernel(kernel, dim3((unsigned)grid.blocks, (unsigned)grid.slices),
                                               dim3(vector ? VECTOR_THREADS : SCALAR_THREADS), arguments, grid.shared_bytes,
                                               (cudaStream_t)plan->stream);
    return error == cudaSuccess ? TROPE_OK : fail_cuda(function, error);
}

/* ---- devices ---- */

int trope_cuda_device_count(void)
{
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess)
        return count;
    cudaGetLastError(); /* no driver or no device is an answer, not a failure of the caller's next launch */
    return 0;
}

void trope_cuda_describe(char *text, size_t size)
{
    const int count = trope_cuda_device_count();
    size_t used = 0;
    if (size)
        text[0] = 0;
    for (int i = 0; i < count && used < size; i++) {
        cudaDeviceProp p;
        if (cudaGetDeviceProperties(&p, i) == cudaSuccess)
            used += (size_t)snprintf(text + used, size - used, "%s%s (sm_%d%d, %d multiprocessors)", i ? ", " : "", p.name,
                                     p.major, p.minor, p.multiProcessorCount);
    }
}

static trope_status check(const char *function, const trope_plan *plan)
{
    (void)plan;
    if (trope_cuda_device_count() > 0)
        return TROPE_OK;
    return trope_fail(TROPE_ERROR_UNSUPPORTED, "%s: device is CUDA, and there is no CUDA device or no driver", function);
}

const trope_backend trope_backend_cuda = {check, trope_cuda_gradient_workspace, run, kernel_name};
