/* How the host plans a call that is run by tiles: plan_tiles.cu. */
#ifndef TROPE_FWD_CUDA_PLAN_TILES_CUH
#define TROPE_FWD_CUDA_PLAN_TILES_CUH

#include "fwd/cuda/launch.cuh"
#include "fwd/cuda/rotate_tiles.cuh"

/* ---- which kernels there are ---- */

/* Any angles have kernels for fewer kinds of call. */
constexpr tile_call_kind kind_of(int angles, tile_call_kind kind)
{
    if (angles != ANGLES_ANY)
        return kind;
    return kind == KIND_PLAIN || kind == KIND_PLAIN_SINGLE ? KIND_PLAIN : KIND_ANY;
}

/* What has no kernel for its form has that of several rows. One head has one where a call has one operand and a pair one
 * angle: others are rare. */
constexpr tile_form form_of(int angles, tile_form form, tile_call_kind kind)
{
    const bool has_head =
        (kind == KIND_PLAIN_SINGLE || kind == KIND_PACKED_SINGLE) && (angles == ANGLES_PHASE || angles == ANGLES_FREQS);
    return (form == FORM_ROW && angles != ANGLES_ANY) || (form == FORM_HEAD && has_head) ? form : FORM_ROWS;
}

/* Whether the kernels of heads in registers are for such angles. */
constexpr bool angles_can_be_held(int angles)
{
    return angles == ANGLES_PHASE || angles == ANGLES_FREQS;
}

/* Blocks that a multiprocessor should hold, which says how many registers a thread may have: fewer where rows are looked
 * up, elements have angles of their own, cos and sin come from tables, or with freqs several operands have tiles of several
 * rows; still fewer with several rows of a tile (not with freqs, which take long to come) and with unusual angles; and one
 * less of tables that are looked up. */
#define PLAIN_BLOCKS 8
#define FEWER_BLOCKS 7
#define ROWS_BLOCKS  6
#define ANY_BLOCKS   5

constexpr int blocks_of(int angles, tile_form form, tile_call_kind kind)
{
    const bool waits_for_rows = angles == ANGLES_FREQS && kind != KIND_ANY;
    const bool takes_more = angles == ANGLES_TABLES || angles == ANGLES_OWN_FREQS || kind == KIND_ANY ||
                            (form == FORM_ROWS && (kind == KIND_PLAIN || kind == KIND_PACKED));
    const int blocks = angles == ANGLES_ANY                   ? ANY_BLOCKS
                       : form == FORM_ROWS && !waits_for_rows ? ROWS_BLOCKS
                       : takes_more                           ? FEWER_BLOCKS
                                                              : PLAIN_BLOCKS;
    return angles == ANGLES_TABLES && kind == KIND_ANY ? blocks - 1 : blocks;
}

/* ---- the plan ---- */

/* Shared memory that a tile should have, usually and at most. */
#define TILE_BYTES      4096
#define MOST_TILE_BYTES (2 * TILE_BYTES)

/* What a launch needs to know of a call. */
struct tiled_launch {
    int32_t operands;
    int64_t blocks;
    uint32_t shared_bytes;      /* of a block */
    uint32_t of_multiprocessor; /* as in launch_early */
    tile_call_kind kind;
    tile_form form;
};

/* The operands, of which neighbours that follow each other are one, and the call are all 0 before, and are then as the
 * kernel takes them, but for call->plan. */
tiled_launch trope_cuda_plan_tiles(const trope_plan &plan, const device_facts &device, uint32_t tile_bytes,
                                   tiled_operand *operands, tiled_call *call);

#endif
