/* Cuts a call into register blocks: computes the parameters of a launch from a plan. Host only. */
#ifndef TROPE_FWD_CUDA_PLAN_BLOCKS_CUH
#define TROPE_FWD_CUDA_PLAN_BLOCKS_CUH

#include <string.h>

#include <algorithm>

#include "core/require.h"
#include "fwd/cuda/vector_calls.cuh"

/* The number of threads that a block should have. While some threads find the position of a token, the others wait, so
 * many small blocks are better than a few large blocks. Sums of heads need more threads. */
#define DEFAULT_THREADS 256
#define SMALL_THREADS   96
#define MOST_ITEMS      320 /* items of a token in a block: 40 heads of 8 (two blocks would compute coefficients twice) */

/* A generic search takes long. If the device cannot hold all tokens of the call at once, a block searches for a few
 * tokens. */
#define LONG_SEARCH_THREADS 128
#define LONG_SEARCH_TOKENS  4
#define DEVICE_THREADS      2048 /* the maximum of a multiprocessor */

#define MOST_GRID_Y 65535
#define MOST_TOKENS 64 /* of a block: CUDA's limit of the third dimension */

struct block_launch {
    dim3 blocks, threads;
    size_t shared_memory_bytes;
    bool fits; /* one launch can process the call */
};

/* The properties that the blocks of a plan must have. */
struct block_form {
    bool vectors, sums;
    int pairs_of_item;  /* elements of a vector, or 1 */
    uint32_t threads;   /* the number of threads that a block should have */
    uint32_t items;     /* the maximum number of items of a token in one block */
    uint32_t most;      /* the maximum number of threads that the kernel is compiled for */
    bool alone;         /* threads share nothing: rotate_alone.cuh */
    bool splits;        /* interleaved pairs: an item has a vector in each half of the window, for coalesced access */
    bool searches_long; /* the kernel is POSITIONS_SEARCHED_GENERIC */
    bool walks;         /* threads loop over the tokens of their block */
    bool one_head;      /* with norms: a thread has one head and not NORM_HEADS */
};

/* Returns whether `splits` is possible. It is the same for all operands. */
static inline bool can_split(const trope_plan &plan)
{
    bool can = plan.interleaved_src && plan.interleaved_dst;
    for (int i = 0; i < plan.operand_count; i++)
        can = can && (!plan.operands[i].rotary_dim || plan.operands[i].rotary_dim == 2 * plan.pairs);
    return can;
}

/* ---- workspace ---- */

/* Takes `count` values of the workspace, beginning at `size`, and advances `size` to the next free byte. */
template <typename T> static inline T *take(void *workspace, uint64_t count, uint64_t *size)
{
    T *const at = (T *)((char *)workspace + *size);
    *size += (count * sizeof(T) + 15) / 16 * 16;
    return at;
}

/* ---- segments ---- */

/* Returns the addresses of a run's items in a tensor, in bytes. */
template <typename STRIDE>
static inline block_tensor<STRIDE> plan_tensor(const trope_plan &plan, const block_form &form, const trope_plan_operand &o,
                                               const head_run &run, const void *base, const int64_t *stride,
                                               int32_t interleaved)
{
    const int64_t bytes = plan.element_size, element = stride[TROPE_DIM_ELEMENT] * bytes, pairs = form.pairs_of_item;
    block_tensor<STRIDE> t;
    memset(&t, 0, sizeof t);
    t.base = base ? (char *)base + run.begin * element : NULL;
    t.outer = (STRIDE)(stride[outer_dim(plan)] * bytes);
    t.inner = (STRIDE)(stride[inner_dim(plan)] * bytes);
    t.group = (STRIDE)(stride[TROPE_DIM_GROUP] * bytes);
    t.head = (STRIDE)(stride[TROPE_DIM_HEAD] * bytes);
    t.item = (STRIDE)(pairs * element);
    t.second = (STRIDE)(run.count / pairs / 2 * pairs * element);
    if (run.rotates && !form.splits) {
        t.item = (STRIDE)((interleaved ? 2 : 1) * pairs * element);
        t.second = (STRIDE)((interleaved ? pairs : o.part_pairs) * element);
        t.part = (STRIDE)((interleaved ? 0 : o.part_pairs) * element);
    }
    return t;
}

template <typename STRIDE>
static inline bool have_same_strides(const block_tensor<STRIDE> &a, const block_tensor<STRIDE> &b)
{
    return a.inner == b.inner && a.head == b.head && a.item == b.item && a.second == b.second && a.outer == b.outer &&
           a.group == b.group && a.part == b.part;
}

/* `aligned`: the number of items of a head is rounded up to a power of two, for heads that must not be cut. */
template <typename STRIDE>
static inline block_segment<STRIDE> plan_segment(const trope_plan &plan, const block_form &form,
                                                 const trope_plan_operand &o, const head_run &run, bool aligned)
{
    block_segment<STRIDE> s;
    memset(&s, 0, sizeof s);
    s.src = plan_tensor<STRIDE>(plan, form, o, run, o.src, o.src_stride, plan.interleaved_src);
    s.dst = plan_tensor<STRIDE>(plan, form, o, run, o.dst, o.dst_stride, plan.interleaved_dst);
    const block_tensor<STRIDE> kept = plan_tensor<STRIDE>(plan, form, o, run, o.dst, o.dst_stride, plan.interleaved_src);
    s.kept_item = kept.item;
    s.kept_second = kept.second;
    s.kept_part = kept.part;
    s.moved = s.dst.base - s.src.base;
    s.alike = have_same_strides(s.src, s.dst);
    s.heads = (uint32_t)trope_heads_of_token(&o);
    s.places = s.heads;
    s.heads_per_group = trope_make_divisor((uint32_t)o.heads_per_group);
    s.rotates = run.rotates;
    s.in_place = o.in_place != 0;
    const uint32_t units = (uint32_t)(run.count / form.pairs_of_item);
    s.working = (units + 1) / 2;
    s.is_odd = units % 2;
    s.part_items = run.rotates ? (uint32_t)(o.part_pairs / form.pairs_of_item) : s.working;
    s.head_items = trope_make_divisor(aligned ? power_of_two(s.working) : s.working);
    s.is_intricate = o.groups > 1 || s.part_items < s.working || aligned;
    s.is_loaded = run.rotates || !o.in_place;
    s.terms = 1;
    s.accumulate = o.accumulate != 0;
    s.is_fast = run.rotates && !o.accumulate && plan.rounding == TROPE_ROUND_ONCE;
    return s;
}

/* Returns how many consecutive items of a segment must be in one block. */
template <typename STRIDE>
static inline uint32_t items_together(const trope_plan &plan, const trope_plan_operand &o, const block_segment<STRIDE> &s)
{
    const bool whole_heads = s.slot_bits || o.norm.is_given || (s.rotates && rearranges_in_place(plan));
    return whole_heads ? s.head_items.divisor << s.slot_bits : 1;
}

/* The use of a segment: SUMMED adds its heads, ROTATED rotates them, COPIED copies them. A REST segment has no items:
 * threads with other items of the token process it too. In place, it is only filled, and only in padding tokens, which
 * are rare. In calls with sums over heads, it is also copied. */
enum segment_use { SUMMED, ROTATED, COPIED, REST, USES };

static inline segment_use use_of(const block_form &form, const trope_plan_operand &o, const head_run &run,
                                 uint32_t rotating)
{
    const bool is_rest = rotating && (form.sums || o.in_place) && !o.norm.is_given;
    return o.summed_heads ? SUMMED : run.rotates || o.norm.is_given ? ROTATED : is_rest ? REST : COPIED;
}

/* Numbers the items of a token in the order of their uses, so that some blocks only copy, and compute no coefficients.
 * Returns the largest number of items that must stay together, which is a power of two if any must. */
template <class BLOCKS, class CALL>
static inline uint32_t plan_items(const trope_plan &plan, const block_form &form, CALL *call, uint32_t *summing,
                                  uint32_t *rotating)
{
    typedef typename CALL::stride stride;
    block_shape *const shape = &call->shape;
    uint32_t together = 1;
    memset(call->first_unit, 0xff, sizeof call->first_unit);
    for (int use = SUMMED; use < USES; use++) {
        for (int i = 0; i < plan.operand_count; i++) {
            trope_plan_operand o = plan.operands[i];
            head_run runs[3];
            const int count = cut_head(plan, o, runs);
            if (!o.summed_heads)
                join_groups(&o, o.norm.is_backward);
            if (o.norm.is_given)
                o.part_pairs = plan.pairs / plan.parts;
            for (int j = 0; j < count; j++) {
                if (use_of(form, o, runs[j], *rotating) != use)
                    continue;
                const uint32_t number = shape->segments + shape->rest;
                const bool whole_heads = use == SUMMED || o.norm.is_given || rearranges_in_place(plan);
                block_segment<stride> *const s = &call->segments[number];
                *s = plan_segment<stride>(plan, form, o, runs[j], whole_heads);
                if (use == REST) {
                    shape->rest++;
                    continue;
                }
                BLOCKS::fill(o, number, call);
                const uint32_t of_segment = items_together(plan, o, *s);
                call->first_unit[number] = (uint32_t)quotient_up(shape->items, of_segment) * of_segment;
                if (number > 0 && call->first_unit[number] > shape->items)
                    call->segments[number - 1].is_intricate = 1; /* the numbers after its last item belong to no segment */
                shape->segments++;
                shape->items = call->first_unit[shape->segments - 1] + s->places * s->head_items.divisor;
                together = std::max(together, of_segment);
            }
        }
        if (use == SUMMED)
            *summing = shape->items;
        if (use == ROTATED && plan.pairs > 0)
            *rotating = shape->items;
    }
    return together;
}

/* Returns the form of a rotation's blocks, for vectors or for elements. */
static inline block_form form_of(const trope_plan &plan, bool vectors)
{
    block_form form = {};
    form.vectors = vectors;
    form.pairs_of_item = vectors ? 16 / plan.element_size : 1;
    form.threads = DEFAULT_THREADS;
    form.items = DEFAULT_THREADS;
    form.most = (uint32_t)block_limits(POSITIONS_GENERIC, !vectors).threads;
    form.splits = vectors && can_split(plan);
    return form;
}

/* ---- blocks ---- */

/* Returns the number of rotating heads of a token. */
static inline int64_t rotating_heads(const trope_plan &plan)
{
    int64_t heads = 0;
    for (int i = 0; i < plan.operand_count; i++)
        if (plan.operands[i].rotary_dim)
            heads += (int64_t)plan.operands[i].groups * plan.operands[i].heads_per_group;
    return heads;
}

/* Returns the innermost dimension in memory, or NEAR_ITEMS for heads that are rearranged in place, because these must
 * not be cut. */
static inline uint32_t find_neighbours(const trope_plan &plan, const block_form &form)
{
    const trope_plan_operand &o = plan.operands[0];
    const int64_t element = magnitude(o.src_stride[TROPE_DIM_ELEMENT]), head = magnitude(o.src_stride[TROPE_DIM_HEAD]);
    const int64_t token = magnitude(o.src_stride[inner_dim(plan)]);
    if (form.vectors || form.sums || rearranges_in_place(plan))
        return NEAR_ITEMS;
    if (o.heads_per_group > 1 && head && head < element && (!token || head <= token))
        return NEAR_HEADS;
    return token && token < element ? NEAR_TOKENS : NEAR_ITEMS;
}

/* Returns the smallest number of tokens that a block should have. It is more than one if the tokens of a head are
 * neighbours in memory. */
static inline uint32_t least_tokens(const trope_plan &plan, uint32_t neighbours)
{
    return neighbours == NEAR_TOKENS ? 32 : tokens_are_near(plan) ? 4 : 1;
}

/* Returns whether the three indices of a thread are an item, a head and a token, because the heads of all segments have
 * the same number of items. */
template <typename STRIDE, int SEGMENTS>
static inline bool is_uniform(const block_form &form, const block_call<STRIDE, SEGMENTS> &call)
{
    bool uniform = form.vectors && !form.sums;
    for (int i = 0; i < call.shape.segments; i++)
        uniform = uniform && call.segments[i].head_items.divisor == call.segments[0].head_items.divisor;
    return uniform;
}

/* Returns whether the items and addresses are sums of products (ADDRESSES_SIMPLE). No item may be idle. */
template <typename STRIDE, int SEGMENTS>
static inline bool is_simple(const trope_plan &plan, const block_call<STRIDE, SEGMENTS> &call)
{
    bool simple = call.shape.is_uniform && addresses_are_simple(plan);
    for (int i = 0; i < call.shape.segments; i++)
        simple = simple && call.segments[i].head_items.divisor == call.segments[i].working;
    return simple;
}

/* Chooses the tokens and items of a block. `of_head` is the number of items of a head if heads must not be cut,
 * otherwise 1. */
static inline void cut_tokens(const trope_plan &plan, const block_form &form, uint32_t together, uint32_t of_head,
                              size_t bytes_of_token, block_shape *shape)
{
    const int multiprocessors = std::max(facts_of_device().multiprocessors, 1);
    const uint32_t several = least_tokens(plan, shape->neighbours), threads = several > 1 ? DEFAULT_THREADS : form.threads,
                   most = std::max((several > 1 ? threads : form.items) / several / of_head, 1u) * of_head;
    uint32_t items = (uint32_t)quotient_up(shape->items, quotient_up(shape->items, most));
    if (of_head > 1)
        items = (uint32_t)quotient_up(items, of_head) * of_head;
    else if (together > 1)
        items = std::max(power_of_two(items) <= form.most ? power_of_two(items) : power_of_two(items) / 2, together);
    else if (items < shape->items)
        items = (uint32_t)quotient_up(items, 8) * 8;
    int64_t tokens = std::max((threads + items / 2) / items, 1u);
    if (form.searches_long && shape->tokens * items > (int64_t)DEVICE_THREADS * multiprocessors)
        tokens =
            std::max<int64_t>(tokens, std::min((LONG_SEARCH_THREADS + items / 2) / items, (uint32_t)LONG_SEARCH_TOKENS));
    tokens = std::min<int64_t>(tokens, form.most / items);
    tokens = std::min<int64_t>(tokens, UNASKED_SHARED_MEMORY / bytes_of_token);
    tokens = std::min<int64_t>(tokens, shape->tokens * quotient_up(shape->items, items) / multiprocessors);
    tokens = std::min<int64_t>(tokens, plan.position_source.boundaries ? MOST_SEARCHED_TOKENS : MOST_TOKENS);
    shape->tokens_of_block = (uint32_t)std::max<int64_t>(tokens, 1);
    const uint32_t of_warp = (uint32_t)quotient_up(32, shape->tokens_of_block); /* a block has at least one warp */
    shape->items_of_block = std::max(items, together > 1 ? power_of_two(of_warp) : of_warp);
    if (of_head > 1)
        shape->items_of_block = (uint32_t)quotient_up(std::max(items, of_warp), of_head) * of_head;
}

/* The steps of plan_blocks that differ between kinds of calls, for a rotation. sum_blocks (bwd/cuda/plan_sums.cuh) and
 * norm_blocks (plan_norms.cuh) have the same functions. */
struct rotation_blocks {
    template <class CALL> static inline void begin(const trope_plan &, const block_form &, CALL *)
    {
    }

    /* Fills in the fields of segment `number` that plan_segment leaves out. */
    template <class CALL> static inline void fill(const trope_plan_operand &, uint32_t, CALL *)
    {
    }

    template <class CALL>
    static inline void cut(const trope_plan &plan, const block_form &form, const CALL &call, uint32_t together,
                           size_t bytes_of_token, block_shape *shape)
    {
        cut_tokens(plan, form, together, shape->is_uniform ? call.segments[0].head_items.divisor : 1, bytes_of_token,
                   shape);
    }

    template <class CALL> static inline int64_t copying_slices(const CALL &)
    {
        return 1;
    }

    static inline size_t bytes_of_terms(const trope_plan &, const block_form &, unsigned, block_shape *)
    {
        return 0;
    }
};

/* Sets the unit of a token: a head if all heads have the same number of items, otherwise an item. */
template <typename STRIDE, int SEGMENTS> static inline void plan_units(block_call<STRIDE, SEGMENTS> *call)
{
    block_shape *const shape = &call->shape;
    const uint32_t of_unit = shape->is_uniform ? call->segments[0].head_items.divisor : 1;
    shape->units = shape->items / of_unit;
    shape->units_of_block = shape->items_of_block / of_unit;
    shape->all_are_alike = 1;
    for (int i = 0; i < shape->segments + shape->rest; i++) {
        const block_segment<STRIDE> &s = call->segments[i];
        shape->any_is_intricate = shape->any_is_intricate || s.is_intricate;
        shape->all_are_alike = shape->all_are_alike && (i >= shape->segments || s.alike);
        if (i < shape->segments)
            call->first_unit[i] /= of_unit;
    }
}

/* Sets the fields about couples in shared memory. */
static inline void plan_couples(const trope_plan &plan, const block_form &form, block_shape *shape)
{
    const uint32_t of_item = (uint32_t)form.pairs_of_item;
    shape->window_items = trope_make_divisor((uint32_t)std::max<int64_t>(quotient_up(plan.pairs, of_item), 1));
    shape->couples_of_token = form.alone ? 0 : shape->window_items.divisor * of_item;
    shape->splits = form.splits;
}

/* Returns the size of the type that computes the rotation. */
static inline size_t bytes_of_real(const trope_plan &plan)
{
    return plan.dtype == TROPE_F64 ? sizeof(double) : sizeof(float);
}

/* Returns the size of a token's coefficients in shared memory. */
static inline size_t bytes_of_couples(const trope_plan &plan, const block_shape &shape)
{
    return shape.couples_of_token * (plan.angles.per_element ? 2 : 1) * 2 * bytes_of_real(plan);
}

static inline void plan_tokens(const trope_plan &plan, block_shape *shape)
{
    memset(shape, 0, sizeof *shape);
    shape->tokens = plan.batch * plan.tokens;
    shape->inner_tokens = trope_inner_tokens(&plan);
    shape->two_dimensions = shape->tokens > shape->inner_tokens;
    shape->inner = trope_make_divisor((uint32_t)std::min<int64_t>(std::max<int64_t>(shape->inner_tokens, 1), INT32_MAX));
    shape->batch_outermost = plan.batch_outermost != 0;
}

template <class BLOCKS, class CALL>
static inline block_launch plan_blocks(const trope_plan &plan, const block_form &form, CALL *call)
{
    block_shape *const shape = &call->shape;
    block_launch l = {};
    l.fits = elements_of_token(plan) <= INT32_MAX / 8;
    if (!l.fits)
        return l;
    BLOCKS::begin(plan, form, call);
    plan_tokens(plan, shape);
    fill_cuda_plan(plan, &call->plan);
    shape->neighbours = find_neighbours(plan, form);
    plan_couples(plan, form, shape);
    uint32_t summing = 0, rotating = 0;
    const uint32_t together = plan_items<BLOCKS>(plan, form, call, &summing, &rotating);
    const size_t bytes_of_token = bytes_of_couples(plan, *shape);
    shape->is_uniform = is_uniform(form, *call);
    BLOCKS::cut(plan, form, *call, together, bytes_of_token + bytes_of_block_tokens(plan, 1), shape);
    plan_units(call);
    shape->is_simple = is_simple(plan, *call);
    const uint32_t tokens = shape->tokens_of_block, items = shape->items_of_block,
                   head_items = items / shape->units_of_block, tokens_at_once = form.walks ? 1 : tokens;
    shape->rotating_slices = (uint32_t)quotient_up(rotating, items);
    shape->summing_slices = (uint32_t)quotient_up(summing, items);
    shape->second_at = tokens * shape->couples_of_token;
    shape->tokens_at = (uint32_t)quotient_up((int64_t)(tokens * bytes_of_token), 16) * 16;
    shape->terms_at = shape->tokens_at + (uint32_t)quotient_up((int64_t)bytes_of_block_tokens(plan, tokens), 16) * 16;
    l.shared_memory_bytes = shape->terms_at + BLOCKS::bytes_of_terms(plan, form, tokens_at_once * items, shape);
    const int64_t blocks = quotient_up(shape->tokens, tokens),
                  slices = quotient_up(shape->items, items) * BLOCKS::copying_slices(*call);
    l.threads = shape->neighbours == NEAR_TOKENS ? dim3(tokens, items)
                : shape->is_uniform              ? dim3(head_items, items / head_items, tokens_at_once)
                                                 : dim3(items, 1, tokens_at_once);
    shape->slices_first = slices > 1 && blocks <= MOST_GRID_Y && least_tokens(plan, shape->neighbours) == 1;
    l.blocks = shape->slices_first ? dim3((unsigned)slices, (unsigned)blocks) : dim3((unsigned)blocks, (unsigned)slices);
    l.fits = blocks <= INT32_MAX && slices <= MOST_GRID_Y && tokens_at_once * items <= form.most &&
             l.shared_memory_bytes <= ASKED_SHARED_MEMORY;
    return l;
}

/* Launches a kernel whose blocks are cut by BLOCKS. */
template <class CALL, class BLOCKS>
static inline trope_status launch_blocks(const char *function, const trope_plan &plan, const block_form &form,
                                         const void *kernel)
{
    CALL call;
    const block_launch l = plan_blocks<BLOCKS>(plan, form, &call);
    REQUIRE(l.fits, TROPE_ERROR_UNSUPPORTED, "operands (%lld tokens) are too large for one launch",
            (long long)(plan.batch * plan.tokens));
    void *arguments[] = {&call, plan.step};
    const cudaError_t error =
        launch_early(facts_of_device(), kernel, l.blocks, l.threads, l.shared_memory_bytes, plan.stream, arguments);
    return error == cudaSuccess ? TROPE_OK : fail_cuda(function, error);
}

#endif
