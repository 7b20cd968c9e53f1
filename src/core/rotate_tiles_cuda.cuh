/* The CUDA kernel of the rotation for heads that are made of 16-byte vectors. A warp asks for a tile, works out the cosines
 * and sines of its rows while the tile is on its way, turns the heads where they are and writes the tile back; what passes
 * through is part of the tile and is not touched. Warps have nothing in common, except that a block looks its rows up
 * together where that takes long.
 *
 * A thread has one lane of a head: two vectors, of the same pairs in every head, so that heads of a row are turned by
 * the same registers. Threads that have the same lane of different heads of a row share the work of finding its sines.
 * Direction and layout are data; compiled in are the dtype, the source of the usual angles, whether sines are shared, and
 * the kind of call. docs/cuda.md says what that buys. */
#ifndef TROPE_CORE_ROTATE_TILES_CUDA_CUH
#define TROPE_CORE_ROTATE_TILES_CUDA_CUH

#include "core/early_launch_cuda.cuh"
#include "core/rows_cuda.cuh"
#include "core/tiles_cuda.cuh"

#define TILE_THREADS  128 /* of a block */
#define TILE_WARPS    (TILE_THREADS / 32)
#define MAX_TILE_ROWS 32 /* that must be looked up */

/* What is asked for before the tile is on its way lies together: parameters that nobody has read yet take long to come. */
struct tiled_operand {
    uint32_t blocks_of_turn;
    uint32_t tile_bytes; /* of a warp */
    tiling tiles;
    tiled_tensor src, dst;
    fast_divisor lanes; /* that rotate, of a head: those that a warp has at once */
    uint32_t all_lanes;
    uint32_t head_threads;       /* a bit for each of these lanes, from 0 on */
    uint32_t rows_at_once;       /* of a warp */
    fast_divisor heads_at_once;  /* of each of these rows */
    uint32_t window;             /* bytes from where a head starts in its tile to its rotary window */
    uint32_t before_window;      /* bytes of a head in memory that are before what its tile has */
    uint32_t head_bytes;         /* in memory */
    uint32_t window_pairs;       /* in each of the plan's windows */
    uint32_t low_step, high_gap; /* pairs from a lane's first run to the next lane's, and to its second run */
};

struct tiled_call {
    fast_divisor turn;                          /* blocks, in which every operand has some */
    uint32_t first_of_turn[TROPE_MAX_OPERANDS]; /* UINT32_MAX where there is no operand */
    uint32_t turns_at, rows_at;                 /* in shared memory, where tiles come first: coefficients, and rows */
    uint32_t turns_bytes;                       /* of a warp */
    cuda_rows rows;
    int32_t interleaved_src, interleaved_dst; /* as in the plan */
    cuda_plan plan;
};

/* ---- lanes ---- */

/* Two vectors of a head. Whichever way it is paired they are vector j of the first half of a window and vector j of its
 * second half, so that neighbouring threads have neighbouring vectors. The pairs are in two runs, which are one after the
 * other in a half-paired head. */
template <int DTYPE, int ANGLES> struct tile_lane {
    typedef typename elements<DTYPE>::real real;
    typedef vector_pair<DTYPE> vectors;
    enum { V = vectors::WIDTH, RUN = V / 2, BYTES = 16 / V };

    uint32_t first, second; /* bytes from the window's start */
    uint32_t low, high;     /* the first pair of each run */
    uint32_t skipped;       /* pairs of the windows before */

    template <bool ONE_WINDOW>
    __device__ __forceinline__ void locate(const tiled_call &call, const tiled_operand &o, uint32_t lane)
    {
        skipped = 0;
        if (!ONE_WINDOW && call.plan.plan.windows > 1) /* 2 or 3 */
            skipped = lane * V >= 2 * o.window_pairs ? 2 * o.window_pairs : lane * V >= o.window_pairs ? o.window_pairs : 0;
        first = (lane * V + skipped) * BYTES;
        second = first + o.window_pairs * BYTES;
        low = lane * o.low_step + (call.interleaved_src ? skipped / 2 : 0);
        high = low + o.high_gap;
    }

    __device__ __forceinline__ vectors load(const char *window) const
    {
        vectors v;
        v.bits[0] = *(const uint4 *)(window + first);
        v.bits[1] = *(const uint4 *)(window + second);
        return v;
    }

    __device__ __forceinline__ void store(const vectors &v, char *window) const
    {
        *(uint4 *)(window + first) = v.bits[0];
        *(uint4 *)(window + second) = v.bits[1];
    }

    /* Pairs that were read half-paired and are written interleaved, or the other way round. */
    __device__ __forceinline__ void store_rearranged(const tiled_operand &o, bool interleave, vectors v, char *window) const
    {
        if (interleave) {
            v.join();
            *(uint4 *)(window + 2 * low * BYTES) = v.bits[0];
            *(uint4 *)(window + 2 * high * BYTES) = v.bits[1];
            return;
        }
        window += skipped * BYTES;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            *(uint2 *)(window + (i * o.window_pairs + low) * BYTES) = make_uint2(v.bits[i].x, v.bits[i].y);
            *(uint2 *)(window + (i * o.window_pairs + high) * BYTES) = make_uint2(v.bits[i].z, v.bits[i].w);
        }
    }
};

/* What a lane's pairs are turned by in one row. */
template <int DTYPE, int ANGLES> struct lane_turns {
    typedef tile_lane<DTYPE, ANGLES> lane;
    typedef typename lane::real real;
    enum { RUN = lane::RUN, OWN = MAY_OWN_ANGLES<ANGLES> };
    enum { SHARE = RUN < 2 ? 1 : 2, SHARES = 2 * RUN / SHARE };  /* pairs that a thread finds for others at a time */
    enum { PLANES = SHARE * (OWN ? 4 : 2) * sizeof(real) / 16 }; /* 16-byte vectors of a share */

    turns_of<real, RUN> run[2];

    struct angles {
        angles_of<real, RUN> run[2];

        template <bool ONE_AXIS>
        __device__ __forceinline__ void load(const cuda_plan &plan, const trope_row &row, const lane &at,
                                             const steps_of<ANGLES, RUN> *steps)
        {
            run[0] = load_angles<ANGLES, ONE_AXIS, real, RUN>(plan, row, (int)at.low, steps[0]);
            run[1] = load_angles<ANGLES, ONE_AXIS, real, RUN>(plan, row, (int)at.high, steps[1]);
        }
    };

    __device__ __forceinline__ void find(const cuda_plan &plan, const trope_row &row, const lane &at, const angles &a)
    {
        find_turns<ANGLES, real, RUN>(plan, row, (int)at.low, a.run[0], &run[0]);
        find_turns<ANGLES, real, RUN>(plan, row, (int)at.high, a.run[1], &run[1]);
    }

    /* Every `threads`-th share of a lane's pairs, from `first` on, goes to `space`, where each of its vectors is in a plane
     * of its own: so neighbouring threads have neighbouring vectors. */
    template <bool ONE_AXIS>
    static __device__ __forceinline__ void find_shares(const cuda_plan &plan, const trope_row &row, const lane &at,
                                                       const uint64_t *steps, uint32_t first, uint32_t threads, char *space,
                                                       uint32_t plane)
    {
#pragma unroll 1
        for (uint32_t i = first; i < SHARES; i += threads) {
            const int in_run = i * SHARE % RUN, pair = (int)(i * SHARE < RUN ? at.low : at.high) + in_run;
            turns_of<real, SHARE> t;
            find_turns<ANGLES, real, SHARE>(plan, row, pair,
                                            load_angles<ANGLES, ONE_AXIS, real, SHARE>(plan, row, pair, {steps, pair}), &t);
            share s;
#pragma unroll
            for (int e = 0; e < SHARE; e++) {
                s.values[0][e] = t.c1[e];
                s.values[1][e] = t.s1[e];
                if constexpr (OWN) {
                    s.values[2][e] = t.c2[e];
                    s.values[3][e] = t.s2[e];
                }
            }
#pragma unroll
            for (int k = 0; k < PLANES; k++)
                *(uint4 *)(space + (i * PLANES + k) * plane) = s.vectors[k];
        }
    }

    /* All of them. */
    __device__ __forceinline__ void load_shares(const char *space, uint32_t plane)
    {
#pragma unroll
        for (int i = 0; i < SHARES; i++) {
            share s;
#pragma unroll
            for (int k = 0; k < PLANES; k++)
                s.vectors[k] = *(const uint4 *)(space + (i * PLANES + k) * plane);
            turns_of<real, RUN> &t = run[i * SHARE / RUN];
#pragma unroll
            for (int e = 0; e < SHARE; e++) {
                t.c1[i * SHARE % RUN + e] = s.values[0][e];
                t.s1[i * SHARE % RUN + e] = s.values[1][e];
                if constexpr (OWN) {
                    t.c2[i * SHARE % RUN + e] = s.values[2][e];
                    t.s2[i * SHARE % RUN + e] = s.values[3][e];
                }
            }
        }
    }

    union share {
        uint4 vectors[PLANES];
        real values[OWN ? 4 : 2][SHARE];
    };

    template <bool NATIVE> __device__ __forceinline__ void turn(vector_pair<DTYPE> *v) const
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const turns_of<real, RUN> &t = run[i];
            real y[2][RUN];
#pragma unroll
            for (int e = 0; e < RUN; e++) {
                const typename pair_types<DTYPE>::pair x = {to_real<DTYPE>(v->get(0, i * RUN + e)),
                                                            to_real<DTYPE>(v->get(1, i * RUN + e))};
                const typename pair_types<DTYPE>::pair turned =
                    rotate_pair<DTYPE, NATIVE>(x, {t.c1[e], t.s1[e], OWN ? t.c2[e] : t.c1[e], OWN ? t.s2[e] : t.s1[e]});
                y[0][e] = turned.first;
                y[1][e] = turned.second;
            }
            v->template set<RUN>(0, i * RUN, y[0]);
            v->template set<RUN>(1, i * RUN, y[1]);
        }
    }
};

/* ---- rows ---- */

/* What a call has: rows of any kind, those of the usual packed call, or rows whose positions are the tokens; of the latter
 * two, those that have a single operand. */
enum tile_call_kind { KIND_ANY, KIND_PACKED, KIND_PACKED_SINGLE, KIND_PLAIN, KIND_PLAIN_SINGLE };

template <int KIND> constexpr bool IS_PLAIN = KIND == KIND_PLAIN || KIND == KIND_PLAIN_SINGLE;
template <int KIND> constexpr bool IS_PACKED = KIND == KIND_PACKED || KIND == KIND_PACKED_SINGLE;
template <int KIND> constexpr bool IS_SINGLE = KIND == KIND_PACKED_SINGLE || KIND == KIND_PLAIN_SINGLE;

/* The number in the call of row `row` of a tile, or of its last one. */
__device__ __forceinline__ uint32_t number_of_row(const tiled_call &call, const tile_place &p, uint32_t row)
{
    return p.outer * call.rows.length.divisor + p.row + min(row, p.rows - 1);
}

/* What is kept in shared memory of a row that was looked up. */
template <int KIND> using tile_row = std::conditional_t<IS_PACKED<KIND>, packed_row, trope_row>;

/* The rows of a warp's tile in a packed call, whose rows are its tokens. */
__device__ __forceinline__ void find_packed_rows(const tiled_call &call, const tile_place &p, int32_t first_probe,
                                                 packed_row *rows)
{
    const uint32_t i = threadIdx.x % 32;
    const packed_row row = find_packed_row(call.plan.plan, first_probe, (int32_t)(p.row + min(i, p.rows - 1)));
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
        set_row(call.rows, locate_row<true>(call.rows, number_of_row(call, p, i - tile * of_tile)), &row);
        find_row(call.plan.plan, &row);
        if (base + threadIdx.x % 32 < end)
            rows[i] = row;
    }
    __syncthreads();
}

/* Clears the heads of rows that are padding: in the tile, and in memory what of them the tile has not. */
template <typename ROW>
__device__ __forceinline__ void clear_rows(const tiled_operand &o, const tile_place &p, const ROW *rows, char *tile)
{
    const tiling &t = o.tiles;
    for (uint32_t row = 0; row < p.rows; row++) {
        for (uint32_t head = 0; rows[row].action == TROPE_ROW_ZERO && head < p.heads; head++) {
            clear_bytes(tile + row * t.row_pitch + head * t.head_pitch, t.pitch);
            if (t.pitch < o.head_bytes)
                clear_bytes(address_of(t, o.dst, p.outer, p.row + row, p.head + head) - o.before_window, o.head_bytes);
        }
    }
}

/* Row `number` of a tile, or its last one. */
template <int KIND>
__device__ __forceinline__ trope_row row_of_tile(const tiled_call &call, const tile_place &p, const tile_row<KIND> *rows,
                                                 uint32_t number)
{
    if (IS_PLAIN<KIND>)
        return plain_row(call.rows, locate_row<true>(call.rows, number_of_row(call, p, number)));
    const tile_row<KIND> from = rows[min(number, p.rows - 1)];
    if constexpr (IS_PACKED<KIND>) {
        trope_row row;
        row.batch = 0;
        row.position[0] = from.position;
        row.action = (trope_row_action)from.action;
        row.poisoned = from.poisoned;
        return row;
    } else {
        return from;
    }
}

/* ---- the kernel ---- */

template <int KIND> struct tiled_operands {
    tiled_operand of[IS_SINGLE<KIND> ? 1 : TROPE_MAX_OPERANDS];
};

/* One head. The threads that have it are `together`: where pairs are rearranged, each reads what others write. */
template <int DTYPE, int ANGLES>
__device__ __forceinline__ void rotate_head(const tiled_call &call, const tiled_operand &o,
                                            const tile_lane<DTYPE, ANGLES> &at, const lane_turns<DTYPE, ANGLES> &turns,
                                            uint32_t together, char *window)
{
    vector_pair<DTYPE> v = at.load(window);
    if (call.interleaved_src)
        v.separate();
    if (is_native<ANGLES>(call.plan))
        turns.template turn<true>(&v);
    else
        turns.template turn<false>(&v);
    if (__builtin_expect(call.interleaved_src != call.interleaved_dst, 0)) {
        __syncwarp(together);
        at.store_rearranged(o, call.interleaved_dst, v, window);
        return;
    }
    if (call.interleaved_dst)
        v.join();
    at.store(v, window);
}

/* Turns all heads of a tile. A thread keeps its lane; it has every so many rows, and every so many heads of them. */
template <int DTYPE, int ANGLES, bool SHARED, int KIND>
__device__ __forceinline__ void rotate_lanes(const tiled_call &call, const tiled_operand &o, const uint64_t *all_steps,
                                             const tile_place &p, uint32_t first_lane, const tile_row<KIND> *rows,
                                             const tile_arrival &arrival, char *tile, char *turns_space)
{
    typedef tile_lane<DTYPE, ANGLES> lane;
    typedef lane_turns<DTYPE, ANGLES> lane_turns;
    constexpr bool ONE_AXIS = KIND != KIND_ANY;
    const uint32_t thread = threadIdx.x % 32, in_warp = o.lanes.divide(thread), first_thread = in_warp * o.lanes.divisor;
    const uint32_t number = first_lane + thread - first_thread, together = o.head_threads << first_thread;
    const uint32_t first_row = o.heads_at_once.divide(in_warp), first_head = in_warp - first_row * o.heads_at_once.divisor;
    const bool works = first_row < o.rows_at_once && number < o.all_lanes;
    const uint32_t plane = o.rows_at_once * o.lanes.divisor * 16;
    turns_space += works ? (first_row * o.lanes.divisor + thread - first_thread) * 16 : 0;
    lane at;
    at.template locate<ONE_AXIS>(call, o, works ? number : 0);
    const steps_of<ANGLES, lane::RUN> steps[2] = {{all_steps, (int)at.low}, {all_steps, (int)at.high}};
    trope_row row = row_of_tile<KIND>(call, p, rows, first_row);
    typename lane_turns::angles angles;
    if (!SHARED && row.action == TROPE_ROW_ROTATE)
        angles.template load<ONE_AXIS>(call.plan, row, at, steps);
    for (uint32_t done = 0; done < p.rows; done += o.rows_at_once) {
        const uint32_t i = done + first_row;
        const bool turns_row = works && i < p.rows && row.action == TROPE_ROW_ROTATE;
        lane_turns turns;
        if (SHARED) {
            if (turns_row)
                lane_turns::template find_shares<ONE_AXIS>(call.plan, row, at, all_steps, first_head,
                                                           o.heads_at_once.divisor, turns_space, plane);
            __syncwarp();
            turns.load_shares(turns_space, plane);
        } else if (turns_row) {
            turns.find(call.plan, row, at, angles);
        }
        row = row_of_tile<KIND>(call, p, rows, i + o.rows_at_once);
        if (!SHARED && row.action == TROPE_ROW_ROTATE) /* while the heads are turned */
            angles.template load<ONE_AXIS>(call.plan, row, at, steps);
        arrival.wait(0);
        char *window = tile + o.window + i * o.tiles.row_pitch + first_head * o.tiles.head_pitch;
        for (uint32_t head = turns_row ? first_head : p.heads; head < p.heads; head += o.heads_at_once.divisor) {
            rotate_head<DTYPE, ANGLES>(call, o, at, turns, together, window);
            window += o.heads_at_once.divisor * o.tiles.head_pitch;
        }
        if (SHARED)
            __syncwarp();
    }
}

template <int DTYPE, int ANGLES, bool SHARED, int KIND, int BLOCKS>
__global__ void __launch_bounds__(TILE_THREADS, BLOCKS)
    rotate_tiles_kernel(const __grid_constant__ tiled_operands<KIND> operands, const __grid_constant__ tiled_call call,
                        const __grid_constant__ cuda_steps<ANGLES> steps)
{
    extern __shared__ __align__(16) char shared[];
    __shared__ uint64_t barriers[TILE_WARPS];
    const uint32_t warp = threadIdx.x / 32;
    const tile_arrival arrival(&barriers[warp]);
    arrival.prepare();
    if (IS_PACKED<KIND>)
        await_previous();
    const int32_t first_probe = IS_PACKED<KIND> ? load_first_probe(call.plan.plan.sequences) : 0;
    const uint32_t turn = IS_SINGLE<KIND> ? 0 : call.turn.divide(blockIdx.x);
    const uint32_t of_turn = IS_SINGLE<KIND> ? blockIdx.x : blockIdx.x - turn * call.turn.divisor;
    const uint32_t operand = IS_SINGLE<KIND> ? 0 : operand_of_block(call.first_of_turn, of_turn);
    const tiled_operand &o = operands.of[operand];
    const uint32_t block = IS_SINGLE<KIND> ? blockIdx.x : turn * o.blocks_of_turn + of_turn - call.first_of_turn[operand];
    const uint32_t first_tile = block * TILE_WARPS, number = first_tile + warp;
    const tile_place p = find_tile(o.tiles, number);
    const bool present = number < o.tiles.tiles;
    char *const tile = shared + warp * o.tile_bytes;
    tile_row<KIND> *rows = (tile_row<KIND> *)(shared + call.rows_at);
    if (!IS_PACKED<KIND>)
        await_previous();
    if (present) {
        arrival.expect(p.rows * p.heads * o.tiles.pitch);
        load_tile(o.tiles, o.src, p, arrival, tile);
    }
    if constexpr (KIND == KIND_ANY)
        find_block_rows(call, o, first_tile, rows);
    if (present) {
        rows += warp * o.tiles.rows.divisor;
        if constexpr (IS_PACKED<KIND>)
            find_packed_rows(call, p, first_probe, rows);
#pragma unroll 1
        for (uint32_t lane = 0; lane < o.all_lanes; lane += 32)
            rotate_lanes<DTYPE, ANGLES, SHARED, KIND>(call, o, steps.of, p, lane, rows, arrival, tile,
                                                      shared + call.turns_at + warp * call.turns_bytes);
        arrival.wait(0);
        if (!IS_PLAIN<KIND> && call.plan.plan.sequences.boundaries && call.plan.plan.padding == TROPE_PADDING_ZERO)
            clear_rows(o, p, rows, tile);
        store_tile(o.tiles, o.dst, p, tile);
        await_stores();
    }
    if (!IS_PLAIN<KIND> && call.plan.plan.sequences.boundaries)
        check_sequences(call.plan.plan);
}

#endif
