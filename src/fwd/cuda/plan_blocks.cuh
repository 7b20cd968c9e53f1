/* How a call is cut into register blocks: from a plan to the parameters of a launch. Host only. */
#ifndef TROPE_FWD_CUDA_PLAN_BLOCKS_CUH
#define TROPE_FWD_CUDA_PLAN_BLOCKS_CUH

#include <string.h>

#include <algorithm>

#include "core/require.h"
#include "fwd/cuda/launch.cuh"
#include "fwd/cuda/register_block.cuh"

/* Threads that a block should have: with 128 many blocks start and end, with 512 few find room for what is left of a
 * multiprocessor. */
#define USUAL_THREADS 256
/* Items of a row from which on several blocks have a part of them each. */
#define MOST_ITEMS 384

struct block_launch {
    unsigned blocks, threads;
    size_t shared_bytes;
    bool fits; /* one launch can take it */
};

/* What is asked of a plan's blocks. */
struct block_form {
    bool vectors, sums;
    int pairs_of_lane; /* a lane's: elements of a vector, or 1 */
};

/* Sums of heads of more bytes than this go by elements: what waits for other heads of the sum would not fit. */
#define MOST_SUM_BYTES 2048

static inline block_form form_of(const trope_plan &plan, bool sums)
{
    bool vectors = plan.dtype != TROPE_F64;
    for (int i = 0; i < plan.operand_count; i++) {
        const trope_plan_operand &o = plan.operands[i];
        vectors = vectors && (!moves_operand(plan, o) || operand_is_vector(plan, o)) &&
                  (!sums || (int64_t)o.head_dim * plan.element_size <= MOST_SUM_BYTES);
    }
    return {vectors, sums, vectors ? 16 / plan.element_size : 1};
}

/* Rounding once, few operands, pairs that the usual kernels have room for, vectors, and rows below 2^31. */
static inline bool is_usual(const trope_plan &plan)
{
    return form_of(plan, false).vectors && plan.rounding == TROPE_ROUND_ONCE && plan.operand_count <= USUAL_OPERANDS &&
           plan.pairs <= USUAL_PAIRS && plan.batch * plan.tokens <= INT32_MAX;
}

/* ---- operands ---- */

static inline block_tensor plan_tensor(const trope_plan &plan, const void *base, const int64_t *stride)
{
    const int64_t bytes = plan.element_size;
    return {(char *)base,
            stride[outer_dim(plan)] * bytes,
            stride[inner_dim(plan)] * bytes,
            stride[TROPE_DIM_GROUP] * bytes,
            stride[TROPE_DIM_HEAD] * bytes,
            stride[TROPE_DIM_ELEMENT] * bytes};
}

/* A part of a line that is changed in place should be whole in L2 when it is stored. */
static inline bool stays_in_l2(const trope_plan &plan, const trope_plan_operand &o)
{
    return o.in_place && (int64_t)o.rotary_dim * plan.element_size <= 256 && o.rotary_dim < o.head_dim;
}

/* An operand that has no items. */
static inline block_operand empty_operand()
{
    block_operand o;
    memset(&o, 0, sizeof o);
    o.lanes = o.heads_per_group = trope_make_divisor(1);
    o.slots = o.terms = 1;
    return o;
}

/* ALIGNED: lanes are a power of two, for heads that must not be cut. */
static inline block_operand plan_block_operand(const trope_plan &plan, const block_form &form, const trope_plan_operand &of,
                                               bool aligned)
{
    trope_plan_operand from = of;
    block_operand o = empty_operand();
    if (!from.summed_heads)
        join_groups(&from, false);
    const uint32_t pairs = (uint32_t)form.pairs_of_lane;
    o.src = plan_tensor(plan, from.src, from.src_stride);
    o.dst = plan_tensor(plan, from.dst, from.dst_stride);
    o.heads = (uint32_t)from.groups * (uint32_t)from.heads_per_group;
    o.heads_per_group = trope_make_divisor((uint32_t)from.heads_per_group);
    o.offset = (uint32_t)from.rotary_offset;
    o.window = (uint32_t)from.rotary_dim;
    o.part_pairs = (uint32_t)from.part_pairs;
    o.rotating = (uint32_t)from.rotary_dim / 2 / pairs;
    o.copied = writes_rest(plan, from) ? (uint32_t)(from.head_dim - from.rotary_dim) / pairs : 0;
    o.copying = (o.copied + 1) / 2;
    const uint32_t lanes = std::max(o.rotating + o.copying, 1u);
    o.lanes = trope_make_divisor(aligned ? power_of_two(lanes) : lanes);
    o.in_place = from.in_place != 0;
    o.stays = stays_in_l2(plan, from);
    o.is_sum = trope_is_summed(&from) != 0;
    o.accumulate = from.accumulate != 0;
    return o;
}

static inline bool rearranges_in_place(const trope_plan &plan)
{
    bool in_place = false;
    for (int i = 0; i < plan.operand_count; i++)
        in_place = in_place || plan.operands[i].in_place;
    return in_place && plan.interleaved_src != plan.interleaved_dst;
}

/* What is nearest in memory. Heads that are rearranged in place are not taken apart. */
static inline uint32_t find_neighbours(const trope_plan &plan, const block_form &form)
{
    const trope_plan_operand &o = plan.operands[0];
    const int64_t element = magnitude(o.src_stride[TROPE_DIM_ELEMENT]), head = magnitude(o.src_stride[TROPE_DIM_HEAD]);
    const int64_t row = magnitude(o.src_stride[inner_dim(plan)]);
    if (form.vectors || form.sums || rearranges_in_place(plan))
        return NEAR_LANES;
    if (o.heads_per_group > 1 && head && head < element && (!row || head <= row))
        return NEAR_HEADS;
    return row && row < element ? NEAR_ROWS : NEAR_LANES;
}

/* Sums: as many heads at once as a block has room for. */
static inline void plan_sum(const trope_plan_operand &from, block_operand *o)
{
    o->terms = from.summed_heads == TROPE_SHARED_ALL     ? o->heads
               : from.summed_heads == TROPE_SHARED_GROUP ? (uint32_t)from.heads_per_group
                                                         : 1;
    o->slots = std::min(power_of_two(o->terms), std::max(USUAL_THREADS / o->lanes.divisor, 1u));
}

/* Items of an operand that one block must have. */
static inline uint32_t items_together(const trope_plan &plan, const block_operand &o)
{
    if (o.slots > 1)
        return o.slots * o.lanes.divisor;
    return rearranges_in_place(plan) ? power_of_two(o.rotating) : 1;
}

/* Numbers the items of a row. Returns the most that belong together, which are a power of two if any do. */
template <int OPERANDS>
static inline uint32_t plan_items(const trope_plan &plan, const block_form &form, block_call<OPERANDS> *call)
{
    const bool aligned = form.sums || rearranges_in_place(plan);
    uint32_t items = 0, together = 1;
    call->shape.least_slots = USUAL_THREADS;
    memset(call->first_item, 0xff, sizeof call->first_item);
    for (int i = 0; i < plan.operand_count; i++) {
        const trope_plan_operand &from = plan.operands[i];
        block_operand *const o = &call->operands[i];
        if (!moves_operand(plan, from)) {
            call->first_item[i] = items;
            *o = empty_operand();
            continue;
        }
        *o = plan_block_operand(plan, form, from, aligned);
        if (form.sums)
            plan_sum(from, o);
        const uint32_t of_operand = items_together(plan, *o);
        call->first_item[i] = (uint32_t)quotient_up(items, of_operand) * of_operand;
        items = call->first_item[i];
        o->places = o->heads / o->terms * o->slots;
        items += o->places * o->lanes.divisor;
        together = std::max(together, of_operand);
        call->shape.slots = std::max(call->shape.slots, o->slots);
        if (o->terms > o->slots)
            call->shape.least_slots = std::min(call->shape.least_slots, o->slots);
        call->shape.rounds = std::max(call->shape.rounds, (uint32_t)quotient_up(o->terms, o->slots));
    }
    call->shape.items = items;
    return together;
}

/* ---- blocks ---- */

static inline double elements_of_row(const trope_plan &plan)
{
    double elements = 0;
    for (int i = 0; i < plan.operand_count; i++)
        elements += (double)plan.operands[i].groups * plan.operands[i].heads_per_group * plan.operands[i].head_dim;
    return elements;
}

static inline bool heads_outside(const trope_plan &plan)
{
    const trope_plan_operand &o = plan.operands[0];
    return o.groups * o.heads_per_group > 1 &&
           std::max(magnitude(o.src_stride[TROPE_DIM_HEAD]), magnitude(o.src_stride[TROPE_DIM_GROUP])) >
               magnitude(o.src_stride[inner_dim(plan)]);
}

/* Rows that a block should have at least: where those of a head are neighbours in memory. */
static inline uint32_t rows_together(const trope_plan &plan, uint32_t neighbours)
{
    return neighbours == NEAR_ROWS ? 32 : heads_outside(plan) ? 4 : 1;
}

/* Rows and items of a block. */
static inline void cut(const trope_plan &plan, uint32_t together, size_t bytes_of_row, block_shape *shape)
{
    const int multiprocessors = std::max(facts_of_device().multiprocessors, 1);
    const uint32_t several = rows_together(plan, shape->neighbours), most = several > 1 ? USUAL_THREADS / several : MOST_ITEMS;
    uint32_t items = (uint32_t)quotient_up(shape->items, quotient_up(shape->items, most));
    if (together > 1)
        items = std::max(power_of_two(items), together);
    else if (items < shape->items)
        items = (uint32_t)quotient_up(items, 8) * 8;
    shape->items_of_block = trope_make_divisor(items);
    shape->slices = trope_make_divisor((uint32_t)quotient_up(shape->items, items));
    int64_t rows = std::max(USUAL_THREADS / items, 1u);
    rows = std::min<int64_t>(rows, UNASKED_SHARED_BYTES / bytes_of_row);
    rows = std::min<int64_t>(rows, shape->rows * shape->slices.divisor / multiprocessors);
    shape->rows_of_block = (uint32_t)std::max<int64_t>(rows, 1);
}

static inline void plan_couples(const trope_plan &plan, const block_form &form, block_shape *shape)
{
    const uint32_t of_lane = (uint32_t)form.pairs_of_lane;
    shape->lanes_of_row = (uint32_t)quotient_up(plan.pairs, of_lane);
    shape->couples_of_row = shape->lanes_of_row * of_lane;
    shape->columns = trope_make_divisor((uint32_t)quotient_up(plan.pairs, 32));
}

/* Room for the terms of sums: those of a block's threads, and those of rounds that wait for others. */
static inline size_t bytes_of_terms(size_t bytes_of_lane, unsigned threads, block_shape *shape)
{
    while (shape->rounds > 1 && shape->rounds >> shape->levels)
        shape->levels++;
    return bytes_of_lane * (threads + shape->levels * threads / shape->least_slots);
}

template <int OPERANDS>
static inline block_launch plan_blocks(const trope_plan &plan, const block_form &form, block_call<OPERANDS> *call)
{
    block_shape *const shape = &call->shape;
    memset(shape, 0, sizeof *shape);
    fill_cuda_plan(plan, &call->plan);
    shape->rows = plan.batch * plan.tokens;
    shape->inner_rows = trope_inner_rows(&plan);
    shape->inner = trope_make_divisor((uint32_t)std::min<int64_t>(shape->inner_rows, INT32_MAX));
    shape->batch_outermost = plan.batch_outermost != 0;
    shape->neighbours = find_neighbours(plan, form);
    plan_couples(plan, form, shape);
    block_launch l = {0, 0, 0, elements_of_row(plan) <= INT32_MAX / 8};
    if (!l.fits)
        return l;
    const uint32_t together = plan_items(plan, form, call);
    const size_t real = plan.dtype == TROPE_F64 ? sizeof(double) : sizeof(float),
                 bytes_of_row = shape->couples_of_row * (plan.angles.per_element ? 2 : 1) * 2 * real;
    cut(plan, together, bytes_of_row + sizeof(uint32_t), shape);
    const uint32_t rows = shape->rows_of_block;
    l.threads = (unsigned)quotient_up(rows * shape->items_of_block.divisor, 32) * 32;
    shape->second_at = rows * shape->couples_of_row;
    shape->rows_at = (uint32_t)quotient_up((int64_t)(rows * bytes_of_row), 16) * 16;
    shape->terms_at = shape->rows_at + (uint32_t)quotient_up(rows * sizeof(uint32_t), 16) * 16;
    l.shared_bytes = shape->terms_at;
    if (form.sums)
        l.shared_bytes += bytes_of_terms(2 * form.pairs_of_lane * real, l.threads, shape);
    const double blocks = (double)quotient_up(shape->rows, rows) * shape->slices.divisor;
    l.fits = l.fits && blocks <= INT32_MAX && l.threads <= BLOCK_THREADS && l.shared_bytes <= ASKED_SHARED_BYTES;
    l.blocks = l.fits ? (unsigned)blocks : 0;
    return l;
}

template <int OPERANDS>
static inline trope_status launch_blocks(const char *function, const trope_plan &plan, const block_form &form, const void *kernel)
{
    block_call<OPERANDS> call;
    const block_launch l = plan_blocks(plan, form, &call);
    REQUIRE(l.fits, TROPE_ERROR_UNSUPPORTED, "the operands (%lld rows) are more than one launch can take",
            (long long)(plan.batch * plan.tokens));
    void *arguments[] = {&call, plan.step};
    const cudaError_t error =
        launch_early(facts_of_device(), kernel, dim3(l.blocks), l.threads, l.shared_bytes, plan.stream, arguments);
    return error == cudaSuccess ? TROPE_OK : fail_cuda(function, error);
}

#endif
