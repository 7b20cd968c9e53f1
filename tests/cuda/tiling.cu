/* How calls are cut into tiles, on any machine: what the kernels by tiles would move in random calls, according to the plan
 * that the host makes of them for some device. No memory is touched; tensors are addresses.
 *
 * Every head of every operand, or its window in place, is moved once, from where it is in src to where it is in dst, and is
 * turned as its row. What a warp has in shared memory is its own and within its block's, and every form of tile, kind of
 * call and count of operands has come up. Heads of more bytes than 32 bits can count are in no tile.
 *
 *     cuda_tiling [--seed S] [--count N] */
#include <algorithm>
#include <string.h>
#include <vector>

extern "C" {
#include "api/args.h"
#include "api/plan.h"
}
#include "bwd/cuda/angle_gradient.h"
#include "fwd/cuda/plan_tiles.cuh"
#include "fwd/cuda/rotate.h"
#include "fwd/cuda/rotate_held.cuh"
#include "support/call.h"
#include "support/check.h"
#include "support/random.h"
#include "support/seeds.h"

/* ---- random calls ---- */

/* Heads of all operands together that a call has at most. */
#define MOST_PARTS (1 << 18)

struct tiling_call {
    call made;
    double inv_freq[TROPE_MAX_PAIRS];
    uintptr_t free; /* addresses from here on */
};

template <typename T, size_t N> static T one_of(random_state *random, const T (&values)[N])
{
    return values[random_between(random, 0, N - 1)];
}

static char *allocate(tiling_call *c, int64_t bytes)
{
    char *const at = (char *)c->free;
    c->free += ((uintptr_t)bytes + 4095) / 4096 * 4096;
    return at;
}

static int64_t size_of(int32_t dtype)
{
    return dtype == TROPE_F64 ? 8 : dtype == TROPE_F32 ? 4 : 2;
}

/* A tensor of its own, with gaps between its heads or not. */
static char *make_tensor(tiling_call *c, int32_t layout, int32_t heads, int32_t head_dim, int32_t gap, int64_t *stride)
{
    const trope_args &a = c->made.args;
    trope_fill_strides(stride, layout, a.batch, a.tokens, heads, head_dim + gap);
    return allocate(c, a.batch * a.tokens * heads * (head_dim + gap) * size_of(a.dtype));
}

/* Heads [first, first + heads) of each group of `all` in a tensor of `groups`, as in packed QKV. */
static void make_part(const trope_args &a, const int64_t *of_all, int32_t groups, int32_t all, int32_t first, char *base,
                      trope_operand *o)
{
    memcpy(o->src_stride, of_all, sizeof o->src_stride);
    o->src_stride[TROPE_DIM_GROUP] = groups > 1 ? all * of_all[TROPE_DIM_HEAD] : of_all[TROPE_DIM_GROUP];
    o->src = base + first * of_all[TROPE_DIM_HEAD] * size_of(a.dtype);
}

/* An operand that is said by strides, in place. */
static trope_operand *add_operand(tiling_call *c, int32_t heads, int32_t head_dim, int32_t rotary_dim)
{
    trope_operand *const o = call_add(&c->made, NULL, TROPE_BSHD, heads, head_dim, rotary_dim);
    o->src_layout = o->dst_layout = TROPE_STRIDED;
    return o;
}

static void put_in_place(trope_operand *o)
{
    o->dst = (void *)o->src;
    memcpy(o->dst_stride, o->src_stride, sizeof o->dst_stride);
}

static void choose_window(random_state *random, int32_t head_dim, trope_operand *o)
{
    static const int32_t steps[] = {16, 32, 64, 128};
    if (random_between(random, 0, 2) == 0) {
        o->rotary_dim = std::min(one_of(random, steps), head_dim);
        o->rotary_offset = (int32_t)random_between(random, 0, (head_dim - o->rotary_dim) / 8) * 8;
    }
}

/* Q, K and V of one packed tensor, V copied; or of Q, K and V in place those that are rotated. */
static void make_packed_qkv(random_state *random, tiling_call *c, int32_t layout, int32_t head_dim)
{
    static const int32_t per_groups[] = {1, 1, 2, 4, 8};
    const int32_t groups = (int32_t)random_between(random, 1, 9), per_group = one_of(random, per_groups),
                  all = per_group + 2;
    const bool in_place = random_between(random, 0, 1);
    int64_t of_all[TROPE_MAX_DIMS];
    char *const packed = make_tensor(c, layout, groups * all, head_dim, 0, of_all);
    trope_operand window;
    memset(&window, 0, sizeof window);
    window.rotary_dim = head_dim;
    choose_window(random, head_dim, &window);
    for (int i = 0; i < (in_place ? 2 : 3); i++) {
        trope_operand &o = *add_operand(c, i == 0 ? per_group : 1, head_dim, i == 2 ? TROPE_COPY : window.rotary_dim);
        o.groups = groups;
        o.rotary_offset = i == 2 ? 0 : window.rotary_offset;
        make_part(c->made.args, of_all, groups, all, i == 0 ? 0 : per_group + i - 1, packed, &o);
        put_in_place(&o);
        if (!in_place)
            o.dst = make_tensor(c, layout, groups * o.heads_per_group, head_dim, 0, o.dst_stride);
        if (!in_place)
            o.dst_stride[TROPE_DIM_GROUP] = o.heads_per_group * o.dst_stride[TROPE_DIM_HEAD];
    }
}

/* Operands of a tensor each, which have fewer and fewer heads. */
static void make_operands(random_state *random, tiling_call *c, int32_t layout, int32_t head_dim)
{
    static const int32_t many[] = {1, 2, 3, 4, 7, 8, 16, 32, 40, 64, 128}, gaps[] = {0, 0, 0, 8, 64};
    int32_t heads = one_of(random, many);
    const bool in_place = random_between(random, 0, 2) == 0;
    const int64_t count = random_between(random, 0, 1) ? 1 : random_between(random, 2, 4);
    for (int i = 0; i < count; i++) {
        trope_operand &o = *add_operand(c, heads, head_dim, head_dim);
        choose_window(random, head_dim, &o);
        o.src = make_tensor(c, layout, heads, head_dim, one_of(random, gaps), o.src_stride);
        put_in_place(&o);
        if (!in_place)
            o.dst = make_tensor(c, random_between(random, 0, 7) ? layout : TROPE_BHSD, heads, head_dim,
                                one_of(random, gaps), o.dst_stride);
        heads = (int32_t)random_between(random, 0, 2) ? std::max(heads / 4, 1) : heads;
    }
}

static void choose_angles(random_state *random, tiling_call *c)
{
    trope_args &a = c->made.args;
    const int source = (int)random_between(random, 0, 9);
    const int32_t order = a.pairing_out == TROPE_PAIRING_INTERLEAVED ? TROPE_COLUMNS_INTERLEAVED : TROPE_COLUMNS_HALF,
                  columns = source == 7 ? order : TROPE_COLUMNS_PAIR, dtype = a.dtype == TROPE_F64 ? TROPE_F64 : TROPE_F32;
    const int64_t rows = a.tokens * std::max(a.cp_size, 1);
    int32_t widest = 0;
    for (int i = 0; i < a.operand_count; i++)
        widest = std::max(widest, c->made.operands[i].rotary_dim);
    for (int i = 0; i < TROPE_MAX_PAIRS; i++)
        c->inv_freq[i] = 1.0 / (i + 1);
    if (source < 5) {
        a.inv_freq = c->inv_freq;
        return;
    }
    char *const table = allocate(c, rows * widest * 8 + 16), *const sines = allocate(c, rows * widest * 8);
    if (source < 8) {
        call_freqs(&c->made, table, columns, rows);
        a.angle_dtype = dtype;
    } else {
        call_tables(&c->made, table + (source == 9 ? 8 : 0), sines, dtype, columns, rows);
    }
}

static void choose_positions(random_state *random, int32_t layout, tiling_call *c)
{
    trope_args &a = c->made.args;
    if (random_between(random, 0, 5) == 0) {
        a.position_ids = allocate(c, a.batch * a.tokens * 4);
        a.position_dtype = TROPE_I32;
        a.ids_layout = TROPE_IDS_BATCH_TOKENS;
    }
    if (layout == TROPE_THD && random_between(random, 0, 3)) {
        const int64_t sequences = random_between(random, 1, 100);
        call_cu_seqlens(&c->made, allocate(c, (sequences + 1) * 4), TROPE_I32, sequences);
        a.padding = random_between(random, 0, 1) ? TROPE_PADDING_ZERO : TROPE_PADDING_COPY;
    } else if (random_between(random, 0, 5) == 0) {
        static const int32_t layouts[] = {TROPE_CP_CONTIGUOUS, TROPE_CP_ZIGZAG, TROPE_CP_STRIPED, TROPE_CP_FLAT};
        a.cp_size = (int32_t)random_between(random, 2, 4);
        a.cp_rank = (int32_t)random_between(random, 0, a.cp_size - 1);
        a.cp_layout = one_of(random, layouts);
    }
}

static tiling_call try_call(uint64_t seed, int64_t most_tokens)
{
    static const int32_t dtypes[] = {TROPE_F32, TROPE_F16, TROPE_BF16, TROPE_BF16, TROPE_F64},
                         layouts[] = {TROPE_SBHD, TROPE_BSHD, TROPE_BHSD, TROPE_THD}, batches[] = {1, 1, 2, 3, 8},
                         head_dims[] = {16, 40, 64, 96, 128, 128, 128, 192, 256, 512},
                         pairings[] = {TROPE_PAIRING_HALF, TROPE_PAIRING_INTERLEAVED};
    random_state random = {seed};
    tiling_call c;
    memset(&c, 0, sizeof c);
    c.made = call_make(one_of(&random, dtypes), 1, 1);
    c.free = (uintptr_t)1 << 32;
    trope_args &a = c.made.args;
    a.device = TROPE_DEVICE_CUDA;
    a.pairing = one_of(&random, pairings);
    a.pairing_out = random_between(&random, 0, 5) ? a.pairing : TROPE_PAIRING_HALF;
    const int32_t layout = one_of(&random, layouts), head_dim = one_of(&random, head_dims);
    a.batch = layout == TROPE_THD ? 1 : one_of(&random, batches);
    a.tokens = (int64_t)1 << random_between(&random, 0, 17);
    a.tokens += random_between(&random, 0, 1) ? random_between(&random, 0, a.tokens) : 0;
    a.tokens = std::min(a.tokens, most_tokens);
    if (random_between(&random, 0, 3) == 0)
        make_packed_qkv(&random, &c, layout, head_dim);
    else
        make_operands(&random, &c, layout, head_dim);
    choose_positions(&random, layout, &c);
    choose_angles(&random, &c);
    return c;
}

static bool is_small_enough(const call &c)
{
    int64_t heads = 0;
    for (int i = 0; i < c.args.operand_count; i++)
        heads += (int64_t)std::max(c.operands[i].groups, 1) * c.operands[i].heads_per_group;
    return c.args.batch * c.args.tokens * heads <= MOST_PARTS;
}

static tiling_call make_call(uint64_t seed)
{
    int64_t most_tokens = MOST_PARTS;
    tiling_call c = try_call(seed, most_tokens);
    while (!is_small_enough(c.made))
        c = try_call(seed, most_tokens /= 2);
    return c;
}

static device_facts choose_device(uint64_t seed)
{
    static const device_facts devices[] = {
        {9, 132, 228 << 10}, {9, 132, 228 << 10}, {8, 108, 164 << 10}, {12, 170, 100 << 10}, {0, 0, 0}};
    random_state random = {~seed};
    return one_of(&random, devices);
}

static uint32_t choose_tile_bytes(uint64_t seed)
{
    random_state random = {seed + 1};
    return TILE_BYTES + (uint32_t)random_between(&random, 0, 4) * TILE_BYTES / 4;
}

/* The plan that the library makes of a call. */
static trope_status plan_call(call *c, int backward, trope_planned_call *planned)
{
    static const char function[] = "cuda_tiling";
    trope_call copy;
    trope_status status = trope_copy_call(function, call_args(c), &copy);
    if (!status)
        status = trope_validate(function, &copy.args, backward);
    if (status)
        return status;
    trope_expand_layouts(&copy, backward);
    status = trope_validate_memory(function, &copy, backward);
    if (!status)
        trope_make_plan(&copy, backward, planned);
    return status;
}

/* ---- what should be moved ---- */

struct part {
    uintptr_t dst, src;
    uint32_t row, bytes;
};

static bool operator<(const part &a, const part &b)
{
    return a.dst != b.dst ? a.dst < b.dst : a.src < b.src;
}

static bool operator==(const part &a, const part &b)
{
    return a.dst == b.dst && a.src == b.src && a.row == b.row && a.bytes == b.bytes;
}

static int64_t place_of(const int64_t *stride, int64_t batch, int64_t token, int32_t group, int32_t head)
{
    return batch * stride[TROPE_DIM_BATCH] + token * stride[TROPE_DIM_TOKEN] + group * stride[TROPE_DIM_GROUP] +
           head * stride[TROPE_DIM_HEAD];
}

/* In place what is outside of the windows stays, and an operand without one only has padding to be cleared. */
static void list_operand(const trope_plan &plan, const trope_plan_operand &o, std::vector<part> *parts)
{
    const bool only_window = o.in_place && (o.rotary_dim > 0 || !clears_padding(plan));
    const int64_t size = plan.element_size, from = only_window ? o.rotary_offset : 0;
    const uint32_t bytes = (uint32_t)((only_window ? o.rotary_dim : o.head_dim) * size);
    for (int64_t batch = 0; batch < plan.batch; batch++)
        for (int64_t token = 0; token < plan.tokens; token++)
            for (int32_t group = 0; bytes && group < o.groups; group++)
                for (int32_t head = 0; head < o.heads_per_group; head++)
                    parts->push_back(
                        {(uintptr_t)o.dst + (from + place_of(o.dst_stride, batch, token, group, head)) * size,
                         (uintptr_t)o.src + (from + place_of(o.src_stride, batch, token, group, head)) * size,
                         (uint32_t)(plan.batch_outermost ? batch * plan.tokens + token : token * plan.batch + batch),
                         bytes});
}

/* ---- what would be moved ---- */

static bool is_held(tile_form form)
{
    return form == FORM_HELD || form == FORM_HELD_ROWS;
}

/* Where the heads of a tile are in memory, by their place in shared memory; none twice. */
static bool spread_tile(const tiling &t, const tiled_tensor &tensor, const tile_place &p, std::vector<uintptr_t> *places)
{
    bool good = true;
    uint32_t bytes = 0;
    std::fill(places->begin(), places->end(), 0);
    for (uint32_t i = 0; i < (tensor.is_whole ? 1 : count_runs(t, tensor, p)); i++) {
        const tile_run r = tensor.is_whole ? whole_run(t, tensor, p) : find_run(t, tensor, p, i);
        good = good && r.at % t.pitch == 0 && r.bytes % t.pitch == 0;
        bytes += r.bytes;
        for (uint32_t at = 0; at < r.bytes; at += t.pitch) {
            const size_t slot = (r.at + at) / t.pitch;
            good = good && slot < places->size() && (*places)[slot] == 0;
            if (good)
                (*places)[slot] = (uintptr_t)r.memory + at;
        }
    }
    return good && bytes == p.rows * p.heads * t.pitch; /* what a warp waits for */
}

/* Adds the heads of a tile. */
static bool list_tile(const tiled_call &tiled, const tiled_operand &o, tile_form form, const tile_place &p,
                      std::vector<part> *parts)
{
    const tiling &t = o.tiles;
    std::vector<uintptr_t> src(o.tile_bytes / t.pitch), dst(o.tile_bytes / t.pitch);
    if (!is_held(form) && (!spread_tile(t, o.src, p, &src) || !spread_tile(t, o.dst, p, &dst)))
        return false;
    for (uint32_t row = 0; row < p.rows; row++) {
        for (uint32_t head = 0; head < p.heads; head++) {
            part moved = {(uintptr_t)address_of(t, o.dst, p.outer, p.row + row, p.head + head),
                          (uintptr_t)address_of(t, o.src, p.outer, p.row + row, p.head + head),
                          number_of_row(tiled, p, row), t.pitch};
            const size_t slot = (row * t.row_pitch + head * t.head_pitch) / t.pitch;
            if (!is_held(form) && (slot >= src.size() || src[slot] != moved.src || dst[slot] != moved.dst))
                return false;
            parts->push_back(moved);
        }
    }
    return true;
}

/* Whether the warp's threads turn all heads of a tile, each once: see rotate_shared, lone_lane and the held kernels. */
static bool turns_all(const tiled_operand &o, tile_form form, const tile_place &p)
{
    const uint32_t at_once = 32 / o.lanes.divisor;
    std::vector<uint32_t> turned(p.rows * p.heads);
    for (uint32_t in_warp = 0; in_warp < at_once; in_warp++) {
        const bool has_rows = form == FORM_HEAD || form == FORM_HELD_ROWS;
        const uint32_t row_step = form == FORM_ROW || form == FORM_HELD ? 1 : o.rows_at_once,
                       head_step = has_rows ? 1 : o.heads_at_once.divisor, first_row = in_warp / head_step,
                       first_head = in_warp % head_step;
        for (uint32_t row = first_row; first_row < row_step && row < p.rows; row += row_step)
            for (uint32_t head = first_head; head < p.heads; head += head_step)
                turned[row * p.heads + head]++;
    }
    return std::all_of(turned.begin(), turned.end(), [](uint32_t count) { return count == 1; });
}

/* Whether a tile has what its form says that it has at most, and, where it has one row, that row's two dimensions. */
static bool fits_form(const tiled_operand &o, const tiled_launch &launch, const cuda_rows &rows, bool is_plain)
{
    const tiling &t = o.tiles;
    const bool has_row = t.rows.divisor == 1 && t.all_rows == rows.length.divisor;
    switch (launch.form) {
    case FORM_ROW:
        return has_row;
    case FORM_ROWS:
        return is_plain || t.rows.divisor <= MAX_TILE_ROWS;
    case FORM_HEAD:
        return t.heads == 1 && (is_plain || t.rows.divisor <= MAX_TILE_ROWS);
    case FORM_HELD:
        return has_row && t.heads <= MOST_HELD * o.heads_at_once.divisor && o.all_lanes <= 32;
    case FORM_HELD_ROWS:
        return t.heads == 1 && t.rows.divisor <= MOST_HELD * o.rows_at_once && o.all_lanes <= 32;
    default:
        return false;
    }
}

/* What kernels of a kind keep of a row, where they keep it in shared memory. */
static size_t kept_of_row(tile_call_kind kind)
{
    switch (kind) {
    case KIND_PACKED:
    case KIND_PACKED_SINGLE:
        return sizeof(packed_row);
    case KIND_PLAIN:
    case KIND_PLAIN_SINGLE:
        return sizeof(plain_row);
    default:
        return sizeof(trope_row);
    }
}

/* Whether there is room in a block's shared memory for the tiles of its warps, then for what they are turned by, then for
 * their rows; and no more than any device has. */
static bool has_room(const trope_plan &plan, const tiled_operand &o, const tiled_launch &launch, const tiled_call &tiled)
{
    const uint32_t reals = kind_of_angles(plan) == ANGLES_PHASE || kind_of_angles(plan) == ANGLES_FREQS ? 2 : 4,
                   turns_of_row = o.lanes.divisor * 16 / plan.element_size * reals * (plan.dtype == TROPE_F64 ? 8 : 4),
                   rows = is_held(launch.form) ? 1 : o.tiles.rows.divisor;
    const bool keeps_turns = launch.form != FORM_HEAD && launch.form != FORM_HELD_ROWS && o.turn_rows > 0;
    return (is_held(launch.form) || TILE_WARPS * o.tile_bytes <= tiled.turns_at) &&
           (!keeps_turns || (o.turn_rows >= 1 && o.turn_rows * turns_of_row <= tiled.turns_bytes)) &&
           tiled.turns_at % 16 == 0 && tiled.turns_bytes % 16 == 0 &&
           tiled.turns_at + TILE_WARPS * tiled.turns_bytes <= tiled.rows_at &&
           tiled.rows_at + TILE_WARPS * rows * kept_of_row(launch.kind) <= launch.shared_bytes &&
           launch.shared_bytes <= ASKED_SHARED_BYTES;
}

/* What a form's kernel is for, if there is one. */
static tile_form form_of_kernel(const trope_plan &plan, const tiled_launch &launch)
{
    return is_held(launch.form) ? launch.form : form_of(kind_of_angles(plan), launch.form, launch.kind);
}

static bool has_kernel(const trope_plan &plan, const tiled_launch &launch)
{
    const int angles = kind_of_angles(plan);
    if (launch.form == FORM_HELD_ROWS)
        return launch.kind == KIND_PLAIN_SINGLE && angles_can_be_held(angles);
    return launch.form != FORM_HELD || (launch.kind != KIND_ANY && angles_can_be_held(angles));
}

/* ---- one call ---- */

#define KINDS (KIND_PLAIN_SINGLE + 1)

struct tally {
    long forms[FORMS], kinds[KINDS], operands[MAX_CUDA_OPERANDS + 1], refused, in_turns;
};

static void check_operand(uint64_t seed, const trope_plan &plan, const tiled_operand &o, const tiled_launch &launch,
                          const tiled_call &tiled)
{
    if (o.tiles.tiles == 0)
        return;
    const tile_place first = find_tile(o.tiles, 0), last = find_tile(o.tiles, o.tiles.tiles - 1);
    const tile_form form = form_of_kernel(plan, launch);
    const unsigned long long s = seed;
    CHECK_MESSAGE(fits_form(o, launch, tiled.rows, is_plain(plan)), "--seed %llu: a tile is not of its form, %d", s,
                  launch.form);
    CHECK_MESSAGE(has_room(plan, o, launch, tiled), "--seed %llu: there is no room in shared memory", s);
    CHECK_MESSAGE(o.all_lanes == 0 || (turns_all(o, form, first) && turns_all(o, form, last)),
                  "--seed %llu: a head of a tile is not turned once", s);
    CHECK_MESSAGE(o.share_rows >= 1 && o.share_rows << o.share_bits <= 32 / o.lanes.divisor,
                  "--seed %llu: a share of a lane's turns is nobody's", s);
}

/* Of plain calls the positions are told by a few numbers, of which kernels make those that the plan has. */
static void check_positions(uint64_t seed, const trope_plan &plan, const token_positions &positions)
{
    bool good = true;
    for (int64_t token = 0; good && token < plan.tokens; token++)
        good = positions.of((uint32_t)token) == trope_dense_position(&plan.sequences, token);
    CHECK_MESSAGE(good, "--seed %llu: a token has another position", (unsigned long long)seed);
}

static block_share share_of_block(const tiled_operand *operands, const tiled_launch &launch, const tiled_call &tiled,
                                  uint32_t block)
{
    tiled_operands<KIND_PLAIN> all;
    memcpy(all.of, operands, sizeof all.of);
    if (launch.kind == KIND_PLAIN_SINGLE || launch.kind == KIND_PACKED_SINGLE)
        return find_block<KIND_PLAIN_SINGLE>({{operands[0]}}, tiled, block);
    return find_block(all, tiled, block);
}

static void check_parts(uint64_t seed, const trope_plan &plan, const tiled_operand *operands, const tiled_launch &launch,
                        const tiled_call &tiled)
{
    std::vector<part> parts, expected;
    bool good = true;
    for (int64_t block = 0; good && block < launch.blocks; block++) {
        const block_share share = share_of_block(operands, launch, tiled, (uint32_t)block);
        good = share.operand < (uint32_t)launch.operands;
        for (uint32_t warp = 0; good && warp < TILE_WARPS; warp++) {
            const tiled_operand &o = operands[share.operand];
            const uint32_t number = share.first_tile + warp;
            if (number < o.tiles.tiles)
                good = list_tile(tiled, o, launch.form, find_tile(o.tiles, number), &parts);
        }
    }
    for (int i = 0; i < plan.operand_count; i++)
        list_operand(plan, plan.operands[i], &expected);
    std::sort(parts.begin(), parts.end());
    std::sort(expected.begin(), expected.end());
    CHECK_MESSAGE(good, "--seed %llu: a tile is not what its place in shared memory says", (unsigned long long)seed);
    CHECK_MESSAGE(parts == expected, "--seed %llu: what is moved is not what the operands have", (unsigned long long)seed);
}

/* Whether an operand is turned or only copied as the plan says, where none are joined to one; joined ones
 * are turned if all of the plan's are. */
static bool turns_as_planned(const trope_plan &plan, const tiled_launch &launch, const tiled_operand *operands, int i)
{
    const auto is_copied = [](const trope_plan_operand &o) { return o.rotary_dim == 0; };
    if (launch.operands == plan.operand_count)
        return (operands[i].turn_rows == 0) == is_copied(plan.operands[i]);
    return operands[i].turn_rows > 0 || std::any_of(plan.operands, plan.operands + plan.operand_count, is_copied);
}

static void check_call(uint64_t seed, tally *t)
{
    static trope_planned_call planned;
    tiling_call c = make_call(seed);
    const trope_status status = plan_call(&c.made, 0, &planned);
    t->refused += status != TROPE_OK;
    if (status != TROPE_OK || !trope_cuda_has_tiles(&planned.plan))
        return;
    tiled_operand operands[MAX_CUDA_OPERANDS];
    tiled_call tiled;
    memset(operands, 0, sizeof operands);
    memset(&tiled, 0, sizeof tiled);
    const trope_plan &plan = planned.plan;
    const tiled_launch launch = trope_cuda_plan_tiles(plan, choose_device(seed), choose_tile_bytes(seed), operands, &tiled);
    CHECK_MESSAGE(launch.blocks <= INT32_MAX && has_kernel(plan, launch), "--seed %llu: there is no such kernel",
                  (unsigned long long)seed);
    check_parts(seed, plan, operands, launch, tiled);
    if (is_plain(plan))
        check_positions(seed, plan, tiled.rows.positions);
    for (int i = 0; launch.blocks && i < launch.operands; i++) {
        check_operand(seed, plan, operands[i], launch, tiled);
        CHECK_MESSAGE(turns_as_planned(plan, launch, operands, i),
                      "--seed %llu: an operand is copied that turns, or turned", (unsigned long long)seed);
    }
    t->forms[launch.form]++;
    t->kinds[launch.kind]++;
    t->operands[launch.operands]++;
    t->in_turns += launch.blocks > tiled.turn.divisor;
}

/* ---- heads of more than 2^32 bytes ---- */

/* Of head_dim elements, that are 0 bytes or few if they are counted in 32 bits; or just not. */
struct huge_head {
    int32_t dtype, head_dim;
};

static const huge_head huge_heads[] = {
    {TROPE_F64, 1 << 29}, {TROPE_F64, (1 << 29) + 64}, {TROPE_F64, 3 << 29}, {TROPE_F64, INT32_MAX - 63},
    {TROPE_F32, 1 << 30}, {TROPE_F32, (1 << 30) + 64}, {TROPE_F16, 1 << 30}, {TROPE_BF16, INT32_MAX - 63}};

/* One window is turned, at the start or the end of the head. */
static tiling_call make_huge_call(const huge_head &head, bool at_end, bool in_place, bool is_packed)
{
    tiling_call c;
    memset(&c, 0, sizeof c);
    c.made = call_make(head.dtype, 1, 3);
    c.free = (uintptr_t)1 << 40;
    trope_args &a = c.made.args;
    a.device = TROPE_DEVICE_CUDA;
    trope_operand &o = *add_operand(&c, 2, head.head_dim, 64);
    o.rotary_offset = at_end ? head.head_dim - o.rotary_dim : 0;
    o.src = make_tensor(&c, TROPE_THD, 2, head.head_dim, 0, o.src_stride);
    put_in_place(&o);
    if (!in_place)
        o.dst = make_tensor(&c, TROPE_THD, 2, head.head_dim, 0, o.dst_stride);
    call_freqs(&c.made, allocate(&c, 4096), TROPE_COLUMNS_PAIR, a.tokens);
    if (is_packed) {
        call_cu_seqlens(&c.made, allocate(&c, 4096), TROPE_I32, 2);
        a.padding = TROPE_PADDING_ZERO;
    }
    return c;
}

/* Whether what tiles have of a head, and what is cleared of it where it is padding, are as many bytes as they should be. */
static bool knows_bytes(const trope_plan &plan, bool in_place)
{
    tiled_operand operands[MAX_CUDA_OPERANDS];
    tiled_call tiled;
    memset(operands, 0, sizeof operands);
    memset(&tiled, 0, sizeof tiled);
    trope_cuda_plan_tiles(plan, choose_device(0), TILE_BYTES, operands, &tiled);
    const trope_plan_operand &o = plan.operands[0];
    const int64_t size = plan.element_size, head = o.head_dim * size;
    const tiled_operand &cut = operands[0];
    return cut.tiles.pitch == (in_place ? o.rotary_dim * size : head) && cut.head_bytes == head &&
           cut.before_window == (in_place ? o.rotary_offset * size : 0);
}

static void check_huge_gradient(const huge_head &head, tiling_call c)
{
    static trope_planned_call planned;
    trope_args &a = c.made.args;
    trope_operand &o = c.made.operands[0];
    o.forward_src = make_tensor(&c, TROPE_THD, 2, head.head_dim, 0, o.forward_src_stride);
    o.forward_src_layout = TROPE_STRIDED;
    a.d_freqs = allocate(&c, 4096);
    a.d_freqs_layout = TROPE_TABLE_ROWS;
    a.workspace = allocate(&c, (int64_t)1 << 30);
    a.workspace_size = (uint64_t)1 << 30;
    const trope_status status = plan_call(&c.made, 1, &planned);
    if (!CHECK_MESSAGE(status == TROPE_OK, "%s", trope_last_error()))
        return;
    CHECK_MESSAGE(!trope_cuda_gradient_has_tiles(&planned.plan), "dtype %d: heads of %d are in tiles of the gradient",
                  head.dtype, head.head_dim);
    if (trope_cuda_gradient_fits(&planned.plan))
        CHECK_MESSAGE(trope_cuda_gradient_workspace(&planned.plan) <= a.workspace_size,
                      "dtype %d: heads of %d need %llu bytes of workspace", head.dtype, head.head_dim,
                      (unsigned long long)trope_cuda_gradient_workspace(&planned.plan));
}

/* `options`: which of the three that make_huge_call has. */
static void check_huge_head(const huge_head &head, int options)
{
    static trope_planned_call planned;
    const bool in_place = options & 2;
    tiling_call c = make_huge_call(head, options & 1, in_place, options & 4);
    const trope_status status = plan_call(&c.made, 0, &planned);
    if (!CHECK_MESSAGE(status == TROPE_OK, "%s", trope_last_error()))
        return;
    const bool has_tiles = trope_cuda_has_tiles(&planned.plan);
    CHECK_MESSAGE(in_place || !has_tiles, "dtype %d: heads of %d are in tiles", head.dtype, head.head_dim);
    CHECK_MESSAGE(!has_tiles || knows_bytes(planned.plan, in_place),
                  "dtype %d, options %d: tiles of heads of %d have other bytes", head.dtype, options, head.head_dim);
    check_huge_gradient(head, c);
}

static void check_huge_heads()
{
    for (const huge_head &head : huge_heads)
        for (int options = 0; options < 8; options++)
            check_huge_head(head, options);
}

/* ---- all of them ---- */

/* Whether everything has come up. */
static void check_tally(const tally &t)
{
    static const char *const forms[] = {"row", "rows", "head", "held", "held rows"}, *const kinds[] = {
                                                                                         "any", "packed", "packed single",
                                                                                         "plain", "plain single"};
    printf("calls by form:");
    for (int i = 0; i < FORMS; i++)
        printf(" %s %ld", forms[i], t.forms[i]);
    printf("; by kind:");
    for (int i = 0; i < KINDS; i++)
        printf(" %s %ld", kinds[i], t.kinds[i]);
    printf("; by operands:");
    for (int i = 1; i <= MAX_CUDA_OPERANDS; i++)
        printf(" %ld", t.operands[i]);
    printf("; in turns %ld; refused %ld\n", t.in_turns, t.refused);
    CHECK(*std::min_element(t.forms, t.forms + FORMS) > 0);
    CHECK(*std::min_element(t.kinds, t.kinds + KINDS) > 0);
    CHECK(*std::min_element(t.operands + 1, t.operands + MAX_CUDA_OPERANDS + 1) > 0);
    CHECK(t.in_turns > 0);
}

int main(int argc, char **argv)
{
    const seed_range seeds = parse_seeds(argc, argv, 1000);
    tally t;
    memset(&t, 0, sizeof t);
    for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; seed++)
        check_call(seed, &t);
    if (seeds.count >= 1000)
        check_tally(t);
    check_huge_heads();
    return check_result();
}
