/* How a plan is cut into tiles, and which kernel it gets. No device is needed for it: tests/cuda/tiling.cu does without. */
#include "fwd/cuda/plan_tiles.cuh"

#include <string.h>

#include "fwd/cuda/hold_tiles.cuh"
#include "fwd/cuda/join_operands.cuh"
#include "fwd/cuda/rotate.h"

/* Shared memory that what a tile's rows are turned by should have. */
#define TURNS_BYTES 4096

/* Bytes of tiles that a multiprocessor should hold at most where these are many: more would only stand in each other's way
 * in memory. Contiguous tiles of one row are turned most quickly; packed rows are waited for. */
#define STREAMING_BYTES  (64u << 10)
#define REARRANGED_BYTES (80u << 10) /* where pairs are stored in other places than they came from, which takes longer */
#define SCATTERED_BYTES  (122u << 10)
#define APART_BYTES      (104u << 10) /* where heads are further apart than rows */
#define PACKED_BYTES     (146u << 10)
#define LONG_RUN         1024 /* bytes; tiles of shorter ones take long to be asked for */
#define MANY_TILES       8192
#define RESERVED_SHARED  1280 /* of each block, by the system, and for barriers */

/* Shared memory of a multiprocessor whose blocks hold heads in registers, which come through its L1 cache: 100 KB, one of
 * the sizes that can be had, of which a percentage is asked for. */
#define HELD_SHARED_BYTES (98u << 10)

/* Blocks in a turn of the operand that has the fewest. */
#define SHARE_OF_TURN 8

#define MAX_PITCH 8192               /* bytes of a head */
#define MAX_COUNT (INT32_MAX - 1024) /* of rows, and of tiles */

/* ---- the heads of an operand ---- */

static bool rearranges(const trope_plan &plan)
{
    return plan.interleaved_src != plan.interleaved_dst;
}

/* In place, a tile has only what is rotated. (An operand of which nothing is may have padding.) */
static bool takes_windows(const trope_plan &plan, const trope_plan_operand &o)
{
    return o.in_place && (o.rotary_dim > 0 || !writes_rest(plan, o));
}

/* Bytes of a head in a tile: MAX_PITCH at most, or there are no tiles. */
static int64_t pitch_of(const trope_plan &plan, const trope_plan_operand &o)
{
    return takes_windows(plan, o) ? (int64_t)o.rotary_dim * plan.element_size : bytes_of_head(plan, o);
}

/* `joined`: the two dimensions of rows are one. */
static tiled_tensor plan_tensor(const trope_plan &plan, const trope_plan_operand &o, const void *base,
                                const int64_t *stride, bool joined)
{
    const int64_t bytes = plan.element_size, outer = stride[outer_dim(plan)] * bytes,
                  inner = stride[inner_dim(plan)] * bytes;
    tiled_tensor t;
    memset(&t, 0, sizeof t);
    t.base = (char *)base + (takes_windows(plan, o) ? o.rotary_offset * bytes : 0);
    t.outer = outer;
    t.inner = joined && trope_inner_rows(&plan) == 1 ? outer : inner;
    t.group = stride[TROPE_DIM_GROUP] * bytes;
    t.head = stride[TROPE_DIM_HEAD] * bytes;
    return t;
}

/* Whether rows are as far apart from one outer index to the next as they are within. */
static bool rows_join(const trope_plan &plan, const int64_t *stride)
{
    const int64_t inner = trope_inner_rows(&plan), outer = plan.batch * plan.tokens / inner;
    return inner == 1 || outer == 1 || stride[outer_dim(plan)] == inner * stride[inner_dim(plan)];
}

/* ---- the call ---- */

static void plan_operand(const trope_plan &plan, trope_plan_operand from, tiled_operand *o)
{
    const uint32_t size = (uint32_t)plan.element_size, width = 16 / size;
    const bool joined = rows_join(plan, from.src_stride) && rows_join(plan, from.dst_stride);
    join_groups(&from, false);
    o->src = plan_tensor(plan, from, from.src, from.src_stride, joined);
    o->dst = plan_tensor(plan, from, from.dst, from.dst_stride, joined);
    set_lanes(from.rotary_dim / 2 / width, o);
    o->window = takes_windows(plan, from) ? 0 : (uint32_t)from.rotary_offset * size;
    o->before_window = (uint32_t)from.rotary_offset * size - o->window;
    o->head_bytes = (uint32_t)from.head_dim * size;
    o->part_pairs = from.part_pairs;
    o->low_step = plan.interleaved_src ? width / 2 : width;
    o->high_gap = plan.interleaved_src ? from.part_pairs / 2 : width / 2;
    o->tiles.pitch = (uint32_t)pitch_of(plan, from);
    o->tiles.all_heads = from.groups * from.heads_per_group;
    o->tiles.all_rows = (uint32_t)(joined ? plan.batch * plan.tokens : trope_inner_rows(&plan));
    o->tiles.rows_first = from.heads_per_group > 1 && magnitude(o->src.inner) < magnitude(o->src.head);
    o->tiles.heads_per_group.set(from.heads_per_group);
}

static tile_call_kind kind_of_call(const trope_plan &plan, int32_t operands)
{
    const tile_call_kind kind = is_plain(plan)     ? operands == 1 ? KIND_PLAIN_SINGLE : KIND_PLAIN
                                : !is_packed(plan) ? KIND_ANY
                                : operands == 1    ? KIND_PACKED_SINGLE
                                                   : KIND_PACKED;
    return kind_of(kind_of_angles(plan), kind);
}

/* Whether operands should have blocks in turns: what is changed in place may be neighbours, as Q, K and V of packed QKV,
 * and is then read and written at about the same time; and heads that are few take longer to have their sines found than to
 * be moved, or packed rows to be known, meanwhile others are moved. */
static bool take_turns(const tile_planner &p)
{
    const uint32_t too_few =
        p.kind == KIND_PACKED && !reads_tables(p.plan) ? 2 : 3; /* if a tile has room for so many rows */
    bool in_place = true, has_few_heads = false;
    for (int i = 0; i < p.count; i++) {
        const tiled_operand &o = p.operands[i];
        in_place = in_place && p.from[i].in_place;
        has_few_heads = has_few_heads || (o.all_lanes > 0 && !o.tiles.rows_first && !exceed_tile(too_few, o));
    }
    return p.count > 1 && (in_place || has_few_heads);
}

/* Blocks are dealt out to the operands one after another, or in turns, each of which has its share of all. Returns how many
 * blocks there are. */
static int64_t deal_blocks(const tile_planner &p, tiled_call *call)
{
    int64_t fewest = INT64_MAX;
    for (const tiled_operand &o : p) {
        const int64_t blocks = quotient_up(o.tiles.tiles, TILE_WARPS);
        fewest = blocks > 0 && blocks < fewest ? blocks : fewest;
    }
    if (fewest == INT64_MAX)
        return 0;
    const int64_t turns = take_turns(p) ? quotient_up(fewest, SHARE_OF_TURN) : 1;
    uint32_t dealt = 0;
    for (int i = 0; i < MAX_CUDA_OPERANDS; i++) {
        const int64_t blocks = i < p.count ? quotient_up(p.operands[i].tiles.tiles, TILE_WARPS) : 0;
        call->first_of_turn[i] = i < p.count ? dealt : UINT32_MAX;
        p.operands[i].blocks_of_turn = (uint32_t)quotient_up(blocks, turns);
        dealt += p.operands[i].blocks_of_turn;
    }
    call->turn.set(dealt);
    return turns * dealt;
}

/* What a lane is turned by in a row, in bytes. */
static uint32_t lane_turns_bytes(const trope_plan &plan)
{
    const bool is_one = kind_of_angles(plan) == ANGLES_PHASE || kind_of_angles(plan) == ANGLES_FREQS;
    return 16 / plan.element_size * (is_one ? 2 : 4) * (plan.dtype == TROPE_F64 ? 8 : 4);
}

/* Shares of a lane's turns: see lane_turns. */
static uint32_t share_count(const trope_plan &plan)
{
    return plan.element_size == 2 ? 4 : 2;
}

/* Returns how many bytes there are for what a tile's rows are turned by, of as many rows as TURNS_BYTES allow. */
static uint32_t give_turns_room(const trope_plan &plan, tiled_operand *o)
{
    const uint32_t at_once = heads_of_warp(*o), row_bytes = o->lanes.divisor * lane_turns_bytes(plan);
    o->share_bits = 0;
    while (2u << o->share_bits <= least(at_once, share_count(plan)))
        o->share_bits++;
    o->share_rows = at_once >> o->share_bits;
    o->turn_rows = least(o->tiles.rows.divisor, most(TURNS_BYTES / row_bytes, 1));
    return o->turn_rows * row_bytes;
}

static uint32_t bytes_of_runs(const tiled_operand &o, const tiled_tensor &tensor)
{
    return tensor.is_whole ? o.tile_bytes : tensor.run * o.tiles.pitch;
}

/* How many bytes of tiles a multiprocessor should hold: more would stand in their own way in memory. 0 if what it can hold
 * is never too much, because tiles are few, or are waited for by something else. */
static uint32_t bytes_in_flight(const trope_plan &plan, const tiled_operand &o, tile_call_kind kind)
{
    const bool is_whole = o.src.is_whole && o.dst.is_whole;
    if (kind_of_angles(plan) != ANGLES_PHASE || kind == KIND_ANY || o.tiles.tiles < MANY_TILES)
        return 0;
    if (kind == KIND_PACKED_SINGLE)
        return PACKED_BYTES;
    if (is_whole && o.tiles.rows.divisor == 1)
        return rearranges(plan) ? REARRANGED_BYTES : STREAMING_BYTES;
    if (least(bytes_of_runs(o, o.src), bytes_of_runs(o, o.dst)) < LONG_RUN)
        return 0;
    return o.tiles.rows_first ? APART_BYTES : SCATTERED_BYTES;
}

/* Shared memory of a block that is not asked for. */
static uint32_t reserved_shared(const trope_plan &plan, const tiled_launch &launch)
{
    const bool has_steps = shares_steps(kind_of_angles(plan), launch.form, launch.kind);
    return RESERVED_SHARED + (has_steps ? USUAL_PAIRS * (uint32_t)sizeof(uint64_t) : 0);
}

/* What a block should ask for that is to have part / of `all`. */
static uint32_t shared_of_part(uint64_t all, uint64_t part, uint64_t of, uint32_t reserved)
{
    const uint32_t share = least((uint32_t)(all * part / of), UNASKED_SHARED_BYTES);
    return most(share, reserved) - reserved;
}

/* The same where all blocks start at once, so that no multiprocessor has more of them than others, although blocks of the
 * call before, which end at different times, may still have their places (without early launches they may not): as much as
 * each has of `all`, and of that no more than they need, or one of them and the next call's. */
static void spread_evenly(const device_facts &device, uint32_t all, uint32_t reserved, tiled_launch *launch)
{
    if (device.major < 9 || device.multiprocessors == 0 || launch->blocks == 0)
        return;
    const uint64_t blocks = (uint64_t)quotient_up(launch->blocks, device.multiprocessors);
    launch->shared_bytes = most(launch->shared_bytes, shared_of_part(all, 1, blocks, reserved));
    const uint64_t needed = (blocks > 1 ? blocks : 2) * (launch->shared_bytes + reserved);
    launch->of_multiprocessor = needed <= all ? (uint32_t)needed : 0;
}

/* What is kept of a row. */
static uint32_t row_bytes(tile_call_kind kind)
{
    return (uint32_t)(kind == KIND_ANY                                  ? sizeof(tile_row<KIND_ANY>)
                      : kind == KIND_PLAIN || kind == KIND_PLAIN_SINGLE ? sizeof(tile_row<KIND_PLAIN>)
                                                                        : sizeof(tile_row<KIND_PACKED>));
}

/* Whether what an operand changes in place should stay in L2 from its load to its store. A table's rows that other heads or
 * sequences read after much else had better stay instead, but for windows that are held, which are parts of lines. */
static bool should_stay(const trope_plan &plan, const trope_plan_operand &from, const tiled_operand &o, bool is_held)
{
    if (!from.in_place || kind_of_angles(plan) == ANGLES_PHASE)
        return from.in_place;
    return is_held ? !plan.sequences.boundaries || o.src.run == 1 : !o.tiles.rows_first;
}

/* ---- all of it ---- */

static uint32_t most_rows(const tile_planner &p)
{
    uint32_t rows = 0;
    for (const tiled_operand &o : p)
        rows = most(rows, o.tiles.rows.divisor);
    return rows;
}

static tile_form choose_form(const tile_planner &p, held_share held)
{
    if (held.times)
        return held.form;
    if (most_rows(p) <= 1)
        return FORM_ROW;
    return form_of(kind_of_angles(p.plan), p.operands[0].tiles.heads == 1 ? FORM_HEAD : FORM_ROWS, p.kind);
}

/* What a block has in shared memory: tiles, then what they are turned by, then rows. Returns how many bytes. */
static uint32_t share_out(const tile_planner &p, held_share held, tile_form form, tiled_call *call)
{
    for (int i = 0; i < p.count; i++) {
        tiled_operand &o = p.operands[i];
        if (!held.times)
            call->turns_at = most(call->turns_at, TILE_WARPS * o.tile_bytes);
        call->turns_bytes = most(call->turns_bytes, give_turns_room(p.plan, &o));
        if (p.from[i].rotary_dim == 0)
            o.turn_rows = 0;
    }
    if (form == FORM_HEAD || form == FORM_HELD_ROWS)
        call->turns_bytes = 0; /* threads keep them to themselves */
    call->rows_at = call->turns_at + TILE_WARPS * call->turns_bytes;
    return call->rows_at + TILE_WARPS * most_rows(p) * row_bytes(p.kind);
}

/* Sees to it that a multiprocessor has as many blocks as it should. */
static void limit_blocks(const tile_planner &p, held_share held, tiled_launch *launch)
{
    const uint32_t all = (uint32_t)p.device.shared_bytes, reserved = reserved_shared(p.plan, *launch);
    spread_evenly(p.device, held.times ? least(HELD_SHARED_BYTES, all) : all, reserved, launch);
    if (p.count > 1 || held.times)
        return;
    const uint32_t in_flight = bytes_in_flight(p.plan, p.operands[0], p.kind);
    if (in_flight)
        launch->shared_bytes =
            most(launch->shared_bytes, shared_of_part(all, TILE_WARPS * p.operands[0].tile_bytes, in_flight, reserved));
}

tiled_launch trope_cuda_plan_tiles(const trope_plan &plan, const device_facts &device, uint32_t tile_bytes,
                                   tiled_operand *operands, tiled_call *call)
{
    trope_plan_operand joined[MAX_CUDA_OPERANDS];
    const int32_t count = join_operands(plan, joined);
    const tile_planner p = {plan, device, kind_of_call(plan, count), count, joined, operands};
    call->rows = plan_rows(plan);
    call->interleaved_src = plan.interleaved_src;
    call->interleaved_dst = plan.interleaved_dst;
    for (int i = 0; i < count; i++)
        plan_operand(plan, joined[i], &operands[i]);
    cut_into_tiles(p, tile_bytes);
    const held_share held = hold_operands(p);
    for (int i = 0; i < count; i++)
        operands[i].stays = should_stay(plan, joined[i], operands[i], held.times > 0);
    tiled_launch launch = {count, 0, 0, 0, p.kind, choose_form(p, held)};
    launch.shared_bytes = share_out(p, held, launch.form, call);
    launch.blocks = deal_blocks(p, call);
    limit_blocks(p, held, &launch);
    return launch;
}

int trope_cuda_has_tiles(const trope_plan *plan)
{
    const double rows = (double)plan->batch * (double)plan->tokens;
    double tiles = 0; /* at most */
    for (int i = 0; i < plan->operand_count; i++) {
        const trope_plan_operand &o = plan->operands[i];
        const bool is_small = pitch_of(*plan, o) <= MAX_PITCH && bytes_of_head(*plan, o) <= UINT32_MAX;
        if (!is_small || !operand_is_vector(*plan, o) ||
            (rearranges(*plan) && o.rotary_dim / 2 > 32 * 16 / plan->element_size))
            return 0;
        tiles += rows * o.groups * o.heads_per_group;
    }
    return rows < MAX_COUNT && tiles < MAX_COUNT;
}
