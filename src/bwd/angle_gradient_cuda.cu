/* The gradient of the angles on CUDA: how a plan's units are chosen, where its sums lie, and the launches. All of it
 * follows from the shapes: the strides and addresses only say whether the one pass is by vectors. */
#include "bwd/angle_gradient_cuda.h"

#include <string.h>

#include "api/error.h"
#include "bwd/angle_gradient_cuda.cuh"
#include "bwd/angle_sums_cuda.cuh"
#include "core/launch_cuda.cuh"

/* Heads that a slot should have to walk, threads that a block spreads over slots, and blocks of the vector kernel that a
 * multiprocessor should hold. */
#ifndef HEADS_PER_SLOT
#define HEADS_PER_SLOT 4
#define VECTOR_BLOCKS  2
#endif
#define SLOT_THREADS        256
#define MAX_UNITS_PER_BLOCK 128
/* Units that are enough for any device: batch entries that share angles are taken together down to this number. */
#define ENOUGH_UNITS       8192
#define MAX_BATCH_PER_UNIT 64

static uint32_t kernel_threads(bool vector)
{
    return vector ? +vector_head<TROPE_F32>::THREADS : +scalar_head<TROPE_F32>::THREADS;
}

/* ---- units ---- */

/* Whether the angle row of each token follows from the shapes, a different one for each. */
static bool rows_are_known(const trope_plan &plan)
{
    const trope_sequences *s = &plan.sequences;
    if (s->boundaries || s->ids || s->starts)
        return false;
    const trope_span span = trope_dense_span(s, 0);
    return plan.tokens == 0 ||
           trope_index_in_sequence(s, &span, plan.tokens - 1) < plan.angles.rows; /* every layout ascends */
}

static void choose_units(const trope_plan &plan, gradient_call *g)
{
    const int64_t at_least = plan.batch * plan.tokens / ENOUGH_UNITS,
                  most = plan.batch < MAX_BATCH_PER_UNIT ? plan.batch : MAX_BATCH_PER_UNIT;
    const bool known = plan.d_freqs && rows_are_known(plan), shared = known && plan.angles.batch_stride == 0;
    const int64_t together = !shared ? 1 : at_least < most ? at_least : most;
    g->batch = plan.batch;
    g->batch_per_unit = together > 1 ? (uint32_t)together : 1;
    g->plan.plan.batch = (plan.batch + g->batch_per_unit - 1) / g->batch_per_unit;
    g->units = (uint32_t)(g->plan.plan.batch * plan.tokens);
    g->mode = plan.d_inv_freq                      ? GRADIENT_FREQUENCIES
              : !known                             ? GRADIENT_SORTED
              : !shared || g->plan.plan.batch <= 1 ? GRADIENT_DIRECT
                                                   : GRADIENT_PARTS;
    g->key_axes = plan.sequences.axes > 1 ? plan.axes : 1;
}

/* ---- geometry ---- */

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t vector_threads(const trope_plan &plan)
{
    const uint32_t width = 16 / plan.element_size;
    return (plan.pairs + width - 1) / width;
}

/* As divide_space has it, for vectors, which take a little more than pairs. */
static size_t shared_bytes(const gradient_call &g)
{
    const trope_plan &plan = g.plan.plan;
    const size_t real = plan.dtype == TROPE_F64 ? 8 : 4, width = 16 / plan.element_size, runs = gradient_runs(g);
    const size_t rotate = 2 * real * (width + (real == 8 ? 1 : 2)),
                 gradient = gradient_shares_turns(g) ? 0 : 16 * (width + 1);
    const size_t coefficients = 2 * runs * plan.pairs * real, slots = g.slots.divisor * 2 * plan.pairs * sizeof(double);
    return g.units_per_block * (sizeof(trope_row) + runs * vector_threads(plan) * (rotate + gradient) +
                                (coefficients > slots ? coefficients : slots));
}

static double elements_of_row(const trope_plan &plan)
{
    double elements = 0;
    for (int i = 0; i < plan.operand_count; i++)
        elements += (double)plan.operands[i].groups * plan.operands[i].heads_per_group * plan.operands[i].head_dim;
    return elements;
}

/* Slots and blocks are those of the vector kernel, also where the plan gets the other one. */
static void divide_heads(const trope_plan &plan, gradient_call *g)
{
    const uint64_t heads = (uint64_t)g->row_heads.divisor * g->batch_per_unit,
                   wanted = (heads + HEADS_PER_SLOT - 1) / HEADS_PER_SLOT;
    uint32_t slots = SLOT_THREADS / vector_threads(plan);
    slots = wanted < slots ? (uint32_t)wanted : slots;
    g->units_per_block = 1;
    g->slots.set(slots);
    while (slots > 1 && shared_bytes(*g) > MAX_SHARED_BYTES)
        g->slots.set(--slots);
    g->steps = (uint32_t)((heads + slots - 1) / slots);
    g->units_per_block = least(SLOT_THREADS / vector_threads(plan) / slots, MAX_UNITS_PER_BLOCK);
    const double elements = elements_of_row(plan) * g->batch_per_unit;
    while (g->units_per_block > 1 && (shared_bytes(*g) > MAX_SHARED_BYTES || g->units_per_block * elements > INT32_MAX))
        g->units_per_block--;
    for (int i = 0; i < plan.operand_count; i++) {
        const trope_plan_operand &o = plan.operands[i];
        const int64_t step = (int64_t)slots * plan.element_size;
        g->operands[i].src_step = o.src_stride[TROPE_DIM_HEAD] * step;
        g->operands[i].input_step = o.input_stride[TROPE_DIM_HEAD] * step;
        g->operands[i].dst_step = o.dst_stride[TROPE_DIM_HEAD] * step;
    }
}

static void count_heads(const trope_plan &plan, bool vector, gradient_call *g)
{
    const uint32_t width = vector ? 16 / plan.element_size : 1;
    uint32_t heads = 0;
    for (int i = 0; i < plan.operand_count; i++) {
        const trope_plan_operand &o = plan.operands[i];
        gradient_heads &h = g->operands[i];
        const bool passes = o.dst && (!o.in_place || (plan.sequences.boundaries && plan.padding == TROPE_PADDING_ZERO));
        const uint32_t passing = passes ? (o.head_dim - o.rotary_dim) / width : 0, count = o.groups * o.heads_per_group;
        h.first = heads;
        h.per_group.set(o.heads_per_group);
        h.first_passing = g->row_passing;
        h.passing.set(passing ? passing : 1);
        heads += o.rotary_dim ? count : 0;
        g->row_passing += passing * count;
        g->rearranges |= o.in_place && plan.interleaved_src != plan.interleaved_dst;
    }
    g->row_heads.set(heads);
    g->head_threads.set(plan.pairs / width);
}

/* Whether all that is counted in 32 bits fits. */
static bool fits(const trope_plan &plan)
{
    const double limit = INT32_MAX, rows = (double)plan.batch * (double)plan.tokens;
    const double angle_rows = (double)plan.angles.rows * (plan.angles.batch_stride ? (double)plan.batch : 1);
    return elements_of_row(plan) * MAX_BATCH_PER_UNIT < limit && rows * TROPE_MAX_AXES < limit &&
           angle_rows * TROPE_MAX_AXES < limit;
}

static void plan_gradient(const trope_plan &plan, bool vector, gradient_call *g)
{
    memset(g, 0, sizeof *g);
    fill_cuda_plan(plan, &g->plan);
    g->pair_lanes.set(least(plan.pairs, SLOT_THREADS));
    g->pair_row_step = kernel_threads(vector) / g->pair_lanes.divisor;
    g->plan.plan.rounding = TROPE_ROUND_ONCE;
    g->native = plan.rounding == TROPE_ROUND_NATIVE;
    for (int i = 0; i < plan.operand_count; i++)
        join_groups(&g->plan.plan.operands[i], true);
    choose_units(plan, g);
    count_heads(g->plan.plan, vector, g);
    divide_heads(g->plan.plan, g);
    g->unit_passing.set(g->row_passing ? g->row_passing * g->batch_per_unit : 1);
    g->spread = vector && plan.interleaved_src && plan.interleaved_dst && plan.interleaved_input;
    g->interleaved_gap = g->spread ? (uint32_t)(plan.pairs / plan.windows * plan.element_size) : 16;
    g->angle_rows = (uint32_t)(plan.angles.rows * (plan.angles.batch_stride ? plan.batch : 1));
}

static int64_t block_count(const gradient_call &g)
{
    return ((int64_t)g.units + g.units_per_block - 1) / g.units_per_block;
}

/* ---- vectors ---- */

/* Whether the one pass is by vectors: it reads input by them too. */
static bool plan_is_vector(const trope_plan &plan)
{
    bool vector = is_multiple(plan.pairs, 16 / plan.element_size);
    for (int i = 0; i < plan.operand_count; i++) {
        const trope_plan_operand &o = plan.operands[i];
        vector =
            vector && operand_is_vector(plan, o) && (!o.rotary_dim || tensor_is_vector(plan, o, o.input, o.input_stride));
    }
    return vector;
}

/* ---- workspace ---- */

/* What lies in it, from its start on. */
struct gradient_workspace {
    uint64_t sums, keys[2], values[2], counts; /* bytes */
    uint64_t size;
};

static uint32_t sort_items(const gradient_call &g)
{
    return g.units * g.key_axes;
}

static uint32_t sort_tiles(const gradient_call &g)
{
    return (sort_items(g) + SORT_TILE - 1) / SORT_TILE;
}

static uint64_t take(gradient_workspace *w, uint64_t bytes)
{
    const uint64_t at = w->size;
    w->size += (bytes + 15) / 16 * 16;
    return at;
}

static gradient_workspace lay_out(const gradient_call &g)
{
    const trope_plan &plan = g.plan.plan;
    const uint64_t columns = (uint64_t)plan.pairs * (plan.angles.per_element ? 2 : 1);
    const uint64_t rows = g.mode == GRADIENT_DIRECT        ? 0
                          : g.mode == GRADIENT_FREQUENCIES ? (uint64_t)block_count(g)
                                                           : g.units;
    gradient_workspace w;
    memset(&w, 0, sizeof w);
    w.sums = take(&w, rows * columns * sizeof(double));
    if (g.mode != GRADIENT_SORTED)
        return w;
    for (int i = 0; i < 2; i++) {
        w.keys[i] = take(&w, sort_items(g) * sizeof(uint32_t));
        w.values[i] = take(&w, sort_items(g) * sizeof(uint32_t));
    }
    w.counts = take(&w, ((uint64_t)sort_tiles(g) << SORT_MAX_BITS) * sizeof(uint32_t));
    return w;
}

uint64_t trope_cuda_gradient_workspace(const trope_plan *plan)
{
    if ((!plan->d_freqs && !plan->d_inv_freq) || !fits(*plan))
        return 0;
    gradient_call g;
    plan_gradient(*plan, plan_is_vector(*plan), &g);
    return lay_out(g).size;
}

/* ---- launches ---- */

/* The launches of a call, up to the first that fails. */
struct gradient_launches {
    cudaStream_t stream;
    cudaError_t error;
};

template <typename ARGUMENTS>
static void launch(gradient_launches *l, void (*kernel)(ARGUMENTS), int64_t blocks, uint32_t threads, size_t shared,
                   const ARGUMENTS &arguments)
{
    void *list[] = {(void *)&arguments};
    if (l->error == cudaSuccess && blocks > 0)
        l->error = cudaLaunchKernel(kernel, dim3((unsigned)blocks), dim3(threads), list, shared, l->stream);
}

typedef void (*gradient_kernel_type)(gradient_call);

static gradient_kernel_type find_kernel(int32_t dtype, bool vector)
{
    switch (dtype) {
    case TROPE_F32:
        return vector ? gradient_kernel<TROPE_F32, vector_head, VECTOR_BLOCKS> : gradient_kernel<TROPE_F32, scalar_head, 1>;
    case TROPE_F16:
        return vector ? gradient_kernel<TROPE_F16, vector_head, VECTOR_BLOCKS> : gradient_kernel<TROPE_F16, scalar_head, 1>;
    case TROPE_BF16:
        return vector ? gradient_kernel<TROPE_BF16, vector_head, VECTOR_BLOCKS>
                      : gradient_kernel<TROPE_BF16, scalar_head, 1>;
    default:
        return vector ? gradient_kernel<TROPE_F64, vector_head, VECTOR_BLOCKS> : gradient_kernel<TROPE_F64, scalar_head, 1>;
    }
}

static void launch_clear(const trope_plan &plan, gradient_launches *l)
{
    const int64_t rows = plan.angles.rows * (plan.angles.batch_stride ? plan.batch : 1),
                  blocks = (rows + SUMS_WARPS - 1) / SUMS_WARPS;
    launch(l, clear_angles_kernel, blocks < 65536 ? blocks : 65536, SUMS_THREADS, 0, plan);
}

static void launch_parts(const gradient_call &g, gradient_launches *l)
{
    const int64_t columns = g.plan.plan.pairs * (g.plan.plan.angles.per_element ? 2 : 1);
    launch(l, add_parts_kernel, (g.plan.plan.tokens * columns + SUMS_THREADS - 1) / SUMS_THREADS, SUMS_THREADS, 0, g);
}

static void launch_frequencies(const gradient_call &g, gradient_launches *l)
{
    const frequency_sums f = {g.plan.plan, g.sums, block_count(g)};
    launch(l, add_frequencies_kernel, (g.plan.plan.pairs + PARTS_PAIRS - 1) / PARTS_PAIRS, PARTS_THREADS, 0, f);
}

static uint32_t bits_of(uint32_t value)
{
    uint32_t bits = 0;
    while (value >> bits)
        bits++;
    return bits;
}

/* Sorts the units of a call, and adds them by angle row. */
static void launch_sorted(const gradient_call &g, const gradient_workspace &w, gradient_launches *l)
{
    char *base = (char *)g.plan.plan.workspace;
    const uint32_t bits = bits_of(g.key_axes * g.angle_rows), passes = (bits + SORT_MAX_BITS - 1) / SORT_MAX_BITS;
    sorted_sums sums = {g.plan.plan, g.sums, g.keys, g.values, sort_items(g), g.key_axes, g.angle_rows};
    sort_pass s = {NULL,
                   NULL,
                   NULL,
                   NULL,
                   (uint32_t *)(base + w.counts),
                   sort_items(g),
                   sort_tiles(g),
                   0,
                   (bits + passes - 1) / passes};
    for (uint32_t pass = 0; pass < passes; pass++, s.shift += s.bits) {
        const int to = pass % 2 ? 0 : 1;
        s.keys = sums.keys;
        s.values = sums.values;
        sums.keys = s.sorted_keys = (uint32_t *)(base + w.keys[to]);
        sums.values = s.sorted_values = (uint32_t *)(base + w.values[to]);
        launch(l, count_digits_kernel, s.tiles, SUMS_THREADS, sizeof(uint32_t) << s.bits, s);
        launch(l, scan_counts_kernel, 1, SCAN_THREADS, 0, s);
        launch(l, move_items_kernel, s.tiles, SUMS_THREADS, (SUMS_WARPS * sizeof(uint32_t)) << s.bits, s);
    }
    launch(l, join_runs_kernel, (sums.items + SUMS_WARPS * RUN_ITEMS - 1) / (SUMS_WARPS * RUN_ITEMS), SUMS_THREADS, 0,
           sums);
    launch(l, sum_angle_rows_kernel, (sums.angle_rows + ANGLE_ROWS - 1) / ANGLE_ROWS, SUMS_THREADS, 0, sums);
}

static void launch_all(const gradient_call &g, bool vector, const gradient_workspace &w, gradient_launches *l)
{
    const trope_plan &plan = g.plan.plan;
    const bool known = g.mode == GRADIENT_DIRECT || g.mode == GRADIENT_PARTS;
    if (plan.d_freqs && (g.units == 0 || (known && plan.tokens != plan.angles.rows)))
        launch_clear(plan, l);
    launch(l, find_kernel(plan.dtype, vector), block_count(g), kernel_threads(vector), shared_bytes(g), g);
    if (g.mode == GRADIENT_PARTS)
        launch_parts(g, l);
    else if (g.mode == GRADIENT_FREQUENCIES)
        launch_frequencies(g, l);
    else if (g.mode == GRADIENT_SORTED && g.units > 0)
        launch_sorted(g, w, l);
}

trope_status trope_cuda_run_gradient(const char *function, const trope_plan *plan)
{
    if (!fits(*plan))
        return trope_fail(TROPE_ERROR_UNSUPPORTED,
                          "%s: batch * tokens (%lld * %lld) with these heads is more than the gradient of the "
                          "angles can take in one call",
                          function, (long long)plan->batch, (long long)plan->tokens);
    const bool vector = plan_is_vector(*plan);
    gradient_call g;
    plan_gradient(*plan, vector, &g);
    const gradient_workspace w = lay_out(g);
    char *base = (char *)plan->workspace;
    g.sums = (double *)(base + w.sums);
    g.keys = (uint32_t *)(base + w.keys[0]);
    g.values = (uint32_t *)(base + w.values[0]);
    gradient_launches launches = {(cudaStream_t)plan->stream, cudaSuccess};
    launch_all(g, vector, w, &launches);
    return launches.error == cudaSuccess ? TROPE_OK : fail_cuda(function, launches.error);
}
