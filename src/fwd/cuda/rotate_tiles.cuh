/* The CUDA kernel of the rotation for heads that are made of 16-byte vectors. A warp asks for a tile, works out the cosines
 * and sines of its rows while the tile is on its way, turns the heads where they are and writes the tile back; what passes
 * through is part of the tile and is not touched. Warps have nothing in common, except that a block brings the steps of the
 * phase to shared memory for all of them, and looks its rows up together where that takes long.
 *
 * Direction and layout are data; compiled in are the dtype, the source of the usual angles, whether a tile has several rows
 * or heads, and the kind of call. docs/cuda.md says what that buys. */
#ifndef TROPE_FWD_CUDA_ROTATE_TILES_CUH
#define TROPE_FWD_CUDA_ROTATE_TILES_CUH

#include "core/cuda/early_launch.cuh"
#include "fwd/cuda/lanes.cuh"

#define TILE_THREADS  128 /* of a block */
#define TILE_WARPS    (TILE_THREADS / 32)
#define MAX_TILE_ROWS 32 /* that must be looked up */

/* ---- rows ---- */

/* What a call has: rows of any kind, those of the usual packed call, or rows whose positions follow from the tokens; of the
 * latter two, those that have a single operand. */
enum tile_call_kind { KIND_ANY, KIND_PACKED, KIND_PACKED_SINGLE, KIND_PLAIN, KIND_PLAIN_SINGLE };

/* What a tile has: heads of one row, of several rows, or several rows that have one head each, so that their turns cannot
 * be shared; or heads of one row, or rows of one head, that a warp holds in registers. */
enum tile_form { FORM_ROW, FORM_ROWS, FORM_HEAD, FORM_HELD, FORM_HELD_ROWS, FORMS };

template <int KIND> constexpr bool IS_PLAIN = KIND == KIND_PLAIN || KIND == KIND_PLAIN_SINGLE;
template <int KIND> constexpr bool IS_PACKED = KIND == KIND_PACKED || KIND == KIND_PACKED_SINGLE;
template <int KIND> constexpr bool HAS_USUAL_ROWS = KIND != KIND_ANY;
template <int KIND> constexpr bool IS_SINGLE = KIND == KIND_PACKED_SINGLE || KIND == KIND_PLAIN_SINGLE;

/* The number in the call of row `row` of a tile, or of its last one. */
TROPE_HD uint32_t number_of_row(const tiled_call &call, const tile_place &p, uint32_t row)
{
    return p.outer * call.rows.length.divisor + p.row + min(row, p.rows - 1);
}

/* The same as a row of a plain call. Where tiles have one row, the two dimensions are known. */
template <int FORM>
__device__ __forceinline__ trope_row plain_row_of_tile(const tiled_call &call, const tile_place &p, uint32_t row)
{
    if constexpr (FORM == FORM_ROW || FORM == FORM_HELD)
        return find_plain_row<true>(call.rows, {p.outer, p.row});
    return find_plain_row(call.rows, locate_row<true>(call.rows, call.plan.plan, number_of_row(call, p, row)));
}

/* What a warp keeps of a row, in shared memory unless AWAITS_ROW. */
struct plain_row {
    uint32_t position, batch;
};

template <int KIND>
using tile_row = std::conditional_t<IS_PLAIN<KIND>, plain_row, std::conditional_t<IS_PACKED<KIND>, packed_row, trope_row>>;

/* The rows of a warp's tile in a plain call. */
template <int FORM>
__device__ __forceinline__ void find_plain_rows(const tiled_call &call, const tile_place &p, plain_row *rows)
{
    for (uint32_t i = threadIdx.x % 32; i < p.rows; i += 32) {
        const trope_row row = plain_row_of_tile<FORM>(call, p, i);
        rows[i] = {(uint32_t)row.position[0], (uint32_t)row.batch};
    }
    __syncwarp();
}

/* The rows of a warp's tile in a packed call, whose rows are its tokens. */
template <int ANGLES, int FORM>
__device__ __forceinline__ void find_packed_rows(const tiled_call &call, const tile_place &p, const packed_probes &probes,
                                                 packed_row *rows)
{
    const trope_plan &plan = call.plan.plan;
    const uint32_t i = threadIdx.x % 32;
    packed_row row;
    if constexpr (FORM == FORM_ROW) {
        row = find_packed_row<HAS_TABLE<ANGLES>>(plan, probes, (int32_t)p.row);
    } else {
        const int32_t token = (int32_t)(p.row + min(i, p.rows - 1));
        row = row_of_span<HAS_TABLE<ANGLES>>(plan, find_packed_spans(plan.sequences, probes, token), token);
    }
    if (i < p.rows)
        rows[i] = row;
    __syncwarp();
}

/* The rows of a block's tiles in any call, looked up one a thread, by as few warps as possible. */
__device__ __forceinline__ void find_block_rows(const tiled_call &call, const tiled_operand &o, uint32_t first_tile,
                                                trope_row *rows)
{
    const uint32_t of_tile = o.tiles.rows.divisor, end = TILE_WARPS * of_tile;
    for (uint32_t base = threadIdx.x / 32 * 32; base < end; base += TILE_THREADS) {
        const uint32_t i = min(base + threadIdx.x % 32, end - 1), tile = o.tiles.rows.divide(i);
        const tile_place p = find_tile(o.tiles, min(first_tile + tile, o.tiles.tiles - 1));
        trope_row row;
        set_row(call.rows, locate_row<true>(call.rows, call.plan.plan, number_of_row(call, p, i - tile * of_tile)), &row);
        find_row(call.plan.plan, &row);
        if (base + threadIdx.x % 32 < end)
            rows[i] = row;
    }
    __syncthreads();
}

/* Clears a head in memory, with what its tile does not have of it. */
__device__ __forceinline__ void clear_head(const tiled_operand &o, const tile_place &p, uint32_t row, uint32_t head)
{
    clear_bytes(address_of(o.tiles, o.dst, p.outer, p.row + row, p.head + head) - o.before_window, o.head_bytes);
}

/* Clears the heads of rows that are padding: in the tile, and in memory what of them the tile has not. */
template <bool ONE_ROW, typename ROW>
__device__ __forceinline__ void clear_rows(const tiled_operand &o, const tile_place &p, const ROW *rows, char *tile)
{
    const tiling &t = o.tiles;
    for (uint32_t row = 0; row < (ONE_ROW ? 1 : p.rows); row++) {
        for (uint32_t head = 0; rows[row].action == TROPE_ROW_ZERO && head < p.heads; head++) {
            clear_bytes(tile + row * t.row_pitch + head * t.head_pitch, t.pitch);
            if (t.pitch < o.head_bytes)
                clear_head(o, p, row, head);
        }
    }
}

/* Row `number` of a tile. */
template <int FORM, int KIND>
__device__ __forceinline__ trope_row row_of_tile(const tiled_call &call, const tile_place &p, const tile_row<KIND> *rows,
                                                 uint32_t number)
{
    if constexpr (IS_PLAIN<KIND> && FORM == FORM_ROW)
        return plain_row_of_tile<FORM>(call, p, number);
    const tile_row<KIND> from = rows[number];
    if constexpr (IS_PLAIN<KIND>)
        return row_of_plain(from.batch, from.position);
    else if constexpr (IS_PACKED<KIND>)
        return row_of_packed(0, p.row + number, from);
    else
        return from;
}

/* ---- steps ---- */

/* Whether a block brings the steps of all pairs to shared memory. As parameters they come one at a time where threads ask
 * for different ones, and every warp would ask for all of them. (Where heads are in registers, it pays at some sizes and
 * costs as much at others: docs/cuda-log.md. In calls of any rows it was not measured.) */
TROPE_HD constexpr bool shares_steps(int angles, int form, int kind)
{
    return angles == ANGLES_PHASE && form != FORM_HELD && form != FORM_HELD_ROWS && kind != KIND_ANY;
}

/* For all threads of the block, which then wait for each other. All warps have as many, or one would be late. */
__device__ __forceinline__ void bring_steps(const uint64_t *steps, uint32_t pairs, uint64_t *to)
{
    static_assert(USUAL_PAIRS <= TILE_THREADS, "a thread brings one");
    const uint32_t pair = threadIdx.x % 32 * TILE_WARPS + threadIdx.x / 32;
    if (pair < pairs)
        to[pair] = steps[pair];
}

/* ---- the kernel ---- */

template <int KIND> struct tiled_operands {
    tiled_operand of[IS_SINGLE<KIND> ? 1 : MAX_CUDA_OPERANDS];
};

/* What a thread has in a tile: a lane, of every so many rows and every so many heads of them. The threads of a warp that
 * have the same head are `together`. */
template <int DTYPE, int ANGLES, int KIND> struct lane_share {
    typedef tile_lane<DTYPE, ANGLES> lane;

    lane at;
    uint32_t thread;  /* of those that have the head */
    uint32_t in_warp; /* of the heads, maybe of several rows, that the warp has at once */
    uint32_t together;
    bool is_there;

    lane_share() = default;
    __device__ __forceinline__ lane_share(const tiled_call &call, const tiled_operand &o, uint32_t first_lane)
    {
        const uint32_t of_warp = threadIdx.x % 32;
        in_warp = o.lanes.divide(of_warp);
        thread = of_warp - in_warp * o.lanes.divisor;
        together = o.head_threads << (of_warp - thread);
        is_there = first_lane + thread < o.all_lanes;
        at.template locate<HAS_USUAL_ROWS<KIND>>(call, o, is_there ? first_lane + thread : 0);
    }

    /* Of the work of finding a lane's turns. */
    __device__ __forceinline__ uint32_t first_share(const tiled_operand &o) const
    {
        return in_warp & ((1u << o.share_bits) - 1);
    }

    /* The row whose turns it is, of those that the warp finds at once. */
    __device__ __forceinline__ uint32_t share_row(const tiled_operand &o) const
    {
        return in_warp >> o.share_bits;
    }

    /* Turns the lane of one head, and calls store(). Where pairs are rearranged, each thread reads what others write. */
    template <bool OWN_TURNS, class STORE>
    __device__ __forceinline__ void turn(const tiled_call &call, const tiled_operand &o,
                                         const lane_turns<DTYPE, ANGLES> &turns, vector_pair<DTYPE> v, char *window,
                                         STORE store) const
    {
        if (call.interleaved_src)
            v.separate();
        if (is_native<ANGLES>(call.plan))
            turns.template turn<OWN_TURNS, true>(&v);
        else
            turns.template turn<OWN_TURNS, false>(&v);
        if (__builtin_expect(call.interleaved_src != call.interleaved_dst, 0)) {
            __syncwarp(together);
            at.store_rearranged(o, call.interleaved_dst, v, window);
            return;
        }
        if (call.interleaved_dst)
            v.join();
        store(v, window);
    }

    /* In shared memory. */
    template <bool OWN_TURNS>
    __device__ __forceinline__ void turn(const tiled_call &call, const tiled_operand &o,
                                         const lane_turns<DTYPE, ANGLES> &turns, char *window) const
    {
        turn<OWN_TURNS>(call, o, turns, at.load(window), window,
                        [&](const vector_pair<DTYPE> &v, char *to) { at.store(v, to); });
    }
};

/* What a block has: an operand, and TILE_WARPS tiles of it from this one on. */
struct block_share {
    uint32_t operand, first_tile;
};

template <int KIND>
TROPE_HD block_share find_block(const tiled_operands<KIND> &operands, const tiled_call &call, uint32_t block)
{
    if constexpr (IS_SINGLE<KIND>)
        return {0, block * TILE_WARPS};
    const uint32_t turn = call.turn.divide(block), of_turn = block - turn * call.turn.divisor;
    const uint32_t operand = operand_of_block(call.first_of_turn, of_turn);
    return {operand, (turn * operands.of[operand].blocks_of_turn + of_turn - call.first_of_turn[operand]) * TILE_WARPS};
}

/* Whether a warp has one row, which takes long to be known, and registers to spare: a thread then loads the steps of its
 * first share while the row is looked up, and keeps what is found of it. */
template <int ANGLES, int FORM, int KIND>
constexpr bool AWAITS_ROW = ANGLES == ANGLES_PHASE && (FORM == FORM_ROW || FORM == FORM_HELD) && IS_PACKED<KIND>;

/* A lane whose turns are shared. */
template <int DTYPE, int ANGLES, int FORM, int KIND> struct sharing_lane {
    typedef ::lane_turns<DTYPE, ANGLES> lane_turns;

    lane_share<DTYPE, ANGLES, KIND> mine;
    const uint64_t *steps; /* of all pairs */
    typename lane_turns::share_steps first_steps;

    sharing_lane() = default;
    __device__ __forceinline__ sharing_lane(const tiled_call &call, const tiled_operand &o, const uint64_t *of_all,
                                            uint32_t first_lane)
        : mine(call, o, first_lane), steps(of_all)
    {
        if (AWAITS_ROW<ANGLES, FORM, KIND>)
            first_steps = lane_turns::load_steps(mine.at, steps, mine.first_share(o));
    }

    __device__ __forceinline__ typename lane_turns::share_steps steps_of_share(uint32_t share, uint32_t first_share) const
    {
        return AWAITS_ROW<ANGLES, FORM, KIND> && share == first_share ? first_steps
                                                                      : lane_turns::load_steps(mine.at, steps, share);
    }
};

/* Turns all heads of a tile: first what its rows are turned by is found, of as many as there is room for, then the heads
 * are waited for. */
template <int DTYPE, int ANGLES, int FORM, int KIND>
__device__ __forceinline__ void
rotate_shared(const tiled_call &call, const tiled_operand &o, const sharing_lane<DTYPE, ANGLES, FORM, KIND> &lane,
              const tile_place &p, const tile_row<KIND> *rows, const tile_arrival &arrival, char *tile, char *turns_space)
{
    typedef lane_turns<DTYPE, ANGLES> lane_turns;
    constexpr bool ROWS = FORM != FORM_ROW, WAITS_LATE = !ROWS && !tile_arrival::OF_ALL;
    /* Rows whose turns a thread finds at a time. */
    constexpr int AT_ONCE = ROWS && ANGLES != ANGLES_ANY && ANGLES != ANGLES_TABLES ? 2 : 1;
    const lane_share<DTYPE, ANGLES, KIND> &mine = lane.mine;
    const uint32_t first_row = o.heads_at_once.divide(mine.in_warp),
                   first_head = mine.in_warp - first_row * o.heads_at_once.divisor;
    const uint32_t share = mine.first_share(o), share_row = mine.share_row(o);
    const bool turns_heads = mine.is_there && first_row < (ROWS ? o.rows_at_once : 1),
               finds_turns = mine.is_there && share_row < (ROWS ? o.share_rows : 1);
    const typename lane_turns::space space = {turns_space + mine.thread * 16, o.lanes.divisor * 16};
    const auto turn_rows = [&](auto own_turns, uint32_t done, uint32_t end) {
        constexpr bool OWN_TURNS = decltype(own_turns)::value;
        for (uint32_t i = first_row; turns_heads && i < end; i += o.rows_at_once) {
            if (row_of_tile<FORM, KIND>(call, p, rows, ROWS ? done + i : 0).action != TROPE_ROW_ROTATE)
                continue;
            lane_turns turns;
            turns.template load_shares<OWN_TURNS>(space.of_row(i), space.plane);
            if (WAITS_LATE)
                arrival.wait(0);
            char *window = tile + o.window + (done + i) * o.tiles.row_pitch + first_head * o.tiles.head_pitch;
            for (uint32_t head = first_head; head < p.heads; head += o.heads_at_once.divisor) {
                mine.template turn<OWN_TURNS>(call, o, turns, window);
                window += o.heads_at_once.divisor * o.tiles.head_pitch;
            }
        }
    };
    for (uint32_t done = 0; done < (ROWS ? p.rows : 1); done += ROWS ? o.turn_rows : 1) {
        const uint32_t end = ROWS ? min(o.turn_rows, p.rows - done) : 1;
        const auto row_of = [&](uint32_t i) { return row_of_tile<FORM, KIND>(call, p, rows, ROWS ? done + i : 0); };
        bool own = false;
        if (finds_turns)
            own = lane_turns::template find_shares<HAS_USUAL_ROWS<KIND>, AT_ONCE>(
                call.plan, mine.at, [&](uint32_t i) { return lane.steps_of_share(i, share); }, share, 1u << o.share_bits,
                share_row, o.share_rows, end, row_of, space);
        if (ANGLES == ANGLES_ANY)
            own = true;
        else if (MAY_OWN_ANGLES<ANGLES>)
            own = __any_sync(UINT32_MAX, own);
        __syncwarp();
        if (!WAITS_LATE)
            arrival.wait(0);
        if (MAY_OWN_ANGLES<ANGLES> && own)
            turn_rows(std::bool_constant<MAY_OWN_ANGLES<ANGLES>>(), done, end);
        else if (ANGLES != ANGLES_ANY)
            turn_rows(std::false_type(), done, end);
        __syncwarp();
    }
}

/* The same where rows have one head: a thread finds what its lane is turned by, and keeps it to itself. */
template <int DTYPE, int ANGLES, int KIND> struct lone_lane {
    typedef ::lane_turns<DTYPE, ANGLES> lane_turns;
    /* A table's rows are asked for one row before they are used, and the first, where it need not be looked up, before the
     * tile: 8.1 us instead of 8.5 where all tiles are turned at once. */
    enum { AHEAD = ANGLES == ANGLES_FREQS, BEFORE_TILE = AHEAD && IS_PLAIN<KIND> };

    lane_share<DTYPE, ANGLES, KIND> mine;
    steps_of<ANGLES, lane_turns::RUN> steps[2];
    trope_row row;
    typename lane_turns::lane_angles angles; /* of this row */

    __device__ __forceinline__ void locate(const tiled_call &call, const tiled_operand &o, const uint64_t *all_steps,
                                           uint32_t first_lane)
    {
        mine = lane_share<DTYPE, ANGLES, KIND>(call, o, first_lane);
        steps[0] = steps_of<ANGLES, lane_turns::RUN>(all_steps, (int)mine.at.low);
        steps[1] = steps_of<ANGLES, lane_turns::RUN>(all_steps, (int)mine.at.high);
    }

    __device__ __forceinline__ void begin(const tiled_call &call, const tile_place &p, const tile_row<KIND> *rows)
    {
        if constexpr (BEFORE_TILE)
            ask(call, plain_row_of_tile<FORM_HEAD>(call, p, mine.in_warp));
        else if (AHEAD && mine.in_warp < p.rows) /* others have no row */
            ask(call, row_of_tile<FORM_HEAD, KIND>(call, p, rows, mine.in_warp));
    }

    __device__ __forceinline__ void ask(const tiled_call &call, const trope_row &of)
    {
        row = of;
        angles.template load<HAS_USUAL_ROWS<KIND>>(call.plan, row, mine.at, steps);
    }

    __device__ __forceinline__ void rotate(const tiled_call &call, const tiled_operand &o, const tile_place &p,
                                           const tile_row<KIND> *rows, const tile_arrival &arrival, char *tile)
    {
        const uint32_t first = mine.in_warp, step = o.rows_at_once;
        if (tile_arrival::OF_ALL)
            arrival.wait(0);
        if (!mine.is_there || first >= step)
            return;
        char *window = tile + o.window + first * o.tiles.row_pitch;
        for (uint32_t i = first; i < p.rows; i += step) {
            if (!AHEAD)
                ask(call, row_of_tile<FORM_HEAD, KIND>(call, p, rows, i));
            const bool rotates = row.action == TROPE_ROW_ROTATE;
            lane_turns turns;
            if (rotates)
                turns.template find<HAS_USUAL_ROWS<KIND>>(call.plan, row, mine.at, angles);
            if (AHEAD && i + step < p.rows)
                ask(call, row_of_tile<FORM_HEAD, KIND>(call, p, rows, i + step));
            if (!tile_arrival::OF_ALL)
                arrival.wait(0);
            if (rotates)
                mine.template turn<lane_turns::OWN>(call, o, turns, window);
            window += step * o.tiles.row_pitch;
        }
    }
};

template <int DTYPE, int ANGLES, int FORM, int KIND, int BLOCKS>
__global__ void __launch_bounds__(TILE_THREADS, BLOCKS)
    rotate_tiles_kernel(KERNEL_PARAMETER(tiled_operands<KIND>) operands, KERNEL_PARAMETER(tiled_call) call,
                        KERNEL_PARAMETER(cuda_steps<ANGLES>) steps)
{
    extern __shared__ __align__(16) char shared[];
    __shared__ uint64_t barriers[TILE_WARPS];
    constexpr bool SHARES_STEPS = shares_steps(ANGLES, FORM, KIND);
    __shared__ __align__(16) uint64_t block_steps[SHARES_STEPS ? USUAL_PAIRS : 1];
    const uint64_t *const all_steps = SHARES_STEPS ? block_steps : steps.of;
    const uint32_t warp = threadIdx.x / 32;
    const tile_arrival arrival(&barriers[warp]);
    arrival.prepare();
    if (SHARES_STEPS && IS_PACKED<KIND>) /* which must be there when the rows are known */
        bring_steps(steps.of, (uint32_t)call.plan.plan.pairs, block_steps);
    const block_share block = find_block(operands, call, blockIdx.x);
    const tiled_operand &o = operands.of[IS_SINGLE<KIND> ? 0 : block.operand];
    const uint32_t number = block.first_tile + warp;
    const tile_place p = find_tile(o.tiles, number);
    const bool present = number < o.tiles.tiles;
    const tile_run first = first_run(o.tiles, o.src, p);
    const uint64_t policy = found_here(load_policy(o));
    char *const tile = shared + warp * o.tile_bytes;
    tile_row<KIND> own_row, *rows = (tile_row<KIND> *)(shared + call.rows_at);
    lone_lane<DTYPE, ANGLES, KIND> alone;
    constexpr bool BEFORE_TILE = FORM == FORM_HEAD && alone.BEFORE_TILE;
    packed_probes probes;
    packed_check check;
    if (present)
        arrival.expect(p.rows * p.heads * o.tiles.pitch);
    if constexpr (BEFORE_TILE)
        alone.locate(call, o, steps.of, 0);
    if (IS_PACKED<KIND>) {
        probes.locate(call.plan.plan.sequences);
        check.prepare(call.plan.plan.sequences);
        probes.bring_all();
    }
    await_previous();
    if (IS_PACKED<KIND>)
        probes.ask_all();
    if (present) {
        if constexpr (BEFORE_TILE)
            alone.begin(call, p, rows);
        load_tile(o.tiles, o.src, p, first, policy, arrival, tile);
    }
    admit_next();
    if (IS_PACKED<KIND>)
        probes.ask_near(call.plan.plan.sequences, p.row);
    if (SHARES_STEPS && !IS_PACKED<KIND>)
        bring_steps(steps.of, (uint32_t)call.plan.plan.pairs, block_steps);
    if (SHARES_STEPS)
        __syncthreads();
    sharing_lane<DTYPE, ANGLES, FORM, KIND> sharing;
    if constexpr (AWAITS_ROW<ANGLES, FORM, KIND>)
        sharing = sharing_lane<DTYPE, ANGLES, FORM, KIND>(call, o, all_steps, 0);
    if constexpr (KIND == KIND_ANY)
        find_block_rows(call, o, block.first_tile, rows);
    if (present) {
        rows += warp * o.tiles.rows.divisor;
        if constexpr (AWAITS_ROW<ANGLES, FORM, KIND>) {
            own_row = find_packed_row<HAS_TABLE<ANGLES>>(call.plan.plan, probes, (int32_t)p.row);
            rows = &own_row;
        } else if constexpr (IS_PACKED<KIND>) {
            find_packed_rows<ANGLES, FORM>(call, p, probes, rows);
        } else if constexpr (IS_PLAIN<KIND> && FORM != FORM_ROW) {
            find_plain_rows<FORM>(call, p, rows);
        }
#pragma unroll 1
        for (uint32_t lane = 0; lane < o.all_lanes; lane += 32) {
            if constexpr (FORM == FORM_HEAD) {
                if (!BEFORE_TILE || lane > 0) {
                    alone.locate(call, o, all_steps, lane);
                    alone.begin(call, p, rows);
                }
                alone.rotate(call, o, p, rows, arrival, tile);
            } else {
                if (!AWAITS_ROW<ANGLES, FORM, KIND> || lane > 0)
                    sharing = sharing_lane<DTYPE, ANGLES, FORM, KIND>(call, o, all_steps, lane);
                rotate_shared<DTYPE, ANGLES, FORM, KIND>(call, o, sharing, p, rows, arrival, tile,
                                                         shared + call.turns_at + warp * call.turns_bytes);
            }
        }
        __syncwarp();
        arrival.wait(0);
        if constexpr (!IS_PLAIN<KIND>)
            if (call.plan.plan.sequences.boundaries && call.plan.plan.sequences.padding == TROPE_PADDING_ZERO)
                clear_rows<AWAITS_ROW<ANGLES, FORM, KIND>>(o, p, rows, tile);
        store_tile(o.tiles, o.dst, p, store_policy(o), tile);
        await_stores();
    }
    if (IS_PACKED<KIND>) {
        check.ask(call.plan.plan.sequences);
        check.finish(call.plan.plan);
    }
    if (KIND == KIND_ANY && call.plan.plan.sequences.boundaries)
        check_sequences(call.plan.plan);
}

#endif
