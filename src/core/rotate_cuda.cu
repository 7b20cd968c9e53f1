/* Which kernel a plan gets, with what geometry, and its launch. */
#include <stdio.h>
#include <string.h>

#include "api/error.h"
#include "bwd/angle_gradient_cuda.h"
#include "core/backend.h"
#include "core/rotate_cuda.cuh"

#define ITEMS_PER_THREAD 4

/* With fewer tiles than this the device is not full: then threads get fewer items each. */
#define ENOUGH_TILES 1024

/* Threads of a block, and blocks that a multiprocessor should hold. A block of the scalar kernel can hold all pairs of the
 * widest head, which a rearrangement in place needs. */
#define VECTOR_THREADS 128
#define VECTOR_BLOCKS 6
#define SCALAR_THREADS 512
#define SCALAR_BLOCKS 2
#define MAX_SHARED_BYTES (48u << 10)

/* ---- which items ---- */

static bool is_multiple(int64_t value, int64_t of)
{
    return value % of == 0;
}

static bool tensor_is_vector(const trope_plan &plan, const trope_plan_operand &o, const void *base, const int64_t *stride)
{
    const int64_t count = 16 / plan.element_size;
    const int64_t size[] = {plan.batch, plan.tokens, o.groups, o.heads_per_group};
    for (int d = 0; d < TROPE_DIM_ELEMENT; d++)
        if (size[d] > 1 && !is_multiple(stride[d], count))
            return false;
    return stride[TROPE_DIM_ELEMENT] == 1 && is_multiple((int64_t)(uintptr_t)base, 16);
}

static bool operand_is_vector(const trope_plan &plan, const trope_plan_operand &o)
{
    const int64_t count = 16 / plan.element_size;
    return is_multiple(o.head_dim, count) && is_multiple(o.rotary_offset, count) && is_multiple(o.window_pairs, count) &&
           tensor_is_vector(plan, o, o.src, o.src_stride) && (!o.dst || tensor_is_vector(plan, o, o.dst, o.dst_stride));
}

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

/* Items of a head. Where a head is rearranged in place, all that it reads must be read before anything is written, so that its
 * items may not be divided between blocks: powers of two keep heads inside shares. */
static void count_items(const trope_plan &plan, bool vector, cuda_call *call)
{
    const uint32_t width = vector ? 16 / plan.element_size : 1;
    const bool keep_heads = rearranges_in_place(plan);
    for (int i = 0; i < plan.operand_count; i++) {
        const trope_plan_operand &o = plan.operands[i];
        operand_items &items = call->items[i];
        const bool passes = o.dst && (!o.in_place || (plan.sequences.boundaries && plan.padding == TROPE_PADDING_ZERO));
        const uint32_t passing = passes ? (o.head_dim - o.rotary_dim) / width : 0;
        items.rotating = o.dst ? o.rotary_dim / 2 / width : 0;
        items.count = items.rotating + (vector ? (passing + 1) / 2 : passing);
        const uint32_t per_head = items.count ? items.count : 1;
        items.per_head.set(keep_heads ? power_of_two(per_head) : per_head);
        items.heads_per_group.set(o.heads_per_group);
        if (keep_heads)
            call->row_items = (call->row_items + items.per_head.divisor - 1) / items.per_head.divisor * items.per_head.divisor;
        items.first = call->row_items;
        items.heads = items.count ? o.groups * o.heads_per_group : 0;
        call->row_items += items.per_head.divisor * items.heads;
    }
}

/* Whether rows, rather than the elements of a head, are neighbours in memory. */
static bool rows_are_neighbours(const trope_plan &plan)
{
    const int64_t *stride = plan.operands[0].src_stride;
    const int64_t row = plan.batch_outermost ? stride[TROPE_DIM_TOKEN] : stride[TROPE_DIM_BATCH];
    return (row < 0 ? -row : row) < (stride[TROPE_DIM_ELEMENT] < 0 ? -stride[TROPE_DIM_ELEMENT] : stride[TROPE_DIM_ELEMENT]);
}

static size_t shared_bytes(const cuda_call &call)
{
    const size_t real = call.plan.dtype == TROPE_F64 ? 8 : 4;
    return call.tile_rows * (sizeof(trope_row) + call.coefficients_per_pair * call.plan.pairs * real);
}

/* A tile is as many rows as a block's threads have items for, times ITEMS_PER_THREAD; a row with more items than a block has
 * threads is shared out to several blocks. */
static void divide_work(bool vector, cuda_call *call)
{
    const uint32_t items = call->row_items ? call->row_items : 1, threads = vector ? VECTOR_THREADS : SCALAR_THREADS;
    call->shares = (items + threads - 1) / threads;
    call->share_items = (items + call->shares - 1) / call->shares;
    if (call->shares > 1 && rearranges_in_place(call->plan))
        call->share_items = threads;
    call->rows_fastest = !vector && rows_are_neighbours(call->plan);
    if (call->rows_fastest) {
        call->row_step = 32;
        call->share_items = threads / 32;
        call->shares = (items + call->share_items - 1) / call->share_items;
        call->lanes.set(call->row_step);
    } else {
        call->lanes.set(call->share_items);
        call->row_step = threads / call->share_items;
    }
    uint32_t items_per_thread = ITEMS_PER_THREAD;
    while (items_per_thread > 1 && call->outer * call->inner * call->shares < (int64_t)ENOUGH_TILES * call->row_step * items_per_thread)
        items_per_thread /= 2;
    call->tile_rows = call->row_step * items_per_thread;
    while (call->tile_rows > 1 && shared_bytes(*call) > MAX_SHARED_BYTES) {
        call->row_step = (call->row_step + 1) / 2;
        call->tile_rows = call->row_step * (call->row_step > 1 ? ITEMS_PER_THREAD : 1);
    }
}

/* Distances between rows. If every tensor has them evenly spaced, the two dimensions are one. */
static void measure_rows(cuda_call *call)
{
    const trope_plan &plan = call->plan;
    const int inner = plan.batch_outermost ? TROPE_DIM_TOKEN : TROPE_DIM_BATCH;
    const int outer = plan.batch_outermost ? TROPE_DIM_BATCH : TROPE_DIM_TOKEN;
    call->inner = plan.batch_outermost ? plan.tokens : plan.batch;
    call->outer = plan.batch_outermost ? plan.batch : plan.tokens;
    bool even = true;
    for (int i = 0; i < plan.operand_count; i++) {
        const trope_plan_operand &o = plan.operands[i];
        operand_items &items = call->items[i];
        items.src_inner = o.src_stride[inner] * plan.element_size;
        items.src_outer = o.src_stride[outer] * plan.element_size;
        items.dst_inner = o.dst_stride[inner] * plan.element_size;
        items.dst_outer = o.dst_stride[outer] * plan.element_size;
        items.src_head = o.src_stride[TROPE_DIM_HEAD] * plan.element_size;
        items.src_group = o.src_stride[TROPE_DIM_GROUP] * plan.element_size;
        items.dst_head = o.dst_stride[TROPE_DIM_HEAD] * plan.element_size;
        items.dst_group = o.dst_stride[TROPE_DIM_GROUP] * plan.element_size;
        even = even && o.src_stride[outer] == call->inner * o.src_stride[inner] && o.dst_stride[outer] == call->inner * o.dst_stride[inner];
    }
    if (even || call->outer == 1) {
        call->inner *= call->outer;
        call->outer = 1;
    } else if (call->inner == 1) {
        call->inner = call->outer;
        call->outer = 1;
        for (int i = 0; i < plan.operand_count; i++) {
            call->items[i].src_inner = call->items[i].src_outer;
            call->items[i].dst_inner = call->items[i].dst_outer;
        }
    }
}

static void plan_call(const trope_plan &plan, bool vector, cuda_call *call)
{
    const uint32_t pairs = plan.pairs ? plan.pairs : 1, threads = vector ? VECTOR_THREADS : SCALAR_THREADS;
    memset(call, 0, sizeof *call);
    call->plan = plan;
    call->coefficients_per_pair = plan.angles.per_element ? 4 : 2;
    call->columns = {plan.interleaved_columns, plan.windows, plan.pairs / plan.windows};
    call->cosine_scale = (float)plan.cosine_scale;
    call->sine_scale = (float)plan.sine_scale;
    call->pair_lanes.set(pairs < threads ? pairs : threads);
    call->pair_row_step = threads / call->pair_lanes.divisor;
    measure_rows(call);
    count_items(plan, vector, call);
    divide_work(vector, call);
}

/* ---- launch ---- */

typedef struct kernel_entry {
    const void *vector, *scalar;
} kernel_entry;

#define ENTRY(DTYPE)                                                                                                     \
    {(const void *)rotate_kernel<DTYPE, vector_item, ITEMS_PER_THREAD, VECTOR_THREADS, VECTOR_BLOCKS>,                   \
     (const void *)rotate_kernel<DTYPE, scalar_item, ITEMS_PER_THREAD, SCALAR_THREADS, SCALAR_BLOCKS>}

static const kernel_entry kernels[] = {ENTRY(TROPE_F32), ENTRY(TROPE_F16), ENTRY(TROPE_BF16), ENTRY(TROPE_F64)};

static void kernel_name(const trope_plan *plan, char *name, size_t size)
{
    snprintf(name, size, "cuda-%s-%s-%s", plan_is_vector(*plan) ? "vector" : "scalar", trope_dtype_name(plan->dtype),
             trope_pairing_name(plan));
}

static trope_status fail_cuda(const char *function, cudaError_t error)
{
    return trope_fail(TROPE_ERROR_DEVICE, "%s: CUDA says: %s", function, cudaGetErrorString(error));
}

static trope_status run(const char *function, const trope_plan *plan)
{
    if (plan->d_freqs || plan->d_inv_freq)
        return trope_cuda_run_gradient(function, plan);
    const bool vector = plan_is_vector(*plan);
    cuda_call call;
    plan_call(*plan, vector, &call);
    if (call.outer * call.inner == 0 || call.row_items == 0)
        return TROPE_OK;
    const int64_t tiles = (call.inner + call.tile_rows - 1) / call.tile_rows;
    if (call.row_items > INT32_MAX / 2 || tiles > INT32_MAX / call.shares / call.outer)
        return trope_fail(TROPE_ERROR_UNSUPPORTED, "%s: batch * tokens (%lld) is more than one launch can take", function,
                          (long long)(call.outer * call.inner));
    call.tiles = (uint32_t)tiles;
    void *arguments[] = {&call};
    const void *kernel = vector ? kernels[plan->dtype].vector : kernels[plan->dtype].scalar;
    const cudaError_t error = cudaLaunchKernel(kernel, dim3((unsigned)(tiles * call.outer * call.shares)),
                                               dim3(vector ? VECTOR_THREADS : SCALAR_THREADS), arguments, shared_bytes(call),
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
            used += (size_t)snprintf(text + used, size - used, "%s%s (sm_%d%d, %d multiprocessors)", i ? ", " : "", p.name, p.major, p.minor,
                                     p.multiProcessorCount);
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
