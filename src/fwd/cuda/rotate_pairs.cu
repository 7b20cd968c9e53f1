/* How the pairs of a plan are dealt out, and the launch. */
#include <algorithm>
#include <stddef.h>
#include <string.h>

#include "fwd/cuda/launch.cuh"
#include "fwd/cuda/rotate.h"
#include "fwd/cuda/rotate_pairs.cuh"

#define MAX_SLICES  65535 /* of a grid, in y */
#define MAX_COLUMNS (INT32_MAX - PAIR_THREADS)

/* Threads with which a device is full several times over: rows are then taken several to a thread. */
#define ENOUGH_THREADS      ((int64_t)1 << 17)
#define MAX_ROWS_PER_THREAD 4

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

static uint32_t nearest(const trope_plan &plan)
{
    if (rearranges_in_place(plan))
        return ORDER_LANES;
    const trope_plan_operand &o = plan.operands[0];
    const int64_t element = magnitude(o.src_stride[TROPE_DIM_ELEMENT]), head = magnitude(o.src_stride[TROPE_DIM_HEAD]);
    const int64_t row = magnitude(o.src_stride[inner_dim(plan)]);
    if (o.heads_per_group > 1 && head < element && head <= row)
        return ORDER_HEADS;
    return row < element ? ORDER_ROWS : ORDER_LANES;
}

static paired_tensor plan_tensor(const trope_plan &plan, const void *base, const int64_t *stride)
{
    const int64_t bytes = plan.element_size;
    const int outer = outer_dim(plan), inner = inner_dim(plan);
    return {(char *)base,
            stride[outer] * bytes,
            stride[inner] * bytes,
            stride[TROPE_DIM_GROUP] * bytes,
            stride[TROPE_DIM_HEAD] * bytes,
            stride[TROPE_DIM_ELEMENT] * bytes};
}

/* The columns of a row. Where heads are rearranged in place, all that a head's threads read must be read before anything is
 * written: those that rotate are then of one block, because lanes are a power of two and these come first. Returns how many
 * there are; if more than MAX_COLUMNS, they are not numbered. */
static int64_t number_columns(uint32_t order, bool rearranges, int64_t heads, uint32_t heads_of_chunk, paired_operand *o)
{
    const uint32_t lanes = rearranges ? power_of_two(o->lanes) : o->lanes ? o->lanes : 1;
    const int64_t chunks = o->lanes ? quotient_up(heads, heads_of_chunk) : 0, columns = chunks ? lanes * chunks : 1;
    if (columns > MAX_COLUMNS)
        return columns;
    o->adjacent = o->adjacent && order == ORDER_HEADS;
    o->heads = (uint32_t)heads;
    o->chunks = (uint32_t)chunks;
    o->lanes_of_chunk.set(order == ORDER_HEADS && chunks ? o->chunks : lanes);
    o->columns.set((uint32_t)columns);
    return columns;
}

/* Whether the heads of every lane are whole vectors. */
static bool heads_are_vectors(const trope_plan &plan, const trope_plan_operand &o, const void *base, const int64_t *stride)
{
    const int64_t count = 16 / plan.element_size;
    return o.groups == 1 && stride[TROPE_DIM_HEAD] == 1 && is_multiple(o.heads_per_group, count) &&
           is_multiple((int64_t)(uintptr_t)base, 16) && is_multiple(stride[TROPE_DIM_ELEMENT], count) &&
           (plan.tokens == 1 || is_multiple(stride[TROPE_DIM_TOKEN], count)) &&
           (plan.batch == 1 || is_multiple(stride[TROPE_DIM_BATCH], count));
}

static paired_operand plan_operand(const trope_plan &plan, const trope_plan_operand &from)
{
    paired_operand o;
    memset(&o, 0, sizeof o);
    o.src = plan_tensor(plan, from.src, from.src_stride);
    o.dst = plan_tensor(plan, from.dst, from.dst_stride);
    o.adjacent = heads_are_vectors(plan, from, from.src, from.src_stride) &&
                 heads_are_vectors(plan, from, from.dst, from.dst_stride);
    o.rotating = from.rotary_dim / 2;
    o.lanes = o.rotating + (writes_rest(plan, from) ? from.head_dim - from.rotary_dim : 0);
    o.heads_per_group.set(from.heads_per_group);
    o.in_place = from.in_place;
    o.rotary_dim = from.rotary_dim;
    o.rotary_offset = from.rotary_offset;
    return o;
}

/* Threads that look rows up should have some that follow each other, and so do those with little else to do; but there
 * should be enough of them. */
static uint32_t choose_rows_per_thread(const paired_call &call)
{
    int64_t threads = 0;
    for (int i = 0; i < MAX_CUDA_OPERANDS; i++)
        threads += call.rows.count * call.operands[i].chunks * call.operands[i].lanes;
    const int64_t rows = threads / ENOUGH_THREADS;
    return rows < 1 ? 1 : (uint32_t)(rows < MAX_ROWS_PER_THREAD ? rows : MAX_ROWS_PER_THREAD);
}

/* Groups of rows that a block has, at most. */
static uint32_t groups_of_block(const paired_call &call)
{
    uint32_t most = 1;
    for (int i = 0; i < MAX_CUDA_OPERANDS; i++) {
        const paired_operand &o = call.operands[i];
        const uint32_t groups = call.order == ORDER_ROWS ? PAIR_THREADS
                                : o.chunks               ? (PAIR_THREADS - 1) / o.columns.divisor + 2
                                                         : 1;
        most = groups > most ? groups : most;
    }
    return most < PAIR_THREADS ? most : PAIR_THREADS;
}

/* What a grid has: blocks of all operands, and slices. */
struct paired_grid {
    int64_t blocks, slices;
    size_t shared_bytes;
};

/* Whether all operands have no more columns than can be numbered. */
static bool plan_operands(const trope_plan &plan, paired_call *call)
{
    int64_t columns = 0;
    for (int i = 0; i < plan.operand_count; i++) {
        const trope_plan_operand &o = plan.operands[i];
        call->operands[i] = plan_operand(plan, o);
        columns = std::max(columns, number_columns(call->order, call->rearranges, (int64_t)o.groups * o.heads_per_group,
                                                   16 / plan.element_size, &call->operands[i]));
    }
    return columns <= MAX_COLUMNS;
}

static void number_blocks(const paired_call &call, paired_operand *o, paired_grid *grid)
{
    if (o->chunks == 0)
        return;
    const int64_t most = MAX_COLUMNS / o->columns.divisor;
    o->slice_groups = (uint32_t)(call.row_groups < most ? call.row_groups : most);
    const int64_t slices = quotient_up(call.row_groups, o->slice_groups);
    grid->blocks += quotient_up((int64_t)o->slice_groups * o->columns.divisor, PAIR_THREADS);
    grid->slices = slices > grid->slices ? slices : grid->slices;
}

/* Returns whether one launch can take it. */
static bool plan_grid(const trope_plan &plan, paired_call *call, paired_grid *grid)
{
    *grid = {0, 0, 0};
    call->rows = plan_rows(plan);
    call->rearranges = rearranges_in_place(plan);
    call->order = nearest(plan);
    if (!plan_operands(plan, call))
        return false;
    call->rows_per_thread = choose_rows_per_thread(*call);
    if (!is_plain(plan)) {
        const size_t group_bytes = groups_of_block(*call) * sizeof(trope_row);
        while (call->rows_per_thread > 1 && call->rows_per_thread * group_bytes > UNASKED_SHARED_BYTES)
            call->rows_per_thread--;
        grid->shared_bytes = call->rows_per_thread * group_bytes;
    }
    call->row_groups = quotient_up(call->rows.count, call->rows_per_thread);
    for (int i = 0; i < MAX_CUDA_OPERANDS; i++) {
        call->first_blocks[i] = i < plan.operand_count ? (uint32_t)grid->blocks : UINT32_MAX;
        if (i < plan.operand_count)
            number_blocks(*call, &call->operands[i], grid);
    }
    return grid->blocks <= INT32_MAX && grid->slices <= MAX_SLICES;
}

/* ---- launch ---- */

#define DTYPES(PLAIN)                                                                                                      \
    {                                                                                                                      \
        (const void *)rotate_pairs_kernel<TROPE_F32, PLAIN>, (const void *)rotate_pairs_kernel<TROPE_F16, PLAIN>,          \
            (const void *)rotate_pairs_kernel<TROPE_BF16, PLAIN>, (const void *)rotate_pairs_kernel<TROPE_F64, PLAIN>      \
    }

static const void *const kernels[2][4] = {DTYPES(false), DTYPES(true)};

trope_status trope_cuda_rotate_pairs(const char *function, const trope_plan *plan)
{
    paired_call call;
    paired_grid grid;
    memset(&call, 0, offsetof(paired_call, plan));
    if (!plan_grid(*plan, &call, &grid))
        return trope_fail(TROPE_ERROR_UNSUPPORTED, "%s: the operands (%lld rows) are more than one launch can take",
                          function, (long long)call.rows.count);
    fill_cuda_plan(*plan, &call.plan);
    void *arguments[] = {&call, plan->step};
    const cudaError_t error = launch_early(facts_of_device(), kernels[is_plain(*plan)][plan->dtype - TROPE_F32],
                                           dim3((unsigned)grid.blocks, (unsigned)grid.slices), PAIR_THREADS,
                                           grid.shared_bytes, 0, plan->stream, arguments);
    return error == cudaSuccess ? TROPE_OK : fail_cuda(function, error);
}
