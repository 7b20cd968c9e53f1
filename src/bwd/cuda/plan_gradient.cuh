/* How a call with a gradient of the angles is cut into units, and where its sums lie. All of it follows from shapes and
 * options, except whether the pass uses vectors. Host only. */
#ifndef TROPE_BWD_CUDA_PLAN_GRADIENT_CUH
#define TROPE_BWD_CUDA_PLAN_GRADIENT_CUH

#include "bwd/cuda/gradient_call.cuh"
#include "fwd/cuda/plan_blocks.cuh"

/* This number of units keeps any device busy. If there are more, a unit takes several batch entries that share angles,
 * and a block takes several units. */
#define ENOUGH_UNITS 1024
#define MOST_ENTRIES 64
#define MOST_UNITS   MOST_SEARCHED_TOKENS
/* Minimum number of heads for each thread, if there are enough heads. More heads share the fixed cost of a unit. */
#define HEADS_OF_THREAD 4
/* Maximum number of sequences that a block examines for its rows of d_freqs. Each thread takes one, and two threads take
 * the gaps before the first and after the last sequence. */
#define MOST_SEQUENCES (SUMS_THREADS - 2)

/* ---- units ---- */

/* Whether the shapes determine the angle row of each token, and all tokens have different rows. */
static inline bool rows_are_known(const trope_plan &plan)
{
    const trope_position_source *s = &plan.position_source;
    if (s->boundaries || s->ids || s->starts)
        return false;
    return plan.tokens == 0 || trope_dense_position(s, plan.tokens - 1) < plan.angles.rows; /* positions always ascend */
}

/* Whether an adder finds the tokens of each row of d_freqs by examining all sequences. */
static inline bool sequences_are_few(const trope_plan &plan)
{
    const trope_position_source &s = plan.position_source;
    return s.boundaries && search_is_fast(s) && !s.stream && s.count <= MOST_SEQUENCES &&
           plan.angles.out_of_range == TROPE_RANGE_POISON;
}

static inline gradient_mode mode_of(const trope_plan &plan, int64_t units_of_token)
{
    const bool apart = plan.d_freqs_stride.batch && plan.batch > 1;
    if (plan.d_inv_freq || (!plan.d_freqs_stride.row && !apart))
        return GRADIENT_TOTAL;
    if (plan.d_freqs_stride.row && rows_are_known(plan))
        return apart || units_of_token <= 1 ? GRADIENT_DIRECT : GRADIENT_TOKENS;
    return plan.d_freqs_stride.row && sequences_are_few(plan) ? GRADIENT_SEQUENCES : GRADIENT_SORTED;
}

static inline int64_t entries_of_unit(const trope_plan &plan)
{
    const int64_t spare = plan.batch * plan.tokens / ENOUGH_UNITS,
                  room = INT32_MAX / 2 / std::max<int64_t>(rotating_heads(plan), 1);
    if (!plan.same_angles_in_batch || plan.d_freqs_stride.batch)
        return 1;
    return std::max<int64_t>(std::min({spare, room, plan.batch, (int64_t)MOST_ENTRIES}), 1);
}

/* Chooses items, slots and rounds. The slots fill whole warps, or their number is a power of two that fits in a warp. */
static inline void plan_slots(const trope_plan &plan, int64_t heads, gradient_call *g)
{
    const uint32_t of_item = 16 / (uint32_t)plan.element_size,
                   head_items = power_of_two((uint32_t)quotient_up(plan.pairs, of_item));
    const uint32_t of_warp = std::max(32 / head_items, 1u), most = std::max(GRADIENT_THREADS / head_items, 1u);
    const int64_t wanted = std::min<int64_t>(quotient_up(heads, HEADS_OF_THREAD), most);
    while (1u << g->item_bits < head_items)
        g->item_bits++;
    g->slots = wanted < of_warp ? power_of_two((uint32_t)wanted) : (uint32_t)wanted / of_warp * of_warp;
    g->slots_of_warp = std::min(g->slots, of_warp);
    g->shares = g->slots / g->slots_of_warp;
    g->rounds = (uint32_t)quotient_up(heads, g->slots);
    g->unit_threads = trope_make_divisor(g->slots * head_items);
}

/* Chooses the number of units of a block, and lays out its shared memory. Returns the bytes of shared memory. */
static inline size_t plan_units(const trope_plan &plan, gradient_call *g)
{
    block_shape *const shape = &g->shape;
    const size_t couples = bytes_of_couples(plan, *shape), left = g->shares * g->columns.divisor * sizeof(double);
    const int64_t room = (int64_t)std::min<size_t>(
                      (UNASKED_SHARED_MEMORY - 16) / (couples + left + bytes_of_block_tokens(plan, 1)), MOST_UNITS),
                  small = GRADIENT_THREADS / g->unit_threads.divisor,
                  units = std::max<int64_t>(std::min({room, small, shape->tokens / ENOUGH_UNITS}), 1);
    shape->tokens_of_block = (uint32_t)units;
    shape->second_at = (uint32_t)units * shape->couples_of_token;
    shape->items_of_block = g->unit_threads.divisor;
    g->left_at = (uint32_t)quotient_up(units * (int64_t)couples, 16) * 16;
    shape->tokens_at = g->left_at + (uint32_t)((size_t)units * left);
    return shape->tokens_at + bytes_of_block_tokens(plan, (uint32_t)units);
}

static inline block_form form_of_pass(const trope_plan &plan, bool vectors)
{
    block_form form = {};
    form.vectors = vectors;
    form.pairs_of_item = vectors ? 16 / plan.element_size : 1;
    return form;
}

/* Fills in all parameters except the operands. Returns the bytes of shared memory of a block. */
static inline size_t plan_gradient(const trope_plan &of, gradient_call *g)
{
    memset(g, 0, sizeof *g);
    trope_plan plan = of;
    plan.batch_outermost = 1;
    plan.rounding = TROPE_ROUND_ONCE;
    fill_cuda_plan(plan, &g->plan);
    g->rounding = of.rounding;
    g->batch = (uint32_t)plan.batch;
    g->entries = (uint32_t)entries_of_unit(plan);
    g->heads_of_entry = trope_make_divisor((uint32_t)std::max<int64_t>(rotating_heads(plan), 1));
    const int64_t units_of_token = quotient_up(plan.batch, g->entries);
    g->mode = mode_of(plan, units_of_token);
    g->columns = trope_make_divisor(columns_of(plan));
    g->buckets = plan.d_freqs ? (uint32_t)(rows_of_gradient(plan) * (plan.d_freqs_stride.batch ? plan.batch : 1)) : 0;
    g->shape.batch_outermost = 1;
    g->shape.two_dimensions = plan.batch > 1;
    g->shape.rotating_slices = 1; /* all slices */
    g->shape.tokens = units_of_token * plan.tokens;
    g->shape.inner_tokens = plan.tokens;
    g->shape.inner = trope_make_divisor((uint32_t)std::max<int64_t>(plan.tokens, 1));
    plan_couples(plan, form_of_pass(plan, true), &g->shape); /* the element kernel has items of the same width */
    plan_slots(plan, rotating_heads(plan) * g->entries, g);
    return plan_units(plan, g);
}

/* ---- operands ---- */

/* Returns an operand as the pass sees it: without dst if dst receives a sum, because a separate launch stores sums. */
static inline trope_plan_operand operand_of_pass(const trope_plan_operand &of)
{
    trope_plan_operand o = of;
    if (trope_is_summed(&o))
        o.dst = NULL;
    join_groups(&o, true);
    return o;
}

static inline bool can_be_vectors_of_pass(const trope_plan &plan, const trope_plan_operand &o)
{
    return !(o.norm.is_given && o.rotary_dim) && operand_is_vector(plan, o) && strides_are_narrow(o.src_stride) &&
           strides_are_narrow(o.dst_stride) &&
           (!o.rotary_dim ||
            (tensor_is_vector(plan, o.forward_src, o.forward_src_stride) && strides_are_narrow(o.forward_src_stride)));
}

/* Whether the vector kernel of the pass can run a plan. It has the requirements of can_be_vectors. In addition, the plan
 * must round once, have one angle for each pair and few phase steps, and rotate no operand that has a norm. */
static inline bool gradient_can_be_vectors(const trope_plan &plan)
{
    head_run runs[3];
    int segments = 0;
    bool fits = tokens_are_narrow(plan) && pairs_fit(plan) && plan.rounding == TROPE_ROUND_ONCE && !plan.angles.per_element;
    for (int i = 0; i < plan.operand_count; i++) {
        const trope_plan_operand o = operand_of_pass(plan.operands[i]);
        segments += cut_head(plan, o, runs);
        fits = fits && (!(o.rotary_dim || moves_operand(plan, o)) || can_be_vectors_of_pass(plan, o));
    }
    return fits && segments <= NARROW_SEGMENTS;
}

template <class CALL>
static inline void plan_window(const trope_plan &plan, const block_form &form, const trope_plan_operand &o, CALL *g)
{
    typedef typename CALL::stride stride;
    head_run window = {};
    window.begin = o.rotary_offset;
    window.count = o.rotary_dim;
    window.rotates = true;
    block_segment<stride> *const s = &g->segment[g->segments++];
    *s = plan_segment<stride>(plan, form, o, window, false);
    s->dst.base = moves_operand(plan, o) ? s->dst.base : NULL;
    if constexpr (std::is_same_v<CALL, wide_gradient>) {
        g->norm[g->windows] = o.norm;
        g->window_at[g->windows] = o.rotary_offset;
    }
    g->x[g->windows++] =
        plan_tensor<stride>(plan, form, o, window, o.forward_src, o.forward_src_stride, plan.interleaved_forward_src);
}

template <class CALL> static inline void plan_segments(bool vectors, CALL *g)
{
    const trope_plan &plan = g->plan.plan;
    const block_form form = form_of_pass(plan, vectors);
    head_run runs[3];
    for (int i = 0; i < plan.operand_count; i++)
        if (plan.operands[i].rotary_dim)
            plan_window(plan, form, operand_of_pass(plan.operands[i]), g);
    for (int i = 0; i < plan.operand_count; i++) {
        const trope_plan_operand o = operand_of_pass(plan.operands[i]);
        const int count = cut_head(plan, o, runs);
        for (int j = o.rotary_dim ? 1 : 0; j < count; j++)
            g->segment[g->segments++] = plan_segment<typename CALL::stride>(plan, form, o, runs[j], false);
    }
    g->rearranges = rearranges_in_place(plan);
    for (uint32_t i = 0; i < g->segments; i++)
        g->shape.any_is_intricate = g->shape.any_is_intricate || g->segment[i].is_intricate;
}

/* ---- workspace ---- */

/* Fills in the parameters of the adders. Returns the bytes of workspace for the sums. When the items are few, tiles are
 * smaller, so that enough warps sort. */
static inline uint64_t plan_sums(const gradient_call &g, angle_sums *s)
{
    const int64_t blocks = quotient_up(g.shape.tokens, g.shape.tokens_of_block), rows = g.mode == GRADIENT_DIRECT ? 0
                                                                                        : g.mode == GRADIENT_TOTAL
                                                                                            ? blocks
                                                                                            : g.shape.tokens;
    uint64_t size = 0;
    memset(s, 0, sizeof *s);
    s->plan = g.plan.plan;
    s->rows = g.mode == GRADIENT_TOKENS ? quotient_up(g.batch, g.entries) : rows;
    s->width = (int64_t)g.columns.divisor * (g.mode == GRADIENT_TOKENS ? s->plan.tokens : 1);
    s->row_stride = g.mode == GRADIENT_TOTAL ? 1 : s->width;
    s->column_stride = g.mode == GRADIENT_TOTAL ? s->rows : 1;
    s->column_threads = power_of_two((uint32_t)std::min<int64_t>(
        quotient_up(s->rows, 2), g.mode == GRADIENT_TOTAL ? WIDE_THREADS : MOST_COLUMN_THREADS));
    s->row_warps = power_of_two((uint32_t)std::min<int64_t>(
        std::max<int64_t>(ENOUGH_UNITS * SUMS_WARPS / std::max<int64_t>(g.buckets, 1), 1), SUMS_WARPS));
    s->items = g.mode == GRADIENT_SORTED ? (uint32_t)g.shape.tokens * (uint32_t)s->plan.pair_axes : 0;
    s->buckets = g.buckets;
    s->warp_items = s->items <= 1u << 17 ? 64 : 256;
    s->tiles = (uint32_t)quotient_up(s->items, SUMS_WARPS * s->warp_items);
    s->sums = take<double>(s->plan.workspace, (uint64_t)rows * g.columns.divisor, &size);
    for (int i = 0; i < 2; i++) {
        s->keys[i] = take<uint32_t>(s->plan.workspace, s->items, &size);
        s->values[i] = take<uint32_t>(s->plan.workspace, s->items, &size);
    }
    s->counts = take<uint32_t>(s->plan.workspace, (uint64_t)s->tiles << SORT_MAX_BITS, &size);
    return size;
}

#endif
