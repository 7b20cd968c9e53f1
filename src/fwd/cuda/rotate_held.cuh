/* The CUDA kernels of the rotation in registers. Rows and lanes are those of rotate_tiles.cuh, but a tile is
 * some heads of one row, or rows of one head, no more than what a warp has at once, or twice of it, and does not come
 * through shared memory. That is for what the copy engine is no good at: small calls, in which bringing a tile and taking
 * it away is a third of the time, and windows in place, which are many short runs. */
#ifndef TROPE_FWD_CUDA_ROTATE_HELD_CUH
#define TROPE_FWD_CUDA_ROTATE_HELD_CUH

#include "fwd/cuda/rotate_tiles.cuh"

#define HELD_BLOCKS 8 /* that a multiprocessor should hold */
#define MOST_HELD   2 /* heads, or rows, of which a thread has its lane */

/* A row of a warp's tile in a plain call, whose position is found here: the parameters that it takes come late. */
template <int FORM>
__device__ __forceinline__ trope_row held_row_of_tile(const tiled_call &call, const tile_place &p, uint32_t number)
{
    const trope_row row = plain_row_of_tile<FORM>(call, p, number);
    return row_of_plain(row.batch, found_here((uint32_t)row.position[0]));
}

/* Whether a table's row is brought into L2 while the kernel before still runs, so that it need not come after the heads of
 * all warps. In 16 bits a row is for half as many bytes, and finding out first where it is takes what that saves. */
template <int DTYPE, int ANGLES, int KIND>
constexpr bool BRINGS_ANGLES = IS_PLAIN<KIND> && (ANGLES == ANGLES_FREQS) && (DTYPE == TROPE_F32);

/* For packed calls and plain ones, with phases or freqs, whose tiles are turned whole, or only copied. What can be found
 * before the kernel before this one has ended is found before. */
template <int DTYPE, int ANGLES, int KIND>
__global__ void __launch_bounds__(TILE_THREADS, HELD_BLOCKS)
    rotate_held_kernel(KERNEL_PARAMETER(tiled_operands<KIND>) operands, KERNEL_PARAMETER(tiled_call) call,
                       KERNEL_PARAMETER(cuda_steps<ANGLES>) steps)
{
    typedef lane_turns<DTYPE, ANGLES> lane_turns;
    extern __shared__ __align__(16) char shared[];
    const block_share block = find_block(operands, call, blockIdx.x);
    const tiled_operand &o = operands.of[IS_SINGLE<KIND> ? 0 : block.operand];
    const uint32_t warp = threadIdx.x / 32, number = block.first_tile + warp, at_once = o.heads_at_once.divisor;
    const tile_place p = find_tile(o.tiles, IS_PACKED<KIND> ? min(number, o.tiles.tiles - 1) : number);
    const lane_share<DTYPE, ANGLES, KIND> mine(call, o, 0);
    const bool present = number < o.tiles.tiles, has_lane = present && mine.is_there;
    const uint32_t heads = has_lane && mine.in_warp < at_once ? p.heads : 0;
    const char *from[MOST_HELD];
    char *to[MOST_HELD];
#pragma unroll
    for (int i = 0; i < MOST_HELD; i++) {
        const uint32_t head = p.head + mine.in_warp + i * at_once;
        from[i] = found_here(address_of(o.tiles, o.src, p.outer, p.row, head));
        to[i] = found_here(address_of(o.tiles, o.dst, p.outer, p.row, head));
    }
    const uint64_t loads = found_here(load_policy(o)), stores = found_here(store_policy(o));
    vector_pair<DTYPE> held[MOST_HELD];
    trope_row row;
    packed_probes probes;
    packed_check check;
    if constexpr (IS_PACKED<KIND>) {
        probes.locate(call.plan.plan.sequences);
        check.prepare(call.plan.plan.sequences);
    } else {
        row = held_row_of_tile<FORM_HELD>(call, p, 0);
    }
    if constexpr (BRINGS_ANGLES<DTYPE, ANGLES, KIND>)
        if (has_lane && mine.share_row(o) == 0 && (IS_SINGLE<KIND> || o.turn_rows))
            prefetch(address_of_freqs(call.plan, row, lane_turns::pair_of_share(mine.at, mine.first_share(o))));
    await_previous();
    if (IS_PACKED<KIND>)
        probes.ask_all();
#pragma unroll
    for (int i = 0; i < MOST_HELD; i++)
        if (mine.in_warp + i * at_once < heads)
            held[i] = mine.at.load_from_memory(from[i], loads);
    admit_next();
    if (IS_PACKED<KIND>) {
        probes.ask_near(call.plan.plan.sequences, p.row);
        check.ask(call.plan.plan.sequences);
    }
    const sharing_lane<DTYPE, ANGLES, FORM_HELD, KIND> lane(call, o, steps.of, 0);
    /* Warps that have no tile find a row as well: a branch around it costs a small call 0.3 us. */
    if constexpr (IS_PACKED<KIND>)
        row = row_of_packed(0, p.row, find_packed_row<HAS_TABLE<ANGLES>>(call.plan.plan, probes, (int32_t)p.row));
    if (!IS_SINGLE<KIND> && o.turn_rows == 0 && row.action == TROPE_ROW_ROTATE)
        row.action = TROPE_ROW_COPY;
    const auto store = [&](const vector_pair<DTYPE> &v, char *at) { mine.at.store_to_memory(v, at, stores); };
    if (row.action == TROPE_ROW_ROTATE) {
        const typename lane_turns::space space = {shared + warp * call.turns_bytes + mine.thread * 16,
                                                  o.lanes.divisor * 16};
        const uint32_t share = mine.first_share(o);
        if (has_lane && mine.share_row(o) == 0)
            lane_turns::template find_shares<true, 1>(
                call.plan, mine.at, [&](uint32_t i) { return lane.steps_of_share(i, share); }, share, 1u << o.share_bits, 0,
                1, 1, [&](uint32_t) { return row; }, space);
        __syncwarp();
        lane_turns turns;
        turns.template load_shares<false>(space.of_row(0), space.plane);
#pragma unroll
        for (int i = 0; i < MOST_HELD; i++)
            if (mine.in_warp + i * at_once < heads)
                mine.template turn<false>(call, o, turns, held[i], to[i], store);
    } else if (row.action == TROPE_ROW_COPY) {
#pragma unroll
        for (int i = 0; i < MOST_HELD; i++)
            if (mine.in_warp + i * at_once < heads)
                store(held[i], to[i]);
    }
    for (uint32_t head = 0; IS_PACKED<KIND> && row.action == TROPE_ROW_ZERO && present && head < p.heads; head++)
        clear_head(o, p, 0, head);
    if (IS_PACKED<KIND>)
        check.finish(call.plan.plan);
}

/* For such plain calls of one operand whose rows have one head: a thread has its lane of one row or two, and finds its
 * sines alone. */
template <int DTYPE, int ANGLES>
__global__ void __launch_bounds__(TILE_THREADS, HELD_BLOCKS)
    rotate_held_rows_kernel(KERNEL_PARAMETER(tiled_operands<KIND_PLAIN_SINGLE>) operands, KERNEL_PARAMETER(tiled_call) call,
                            KERNEL_PARAMETER(cuda_steps<ANGLES>) steps)
{
    typedef lane_turns<DTYPE, ANGLES> lane_turns;
    const tiled_operand &o = operands.of[0];
    const uint32_t number = find_block(operands, call, blockIdx.x).first_tile + threadIdx.x / 32, at_once = o.rows_at_once;
    const tile_place p = find_tile(o.tiles, number);
    const lane_share<DTYPE, ANGLES, KIND_PLAIN_SINGLE> mine(call, o, 0);
    const bool has_lane = number < o.tiles.tiles && mine.is_there && mine.in_warp < at_once;
    const uint32_t rows = has_lane ? p.rows : 0;
    const char *from[MOST_HELD];
    char *to[MOST_HELD];
    trope_row row[MOST_HELD];
#pragma unroll
    for (int i = 0; i < MOST_HELD; i++) {
        const uint32_t in_tile = mine.in_warp + i * at_once;
        /* There is one head: 0 rather than p.head spares every thread a division by groups. */
        from[i] = found_here(address_of(o.tiles, o.src, p.outer, p.row + in_tile, 0));
        to[i] = found_here(address_of(o.tiles, o.dst, p.outer, p.row + in_tile, 0));
        row[i] = held_row_of_tile<FORM_HELD_ROWS>(call, p, in_tile);
    }
    const uint64_t loads = found_here(load_policy(o)), stores = found_here(store_policy(o));
    vector_pair<DTYPE> held[MOST_HELD];
    typename lane_turns::lane_angles angles[MOST_HELD];
    await_previous();
#pragma unroll
    for (int i = 0; i < MOST_HELD; i++)
        if (mine.in_warp + i * at_once < rows)
            held[i] = mine.at.load_from_memory(from[i], loads);
    admit_next();
    const steps_of<ANGLES, lane_turns::RUN> lane_steps[2] = {{steps.of, (int)mine.at.low}, {steps.of, (int)mine.at.high}};
#pragma unroll
    for (int i = 0; i < MOST_HELD; i++)
        if (mine.in_warp + i * at_once < rows)
            angles[i].template load<true>(call.plan, row[i], mine.at, lane_steps);
    const auto store = [&](const vector_pair<DTYPE> &v, char *at) { mine.at.store_to_memory(v, at, stores); };
#pragma unroll
    for (int i = 0; i < MOST_HELD; i++) {
        if (mine.in_warp + i * at_once < rows) {
            lane_turns turns;
            turns.template find<true>(call.plan, row[i], mine.at, angles[i]);
            mine.template turn<false>(call, o, turns, held[i], to[i], store);
        }
    }
}

#endif
