/* The gradient of the angles on CUDA, for heads that are made of 16-byte vectors. A warp has one part of a unit, or all of
 * the units of a group. It asks for a tile of dy and one of x, finds its row and sines while they are on their way, turns
 * one into dx and adds their products; warps enough for that to be hidden do the rest. A thread has the same pairs in every
 * head, two that follow each other or some more, so that coefficients and sums are registers; if a head has fewer pairs
 * than a warp, threads that have the same ones have every so many heads. */
#ifndef TROPE_BWD_CUDA_GRADIENT_TILES_CUH
#define TROPE_BWD_CUDA_GRADIENT_TILES_CUH

#include "bwd/cuda/gradient_call.cuh"
#include "fwd/cuda/rows.cuh"
#include "fwd/cuda/tiles.cuh"

/* Warps of a block at most, which has as many as a unit has parts. Four blocks of seven have 72 registers a thread. */
#define GRADIENT_WARPS 7

struct gradient_operand {
    tiled_tensor dy, x, dx; /* a row is a batch entry (outer) and a token (inner) */
    tiling tiles, x_tiles;  /* those of x have only what is rotated */
    uint32_t rotates, writes;
    uint32_t is_whole; /* each tile, of dy and of x, is contiguous */
    uint32_t window;   /* bytes from where a head of dy starts in its tile to its rotary window */
};

/* A step is a tile of dy, with that of x if its operand rotates. Such operands are first, and their steps the first of a
 * unit. */
struct tiled_gradient {
    gradient_call g;
    uint32_t first_of_entry[MAX_CUDA_OPERANDS]; /* the first step of an operand in a batch entry; UINT32_MAX: no operand */
    uint32_t rotating;                          /* how many steps of a unit have one that rotates */
    uint32_t steps;
    uint32_t is_simple; /* one operand, one batch entry: the steps are along the heads */
    fast_divisor rotating_of_entry, others_of_entry;
    fast_divisor threads_of_head;
    uint32_t x_at, rows_at, warp_bytes;
    gradient_operand operands[MAX_CUDA_OPERANDS];
};

/* ---- steps ---- */

struct gradient_step {
    uint32_t operand;
    tile_place place; /* no heads: of a batch entry that is not there */
};

__device__ __forceinline__ gradient_step find_step(const tiled_gradient &t, const unit_group &group, uint32_t number)
{
    if (t.is_simple) {
        const tiling &tiles = t.operands[0].tiles;
        const uint32_t head = number * tiles.heads;
        return {0, {group.batch, group.token, head, group.units, min(tiles.heads, tiles.all_heads - head)}};
    }
    const bool rotates = number < t.rotating;
    const fast_divisor &of_entry = rotates ? t.rotating_of_entry : t.others_of_entry;
    const uint32_t of_kind = rotates ? number : number - t.rotating, entry = of_entry.divide(of_kind);
    const uint32_t in_entry = of_kind - entry * of_entry.divisor + (rotates ? 0 : t.rotating_of_entry.divisor);
    gradient_step s;
    s.operand = operand_of_block(t.first_of_entry, in_entry);
    const tiling &tiles = t.operands[s.operand].tiles;
    s.place.outer = group.batch * t.g.batch_per_unit + entry;
    s.place.row = group.token;
    s.place.head = (in_entry - t.first_of_entry[s.operand]) * tiles.heads;
    s.place.rows = group.units;
    s.place.heads = s.place.outer < t.g.batch ? min(tiles.heads, tiles.all_heads - s.place.head) : 0;
    return s;
}

/* What a thread asks for first of a step. */
struct step_runs {
    tile_run dy, x;
};

__device__ __forceinline__ step_runs first_runs(const tiled_gradient &t, const gradient_step &s)
{
    const gradient_operand &o = t.operands[s.operand];
    return {first_run(o.tiles, o.dy, s.place), first_run(o.x_tiles, o.x, s.place)};
}

__device__ __forceinline__ void load_step(const tiled_gradient &t, const gradient_step &s, const step_runs &first,
                                          const tile_arrival &arrival, char *memory)
{
    const gradient_operand &o = t.operands[s.operand];
    if (s.place.heads == 0)
        return;
    const uint32_t bytes = s.place.rows * s.place.heads * (o.tiles.pitch + (o.rotates ? o.x_tiles.pitch : 0));
#if TROPE_BULK_COPIES
    if (o.is_whole) {
        if (is_elected()) {
            arrival.announce(bytes);
            load_run(first.dy, evict_first(), arrival, memory);
            if (o.rotates)
                load_run(first.x, evict_first(), arrival, memory + t.x_at);
        }
        return;
    }
#endif
    arrival.expect(bytes);
    load_tile(o.tiles, o.dy, s.place, first.dy, evict_first(), arrival, memory);
    if (o.rotates)
        load_tile(o.x_tiles, o.x, s.place, first.x, evict_first(), arrival, memory + t.x_at);
}

/* ---- rows ---- */

enum gradient_rows { ROWS_ANY, ROWS_PACKED, ROWS_PLAIN };

/* The rows of a group: what of them is in memory is asked for, they are found, and at the end the sequences of the call are
 * checked. If positions are the tokens there is nothing to be found. ONE: a group has one unit. */
template <int ANGLES, int ROWS> struct group_rows {
    enum { ONE = 1 };
    unit_group group;

    __device__ __forceinline__ group_rows(const tiled_gradient &, const unit_group &of, char *) : group(of)
    {
    }

    __device__ __forceinline__ void ask(const tiled_gradient &)
    {
    }

    __device__ __forceinline__ void find(const tiled_gradient &, uint32_t)
    {
    }

    __device__ __forceinline__ trope_row at(uint32_t) const
    {
        return row_of_plain(group.batch, group.token);
    }

    __device__ __forceinline__ void finish(const tiled_gradient &)
    {
    }
};

/* That of a packed call. */
template <int ANGLES> struct group_rows<ANGLES, ROWS_PACKED> {
    enum { ONE = 1 };
    unit_group group;
    packed_probes probes;
    packed_check check;
    packed_row mine;

    __device__ __forceinline__ group_rows(const tiled_gradient &t, const unit_group &of, char *) : group(of)
    {
        probes.locate(t.g.plan.plan.sequences);
        check.prepare(t.g.plan.plan.sequences);
        probes.bring_all();
    }

    __device__ __forceinline__ void ask(const tiled_gradient &t)
    {
        probes.ask_all();
        probes.ask_near(t.g.plan.plan.sequences, group.token);
    }

    __device__ __forceinline__ void find(const tiled_gradient &t, uint32_t part)
    {
        mine = find_packed_row<HAS_TABLE<ANGLES>>(t.g.plan.plan, probes, (int32_t)group.token);
        if (part == 0 && t.g.mode == GRADIENT_SORTED && threadIdx.x % 32 == 0)
            emit_keys(t.g, at(0));
    }

    __device__ __forceinline__ trope_row at(uint32_t) const
    {
        return row_of_packed(group.batch, group.token, mine);
    }

    __device__ __forceinline__ void finish(const tiled_gradient &t)
    {
        check.ask(t.g.plan.plan.sequences);
        check.finish(t.g.plan.plan);
    }
};

/* Any others, one a thread, in shared memory. */
template <int ANGLES> struct group_rows<ANGLES, ROWS_ANY> {
    enum { ONE = 0 };
    unit_group group;
    trope_row *rows;

    __device__ __forceinline__ group_rows(const tiled_gradient &t, const unit_group &of, char *memory)
        : group(of), rows((trope_row *)(memory + t.rows_at))
    {
    }

    __device__ __forceinline__ void ask(const tiled_gradient &)
    {
    }

    __device__ __forceinline__ void find(const tiled_gradient &t, uint32_t part)
    {
        const uint32_t lane = threadIdx.x % 32;
        trope_row row;
        row.batch = group.batch;
        row.token = group.token + min(lane, group.units - 1);
        find_row(t.g.plan.plan, &row);
        if (lane < group.units) {
            rows[lane] = row;
            if (part == 0 && t.g.mode == GRADIENT_SORTED)
                emit_keys(t.g, row);
        }
        __syncwarp();
    }

    __device__ __forceinline__ const trope_row &at(uint32_t unit) const
    {
        return rows[unit];
    }

    __device__ __forceinline__ void finish(const tiled_gradient &t)
    {
        if (t.g.plan.plan.sequences.boundaries)
            check_sequences(t.g.plan.plan);
    }
};

/* ---- two pairs ---- */

/* Two elements that are neighbours in memory. */
template <int DTYPE> struct element_twin {
    typedef typename elements<DTYPE>::real real;
    typedef std::conditional_t<DTYPE == TROPE_F64, double2, std::conditional_t<DTYPE == TROPE_F32, float2, uint32_t>> type;

    static __device__ __forceinline__ void unpack(type from, real *to)
    {
        if constexpr (sizeof(type) == 4) {
            to[0] = to_real<DTYPE>((uint16_t)from);
            to[1] = to_real<DTYPE>((uint16_t)(from >> 16));
        } else {
            to[0] = from.x;
            to[1] = from.y;
        }
    }

    static __device__ __forceinline__ type pack(const real *from)
    {
        if constexpr (sizeof(type) == 4)
            return pack_elements<DTYPE>(from[0], from[1]);
        else
            return {from_real<DTYPE>(from[0]), from_real<DTYPE>(from[1])};
    }
};

/* Where two pairs are in a head: bytes to the first elements of both and to the second ones, or if interleaved to each
 * pair. */
struct twin_place {
    uint32_t at[2];
    uint32_t interleaved;

    twin_place() = default;
    __device__ __forceinline__ twin_place(const cuda_plan &plan, int32_t is_interleaved, uint32_t pair)
    {
        const uint32_t bytes = (uint32_t)plan.plan.element_size, window = (uint32_t)plan.part_pairs;
        const uint32_t skipped = (uint32_t)pairs_before(plan.part_pairs, (int)pair);
        interleaved = is_interleaved;
        at[0] = (interleaved ? 2 * pair : pair + skipped) * bytes;
        at[1] = at[0] + (interleaved ? 2 : window) * bytes;
    }
};

template <int DTYPE> struct twin_pairs {
    typedef typename elements<DTYPE>::real real;
    typedef element_twin<DTYPE> twin;

    real of[2][2]; /* first elements, second elements */

    __device__ __forceinline__ void transpose()
    {
        const real swap = of[0][1];
        of[0][1] = of[1][0];
        of[1][0] = swap;
    }

    __device__ __forceinline__ void load_half(int half, const char *from)
    {
        twin::unpack(*(const typename twin::type *)from, of[half]);
    }

    __device__ __forceinline__ void store_half(int half, char *to) const
    {
        *(typename twin::type *)to = twin::pack(of[half]);
    }

    __device__ __forceinline__ void load(const char *window, const twin_place &p)
    {
        load_half(0, window + p.at[0]);
        load_half(1, window + p.at[1]);
        if (p.interleaved)
            transpose();
    }

    __device__ __forceinline__ void store(char *window, const twin_place &p)
    {
        if (p.interleaved)
            transpose();
        store_half(0, window + p.at[0]);
        store_half(1, window + p.at[1]);
    }
};

/* ---- a thread's share of a unit ---- */

template <int DTYPE, int ANGLES, int ROWS, bool OWN, int TWINS> struct unit_share {
    typedef typename elements<DTYPE>::real real;

    uint32_t thread, slot, together;  /* in the head; of the unit; a bit for each thread that has the same head */
    angles_of<real, 2> angles[TWINS]; /* of the unit that is next */
    turns_of<real, 2> turns[TWINS];
    pair_sums<OWN> sums[TWINS][2];
    double group[TWINS][2];

    __device__ __forceinline__ explicit unit_share(const tiled_gradient &t)
    {
        const uint32_t lane = threadIdx.x % 32, threads = t.threads_of_head.divisor;
        slot = t.threads_of_head.divide(lane);
        thread = lane - slot * threads;
        together = (threads < 32 ? (1u << threads) - 1 : UINT32_MAX) << slot * threads % 32;
#pragma unroll
        for (int w = 0; w < TWINS; w++)
            group[w][0] = group[w][1] = 0;
    }

    __device__ __forceinline__ uint32_t pair(const tiled_gradient &t, int w) const
    {
        return 2 * (thread + w * t.threads_of_head.divisor);
    }

    __device__ __forceinline__ bool has(const tiled_gradient &t, int w) const
    {
        return slot < t.g.slots && pair(t, w) < (uint32_t)t.g.plan.plan.pairs;
    }

    /* Who has a twin less than others has its first one again. */
    __device__ __forceinline__ uint32_t some_pair(const tiled_gradient &t, int w) const
    {
        return has(t, w) ? pair(t, w) : 0;
    }

    /* Asks for the angles of a unit, some time before it begins. */
    __device__ __forceinline__ void prepare(const tiled_gradient &t, const uint64_t *steps, const trope_row &row)
    {
#pragma unroll
        for (int w = 0; w < TWINS; w++) {
            const int p = (int)some_pair(t, w);
            if (row.action == TROPE_ROW_ROTATE)
                angles[w] = load_angles<ANGLES, ROWS != ROWS_ANY, real, 2>(t.g.plan, row, p, {steps, p});
        }
    }

    __device__ __forceinline__ void begin(const tiled_gradient &t, const trope_row &row)
    {
#pragma unroll
        for (int w = 0; w < TWINS; w++) {
            sums[w][0].clear();
            sums[w][1].clear();
            if (row.action == TROPE_ROW_ROTATE)
                find_turns<ANGLES, ROWS != ROWS_ANY, real, 2>(t.g.plan, row, (int)some_pair(t, w), angles[w], &turns[w]);
        }
    }

    template <bool NATIVE>
    __device__ __forceinline__ void turn(const tiled_gradient &t, int w, const twin_pairs<DTYPE> &dy,
                                         twin_pairs<DTYPE> *dx) const
    {
        const trope_plan &plan = t.g.plan.plan;
        const turns_of<real, 2> &c = turns[w];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            typename pair_types<DTYPE>::turn by = {c.c1[e], c.s1[e], OWN ? c.c2[e] : c.c1[e], OWN ? c.s2[e] : c.s1[e]};
            if (NATIVE)
                by = {round_native(plan, by.c1), round_native(plan, by.s1), round_native(plan, by.c2),
                      round_native(plan, by.s2)};
            const typename pair_types<DTYPE>::pair turned = rotate_pair<DTYPE, NATIVE>({dy.of[0][e], dy.of[1][e]}, by);
            dx->of[0][e] = turned.first;
            dx->of[1][e] = turned.second;
        }
    }

    /* One head: dx in the place of dy, whether or not it is wanted, and the products. */
    template <bool NATIVE>
    __device__ __forceinline__ void walk_head(const tiled_gradient &t, const twin_place *dy_at, const twin_place *x_at,
                                              const twin_place *dx_at, bool rearranges, char *dy_window,
                                              const char *x_window)
    {
        twin_pairs<DTYPE> dx[TWINS];
#pragma unroll
        for (int w = 0; w < TWINS; w++) {
            twin_pairs<DTYPE> dy, x;
            dy.load(dy_window, dy_at[w]);
            x.load(x_window, x_at[w]);
#pragma unroll
            for (int e = 0; e < 2; e++)
                sums[w][e].add((double)dy.of[0][e], (double)dy.of[1][e], (double)x.of[0][e], (double)x.of[1][e]);
            turn<NATIVE>(t, w, dy, &dx[w]);
        }
        if (rearranges)
            __syncwarp(together);
#pragma unroll
        for (int w = 0; w < TWINS; w++)
            if (has(t, w))
                dx[w].store(dy_window, dx_at[w]);
    }

    /* COUNT heads whose pairs are halves everywhere, which takes a quarter fewer instructions: what a thread has of a head
     * are two words of dy, in whose place those of dx go, and two of x. All are read before any is written. */
    template <int COUNT>
    __device__ __forceinline__ void walk_halves(const tiled_gradient &t, uint32_t dy_step, uint32_t x_step,
                                                char *const *dy_words, const char *const *x_words)
    {
        twin_pairs<DTYPE> dy[COUNT], x[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                dy[i].load_half(half, dy_words[half] + i * dy_step);
                x[i].load_half(half, x_words[half] + i * x_step);
            }
        }
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            twin_pairs<DTYPE> dx;
#pragma unroll
            for (int e = 0; e < 2; e++)
                sums[0][e].add((double)dy[i].of[0][e], (double)dy[i].of[1][e], (double)x[i].of[0][e],
                               (double)x[i].of[1][e]);
            turn<false>(t, 0, dy[i], &dx);
            dx.store_half(0, dy_words[0] + i * dy_step);
            dx.store_half(1, dy_words[1] + i * dy_step);
        }
    }

    __device__ __forceinline__ void walk_halves(const tiled_gradient &t, uint32_t head, uint32_t end, char *dy_window,
                                                const char *x_window, uint32_t dy_step, uint32_t x_step)
    {
        const twin_place at(t.g.plan, 0, some_pair(t, 0));
        char *dy[2] = {dy_window + at.at[0], dy_window + at.at[1]};
        const char *x[2] = {x_window + at.at[0], x_window + at.at[1]};
        const uint32_t slots = t.g.slots;
        for (; head + slots < end; head += 2 * slots) {
            walk_halves<2>(t, dy_step, x_step, dy, x);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                dy[half] += 2 * dy_step;
                x[half] += 2 * x_step;
            }
        }
        if (head < end)
            walk_halves<1>(t, dy_step, x_step, dy, x);
    }

    /* The heads of a step, in one row. */
    __device__ __forceinline__ void walk(const tiled_gradient &t, const gradient_step &s, char *dy_window,
                                         const char *x_window)
    {
        if (ANGLES == ANGLES_ANY && t.g.native)
            walk_heads<true>(t, s, dy_window, x_window);
        else
            walk_heads<false>(t, s, dy_window, x_window);
    }

    template <bool NATIVE>
    __device__ __forceinline__ void walk_heads(const tiled_gradient &t, const gradient_step &s, char *dy_window,
                                               const char *x_window)
    {
        const trope_plan &plan = t.g.plan.plan;
        const gradient_operand &o = t.operands[s.operand];
        const bool rearranges = plan.interleaved_src != plan.interleaved_dst;
        const uint32_t slots = t.g.slots, dy_step = slots * o.tiles.pitch, x_step = slots * o.x_tiles.pitch;
        const uint32_t first = (slot - s.place.head) & (slots - 1), end = slot < slots ? s.place.heads : 0;
        dy_window += o.window + first * o.tiles.pitch;
        x_window += first * o.x_tiles.pitch;
        if constexpr (TWINS == 1 && ANGLES != ANGLES_ANY) {
            if (!(plan.interleaved_src | plan.interleaved_dst | plan.interleaved_forward_src)) {
                walk_halves(t, first, end, dy_window, x_window, dy_step, x_step);
                return;
            }
        }
        twin_place dy_at[TWINS], x_at[TWINS], dx_at[TWINS];
#pragma unroll
        for (int w = 0; w < TWINS; w++) {
            dy_at[w] = twin_place(t.g.plan, plan.interleaved_src, some_pair(t, w));
            x_at[w] = twin_place(t.g.plan, plan.interleaved_forward_src, some_pair(t, w));
            dx_at[w] = twin_place(t.g.plan, plan.interleaved_dst, some_pair(t, w));
        }
#pragma unroll 1
        for (uint32_t head = first; head < end; head += slots) {
            walk_head<NATIVE>(t, dy_at, x_at, dx_at, rearranges, dy_window, x_window);
            dy_window += dy_step;
            x_window += x_step;
        }
    }

    /* Adds the slots by halves: slot 0 has the result. */
    __device__ __forceinline__ void add_slots(const tiled_gradient &t)
    {
        for (uint32_t half = t.g.slots / 2; half > 0; half /= 2) {
            const int other = (int)((slot + half) * t.threads_of_head.divisor + thread);
#pragma unroll
            for (int i = 0; i < TWINS * 2; i++)
                sums[i / 2][i % 2].add_from(sums[i / 2][i % 2].of_thread(other));
        }
    }

    /* Adds the parts of the unit, each of which leaves its sums where its tile of x was. For all threads of the block; part
     * 0 has the result. */
    __device__ __forceinline__ void add_parts(const tiled_gradient &t, uint32_t part, char *memory)
    {
        enum { COUNT = TWINS * 2 };
        pair_sums<OWN> *const left = (pair_sums<OWN> *)(memory + t.x_at) + thread * COUNT;
        __syncwarp();
        if (part > 0 && slot == 0) {
#pragma unroll
            for (int i = 0; i < COUNT; i++)
                left[i] = sums[i / 2][i % 2];
        }
        __syncthreads();
        for (uint32_t other = 1; part == 0 && slot == 0 && other < t.g.parts; other++) {
            const pair_sums<OWN> *const from = (const pair_sums<OWN> *)((const char *)left + other * t.warp_bytes);
#pragma unroll
            for (int i = 0; i < COUNT; i++)
                sums[i / 2][i % 2].add_from(from[i]);
        }
    }

    /* Two pairs that have one angle each: their columns are neighbours, in d_freqs if no other unit has these angles. */
    __device__ __forceinline__ void emit_twin(const tiled_gradient &t, const trope_row &row, int w) const
    {
        const trope_plan &plan = t.g.plan.plan;
        const turns_of<real, 2> &c = turns[w];
        double sum[2], none;
#pragma unroll
        for (int e = 0; e < 2; e++)
            sums[w][e].finish(c.c1[e], c.s1[e], c.c2[e], c.s2[e], &sum[e], &none);
        if (!has(t, w))
            return;
        if (t.g.mode == GRADIENT_DIRECT) {
            float *const to = (float *)plan.d_freqs + offset_of_angle_row(plan, row.batch, row.position[0]) + pair(t, w);
            __stcs(to, (float)turn_sum(plan, sum[0]));
            __stcs(to + 1, (float)turn_sum(plan, sum[1]));
        } else {
            double *const to = t.g.sums + (row.batch * plan.tokens + row.token) * plan.pairs + pair(t, w);
            __stcs((double2 *)to, leaves_zeros(t.g, row) ? make_double2(0, 0) : make_double2(sum[0], sum[1]));
        }
    }

    __device__ __forceinline__ void emit(const tiled_gradient &t, const trope_row &row)
    {
        if (slot > 0 || !leaves_sums(t.g, row))
            return;
#pragma unroll
        for (int w = 0; w < TWINS; w++) {
            if (ROWS != ROWS_ANY && !OWN && t.g.mode != GRADIENT_FREQUENCIES) {
                emit_twin(t, row, w);
                continue;
            }
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const turns_of<real, 2> &c = turns[w];
                const uint32_t p = pair(t, w) + e;
                const int64_t position = ROWS != ROWS_ANY ? row.position[0] : position_of_pair(t.g.plan, row, (int)p);
                if (has(t, w))
                    emit_pair<OWN>(t.g, row, position, p, sums[w][e], c.c1[e], c.s1[e], c.c2[e], c.s2[e], &group[w][e]);
            }
        }
    }

    __device__ __forceinline__ void end_group(const tiled_gradient &t, uint32_t number) const
    {
#pragma unroll
        for (int w = 0; w < TWINS; w++)
            for (int e = 0; e < 2; e++)
                if (slot == 0 && has(t, w))
                    __stcs(t.g.sums + (int64_t)number * t.g.plan.plan.pairs + pair(t, w) + e, group[w][e]);
    }
};

/* ---- the kernel ---- */

/* The steps of a unit that a warp has, from one that is on its way. Where a group has several units, each has one step, of
 * one tile that has come with the first of them. */
template <class SHARE, class ROWS>
__device__ __forceinline__ void walk_steps(const tiled_gradient &t, gradient_step s, uint32_t number,
                                           const tile_arrival &arrival, const ROWS &rows, uint32_t unit, char *memory,
                                           SHARE *share)
{
    for (uint32_t parity = 0;;) {
        if (s.place.heads) {
            const gradient_operand &o = t.operands[s.operand];
            char *const dy = memory + unit * o.tiles.row_pitch, *const x = memory + t.x_at + unit * o.x_tiles.row_pitch;
            const auto &row = rows.at(unit);
            if (unit == 0)
                arrival.wait(parity);
            parity ^= 1;
            if (row.action == TROPE_ROW_ZERO)
                clear_bytes(dy, s.place.heads * o.tiles.pitch);
            else if (row.action == TROPE_ROW_ROTATE && o.rotates)
                share->walk(t, s, dy, x);
            if (unit + 1 < s.place.rows)
                return;
            if (o.writes)
                store_tile(o.tiles, o.dx, s.place, evict_first(), memory);
            else
                publish_tile(); /* dx is in the tile all the same */
        }
        number += t.g.parts;
        if (number >= t.steps)
            return;
        await_stores();
        s = find_step(t, rows.group, number);
        load_step(t, s, first_runs(t, s), arrival, memory);
    }
}

/* OWN: the elements of a pair have an angle each. TWINS: how often a thread has two pairs, at most. */
template <int DTYPE, int ANGLES, int ROWS, bool OWN, int TWINS, int BLOCKS>
__global__ void __launch_bounds__(GRADIENT_WARPS * 32, BLOCKS)
    gradient_tiles_kernel(KERNEL_PARAMETER(tiled_gradient) t, KERNEL_PARAMETER(cuda_steps<ANGLES>) angle_steps)
{
    extern __shared__ __align__(16) char shared[];
    __shared__ uint64_t barriers[GRADIENT_WARPS];
    const uint32_t part = threadIdx.x / 32;
    const unit_group group = find_group(t.g, blockIdx.x);
    char *const memory = shared + part * t.warp_bytes;
    const tile_arrival arrival(&barriers[part]);
    unit_share<DTYPE, ANGLES, ROWS, OWN, TWINS> share(t);
    arrival.prepare();
    const gradient_step s = find_step(t, group, part);
    const step_runs first = first_runs(t, s);
    group_rows<ANGLES, ROWS> rows(t, group, memory);
    await_previous();
    rows.ask(t);
    load_step(t, s, first, arrival, memory);
    admit_next();
    rows.find(t, part);
    /* The angles of a unit are asked for before the one before it is walked. Where there are several there is one part. */
    constexpr bool ONE = group_rows<ANGLES, ROWS>::ONE;
    const uint32_t units = ONE ? 1 : group.units;
#pragma unroll(ONE ? 2 : 1)
    for (uint32_t next = 0; next <= units; next++) {
        if (next < units)
            share.prepare(t, angle_steps.of, rows.at(next));
        if (next > 0) {
            walk_steps(t, s, part, arrival, rows, next - 1, memory, &share);
            share.add_slots(t);
            if (t.g.parts > 1)
                share.add_parts(t, part, memory);
            if (part == 0)
                share.emit(t, rows.at(next - 1));
        }
        if (next < units)
            share.begin(t, rows.at(next));
    }
    if (part == 0 && t.g.mode == GRADIENT_FREQUENCIES)
        share.end_group(t, blockIdx.x);
    await_stores();
    rows.finish(t);
}

#endif
