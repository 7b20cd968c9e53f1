/* Which calls threads hold in registers, and in what tiles: rotate_held.cuh. */
#ifndef TROPE_FWD_CUDA_HOLD_TILES_CUH
#define TROPE_FWD_CUDA_HOLD_TILES_CUH

#include "fwd/cuda/cut_tiles.cuh"
#include "fwd/cuda/rotate_held.cuh"

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

/* What the lanes of an operand that is only copied would be if it were turned whole: so threads can hold it beside others.
 */
static inline void give_lanes(const trope_plan &plan, tiled_operand *o)
{
    o->window = 0;
    o->part_pairs = o->tiles.pitch / 2 / plan.element_size;
    o->low_step = o->high_gap = 0; /* there may be more lanes than steps */
    set_lanes(o->tiles.pitch / 32, o);
}

/* Whether threads can keep what a tile has in registers: it is all turned, or could be, by one lane a thread. */
static inline bool can_be_held(const trope_plan &plan, const tiled_operand &o)
{
    return o.all_lanes > 0 && o.all_lanes <= 32 && o.tiles.pitch == 2 * o.part_pairs * plan.element_size &&
           o.tiles.pitch == o.all_lanes * 32;
}

/* What the threads of a call hold: their lane of so many heads of a row, or of so many rows of one head; of none if 0. */
struct held_share {
    tile_form form;
    uint32_t times;
};

/* Sizes of tiles of `times` as many as a warp has at once. Neighbours follow each other all the same. */
static inline tiling choose_held_tile(const tiled_operand &o, held_share held)
{
    const uint32_t at_once = heads_of_warp(o), room = held.times * at_once;
    tiling t = o.tiles;
    t.rows_first = 0;
    choose_tile(room, held.form == FORM_HELD_ROWS ? room : 1, at_once, &t);
    t.rows_first = o.tiles.rows_first;
    return t;
}

/* How many of these the operands have for each multiprocessor. */
static inline int64_t count_held_tiles(const tile_planner &p, held_share held)
{
    int64_t tiles = 0;
    for (const tiled_operand &o : p)
        tiles += count_tiles(p.plan, choose_held_tile(o, held));
    return quotient_up(tiles, most((uint32_t)p.device.multiprocessors, 1));
}

/* Whether some operand has more heads than a warp has at once. */
static inline bool fill_warps(const tile_planner &p)
{
    return std::any_of(p.begin(), p.end(), [](const tiled_operand &o) { return o.tiles.all_heads > heads_of_warp(o); });
}

/* Whether the copy engine would have many short runs to bring and to take away, for warps that are busy with one row of
 * heads, or have rows. */
static inline bool has_short_windows(const tiled_operand &o, tile_form form)
{
    return o.src.run == 1 && o.tiles.pitch <= SHORT_WINDOW &&
           (form == FORM_HELD_ROWS || o.tiles.all_heads >= heads_of_warp(o));
}

static inline bool copies_some(const tile_planner &p)
{
    return std::any_of(p.from, p.from + p.count, [](const trope_plan_operand &o) { return o.rotary_dim == 0; });
}

/* Whether threads should hold two heads of a call that has more of such warps than run at once: where kernels by tiles do
 * not keep up with a copy, because of several operands, or, in fp32, of heads that are further apart than rows. */
static inline bool hold_many(const tile_planner &p, int64_t warps)
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

static inline held_limits limits_of_held(const tile_planner &p, tile_form form)
{
    const bool waits = kind_of_angles(p.plan) != ANGLES_PHASE; /* for a table's rows */
    const bool is_packed = p.kind == KIND_PACKED || p.kind == KIND_PACKED_SINGLE;
    if (form == FORM_HELD_ROWS)
        return waits ? held_limits{32 * HELD_AT_ONCE, 0} : held_limits{HELD_AT_ONCE / 2, HELD_AT_ONCE};
    return {is_packed ? HELD_AT_ONCE / 4 : waits ? HELD_AT_ONCE : HELD_AT_ONCE / 8, HELD_AT_ONCE};
}

static inline held_share choose_held(const tile_planner &p)
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
static inline held_share hold_operands(const tile_planner &p)
{
    tiled_operand with_lanes[MAX_CUDA_OPERANDS];
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

#endif
