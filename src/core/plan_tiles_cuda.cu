/* How a plan is cut into tiles, and which kernel it gets. No device is needed for it: tests/cuda/tiling.cu does without. */
#include "core/plan_tiles_cuda.cuh"

#include <algorithm>
#include <string.h>

#include "core/rotate_cuda.h"
#include "core/rotate_held_cuda.cuh"
#include "core/tiling_cuda.cuh"

/* Shared memory that what a tile's rows are turned by should have; and tiles that keep a device busy, above which there is
 * no use in smaller ones. */
#define TURNS_BYTES  4096
#define ENOUGH_TILES 2048

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

/* Warps that hold heads in registers, or rows of one head, and run at once. */
#define HELD_AT_ONCE (HELD_BLOCKS * TILE_WARPS)

/* Warps of a multiprocessor from which on, and up to which, more may be worth holding than run at once, of 16 bits (fewer
 * where an operand is only copied) and of fp32: where they are just too many, the last of them run alone. */
#define HELD_FROM       (HELD_AT_ONCE * 5 / 4)
#define HELD_FROM_WIDE  (HELD_AT_ONCE * 5 / 2)
#define HELD_TO         (HELD_AT_ONCE * 8)
#define HELD_TO_COPYING (HELD_AT_ONCE * 5)

/* Bytes of a head's window in place up to which threads should hold it, however many there are. */
#define SHORT_WINDOW 256

/* Blocks in a turn of the operand that has the fewest. */
#define SHARE_OF_TURN 8

/* See most_rows_of_few_heads. */
#define ROWS_BESIDE_ONE 8

#define MAX_PITCH 8192               /* bytes of a head */
#define MAX_COUNT (INT32_MAX - 1024) /* of rows, and of tiles */

/* A call that is being planned. Neighbours that follow each other are one operand here. */
struct tile_planner {
    const trope_plan &plan;
    const device_facts &device;
    tile_call_kind kind;
    int32_t count; /* of operands: */
    const trope_plan_operand *from;
    tiled_operand *operands;

    const tiled_operand *begin() const
    {
        return operands;
    }

    const tiled_operand *end() const
    {
        return operands + count;
    }
};

/* ---- the heads of an operand ---- */

static bool rearranges(const trope_plan &plan)
{
    return plan.interleaved_src != plan.interleaved_dst;
}

/* In place, a tile has only what is rotated. (An operand of which nothing is may have padding.) */
static bool takes_windows(const trope_plan &plan, const trope_plan_operand &o)
{
    return o.in_place && (o.rotary_dim > 0 || !clears_padding(plan));
}

/* Bytes of a head in a tile: MAX_PITCH at most, or there are no tiles. */
static int64_t pitch_of(const trope_plan &plan, const trope_plan_operand &o)
{
    return (int64_t)(takes_windows(plan, o) ? o.rotary_dim : o.head_dim) * plan.element_size;
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

/* ---- tiles ---- */

/* Heads that a warp has at once. */
static uint32_t heads_of_warp(const tiled_operand &o)
{
    return 32 / o.lanes.divisor;
}

/* Heads of a row in a tile that has room for `most`: all alike, and whole groups if one fits. */
static uint32_t share_heads(uint32_t heads, uint32_t per_group, uint32_t most)
{
    const uint32_t chunks = (uint32_t)quotient_up(heads, most), share = (uint32_t)quotient_up(heads, chunks);
    const uint32_t groups = (uint32_t)quotient_up(share, per_group) * per_group;
    return groups <= most ? groups : share;
}

/* Rows of a tile, of which a warp turns `at_once` heads at a time, that it should have at once: those that take the fewest
 * times, and of these the most, since a thread then has turns to load for the fewest rows. */
static uint32_t choose_rows_at_once(uint32_t rows, uint32_t heads, uint32_t at_once)
{
    uint32_t best = 1, fewest = UINT32_MAX;
    for (uint32_t r = 1; r <= least(rows, at_once); r++) {
        const uint32_t times = tiles_along(rows, r) * tiles_along(heads, least(at_once / r, heads));
        if (times <= fewest) {
            fewest = times;
            best = r;
        }
    }
    return best;
}

/* The sizes of tiles that have room for `room` heads. A warp turns `at_once` heads at a time. */
static void choose_tile(uint32_t room, uint32_t most_rows, uint32_t at_once, tiling *t)
{
    const uint32_t per_group = t->heads_per_group.divisor;
    if (t->rows_first) {
        t->rows.divisor = least(least(at_once, room), least(t->all_rows, most(most_rows, room / t->all_heads)));
        t->heads = share_heads(t->all_heads, per_group, room / t->rows.divisor);
    } else {
        t->heads = share_heads(t->all_heads, per_group, room);
        t->rows.divisor = t->heads < t->all_heads ? 1 : least(least(room / t->heads, most_rows), t->all_rows);
    }
}

/* Whether the angles of rows are read from a table that has kernels of its own. */
static bool reads_tables(const trope_plan &plan)
{
    return kind_of_angles(plan) != ANGLES_PHASE && kind_of_angles(plan) != ANGLES_ANY;
}

/* Tiles above which there is no use in smaller ones. Where several rows of a table are waited for, these are half of the
 * warps that run at once: twice as many tiles would still all run. */
static int64_t enough_tiles(const tile_planner &p, uint32_t rows)
{
    if (rows == 1 || !reads_tables(p.plan))
        return ENOUGH_TILES;
    return (int64_t)p.device.multiprocessors * PLAIN_BLOCKS * TILE_WARPS / 2;
}

static int64_t count_tiles(const trope_plan &plan, const tiling &t)
{
    const int64_t outer_rows = plan.batch * plan.tokens / t.all_rows;
    return outer_rows * tiles_along(t.all_rows, t.rows.divisor) * tiles_along(t.all_heads, t.heads);
}

/* What follows from the sizes of tiles. */
static void number_tiles(const trope_plan &plan, tiled_operand *o)
{
    tiling &t = o->tiles;
    if (t.rows.divisor == 1)
        t.all_rows = (uint32_t)trope_inner_rows(&plan); /* joined ones would have to be told apart again */
    const uint32_t row_tiles = tiles_along(t.all_rows, t.rows.divisor), head_tiles = tiles_along(t.all_heads, t.heads);
    const uint32_t at_once = heads_of_warp(*o);
    t.tiles = (uint32_t)count_tiles(plan, t);
    t.rows.set(t.rows.divisor);
    t.row_pitch = (t.rows_first ? 1 : t.heads) * t.pitch;
    t.head_pitch = (t.rows_first ? t.rows.divisor : 1) * t.pitch;
    t.tiles_of_line.set(t.rows_first ? row_tiles : head_tiles);
    t.lines.set(t.rows_first ? head_tiles : row_tiles);
    t.vectors.set(least(t.pitch / 16, 32));
    find_runs(t, &o->src);
    find_runs(t, &o->dst);
    o->tile_bytes = t.rows.divisor * t.heads * t.pitch;
    o->rows_at_once = choose_rows_at_once(t.rows.divisor, t.heads, at_once);
    o->heads_at_once.set(least(at_once / o->rows_at_once, t.heads));
}

/* Heads that a tile of so many bytes has room for (a quarter more where they are in groups, of which more are then whole),
 * half as many if it is halved once, and so on, as long as a warp has what it turns at once. */
static uint32_t room_of_tile(const tiled_operand &o, uint32_t tile_bytes, uint32_t halvings)
{
    const bool is_grouped = o.tiles.heads_per_group.divisor < o.tiles.all_heads;
    uint32_t room = most((is_grouped ? tile_bytes + tile_bytes / 4 : tile_bytes) / o.tiles.pitch, 1);
    for (; halvings > 0 && room / 2 >= heads_of_warp(o); halvings--)
        room /= 2;
    return room;
}

/* Whether so many rows are more than a usual tile has room for. */
static bool exceed_tile(uint32_t rows, const tiled_operand &o)
{
    return !o.tiles.rows_first && rows * o.tiles.all_heads > room_of_tile(o, TILE_BYTES, 0);
}

/* Rows that tiles of few heads have at most beside those of operands of which a tile has one row: more would keep a warp
 * busy with sines for longer than it takes others to have their heads turned. Where rows are waited for, the kernel of one
 * row is so much better that all should have such tiles. */
static uint32_t most_rows_of_few_heads(const tile_planner &p)
{
    const bool have_many =
        std::any_of(p.begin(), p.end(), [](const tiled_operand &o) { return o.tiles.pitch && exceed_tile(2, o); });
    if (have_many && (p.kind == KIND_PACKED || (p.kind == KIND_PLAIN && reads_tables(p.plan))))
        return 1;
    return have_many && p.kind == KIND_PLAIN ? ROWS_BESIDE_ONE : INT32_MAX;
}

/* Whether a row has heads for threads that have two of them. */
static bool fills_warp_twice(const tiled_operand &o)
{
    return o.tiles.all_heads >= 2 * heads_of_warp(o);
}

/* Rows that a tile has at most (where rows are neighbours, unless there is room for more of all heads: see choose_tile). Of
 * a table a warp waits for two rows at a time, so that more heads are worth more than longer runs; and where rows must be
 * known first, the kernel of one row is worth tiles of half the size. */
static uint32_t most_rows_of_tile(const trope_plan &plan, const tiled_operand &o, uint32_t of_few_heads)
{
    const uint32_t most = is_plain(plan) ? INT32_MAX : MAX_TILE_ROWS;
    if (o.tiles.rows_first)
        return reads_tables(plan) ? 2 : most;
    if (is_packed(plan) && reads_tables(plan) && fills_warp_twice(o))
        return 1;
    return least(of_few_heads, most);
}

/* Cuts the operands into tiles, which are halved as long as all of them together are too few to keep a device busy. */
static void cut_into_tiles(const tile_planner &p, uint32_t tile_bytes)
{
    const uint32_t of_few_heads = most_rows_of_few_heads(p);
    bool can_be_halved = true;
    int64_t tiles = 0, enough = 1;
    for (uint32_t halvings = 0; tiles < enough && can_be_halved; halvings++) {
        uint32_t rows = 1;
        can_be_halved = false;
        tiles = 0;
        for (int i = 0; i < p.count; i++) {
            tiled_operand &o = p.operands[i];
            if (o.tiles.pitch == 0)
                continue;
            const uint32_t room = room_of_tile(o, tile_bytes, halvings);
            choose_tile(room, most_rows_of_tile(p.plan, o, of_few_heads), heads_of_warp(o), &o.tiles);
            rows = most(rows, o.tiles.rows.divisor);
            tiles += count_tiles(p.plan, o.tiles);
            can_be_halved = can_be_halved || room_of_tile(o, tile_bytes, halvings + 1) < room;
        }
        enough = enough_tiles(p, rows);
    }
    for (int i = 0; i < p.count; i++)
        if (p.operands[i].tiles.pitch)
            number_tiles(p.plan, &p.operands[i]);
}

/* ---- the call ---- */

static void set_lanes(uint32_t all, tiled_operand *o)
{
    const uint32_t lanes = all ? least(all, 32) : 1;
    o->all_lanes = all;
    o->lanes.set(lanes);
    o->head_threads = lanes < 32 ? (1u << lanes) - 1 : UINT32_MAX;
}

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
    o->window_pairs = from.window_pairs;
    o->low_step = plan.interleaved_src ? width / 2 : width;
    o->high_gap = plan.interleaved_src ? from.window_pairs / 2 : width / 2;
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

/* ---- operands that are one ---- */

static bool same_rows(const trope_plan &plan, int32_t groups, const int64_t *a, const int64_t *b)
{
    return (plan.batch == 1 || a[TROPE_DIM_BATCH] == b[TROPE_DIM_BATCH]) &&
           (plan.tokens == 1 || a[TROPE_DIM_TOKEN] == b[TROPE_DIM_TOKEN]) &&
           (groups == 1 || a[TROPE_DIM_GROUP] == b[TROPE_DIM_GROUP]);
}

/* Whether the heads of a tensor are followed by those of another one, in each group; then *stride is that of all of them.
 */
static bool heads_follow(const trope_plan &plan, const trope_plan_operand &o, const trope_plan_operand &next,
                         const char *base, const char *next_base, const int64_t *next_strides, int64_t *stride)
{
    const int64_t away = (int64_t)((intptr_t)next_base - (intptr_t)base);
    if (o.heads_per_group == 1)
        *stride = away / plan.element_size;
    return away == *stride * o.heads_per_group * plan.element_size &&
           (next.heads_per_group == 1 || next_strides[TROPE_DIM_HEAD] == *stride);
}

/* Adds the heads of `next` to `o` if they are in the same places of the same rows: Q and K of packed QKV, in place. */
static bool join_operand(const trope_plan &plan, const trope_plan_operand &next, trope_plan_operand *o)
{
    trope_plan_operand joined = *o;
    if (o->groups != next.groups || o->head_dim != next.head_dim || o->rotary_dim != next.rotary_dim ||
        o->rotary_offset != next.rotary_offset || o->in_place != next.in_place ||
        !same_rows(plan, o->groups, o->src_stride, next.src_stride) ||
        !same_rows(plan, o->groups, o->dst_stride, next.dst_stride) ||
        !heads_follow(plan, *o, next, o->src, next.src, next.src_stride, &joined.src_stride[TROPE_DIM_HEAD]) ||
        !heads_follow(plan, *o, next, o->dst, next.dst, next.dst_stride, &joined.dst_stride[TROPE_DIM_HEAD]))
        return false;
    joined.heads_per_group += next.heads_per_group;
    *o = joined;
    return true;
}

/* Returns how many operands are left. */
static int32_t join_operands(const trope_plan &plan, trope_plan_operand *joined)
{
    int32_t count = 0;
    for (int i = 0; i < plan.operand_count; i++)
        if (count == 0 || !join_operand(plan, plan.operands[i], &joined[count - 1]))
            joined[count++] = plan.operands[i];
    return count;
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
    for (int i = 0; i < TROPE_MAX_OPERANDS; i++) {
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

/* ---- tiles in registers ---- */

/* What the lanes of an operand that is only copied would be if it were turned whole: so threads can hold it beside others.
 */
static void give_lanes(const trope_plan &plan, tiled_operand *o)
{
    o->window = 0;
    o->window_pairs = o->tiles.pitch / 2 / plan.element_size;
    o->low_step = o->high_gap = 0; /* there may be more lanes than steps */
    set_lanes(o->tiles.pitch / 32, o);
}

/* Whether threads can keep what a tile has in registers: it is all turned, or could be, by one lane a thread. */
static bool can_be_held(const trope_plan &plan, const tiled_operand &o)
{
    return o.all_lanes > 0 && o.all_lanes <= 32 && o.tiles.pitch == 2 * o.window_pairs * plan.element_size &&
           o.tiles.pitch == o.all_lanes * 32;
}

/* What the threads of a call hold: their lane of so many heads of a row, or of so many rows of one head; of none if 0. */
struct held_share {
    tile_form form;
    uint32_t times;
};

/* Sizes of tiles of `times` as many as a warp has at once. Neighbours follow each other all the same. */
static tiling choose_held_tile(const tiled_operand &o, held_share held)
{
    const uint32_t at_once = heads_of_warp(o), room = held.times * at_once;
    tiling t = o.tiles;
    t.rows_first = 0;
    choose_tile(room, held.form == FORM_HELD_ROWS ? room : 1, at_once, &t);
    t.rows_first = o.tiles.rows_first;
    return t;
}

/* How many of these the operands have for each multiprocessor. */
static int64_t count_held_tiles(const tile_planner &p, held_share held)
{
    int64_t tiles = 0;
    for (const tiled_operand &o : p)
        tiles += count_tiles(p.plan, choose_held_tile(o, held));
    return quotient_up(tiles, most((uint32_t)p.device.multiprocessors, 1));
}

/* Whether some operand has more heads than a warp has at once. */
static bool fill_warps(const tile_planner &p)
{
    return std::any_of(p.begin(), p.end(), [](const tiled_operand &o) { return o.tiles.all_heads > heads_of_warp(o); });
}

/* Whether the copy engine would have many short runs to bring and to take away, for warps that are busy with one row of
 * heads, or have rows. */
static bool has_short_windows(const tiled_operand &o, tile_form form)
{
    return o.src.run == 1 && o.tiles.pitch <= SHORT_WINDOW &&
           (form == FORM_HELD_ROWS || o.tiles.all_heads >= heads_of_warp(o));
}

static bool copies_some(const tile_planner &p)
{
    return std::any_of(p.from, p.from + p.count, [](const trope_plan_operand &o) { return o.rotary_dim == 0; });
}

/* Whether threads should hold two heads of a call that has more of such warps than run at once: where kernels by tiles do
 * not keep up with a copy, because of several operands, or, in fp32, of heads that are further apart than rows. */
static bool hold_many(const tile_planner &p, int64_t warps)
{
    const bool is_wide = p.plan.element_size == 4;
    const bool are_several = p.kind == KIND_PLAIN && kind_of_angles(p.plan) == ANGLES_PHASE,
               is_apart = p.kind == KIND_PLAIN_SINGLE && is_wide && p.operands[0].tiles.rows_first;
    return (are_several || is_apart) && std::all_of(p.begin(), p.end(), fills_warp_twice) &&
           warps >= (is_wide ? HELD_FROM_WIDE : HELD_FROM) &&
           warps <= (!is_wide && copies_some(p) ? HELD_TO_COPYING : HELD_TO);
}

/* Warps that a multiprocessor has at most of a call whose threads hold one head, or row of one head, and of one whose
 * threads hold two. (Rows of one head that are waited for are better held however many they are, almost.) */
struct held_limits {
    int64_t one, two;
};

static held_limits limits_of_held(const tile_planner &p, tile_form form)
{
    const bool waits = kind_of_angles(p.plan) != ANGLES_PHASE; /* for a table's rows */
    const bool is_packed = p.kind == KIND_PACKED || p.kind == KIND_PACKED_SINGLE;
    if (form == FORM_HELD_ROWS)
        return waits ? held_limits{32 * HELD_AT_ONCE, 0} : held_limits{HELD_AT_ONCE / 2, HELD_AT_ONCE};
    return {is_packed ? HELD_AT_ONCE / 4 : waits ? HELD_AT_ONCE : HELD_AT_ONCE / 8, HELD_AT_ONCE};
}

static held_share choose_held(const tile_planner &p)
{
    const tile_form form = p.kind == KIND_PLAIN_SINGLE && p.operands[0].tiles.all_heads == 1 ? FORM_HELD_ROWS : FORM_HELD;
    const held_limits limits = limits_of_held(p, form);
    const held_share none = {form, 0}, one = {form, 1}, two = {form, MOST_HELD};
    bool is_short = false;
    if (p.kind == KIND_ANY || !angles_can_be_held(kind_of_angles(p.plan)))
        return none;
    for (int i = 0; i < p.count; i++) {
        if (!can_be_held(p.plan, p.operands[i]))
            return none;
        is_short = is_short || (p.from[i].in_place && has_short_windows(p.operands[i], form));
    }
    if (form == FORM_HELD && !fill_warps(p))
        return is_short ? two : none;
    if (count_held_tiles(p, one) <= limits.one)
        return one; /* twice as many warps */
    const int64_t warps = count_held_tiles(p, two);
    return is_short || warps <= limits.two || hold_many(p, warps) ? two : none;
}

/* Cuts the operands into such tiles, if they should be held. */
static held_share hold_operands(const tile_planner &p)
{
    tiled_operand with_lanes[TROPE_MAX_OPERANDS];
    tile_planner holding = p;
    holding.operands = with_lanes;
    for (int i = 0; i < p.count; i++) {
        with_lanes[i] = p.operands[i];
        if (p.from[i].rotary_dim == 0 && p.count > 1)
            give_lanes(p.plan, &with_lanes[i]);
    }
    const held_share held = choose_held(holding);
    for (int i = 0; held.times && i < p.count; i++) {
        p.operands[i] = with_lanes[i];
        p.operands[i].tiles = choose_held_tile(with_lanes[i], held);
        number_tiles(p.plan, &p.operands[i]);
    }
    return held;
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
    trope_plan_operand joined[TROPE_MAX_OPERANDS];
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
        const bool is_small = pitch_of(*plan, o) <= MAX_PITCH && (int64_t)o.head_dim * plan->element_size <= UINT32_MAX;
        if (!is_small || !operand_is_vector(*plan, o) ||
            (rearranges(*plan) && o.rotary_dim / 2 > 32 * 16 / plan->element_size))
            return 0;
        tiles += rows * o.groups * o.heads_per_group;
    }
    return rows < MAX_COUNT && tiles < MAX_COUNT;
}
