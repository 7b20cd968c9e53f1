/* The CUDA kernel of the rotation of small calls. Rows, lanes and turns are those of rotate_tiles_cuda.cuh, but a tile is
 * no more than what a warp has at once, or twice of it, and stays in registers: what the copy engine takes to bring a tile
 * and to take it away is a third of the time of such a call. */
#ifndef TROPE_CORE_ROTATE_HELD_CUDA_CUH
#define TROPE_CORE_ROTATE_HELD_CUDA_CUH

#include "core/rotate_tiles_cuda.cuh"

#define HELD_BLOCKS 8 /* that a multiprocessor should hold */
#define MOST_HELD   2 /* heads of which a thread has its lane */

/* For plain calls with phases or freqs, whose tiles have nothing that passes through. What can be found before the kernel
 * before this one has ended is found before. */
template <int DTYPE, int ANGLES, int KIND>
__global__ void __launch_bounds__(TILE_THREADS, HELD_BLOCKS)
    rotate_held_kernel(const __grid_constant__ tiled_operands<KIND> operands, const __grid_constant__ tiled_call call,
                       const __grid_constant__ cuda_steps<ANGLES> steps)
{
    typedef lane_turns<DTYPE, ANGLES> lane_turns;
    extern __shared__ __align__(16) char shared[];
    const block_share block = find_block(operands, call);
    const tiled_operand &o = operands.of[IS_SINGLE<KIND> ? 0 : block.operand];
    const uint32_t warp = threadIdx.x / 32, number = block.first_tile + warp;
    const tile_place p = find_tile(o.tiles, number);
    const lane_share<DTYPE, ANGLES, KIND> mine(call, o, 0);
    const bool present = number < o.tiles.tiles && mine.is_there;
    const uint32_t at_once = o.heads_at_once.divisor, heads = present && mine.in_warp < at_once ? p.heads : 0;
    const char *from[MOST_HELD];
    char *to[MOST_HELD];
#pragma unroll
    for (int i = 0; i < MOST_HELD; i++) {
        const uint32_t head = p.head + mine.in_warp + i * at_once;
        from[i] = found_here(address_of(o.tiles, o.src, p.outer, p.row, head));
        to[i] = found_here(address_of(o.tiles, o.dst, p.outer, p.row, head));
    }
    vector_pair<DTYPE> held[MOST_HELD];
    await_previous();
#pragma unroll
    for (int i = 0; i < MOST_HELD; i++)
        if (mine.in_warp + i * at_once < heads)
            held[i] = mine.at.load_from_memory(from[i]);
    admit_next();
    const typename lane_turns::space space = {shared + warp * call.turns_bytes + mine.thread * 16, o.lanes.divisor * 16};
    const auto row_of = [&](uint32_t) { return plain_row_of_tile(call, p, 0); };
    if (present && mine.in_warp >> o.share_bits == 0)
        lane_turns::template find_shares<true, 1>(call.plan, mine.at, steps.of, mine.in_warp, 1u << o.share_bits, 0, 1, 1,
                                                  row_of, space);
    __syncwarp();
    lane_turns turns;
    turns.template load_shares<false>(space.of_row(0), space.plane);
#pragma unroll
    for (int i = 0; i < MOST_HELD; i++)
        if (mine.in_warp + i * at_once < heads)
            mine.template turn<false>(call, o, turns, held[i], to[i],
                                      [&](const vector_pair<DTYPE> &v, char *to) { mine.at.store_to_memory(v, to); });
}

#endif
