/* How the backward of norms is cut into cells, and where their sums lie. All operands of the plan have a norm. Host
 * only. */
#ifndef TROPE_BWD_CUDA_PLAN_NORM_GRADIENT_CUH
#define TROPE_BWD_CUDA_PLAN_NORM_GRADIENT_CUH

#include "bwd/cuda/norm_gradient_call.cuh"
#include "fwd/cuda/plan_norm_generic.cuh"
#include "fwd/cuda/plan_norms.cuh"

/* If each head has its own weights, the coefficients of a run take at most this many bytes of shared memory. */
#define MOST_RUN_BYTES 16384
/* The tokens of such a call are cut into about LONG_RUNS runs, two for each multiprocessor of an H100. Norms over tokens with
 * at most LONG_UNITS / 2 units have more runs, because one block has all of them and would be small: n * LONG_RUNS, where n
 * times their units are at most LONG_UNITS. If MOST_RUN_BYTES allows, a run has at least SHORT_RUN tokens. */
#define LONG_RUNS  264
#define LONG_UNITS 32
#define SHORT_RUN  4

static inline uint32_t units_of(const trope_plan_operand &o)
{
    return (uint32_t)quotient_up(trope_heads_of_token(&o), NORM_HEADS);
}

/* ---- cells ---- */

/* Returns how many neighbouring sums of heads each of ADDING_LANES threads adds in a tree over all heads. */
static inline uint32_t lane_sums_of(const trope_plan_operand &o)
{
    return (uint32_t)quotient_up(power_of_two((uint32_t)trope_heads_of_token(&o)), ADDING_LANES);
}

/* Returns for how many heads of an operand there is room for one kind of sums. */
static inline uint32_t room_of_sums(const trope_plan_operand &o)
{
    return ADDING_LANES * lane_sums_of(o);
}

/* Returns the bytes of two kinds of sums of two tokens. */
static inline size_t bytes_of_exchanged_sums(const trope_plan &plan)
{
    size_t sums = 0;
    for (int i = 0; i < plan.operand_count; i++)
        sums += room_of_sums(plan.operands[i]);
    return 2 * 2 * sums * sizeof(float);
}

/* Returns the number of places of an operand in a run of `run_tokens` tokens. */
static inline uint32_t places_of(const trope_plan_operand &o, uint32_t run_tokens)
{
    const uint32_t places = run_tokens * units_of(o);
    return run_tokens == 1 ? places : (uint32_t)quotient_up(places, CELL_SUMS) * CELL_SUMS;
}

static inline uint32_t count_places(const trope_plan &plan, uint32_t run_tokens)
{
    uint32_t places = 0;
    for (int i = 0; i < plan.operand_count; i++)
        places += places_of(plan.operands[i], run_tokens);
    return places;
}

/* Returns the distance in floats between the terms of neighbouring threads that `places` need. It is an odd number of
 * groups of CELL_SUMS, so that the groups lie in different banks. */
static inline uint32_t terms_of_places(uint32_t places)
{
    return ((uint32_t)quotient_up(places, CELL_SUMS) | 1) * CELL_SUMS;
}

/* Whether the call wants a d_weight for weights that each head has separately (of_each_head), or that all heads share. */
static inline bool wants_weights(const trope_plan &plan, bool of_each_head)
{
    bool wants = false;
    for (int i = 0; i < plan.operand_count; i++) {
        const trope_plan_norm &n = plan.operands[i].norm;
        wants = wants || (n.d_weight && (n.weight_of_head > 0) == of_each_head);
    }
    return wants;
}

/* Returns the number of runs that the tokens of a call with weights for each head are cut into, if they are many. Only
 * operands with a d_weight count, because a part of a call must be cut like the whole call. */
static inline int64_t long_runs_of(const trope_plan &plan)
{
    uint32_t units = 0;
    bool is_token = false;
    for (int i = 0; i < plan.operand_count; i++) {
        const trope_plan_operand &o = plan.operands[i];
        units += o.norm.d_weight ? units_of(o) : 0;
        is_token = is_token || (o.norm.d_weight && o.norm.is_token);
    }
    return is_token ? LONG_RUNS * std::max(LONG_UNITS / units, 1u) : LONG_RUNS;
}

/* Cuts the call into cells. A cell has about as many elements as a block of the vector kernel has room for, or a whole
 * token if the block adds its heads. If each head has its own weights, cells have many tokens, because each cell leaves
 * a sum for each of its elements. They do not have so many tokens that only a few blocks remain. */
static inline norm_cells plan_cells(const trope_plan &plan)
{
    norm_cells c = {};
    int64_t most = 1;
    const int64_t tokens = plan.batch * plan.tokens;
    const bool per_head = wants_weights(plan, true);
    for (int i = 0; i < plan.operand_count; i++) {
        const trope_plan_operand &o = plan.operands[i];
        c.units += units_of(o);
        most = std::max<int64_t>(most, o.head_dim);
    }
    if (!c.units)
        return c;
    const uint32_t head_items = power_of_two((uint32_t)quotient_up(most * plan.element_size, 2 * 16)),
                   fitting = std::max(NORM_THREADS / head_items, 1u);
    c.slices = any_adds_heads(plan) ? 1 : (uint32_t)quotient_up(c.units, per_head ? std::min(fitting, 4u) : fitting);
    c.slice_units = (uint32_t)quotient_up(c.units, c.slices);
    c.slices = (uint32_t)quotient_up(c.units, c.slice_units);
    c.run_tokens = std::max(NORM_THREADS / (c.slice_units * head_items), 1u);
    while (c.run_tokens > 1 && head_items * terms_of_places(count_places(plan, c.run_tokens)) > NORM_TERMS)
        c.run_tokens--;
    if (per_head)
        c.run_tokens =
            (uint32_t)std::min((int64_t)(MOST_RUN_BYTES / (4 * bytes_of_real(plan) * (size_t)std::max(plan.pairs, 1))),
                               std::max<int64_t>(quotient_up(tokens, long_runs_of(plan)), SHORT_RUN));
    c.run_tokens = std::min(std::max(c.run_tokens, 1u), (uint32_t)MOST_SEARCHED_TOKENS);
    c.places = c.slices > 1 ? c.slice_units : count_places(plan, c.run_tokens);
    c.runs = (uint32_t)quotient_up(tokens, c.run_tokens);
    return c;
}

/* Finds where the sums of each operand lie. Returns the total number of columns. */
static inline int64_t plan_operand_gradients(const trope_plan &plan, const norm_cells &cells, operand_gradient *of)
{
    int64_t columns = 0;
    uint32_t before = 0, places = 0;
    for (int i = 0; i < plan.operand_count; i++) {
        const trope_plan_operand &o = plan.operands[i];
        operand_gradient *const g = &of[i];
        const uint32_t after = before + units_of(o),
                       slices = (after - 1) / cells.slice_units + 1 - before / cells.slice_units;
        *g = {};
        g->is_wanted = o.norm.d_weight != NULL;
        g->first_unit = before;
        g->after_unit = after;
        g->places_at = cells.run_tokens > 1 ? places - before : 0;
        g->sums_at = (uint32_t)columns;
        g->columns = (uint32_t)quotient_up(trope_count_weights(&o), COLUMN_SUMS);
        g->first_slice = before / cells.slice_units;
        g->slices = o.norm.weight_of_head ? 1 : slices;
        if (g->is_wanted)
            columns += (int64_t)g->columns * g->slices;
        before = after;
        places += places_of(o, cells.run_tokens);
    }
    return columns;
}

/* ---- workspace ---- */

/* Fills in the parameters of the kernel that adds the sums of cells, and the address of these sums. Returns the bytes of
 * workspace. */
static inline uint64_t plan_weight_sums(const trope_plan &plan, void *workspace, weight_sums *sums)
{
    const norm_cells cells = plan_cells(plan);
    operand_gradient gradients[TROPE_MAX_OPERANDS];
    uint64_t size = 0;
    *sums = {};
    const int64_t columns = plan_operand_gradients(plan, cells, gradients);
    sums->cells.runs = cells.runs;
    sums->is_f64 = plan.dtype == TROPE_F64;
    for (int i = 0; i < plan.operand_count; i++) {
        const trope_plan_operand &o = plan.operands[i];
        const operand_gradient &g = gradients[i];
        if (g.is_wanted) {
            sums->of[sums->operands++] = {o.norm.d_weight, (uint32_t)trope_count_weights(&o), g.sums_at, g.columns,
                                          g.slices};
            sums->columns += g.columns;
        }
    }
    if (columns)
        sums->cells.of_columns =
            take<char>(workspace, (uint64_t)columns * cells.runs * COLUMN_SUMS * bytes_of_real(plan), &size);
    return size;
}

/* ---- blocks ---- */

/* Return the bytes of a block's thread_sums, and of its vectors_ahead. They lie at the end of its shared memory. */
static inline size_t bytes_of_thread_sums(const block_form &form, unsigned threads)
{
    return (size_t)quotient_up(threads, 32) * 32 * (form.one_head ? 1 : NORM_HEADS) * 2 * form.pairs_of_item *
           sizeof(float);
}

static inline size_t bytes_of_vectors_ahead(const block_form &form, unsigned threads)
{
    return form.one_head ? (size_t)threads * 4 * 16 : 0;
}

struct norm_gradient_blocks : norm_blocks {
    static inline void begin(const trope_plan &plan, const block_form &form, norm_gradient_call *call)
    {
        norm_blocks::begin(plan, form, call);
        call->x_is_alike = 1;
        const norm_cells cells = plan_cells(plan);
        call->one_head = form.one_head;
        call->token_sums = 0;
        call->terms_of_item = terms_of_places(cells.places);
        plan_operand_gradients(plan, cells, call->of);
    }

    /* A segment is a whole operand. */
    static inline void fill(const trope_plan_operand &o, uint32_t number, norm_gradient_call *call)
    {
        const trope_plan &plan = call->plan.plan;
        norm_blocks::fill(o, number, call);
        if (call->one_head)
            call->segments[number].places = call->segments[number].heads;
        call->exchanged[number] = {call->token_sums, lane_sums_of(o)};
        call->token_sums += room_of_sums(o);
        head_run whole = {0, o.head_dim, norms_rotate(plan)};
        block_form form = {};
        form.pairs_of_item = 16 / plan.element_size;
        form.splits = call->shape.splits != 0;
        call->x[number] =
            plan_tensor<int32_t>(plan, form, o, whole, o.forward_src, o.forward_src_stride, plan.interleaved_forward_src);
        const block_tensor<int32_t> &x = call->x[number], &dy = call->segments[number].src;
        call->x_moved[number] = x.base - dy.base;
        call->x_is_alike = call->x_is_alike && have_same_strides(x, dy);
    }

    static inline void cut(const trope_plan &plan, const block_form &form, const norm_gradient_call &call, uint32_t, size_t,
                           block_shape *shape)
    {
        const norm_cells cells = plan_cells(plan);
        shape->tokens_of_block = cells.run_tokens;
        shape->items_of_block = cells.slice_units * call.head_items * (form.one_head ? NORM_HEADS : 1);
        if (form.walks) /* a block has at least one warp */
            shape->items_of_block =
                std::max(shape->items_of_block, (uint32_t)quotient_up(32, call.head_items) * call.head_items);
    }

    /* Returns the bytes for the terms of d_weight, or for the sums of heads followed by thread_sums and vectors_ahead. */
    static inline size_t bytes_of_terms(const trope_plan &plan, const block_form &form, unsigned threads,
                                        block_shape *shape)
    {
        if (wants_weights(plan, false))
            return 2 * form.pairs_of_item * sizeof(float) * NORM_TERMS;
        const size_t of_heads =
            form.one_head ? bytes_of_exchanged_sums(plan) : norm_blocks::bytes_of_terms(plan, form, threads, shape);
        return form.walks ? (size_t)quotient_up((int64_t)of_heads, 16) * 16 + bytes_of_thread_sums(form, threads) +
                                bytes_of_vectors_ahead(form, threads)
                          : of_heads;
    }
};

/* Returns whether token_gradient.cuh can run a plan, whose walk has the given form. All tensors must be alike, the weights
 * must have the operands' dtype, and the heads of each operand must fill whole warps without idle threads. If a head
 * rotates, it must be the window (call.join). */
static inline bool can_have_one_head(const trope_plan &plan, block_form form)
{
    norm_gradient_call call;
    form.one_head = true;
    form.most = ONE_HEAD_THREADS;
    const trope_plan_norm &n = common_norm(plan).head->norm;
    if (n.is_after || !rotates_fast(plan) || !plan_blocks<norm_gradient_blocks>(plan, form, &call).fits)
        return false;
    bool can = call.adds_heads && call.x_is_alike && call.shape.all_are_alike && !call.any_idles &&
               call.join >= call.head_items && call.weight_dtype == plan.dtype && !call.plus_one;
    for (int i = 0; i < plan.operand_count; i++) {
        const trope_plan_operand &o = plan.operands[i];
        const uint32_t heads = (uint32_t)trope_heads_of_token(&o);
        can =
            can && o.norm.weight_of_head && !o.norm.sums && heads <= MOST_ADDED_HEADS && heads * call.head_items % 32 == 0;
    }
    return can;
}

/* Chooses between the vector and element kernels for a plan of norms. `rounding` is the call's rounding, with which forward
 * rotated elements that are normalised afterwards. A block that adds heads has shared memory only for their sums. */
static inline block_form form_of_norm_gradient(const trope_plan &plan, int32_t rounding)
{
    block_form form = plan.operand_count ? form_of_norms(plan) : form_of(plan, false);
    form.walks = wants_weights(plan, true);
    form.vectors = form.vectors && (!form.walks || plan.dtype == TROPE_BF16) &&
                   !(wants_weights(plan, false) && (form.walks || any_adds_heads(plan)));
    for (int i = 0; i < plan.operand_count; i++) {
        const trope_plan_operand &o = plan.operands[i];
        form.vectors = form.vectors && !o.accumulate && !(o.norm.is_after && rounding) &&
                       tensor_is_vector(plan, o.forward_src, o.forward_src_stride) &&
                       strides_are_narrow(o.forward_src_stride);
    }
    form.one_head = form.vectors && form.walks && can_have_one_head(plan, form);
    if (form.one_head)
        form.most = ONE_HEAD_THREADS;
    return form;
}

#endif
