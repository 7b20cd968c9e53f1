/* A call that is being planned, and how large its tiles are: plan_tiles.cu. */
#ifndef TROPE_FWD_CUDA_CUT_TILES_CUH
#define TROPE_FWD_CUDA_CUT_TILES_CUH

#include <algorithm>

#include "fwd/cuda/plan_tiles.cuh"
#include "fwd/cuda/tiling.cuh"

/* Tiles that keep a device busy, above which there is no use in smaller ones. */
#define ENOUGH_TILES 2048

/* See most_rows_of_few_heads. */
#define ROWS_BESIDE_ONE 8

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

/* ---- heads, lanes and tables ---- */

static inline void set_lanes(uint32_t all, tiled_operand *o)
{
    const uint32_t lanes = all ? least(all, 32) : 1;
    o->all_lanes = all;
    o->lanes.set(lanes);
    o->head_threads = lanes < 32 ? (1u << lanes) - 1 : UINT32_MAX;
}

/* Heads that a warp has at once. */
static inline uint32_t heads_of_warp(const tiled_operand &o)
{
    return 32 / o.lanes.divisor;
}

/* Whether the angles of rows are read from a table that has kernels of its own. */
static inline bool reads_tables(const trope_plan &plan)
{
    return kind_of_angles(plan) != ANGLES_PHASE && kind_of_angles(plan) != ANGLES_ANY;
}

/* ---- sizes of tiles ---- */

/* Heads of a row in a tile that has room for `most`: all alike, and whole groups if one fits. */
static inline uint32_t share_heads(uint32_t heads, uint32_t per_group, uint32_t most)
{
    const uint32_t chunks = (uint32_t)quotient_up(heads, most), share = (uint32_t)quotient_up(heads, chunks);
    const uint32_t groups = (uint32_t)quotient_up(share, per_group) * per_group;
    return groups <= most ? groups : share;
}

/* Rows of a tile, of which a warp turns `at_once` heads at a time, that it should have at once: those that take the fewest
 * times, and of these the most, since a thread then has turns to load for the fewest rows. */
static inline uint32_t choose_rows_at_once(uint32_t rows, uint32_t heads, uint32_t at_once)
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
static inline void choose_tile(uint32_t room, uint32_t most_rows, uint32_t at_once, tiling *t)
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

/* Tiles above which there is no use in smaller ones. Where several rows of a table are waited for, these are half of the
 * warps that run at once: twice as many tiles would still all run. */
static inline int64_t enough_tiles(const tile_planner &p, uint32_t rows)
{
    if (rows == 1 || !reads_tables(p.plan))
        return ENOUGH_TILES;
    return (int64_t)p.device.multiprocessors * PLAIN_BLOCKS * TILE_WARPS / 2;
}

static inline int64_t count_tiles(const trope_plan &plan, const tiling &t)
{
    const int64_t outer_rows = plan.batch * plan.tokens / t.all_rows;
    return outer_rows * tiles_along(t.all_rows, t.rows.divisor) * tiles_along(t.all_heads, t.heads);
}

/* What follows from the sizes of tiles. */
static inline void number_tiles(const trope_plan &plan, tiled_operand *o)
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
static inline uint32_t room_of_tile(const tiled_operand &o, uint32_t tile_bytes, uint32_t halvings)
{
    const bool is_grouped = o.tiles.heads_per_group.divisor < o.tiles.all_heads;
    uint32_t room = most((is_grouped ? tile_bytes + tile_bytes / 4 : tile_bytes) / o.tiles.pitch, 1);
    for (; halvings > 0 && room / 2 >= heads_of_warp(o); halvings--)
        room /= 2;
    return room;
}

/* Whether so many rows are more than a usual tile has room for. */
static inline bool exceed_tile(uint32_t rows, const tiled_operand &o)
{
    return !o.tiles.rows_first && rows * o.tiles.all_heads > room_of_tile(o, TILE_BYTES, 0);
}

/* Rows that tiles of few heads have at most beside those of operands of which a tile has one row: more would keep a warp
 * busy with sines for longer than it takes others to have their heads turned. Where rows are waited for, the kernel of one
 * row is so much better that all should have such tiles. */
static inline uint32_t most_rows_of_few_heads(const tile_planner &p)
{
    const bool have_many =
        std::any_of(p.begin(), p.end(), [](const tiled_operand &o) { return o.tiles.pitch && exceed_tile(2, o); });
    if (have_many && (p.kind == KIND_PACKED || (p.kind == KIND_PLAIN && reads_tables(p.plan))))
        return 1;
    return have_many && p.kind == KIND_PLAIN ? ROWS_BESIDE_ONE : INT32_MAX;
}

/* Whether a row has heads for threads that have two of them. */
static inline bool fills_warp_twice(const tiled_operand &o)
{
    return o.tiles.all_heads >= 2 * heads_of_warp(o);
}

/* Rows that a tile has at most (where rows are neighbours, unless there is room for more of all heads: see choose_tile). Of
 * a table a warp waits for two rows at a time, so that more heads are worth more than longer runs; and where rows must be
 * known first, the kernel of one row is worth tiles of half the size. */
static inline uint32_t most_rows_of_tile(const trope_plan &plan, const tiled_operand &o, uint32_t of_few_heads)
{
    const uint32_t most = is_plain(plan) ? INT32_MAX : MAX_TILE_ROWS;
    if (o.tiles.rows_first)
        return reads_tables(plan) ? 2 : most;
    if (is_packed(plan) && reads_tables(plan) && fills_warp_twice(o))
        return 1;
    return least(of_few_heads, most);
}

/* Cuts the operands into tiles, which are halved as long as all of them together are too few to keep a device busy. */
static inline void cut_into_tiles(const tile_planner &p, uint32_t tile_bytes)
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

#endif
