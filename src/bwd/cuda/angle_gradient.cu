/* The gradient of the angles on CUDA: how a plan's units are chosen, where its sums lie, and the launches. All of it
 * follows from the shapes: the strides and addresses only say whether the one pass is by tiles. */
#include "bwd/cuda/angle_gradient.h"

#include <algorithm>
#include <string.h>

#include "core/error.h"
#include "bwd/cuda/angle_sums.cuh"
#include "bwd/cuda/gradient_pairs.cuh"
#include "bwd/cuda/gradient_tiles.cuh"
#include "fwd/cuda/launch.cuh"
#include "fwd/cuda/tiling.cuh"

/* Units that are enough for any device: batch entries that share angles are taken together down to this number, and units
 * of a group. */
#define ENOUGH_UNITS       1024
#define MAX_BATCH_PER_UNIT 64

/* Bytes of dy in a tile that has more than one head, and bytes of a head at most. */
#define GRADIENT_TILE_BYTES 3072
#define GRADIENT_HEAD_BYTES 4096

/* Blocks of GRADIENT_WARPS that a multiprocessor should hold: what leaves registers enough. */
#define USUAL_BLOCKS 4
#define ANY_BLOCKS   2
#define WIDE_BLOCKS  1 /* of more than 64 pairs */

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

/* Whether the tokens of each angle row are found by looking at all sequences. */
static bool rows_are_packed(const trope_plan &plan)
{
    return is_packed(plan) && plan.angles.out_of_range == TROPE_RANGE_POISON &&
           plan.sequences.count <= MAX_PACKED_SEQUENCES;
}

static double bytes_of_row(const trope_plan &plan)
{
    double elements = 0;
    for (int i = 0; i < plan.operand_count; i++)
        elements += (double)plan.operands[i].groups * plan.operands[i].heads_per_group * plan.operands[i].head_dim;
    return elements * plan.element_size;
}

static void choose_units(const trope_plan &plan, gradient_call *g)
{
    const int64_t at_least = plan.batch * plan.tokens / ENOUGH_UNITS,
                  most = plan.batch < MAX_BATCH_PER_UNIT ? plan.batch : MAX_BATCH_PER_UNIT;
    const bool known = plan.d_freqs && rows_are_known(plan), shared = known && plan.angles.stride.batch == 0;
    const int64_t together = !shared ? 1 : at_least < most ? at_least : most;
    g->batch = (uint32_t)plan.batch;
    g->batch_per_unit = together > 1 ? (uint32_t)together : 1;
    g->plan.plan.batch = (plan.batch + g->batch_per_unit - 1) / g->batch_per_unit;
    g->units = (uint32_t)(g->plan.plan.batch * plan.tokens);
    g->mode = plan.d_inv_freq                      ? GRADIENT_FREQUENCIES
              : !known && rows_are_packed(plan)    ? GRADIENT_PACKED
              : !known                             ? GRADIENT_SORTED
              : !shared || g->plan.plan.batch <= 1 ? GRADIENT_DIRECT
                                                   : GRADIENT_PARTS;
    g->key_axes = plan.sequences.axes > 1 ? plan.axes : 1;
}

/* A slot for each head that the threads of a warp have at a time, if a thread has two pairs. */
static uint32_t choose_slots(const trope_plan &plan)
{
    const uint32_t threads = ((uint32_t)plan.pairs + 1) / 2;
    uint32_t slots = 1;
    while (slots * 2 * threads <= 32)
        slots *= 2;
    return slots;
}

int trope_cuda_gradient_fits(const trope_plan *plan)
{
    const double limit = INT32_MAX, rows = (double)plan->batch * (double)plan->tokens;
    const double angle_rows = (double)plan->angles.rows * (plan->angles.stride.batch ? (double)plan->batch : 1);
    return bytes_of_row(*plan) * MAX_BATCH_PER_UNIT * MAX_GROUP_UNITS < limit * GRADIENT_TILE_BYTES &&
           rows * MAX_CUDA_AXES < limit && angle_rows * MAX_CUDA_AXES < limit;
}

/* The heads of an operand in a step, and the parts of a unit: as many as its steps, or as make all of them have as many. */
static void choose_steps(const trope_plan &plan, gradient_call *g)
{
    uint32_t steps = 0;
    for (int i = 0; i < plan.operand_count; i++) {
        const trope_plan_operand &o = plan.operands[i];
        const uint32_t heads = (uint32_t)(o.groups * o.heads_per_group),
                       room = (uint32_t)std::max<int64_t>(GRADIENT_TILE_BYTES / bytes_of_head(plan, o), 1);
        g->heads_of_step[i] = tiles_along(heads, tiles_along(heads, room));
        steps += o.rotary_dim ? tiles_along(heads, g->heads_of_step[i]) : 0;
    }
    steps = most(steps * g->batch_per_unit, 1);
    g->parts = tiles_along(steps, tiles_along(steps, GRADIENT_WARPS));
}

/* Small units, of which each is one step, in groups. */
static void choose_groups(const trope_plan &plan, gradient_call *g)
{
    const double fill = GRADIENT_TILE_BYTES / bytes_of_row(plan), spare = (double)g->units / ENOUGH_UNITS,
                 units = g->batch_per_unit > 1 || plan.operand_count > 1 ? 1
                         : fill < spare                                  ? fill
                                                                         : spare;
    g->group_units = units < 1 ? 1 : units < MAX_GROUP_UNITS ? (uint32_t)units : MAX_GROUP_UNITS;
    g->groups_of_batch.set(most(tiles_along((uint32_t)plan.tokens, g->group_units), 1));
    g->groups = plan.tokens > 0 ? (uint32_t)g->plan.plan.batch * g->groups_of_batch.divisor : 0;
}

static void plan_gradient(const trope_plan &plan, gradient_call *g)
{
    memset(g, 0, sizeof *g);
    fill_cuda_plan(plan, &g->plan);
    g->plan.plan.rounding = TROPE_ROUND_ONCE;
    g->native = plan.rounding == TROPE_ROUND_NATIVE;
    choose_units(plan, g);
    choose_steps(plan, g);
    choose_groups(plan, g);
    g->slots = choose_slots(plan);
    g->angle_rows = (uint32_t)(plan.angles.rows * (plan.angles.stride.batch ? plan.batch : 1));
}

/* ---- tiles ---- */

/* Pairs that a thread of the kernel by tiles has at most, two at a time. */
#define MAX_TWINS 2

static bool has_tiles(const trope_plan &plan, const trope_plan_operand *operands)
{
    bool tiles = plan.pairs % 2 == 0 && plan.pairs <= 64 * MAX_TWINS;
    for (int i = 0; i < plan.operand_count; i++) {
        const trope_plan_operand &o = operands[i];
        tiles = tiles && operand_is_vector(plan, o) && bytes_of_head(plan, o) <= GRADIENT_HEAD_BYTES &&
                (!o.rotary_dim ||
                 (o.rotary_dim == 2 * plan.pairs && tensor_is_vector(plan, o, o.forward_src, o.forward_src_stride)));
    }
    return tiles;
}

static void join_all_groups(const trope_plan &plan, trope_plan_operand *operands)
{
    memcpy(operands, plan.operands, plan.operand_count * sizeof *operands);
    for (int i = 0; i < plan.operand_count; i++)
        join_groups(&operands[i], true);
}

int trope_cuda_gradient_has_tiles(const trope_plan *plan)
{
    trope_plan_operand operands[MAX_CUDA_OPERANDS];
    join_all_groups(*plan, operands);
    return has_tiles(*plan, operands);
}

static tiled_tensor plan_tensor(const trope_plan &plan, const void *base, const int64_t *stride, int32_t skipped)
{
    const int64_t bytes = plan.element_size;
    tiled_tensor t;
    memset(&t, 0, sizeof t);
    t.base = (char *)base + skipped * bytes;
    t.outer = stride[TROPE_DIM_BATCH] * bytes;
    t.inner = stride[TROPE_DIM_TOKEN] * bytes;
    t.group = stride[TROPE_DIM_GROUP] * bytes;
    t.head = stride[TROPE_DIM_HEAD] * bytes;
    return t;
}

/* Tiles of some rows, with heads of `pitch` bytes. */
static void cut_rows(const trope_plan_operand &o, uint32_t pitch, uint32_t rows, uint32_t heads, tiling *t)
{
    t->pitch = t->head_pitch = pitch;
    t->all_heads = (uint32_t)(o.groups * o.heads_per_group);
    t->heads = heads;
    t->rows.set(rows);
    t->row_pitch = heads * pitch;
    t->heads_per_group.set((uint32_t)o.heads_per_group);
    t->vectors.set(least(most(pitch / 16, 1), 32));
}

/* Returns how many steps an operand has in a batch entry. */
static uint32_t plan_operand(const gradient_call &g, const trope_plan_operand &from, uint32_t of_step, gradient_operand *o)
{
    const trope_plan &plan = g.plan.plan;
    const bool is_window = !from.dst || !writes_rest(plan, from); /* a tile has only what is rotated */
    const int32_t skipped = is_window ? from.rotary_offset : 0;
    const uint32_t x_pitch = (uint32_t)(from.rotary_dim * plan.element_size),
                   pitch = is_window ? x_pitch : (uint32_t)bytes_of_head(plan, from);
    if (pitch == 0)
        return 0;
    o->rotates = from.rotary_dim > 0;
    o->writes = from.dst != NULL;
    o->window = (uint32_t)((from.rotary_offset - skipped) * plan.element_size);
    o->dy = plan_tensor(plan, from.src, from.src_stride, skipped);
    o->x = plan_tensor(plan, from.forward_src, from.forward_src_stride, from.rotary_offset);
    o->dx = plan_tensor(plan, from.dst, from.dst_stride, skipped);
    cut_rows(from, pitch, g.group_units, of_step, &o->tiles);
    cut_rows(from, x_pitch, g.group_units, of_step, &o->x_tiles);
    find_runs(o->tiles, &o->dy);
    find_runs(o->tiles, &o->dx);
    if (o->rotates)
        find_runs(o->x_tiles, &o->x);
    o->is_whole = o->dy.is_whole && (!o->rotates || o->x.is_whole);
    return tiles_along((uint32_t)(from.groups * from.heads_per_group), of_step);
}

/* What a part of a unit leaves. */
static uint32_t left_bytes(const trope_plan &plan)
{
    return (plan.pairs > 64 ? MAX_TWINS : 1) * 64 * (plan.angles.per_element ? 4 : 2) * (uint32_t)sizeof(double);
}

static void plan_tiles(const gradient_call &g, const trope_plan_operand *operands, tiled_gradient *t)
{
    const trope_plan &plan = g.plan.plan;
    uint32_t steps[2] = {0, 0}, dy_bytes = 0, x_bytes = 0; /* of operands that rotate, and of others */
    int32_t count = 0;
    memset(t, 0, sizeof *t);
    t->g = g;
    memset(t->first_of_entry, 0xff, sizeof t->first_of_entry);
    for (int others = 0; others < 2; others++) {
        for (int i = 0; i < plan.operand_count; i++) {
            if ((operands[i].rotary_dim == 0) != others)
                continue;
            gradient_operand &o = t->operands[count];
            t->first_of_entry[count++] = steps[0] + steps[1];
            steps[others] += plan_operand(g, operands[i], g.heads_of_step[i], &o);
            dy_bytes = most(dy_bytes, g.group_units * o.tiles.row_pitch);
            x_bytes = most(x_bytes, g.group_units * o.x_tiles.row_pitch);
        }
    }
    t->rotating = steps[0] * g.batch_per_unit;
    t->rotating_of_entry.set(steps[0]);
    t->others_of_entry.set(most(steps[1], 1));
    t->steps = (steps[0] + steps[1]) * g.batch_per_unit;
    t->is_simple = plan.operand_count == 1 && g.batch_per_unit == 1;
    t->threads_of_head.set(least(((uint32_t)plan.pairs + 1) / 2, 32));
    t->x_at = dy_bytes;
    t->rows_at = dy_bytes + most(x_bytes, g.parts > 1 ? left_bytes(plan) : 0);
    t->warp_bytes = t->rows_at + quotient_up(g.group_units * sizeof(trope_row), 16) * 16;
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

/* Items of a warp of the sort: enough warps first, then fewer counts. */
static uint32_t sort_warp_items(const gradient_call &g)
{
    return sort_items(g) <= 1u << 17 ? 64 : 256;
}

static uint32_t sort_tiles(const gradient_call &g)
{
    return (uint32_t)quotient_up(sort_items(g), SUMS_WARPS * sort_warp_items(g));
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
    const uint64_t rows = g.mode == GRADIENT_DIRECT ? 0 : g.mode == GRADIENT_FREQUENCIES ? (uint64_t)g.groups : g.units;
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
    if (!trope_has_angle_gradient(plan))
        return 0;
    gradient_call g;
    plan_gradient(*plan, &g);
    return lay_out(g).size;
}

/* ---- launches ---- */

/* The launches of a call, up to the first that fails. */
struct gradient_launches {
    device_facts device;
    cudaStream_t stream;
    cudaError_t error;
};

static void launch_with(gradient_launches *l, const void *kernel, int64_t blocks, uint32_t threads, size_t shared,
                        void **parameters)
{
    if (l->error == cudaSuccess && blocks > 0)
        l->error = launch_early(l->device, kernel, dim3((unsigned)blocks), threads, shared, 0, l->stream, parameters);
}

template <typename PARAMETER>
static void launch(gradient_launches *l, void (*kernel)(PARAMETER), int64_t blocks, uint32_t threads, size_t shared,
                   const std::remove_reference_t<PARAMETER> &parameter)
{
    void *parameters[] = {(void *)&parameter};
    launch_with(l, (const void *)kernel, blocks, threads, shared, parameters);
}

/* By pairs: dtype, whether a pair's elements have an angle each. */
#define PAIRS(DTYPE)                                                                                                       \
    {                                                                                                                      \
        (const void *)gradient_pairs_kernel<DTYPE, false>, (const void *)gradient_pairs_kernel<DTYPE, true>                \
    }
static const void *const pair_kernels[4][2] = {PAIRS(TROPE_F32), PAIRS(TROPE_F16), PAIRS(TROPE_BF16), PAIRS(TROPE_F64)};

/* By tiles. The usual angles of usual rows have kernels of their own, where a thread has two pairs. */
template <int DTYPE, int ANGLES, bool OWN> static const void *find_usual_kernel(gradient_rows rows)
{
    return rows == ROWS_PLAIN ? (const void *)gradient_tiles_kernel<DTYPE, ANGLES, ROWS_PLAIN, OWN, 1, USUAL_BLOCKS>
                              : (const void *)gradient_tiles_kernel<DTYPE, ANGLES, ROWS_PACKED, OWN, 1, USUAL_BLOCKS>;
}

template <int DTYPE, int TWINS, int BLOCKS> static const void *find_general_kernel(bool own)
{
    return own ? (const void *)gradient_tiles_kernel<DTYPE, ANGLES_ANY, ROWS_ANY, true, TWINS, BLOCKS>
               : (const void *)gradient_tiles_kernel<DTYPE, ANGLES_ANY, ROWS_ANY, false, TWINS, BLOCKS>;
}

template <int DTYPE> static const void *find_tile_kernel(const gradient_call &g)
{
    const trope_plan &plan = g.plan.plan;
    const bool is_split = plan.sequences.cp_layout != 0;
    const gradient_rows rows = g.group_units > 1             ? ROWS_ANY
                               : is_plain(plan) && !is_split ? ROWS_PLAIN
                               : is_packed(plan)             ? ROWS_PACKED
                                                             : ROWS_ANY;
    if (plan.pairs > 64)
        return find_general_kernel<DTYPE, MAX_TWINS, WIDE_BLOCKS>(plan.angles.per_element);
    if constexpr (DTYPE != TROPE_F64) {
        const int angles = g.native || rows == ROWS_ANY ? ANGLES_ANY : kind_of_angles(plan);
        if (angles == ANGLES_PHASE)
            return find_usual_kernel<DTYPE, ANGLES_PHASE, false>(rows);
        if (angles == ANGLES_FREQS)
            return find_usual_kernel<DTYPE, ANGLES_FREQS, false>(rows);
        if (angles == ANGLES_OWN_FREQS)
            return find_usual_kernel<DTYPE, ANGLES_OWN_FREQS, true>(rows);
    }
    return find_general_kernel<DTYPE, 1, ANY_BLOCKS>(plan.angles.per_element);
}

static const void *find_tile_kernel(const gradient_call &g)
{
    switch (g.plan.plan.dtype) {
    case TROPE_F32:
        return find_tile_kernel<TROPE_F32>(g);
    case TROPE_F16:
        return find_tile_kernel<TROPE_F16>(g);
    case TROPE_BF16:
        return find_tile_kernel<TROPE_BF16>(g);
    default:
        return find_tile_kernel<TROPE_F64>(g);
    }
}

static void launch_pass(const gradient_call &g, gradient_launches *l)
{
    const trope_plan &plan = g.plan.plan;
    paired_gradient p;
    tiled_gradient t;
    join_all_groups(plan, p.operands);
    if (has_tiles(plan, p.operands)) {
        plan_tiles(g, p.operands, &t);
        void *parameters[] = {&t, plan.step};
        launch_with(l, find_tile_kernel(g), g.groups, g.parts * 32, g.parts * t.warp_bytes, parameters);
        return;
    }
    p.g = g;
    void *parameters[] = {&p, plan.step};
    launch_with(l, pair_kernels[plan.dtype - TROPE_F32][plan.angles.per_element != 0], g.groups,
                (g.slots * (uint32_t)plan.pairs + 31) / 32 * 32, 0, parameters);
}

static void launch_clear(const trope_plan &plan, gradient_launches *l)
{
    const int64_t rows = plan.angles.rows * (plan.angles.stride.batch ? plan.batch : 1),
                  blocks = quotient_up(rows, SUMS_WARPS);
    launch(l, clear_angles_kernel, blocks < 65536 ? blocks : 65536, SUMS_THREADS, 0, plan);
}

static void launch_parts(const gradient_call &g, gradient_launches *l)
{
    const int64_t columns = g.plan.plan.pairs * (g.plan.plan.angles.per_element ? 2 : 1);
    launch(l, add_parts_kernel, quotient_up(g.plan.plan.tokens * columns, SUMS_THREADS), SUMS_THREADS, 0, g);
}

static void launch_packed(const gradient_call &g, gradient_launches *l)
{
    const trope_plan &plan = g.plan.plan;
    packed_sums p = {plan, g.sums, 1};
    while (p.warps < SUMS_WARPS && p.warps * 32 < plan.sequences.count + 2)
        p.warps *= 2;
    launch(l, add_packed_kernel, quotient_up(plan.angles.rows, SUMS_WARPS / p.warps), SUMS_THREADS, 0, p);
}

static void launch_frequencies(const gradient_call &g, gradient_launches *l)
{
    const frequency_sums f = {g.plan.plan, g.sums, g.groups};
    launch(l, add_frequencies_kernel, quotient_up(g.plan.plan.pairs, PARTS_PAIRS), PARTS_THREADS, 0, f);
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
                   (bits + passes - 1) / passes,
                   sort_warp_items(g)};
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
    launch(l, join_runs_kernel, quotient_up(sums.items, SUMS_WARPS * RUN_ITEMS), SUMS_THREADS, 0, sums);
    launch(l, sum_angle_rows_kernel, quotient_up(sums.angle_rows, SUMS_WARPS), SUMS_THREADS, 0, sums);
}

static void launch_all(const gradient_call &g, const gradient_workspace &w, gradient_launches *l)
{
    const trope_plan &plan = g.plan.plan;
    const bool known = g.mode == GRADIENT_DIRECT || g.mode == GRADIENT_PARTS;
    if (plan.d_freqs && (g.units == 0 || (known && plan.tokens != plan.angles.rows)))
        launch_clear(plan, l);
    launch_pass(g, l);
    if (g.mode == GRADIENT_PARTS)
        launch_parts(g, l);
    else if (g.mode == GRADIENT_FREQUENCIES)
        launch_frequencies(g, l);
    else if (g.mode == GRADIENT_PACKED)
        launch_packed(g, l);
    else if (g.mode == GRADIENT_SORTED && g.units > 0)
        launch_sorted(g, w, l);
}

trope_status trope_cuda_run_gradient(const char *function, const trope_plan *plan)
{
    gradient_call g;
    plan_gradient(*plan, &g);
    const gradient_workspace w = lay_out(g);
    char *base = (char *)plan->workspace;
    g.sums = (double *)(base + w.sums);
    g.keys = (uint32_t *)(base + w.keys[0]);
    g.values = (uint32_t *)(base + w.values[0]);
    gradient_launches launches = {facts_of_device(), (cudaStream_t)plan->stream, cudaSuccess};
    launch_all(g, w, &launches);
    return launches.error == cudaSuccess ? TROPE_OK : fail_cuda(function, launches.error);
}
