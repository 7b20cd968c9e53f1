/* How the heads of an operand are cut into tiles, by the host. */
#ifndef TROPE_FWD_CUDA_TILING_CUH
#define TROPE_FWD_CUDA_TILING_CUH

#include "fwd/cuda/launch.cuh"
#include "fwd/cuda/tiles.cuh"

static inline uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static inline uint32_t most(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static inline uint32_t common_divisor(uint32_t a, uint32_t b)
{
    return b ? common_divisor(b, a % b) : a;
}

static inline uint32_t tiles_along(uint32_t all, uint32_t of_tile)
{
    return (uint32_t)quotient_up(all, of_tile);
}

/* The runs of tiles in a tensor. */
static inline void find_runs(const tiling &t, tiled_tensor *tensor)
{
    const uint32_t per_group = t.heads_per_group.divisor;
    const bool rows_join = tensor->inner == t.row_pitch || t.rows.divisor == 1,
               heads_join = tensor->head == t.head_pitch || t.heads == 1;
    const bool is_grouped = per_group < t.all_heads;
    tensor->is_whole = rows_join && heads_join && !is_grouped && (!t.rows_first || t.heads == 1);
    tensor->run = t.rows_first ? (rows_join ? t.rows.divisor : 1)
                  : heads_join ? (is_grouped ? common_divisor(t.heads, per_group) : t.heads)
                               : 1;
    tensor->runs_of_line.set(tiles_along(t.rows_first ? t.rows.divisor : t.heads, tensor->run));
}

#endif
