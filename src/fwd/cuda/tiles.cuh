/* A tile: some heads of some rows of a tensor, which a warp takes into shared memory, changes there and writes back.
 *
 * On devices from compute capability 9.0 on, the copy engine of a multiprocessor does both: it takes one instruction for
 * each run of the tile that is contiguous, and while the tile is on its way the warp has its registers and its place in the
 * queue of loads for other things. On older devices the warp copies it by 16-byte vectors. */
#ifndef TROPE_FWD_CUDA_TILES_CUH
#define TROPE_FWD_CUDA_TILES_CUH

#include "core/cuda/early_launch.cuh"
#include "core/cuda/elements.cuh"

/* 0 in a test of how older devices do it, on a newer one. */
#ifndef TROPE_BULK_COPIES
#define TROPE_BULK_COPIES (__CUDA_ARCH__ >= 900)
#endif

/* One tensor of an operand, from the part of its first head that a tile has. Distances are in bytes. In memory a tile is
 * one contiguous run, or a line of it (the heads of a row, or the rows of a head) is some that have `run` parts each. */
struct tiled_tensor {
    char *base;
    int64_t outer, inner; /* the two dimensions of rows */
    int64_t head, group;
    uint32_t is_whole;
    uint32_t run;
    fast_divisor runs_of_line;
};

/* How the rows and heads of an operand are cut into tiles. Both tiles and what is in a tile are numbered along lines: rows
 * with all their heads, or (`rows_first`) heads with all their rows, whichever are nearest in memory. */
struct tiling {
    fast_divisor vectors;                  /* of a head, those that a warp copies at once */
    uint32_t row_pitch, head_pitch, pitch; /* bytes in a tile: from row to row, from head to head, of a head */
    uint32_t tiles;
    uint32_t rows_first;
    fast_divisor rows; /* of a tile */
    uint32_t heads;
    uint32_t all_rows, all_heads;      /* rows of one outer index */
    fast_divisor tiles_of_line, lines; /* lines of one outer index */
    fast_divisor heads_per_group;
};

struct tile_place {
    uint32_t outer, row, head; /* the first ones */
    uint32_t rows, heads;      /* how many there are: fewer at the ends */
};

TROPE_HD tile_place find_tile(const tiling &t, uint32_t number)
{
    const uint32_t line = t.tiles_of_line.divide(number), in_line = number - line * t.tiles_of_line.divisor;
    tile_place p;
    p.outer = t.lines.divide(line);
    const uint32_t in_outer = line - p.outer * t.lines.divisor;
    p.row = (t.rows_first ? in_line : in_outer) * t.rows.divisor;
    p.head = (t.rows_first ? in_outer : in_line) * t.heads;
    p.rows = min(t.rows.divisor, t.all_rows - p.row);
    p.heads = min(t.heads, t.all_heads - p.head);
    return p;
}

/* A contiguous part of a tile: where it is in the tile and in memory, and its size, in bytes. */
struct tile_run {
    uint32_t at, bytes;
    char *memory;
};

TROPE_HD char *address_of(const tiling &t, const tiled_tensor &tensor, uint32_t outer, uint32_t row, uint32_t head)
{
    char *const from = tensor.base + outer * tensor.outer + row * tensor.inner;
    if (t.heads_per_group.divisor == t.all_heads)
        return from + head * tensor.head;
    const uint32_t group = t.heads_per_group.divide(head);
    return from + group * tensor.group + (head - group * t.heads_per_group.divisor) * tensor.head;
}

TROPE_HD tile_run find_run(const tiling &t, const tiled_tensor &tensor, const tile_place &p, uint32_t number)
{
    const uint32_t far = tensor.runs_of_line.divide(number),
                   near = (number - far * tensor.runs_of_line.divisor) * tensor.run;
    const uint32_t row = t.rows_first ? near : far, head = t.rows_first ? far : near, end = t.rows_first ? p.rows : p.heads;
    tile_run r;
    r.at = row * t.row_pitch + head * t.head_pitch;
    r.bytes = near < end ? min(tensor.run, end - near) * t.pitch : 0;
    r.memory = address_of(t, tensor, p.outer, p.row + row, p.head + head);
    return r;
}

TROPE_HD uint32_t count_runs(const tiling &t, const tiled_tensor &tensor, const tile_place &p)
{
    return (t.rows_first ? p.heads : p.rows) * tensor.runs_of_line.divisor;
}

TROPE_HD tile_run whole_run(const tiling &t, const tiled_tensor &tensor, const tile_place &p)
{
    return {0, p.rows * p.heads * t.pitch, address_of(t, tensor, p.outer, p.row, p.head)};
}

/* For all threads of the warp. */
__device__ __forceinline__ void clear_bytes(char *from, uint32_t bytes)
{
    for (uint32_t at = threadIdx.x % 32 * 16; at < bytes; at += 32 * 16)
        *(uint4 *)(from + at) = make_uint4(0, 0, 0, 0);
}

/* ---- by the copy engine ---- */

#if TROPE_BULK_COPIES

/* Tells when what a warp has asked for has come. For all threads of the warp, in this order: it is prepared once, told
 * before every load how many bytes there will be, and waited for, with parity 0, 1, 0, ... OF_ALL: a thread that waits also
 * waits for the others, which must come there with it; if not, each may wait where it likes. */
struct tile_arrival {
    enum { OF_ALL = 0 };
    shared_pointer barrier;

    __device__ __forceinline__ explicit tile_arrival(uint64_t *of_warp) : barrier(shared_address(of_warp))
    {
    }

    __device__ __forceinline__ void prepare() const
    {
        if (threadIdx.x % 32 == 0)
            make_barrier(barrier);
        __syncwarp();
    }

    /* For the one thread that then loads. */
    __device__ __forceinline__ void announce(uint32_t bytes) const
    {
        arrive_at_barrier(barrier, bytes);
    }

    __device__ __forceinline__ void expect(uint32_t bytes) const
    {
        if (threadIdx.x % 32 == 0)
            announce(bytes);
        __syncwarp();
    }

    __device__ __forceinline__ void wait(uint32_t parity) const
    {
        await_barrier(barrier, parity);
    }
};

__device__ __forceinline__ void load_run(const tile_run &r, uint64_t policy, const tile_arrival &arrival, char *tile)
{
    load_bulk(shared_address(tile) + r.at, r.memory, r.bytes, arrival.barrier, policy);
}

__device__ __forceinline__ void store_run(const tile_run &r, uint64_t policy, const char *tile)
{
    store_bulk(r.memory, shared_address(tile) + r.at, r.bytes, policy);
}

/* What a thread asks for first: all of the tile if it is one run. */
__device__ __forceinline__ tile_run first_run(const tiling &t, const tiled_tensor &tensor, const tile_place &p)
{
    const uint32_t number = threadIdx.x % 32;
    tile_run r = tensor.is_whole ? whole_run(t, tensor, p) : find_run(t, tensor, p, number);
    if (!tensor.is_whole && number >= count_runs(t, tensor, p))
        r.bytes = 0;
    return {found_here(r.at), found_here(r.bytes), found_here(r.memory)};
}

/* For all threads of the warp, with the first run of each. */
__device__ __forceinline__ void load_tile(const tiling &t, const tiled_tensor &tensor, const tile_place &p,
                                          const tile_run &first, uint64_t policy, const tile_arrival &arrival, char *tile)
{
    if (tensor.is_whole) {
        if (is_elected())
            load_run(first, policy, arrival, tile);
        return;
    }
    if (first.bytes)
        load_run(first, policy, arrival, tile);
    for (uint32_t i = threadIdx.x % 32 + 32; i < count_runs(t, tensor, p); i += 32) {
        const tile_run r = find_run(t, tensor, p, i);
        if (r.bytes)
            load_run(r, policy, arrival, tile);
    }
}

/* What threads of the warp have written to a tile comes before what the copy engine then does with it: stores it, or loads
 * another one there. For all of them. */
__device__ __forceinline__ void publish_tile()
{
    publish_shared();
    __syncwarp();
}

/* For all threads of the warp, each of which has written its part of the tile. */
__device__ __forceinline__ void store_tile(const tiling &t, const tiled_tensor &tensor, const tile_place &p,
                                           uint64_t policy, char *tile)
{
    publish_tile();
    if (tensor.is_whole) {
        if (is_elected())
            store_run(whole_run(t, tensor, p), policy, tile);
    } else {
        for (uint32_t i = threadIdx.x % 32; i < count_runs(t, tensor, p); i += 32) {
            const tile_run r = find_run(t, tensor, p, i);
            if (r.bytes)
                store_run(r, policy, tile);
        }
    }
}

/* Waits until tiles that were stored may be overwritten. */
__device__ __forceinline__ void await_stores()
{
    await_bulk_reads();
    __syncwarp();
}

/* ---- by vectors ---- */

#else

struct tile_arrival {
    enum { OF_ALL = 1 }; /* each waits for what it has asked for itself */

    __device__ __forceinline__ explicit tile_arrival(uint64_t *)
    {
    }

    __device__ __forceinline__ void prepare() const
    {
    }

    __device__ __forceinline__ void expect(uint32_t) const
    {
    }

    __device__ __forceinline__ void wait(uint32_t) const
    {
        await_vectors();
        __syncwarp();
    }
};

/* Calls copy(offset in the tile, address in memory) for this thread's vectors of a tile. */
template <class COPY>
__device__ __forceinline__ void for_vectors(const tiling &t, const tiled_tensor &tensor, const tile_place &p, COPY copy)
{
    const uint32_t thread = threadIdx.x % 32, first_head = t.vectors.divide(thread), heads = t.vectors.divide(32);
    const uint32_t first = (thread - first_head * t.vectors.divisor) * 16;
    for (uint32_t row = 0; row < p.rows; row++) {
        for (uint32_t head = first_head < heads ? first_head : p.heads; head < p.heads; head += heads) {
            char *const memory = address_of(t, tensor, p.outer, p.row + row, p.head + head);
            for (uint32_t at = first; at < t.pitch; at += 32 * 16)
                copy(row * t.row_pitch + head * t.head_pitch + at, memory + at);
        }
    }
}

__device__ __forceinline__ tile_run first_run(const tiling &, const tiled_tensor &, const tile_place &)
{
    return {0, 0, NULL};
}

__device__ __forceinline__ void load_tile(const tiling &t, const tiled_tensor &tensor, const tile_place &p,
                                          const tile_run &, uint64_t, const tile_arrival &, char *tile)
{
    const shared_pointer to = shared_address(tile);
    for_vectors(t, tensor, p, [=](uint32_t at, const char *from) { copy_vector_later(to + at, from); });
}

__device__ __forceinline__ void publish_tile()
{
    __syncwarp();
}

__device__ __forceinline__ void store_tile(const tiling &t, const tiled_tensor &tensor, const tile_place &p, uint64_t,
                                           char *tile)
{
    publish_tile();
    for_vectors(t, tensor, p, [=](uint32_t at, char *to) { __stcs((uint4 *)to, *(const uint4 *)(tile + at)); });
}

__device__ __forceinline__ void await_stores()
{
    __syncwarp();
}

#endif

#endif
