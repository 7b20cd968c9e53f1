/* The gradient of the angles on CUDA, for heads that are made of 16-byte vectors. A warp has a part of a unit, or the units
 * of a group one after another. The heads of a unit come in tiles, of dy and of x, of which the next are on their way while
 * one is turned into dx and its products are added. A thread has the same pairs in every head, two that follow each other
 * or some more, so that coefficients and sums are registers; if a head has fewer pairs than a warp, threads that have the
 * same ones have every so many heads. */
#ifndef TROPE_BWD_GRADIENT_TILES_CUDA_CUH
#define TROPE_BWD_GRADIENT_TILES_CUDA_CUH

#include "bwd/gradient_call_cuda.cuh"
#include "core/rows_cuda.cuh"
#include "core/tiles_cuda.cuh"

#define GRADIENT_WARPS  4 /* of a block; a divisor is how many parts a unit has */
#define GRADIENT_STAGES 2 /* of a warp, at most */

struct gradient_operand {
    tiled_tensor dy, x, dx; /* a row is a batch entry (outer) and a token (inner) */
    tiling tiles, x_tiles;  /* of one row; those of x have only what is rotated */
    uint32_t rotates, writes;
    uint32_t window; /* bytes from where a head of dy starts in its tile to its rotary window */
};

/* A step is a tile of dy, with that of x if its operand rotates. Such operands are first, and their steps the first of a
 * unit. */
struct tiled_gradient {
    gradient_call g;
    uint32_t first_of_entry[TROPE_MAX_OPERANDS]; /* the first step of an operand in a batch entry; UINT32_MAX: no operand */
    uint32_t rotating;                           /* how many steps of a unit have one that rotates */
    fast_divisor rotating_of_entry, others_of_entry;
    fast_divisor steps_of_unit, parts;
    fast_divisor threads_of_head;
    uint32_t stages, x_at, stage_bytes, warp_bytes;
    gradient_operand operands[TROPE_MAX_OPERANDS];
};

/* ---- steps ---- */

struct gradient_step {
    uint32_t unit; /* of the group */
    uint32_t operand;
    uint32_t batch, token, head; /* the first one */
    uint32_t heads;              /* 0: a batch entry that is not there */
    uint32_t is_first, is_last;  /* of the unit, for this warp */

    __device__ __forceinline__ tile_place place() const
    {
        return {batch, token, head, 1, heads};
    }
};

/* SINGLE: the only operand, whose parameters have an address that the compiler knows. */
template <bool SINGLE>
__device__ __forceinline__ const gradient_operand &operand_of(const tiled_gradient &t, uint32_t number)
{
    return t.operands[SINGLE ? 0 : number];
}

/* Step `number` of those that a warp has. */
template <bool SINGLE>
__device__ __forceinline__ gradient_step find_step(const tiled_gradient &t, uint32_t first_unit, uint32_t part,
                                                   uint32_t number)
{
    const uint32_t of_group = number * t.g.parts + part;
    gradient_step s;
    s.unit = t.steps_of_unit.divide(of_group);
    const uint32_t in_unit = of_group - s.unit * t.steps_of_unit.divisor;
    const bool rotates = in_unit < t.rotating;
    const fast_divisor &of_entry = rotates ? t.rotating_of_entry : t.others_of_entry;
    const uint32_t of_kind = rotates ? in_unit : in_unit - t.rotating, entry = of_entry.divide(of_kind);
    const uint32_t in_entry = of_kind - entry * of_entry.divisor + (rotates ? 0 : t.rotating_of_entry.divisor);
    s.is_first = in_unit < t.g.parts;
    s.is_last = in_unit + t.g.parts >= t.steps_of_unit.divisor;
    s.operand = SINGLE ? 0 : operand_of_block(t.first_of_entry, in_entry);
    const tiling &tiles = operand_of<SINGLE>(t, s.operand).tiles;
    trope_row row;
    locate_unit(t.g, first_unit + s.unit, &row);
    s.batch = (uint32_t)row.batch * t.g.batch_per_unit + entry;
    s.token = (uint32_t)row.token;
    s.head = (in_entry - (SINGLE ? 0 : t.first_of_entry[s.operand])) * tiles.heads;
    s.heads = s.batch < t.g.batch ? min(tiles.heads, tiles.all_heads - s.head) : 0;
    return s;
}

/* What a warp has of a step that is on its way. */
struct gradient_stage {
    gradient_step step;
    uint64_t barrier;
};

/* Asks for the tiles of a step, and leaves a note of what it is. */
template <bool SINGLE>
__device__ __forceinline__ void load_step(const tiled_gradient &t, const gradient_step &s, gradient_stage *note,
                                          char *stage)
{
    const gradient_operand &o = operand_of<SINGLE>(t, s.operand);
    const tile_arrival arrival(&note->barrier);
    if (threadIdx.x % 32 == 0)
        note->step = s;
    arrival.expect(s.heads * (o.tiles.pitch + (o.rotates ? o.x_tiles.pitch : 0)));
    if (s.heads == 0)
        return;
    load_tile(o.tiles, o.dy, s.place(), arrival, stage);
    if (o.rotates)
        load_tile(o.x_tiles, o.x, s.place(), arrival, stage + t.x_at);
}

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
            return {from[0], from[1]};
    }
};

/* Where two pairs are in a head: bytes to the first elements of both and to the second ones, or if interleaved to either
 * pair.
 */
struct twin_place {
    uint32_t at[2];
    uint32_t interleaved;

    twin_place() = default;
    __device__ __forceinline__ twin_place(const cuda_plan &plan, int32_t is_interleaved, uint32_t pair)
    {
        const uint32_t bytes = (uint32_t)plan.plan.element_size, window = (uint32_t)plan.window_pairs;
        uint32_t skipped = 0;
        for (int w = 1; w < plan.plan.windows; w++)
            skipped += pair >= w * window ? window : 0;
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

template <int DTYPE, int ANGLES, bool OWN, int TWINS> struct unit_share {
    typedef typename elements<DTYPE>::real real;

    uint32_t thread, slot, together; /* in the head; of the unit; a bit for each thread that has the same head */
    twin_place dy_at[TWINS], x_at[TWINS], dx_at[TWINS];
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
        for (int w = 0; w < TWINS; w++) {
            const trope_plan &plan = t.g.plan.plan;
            const uint32_t p = has(t, w) ? pair(t, w) : 0; /* who has a twin less than others has its first one again */
            dy_at[w] = twin_place(t.g.plan, plan.interleaved_src, p);
            x_at[w] = twin_place(t.g.plan, plan.interleaved_input, p);
            dx_at[w] = twin_place(t.g.plan, plan.interleaved_dst, p);
            group[w][0] = group[w][1] = 0;
        }
    }

    __device__ __forceinline__ uint32_t pair(const tiled_gradient &t, int w) const
    {
        return 2 * (thread + w * t.threads_of_head.divisor);
    }

    __device__ __forceinline__ bool has(const tiled_gradient &t, int w) const
    {
        return slot < t.g.slots && pair(t, w) < (uint32_t)t.g.plan.plan.pairs;
    }

    /* Asks for the angles of a unit, some time before it begins. */
    __device__ __forceinline__ void prepare(const tiled_gradient &t, const uint64_t *steps, const trope_row &row)
    {
#pragma unroll
        for (int w = 0; w < TWINS; w++) {
            const int p = (int)(has(t, w) ? pair(t, w) : 0);
            if (row.action == TROPE_ROW_ROTATE)
                angles[w] = load_angles<ANGLES, false, real, 2>(t.g.plan, row, p, {steps, p});
        }
    }

    __device__ __forceinline__ void begin(const tiled_gradient &t, const trope_row &row)
    {
#pragma unroll
        for (int w = 0; w < TWINS; w++) {
            sums[w][0].clear();
            sums[w][1].clear();
            if (row.action == TROPE_ROW_ROTATE)
                find_turns<ANGLES, real, 2>(t.g.plan, row, (int)(has(t, w) ? pair(t, w) : 0), angles[w], &turns[w]);
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

    /* One head: dx, and the products. */
    template <bool NATIVE>
    __device__ __forceinline__ void walk_head(const tiled_gradient &t, bool rearranges, bool writes, char *dy_window,
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
            if (writes && has(t, w))
                dx[w].store(dy_window, dx_at[w]);
    }

    /* COUNT heads whose pairs are halves everywhere, which takes a quarter fewer instructions: what a thread has of a head
     * are two words of dy, in whose place those of dx go, and two of x. All are read before any is written. */
    template <int COUNT>
    __device__ __forceinline__ void walk_halves(const tiled_gradient &t, bool writes, uint32_t dy_step, uint32_t x_step,
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
            if (writes) {
                dx.store_half(0, dy_words[0] + i * dy_step);
                dx.store_half(1, dy_words[1] + i * dy_step);
            }
        }
    }

    __device__ __forceinline__ void walk_halves(const tiled_gradient &t, bool writes, uint32_t head, uint32_t end,
                                                char *dy_window, const char *x_window, uint32_t dy_step, uint32_t x_step)
    {
        char *dy[2] = {dy_window + dy_at[0].at[0], dy_window + dy_at[0].at[1]};
        const char *x[2] = {x_window + x_at[0].at[0], x_window + x_at[0].at[1]};
        const uint32_t slots = t.g.slots;
        for (; head + slots < end; head += 2 * slots) {
            walk_halves<2>(t, writes, dy_step, x_step, dy, x);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                dy[half] += 2 * dy_step;
                x[half] += 2 * x_step;
            }
        }
        if (head < end)
            walk_halves<1>(t, writes, dy_step, x_step, dy, x);
    }

    /* The heads of a step. */
    template <bool SINGLE, bool NATIVE>
    __device__ __forceinline__ void walk(const tiled_gradient &t, const gradient_step &s, char *stage)
    {
        const trope_plan &plan = t.g.plan.plan;
        const gradient_operand &o = operand_of<SINGLE>(t, s.operand);
        const bool rearranges = plan.interleaved_src != plan.interleaved_dst, writes = o.writes;
        const uint32_t slots = t.g.slots, dy_step = slots * o.tiles.pitch, x_step = slots * o.x_tiles.pitch;
        const uint32_t first = (slot - s.head) & (slots - 1), end = slot < slots ? s.heads : 0;
        char *dy_window = stage + o.window + first * o.tiles.pitch;
        const char *x_window = stage + t.x_at + first * o.x_tiles.pitch;
        if constexpr (TWINS == 1 && ANGLES != ANGLES_ANY) {
            if (!(plan.interleaved_src | plan.interleaved_dst | plan.interleaved_input)) {
                walk_halves(t, writes, first, end, dy_window, x_window, dy_step, x_step);
                return;
            }
        }
#pragma unroll 1
        for (uint32_t head = first; head < end; head += slots) {
            walk_head<NATIVE>(t, rearranges, writes, dy_window, x_window);
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

    /* Adds the parts of the unit, each of which leaves its sums where its tiles were. For all threads of the block; part 0
     * has the result. */
    __device__ __forceinline__ void add_parts(const tiled_gradient &t, uint32_t part, char *memory)
    {
        enum { COUNT = TWINS * 2 };
        pair_sums<OWN> *const left = (pair_sums<OWN> *)memory + thread * COUNT;
        if (part > 0 && slot == 0) {
#pragma unroll
            for (int i = 0; i < COUNT; i++)
                left[i] = sums[i / 2][i % 2];
        }
        __syncthreads();
        for (uint32_t other = 1; part == 0 && slot == 0 && other < t.g.parts; other++) {
            const pair_sums<OWN> *const from = (const pair_sums<OWN> *)(memory + other * t.warp_bytes) + thread * COUNT;
#pragma unroll
            for (int i = 0; i < COUNT; i++)
                sums[i / 2][i % 2].add_from(from[i]);
        }
    }

    __device__ __forceinline__ void emit(const tiled_gradient &t, const trope_row &row)
    {
        if (slot > 0 || row.action != TROPE_ROW_ROTATE)
            return;
#pragma unroll
        for (int w = 0; w < TWINS; w++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const turns_of<real, 2> &c = turns[w];
                if (has(t, w))
                    emit_pair<OWN>(t.g, row, pair(t, w) + e, sums[w][e], c.c1[e], c.s1[e], c.c2[e], c.s2[e], &group[w][e]);
            }
        }
    }

    __device__ __forceinline__ void end_group(const tiled_gradient &t, uint32_t number) const
    {
#pragma unroll
        for (int w = 0; w < TWINS; w++)
            for (int e = 0; e < 2; e++)
                if (slot == 0 && has(t, w))
                    t.g.sums[(int64_t)number * t.g.plan.plan.pairs + pair(t, w) + e] = group[w][e];
    }
};

/* ---- the kernel ---- */

/* The rows of a warp's units, one a thread. */
__device__ __forceinline__ void find_unit_rows(const tiled_gradient &t, uint32_t first_unit, uint32_t count, uint32_t part,
                                               trope_row *rows)
{
    const trope_plan &plan = t.g.plan.plan;
    const uint32_t lane = threadIdx.x % 32;
    trope_row row;
    locate_unit(t.g, first_unit + min(lane, count - 1), &row);
    if (plan.position_is_token) {
        row.position[0] = row.token;
        row.action = TROPE_ROW_ROTATE;
        row.poisoned = 0;
        if (lane < count)
            rows[lane] = row;
    } else {
        find_row(plan, &row);
        if (lane < count)
            rows[lane] = row;
    }
    if (lane < count && part == 0 && t.g.mode == GRADIENT_SORTED)
        emit_keys(t.g, rows[lane]);
    __syncwarp();
}

/* The steps that a warp has: all of a group's, or one part of a unit's. Of a unit with several parts the sums are left in
 * `share`, others are emitted. */
template <int DTYPE, int ANGLES, bool OWN, int TWINS, bool SINGLE>
__device__ __forceinline__ void walk_steps(const tiled_gradient &t, const uint64_t *angle_steps, uint32_t first_unit,
                                           uint32_t units, uint32_t part, char *memory, const trope_row *rows,
                                           gradient_stage *notes, unit_share<DTYPE, ANGLES, OWN, TWINS> *share)
{
    const uint32_t all = units * t.steps_of_unit.divisor,
                   steps = all > part ? t.parts.divide(all - part + t.g.parts - 1) : 0;
    const bool native = ANGLES == ANGLES_ANY && t.g.native;
    uint32_t at = 0, parity = 0;
    if (steps > 0)
        share->prepare(t, angle_steps, rows[0]);
    for (uint32_t i = 0; i < steps; i++) {
        const gradient_step s = notes[at].step;
        const gradient_operand &o = operand_of<SINGLE>(t, s.operand);
        const trope_row &row = rows[s.unit];
        char *const stage = memory + at * t.stage_bytes;
        if (s.is_first) {
            share->begin(t, row);
            if (s.unit + 1 < units)
                share->prepare(t, angle_steps, rows[s.unit + 1]);
        }
        tile_arrival(&notes[at].barrier).wait(parity);
        if (row.action == TROPE_ROW_ZERO)
            clear_bytes(stage, s.heads * o.tiles.pitch);
        else if (row.action == TROPE_ROW_ROTATE && o.rotates)
            native ? share->template walk<SINGLE, true>(t, s, stage) : share->template walk<SINGLE, false>(t, s, stage);
        if (o.writes && s.heads)
            store_tile(o.tiles, o.dx, s.place(), stage);
        await_stores();
        if (i + t.stages < steps)
            load_step<SINGLE>(t, find_step<SINGLE>(t, first_unit, part, i + t.stages), &notes[at], stage);
        if (s.is_last && t.g.parts == 1) {
            share->add_slots(t);
            share->emit(t, row);
        }
        parity ^= at == t.stages - 1;
        at = at == t.stages - 1 ? 0 : at + 1;
    }
}

/* OWN: the elements of a pair have an angle each. TWINS: how often a thread has two pairs, at most. */
template <int DTYPE, int ANGLES, bool OWN, int TWINS, bool SINGLE>
__global__ void __launch_bounds__(GRADIENT_WARPS * 32, TWINS == 1 ? 5 : 3)
    gradient_tiles_kernel(const __grid_constant__ tiled_gradient t, const __grid_constant__ cuda_steps<ANGLES> angle_steps)
{
    extern __shared__ __align__(16) char shared[];
    __shared__ gradient_stage all_notes[GRADIENT_WARPS][GRADIENT_STAGES];
    const uint32_t warp = threadIdx.x / 32, in_block = t.parts.divide(warp), part = warp - in_block * t.g.parts;
    const uint32_t number = blockIdx.x * t.parts.divide(GRADIENT_WARPS) + in_block, first_unit = number * t.g.group_units;
    const bool present = (uint64_t)number * t.g.group_units < t.g.units;
    const uint32_t units = present ? min(t.g.group_units, t.g.units - first_unit) : 0;
    const uint32_t all = units * t.steps_of_unit.divisor;
    char *const memory = shared + warp * t.warp_bytes;
    trope_row *const rows = (trope_row *)(memory + t.stages * t.stage_bytes);
    gradient_stage *const notes = all_notes[warp];
    for (uint32_t i = 0; i < t.stages; i++)
        tile_arrival(&notes[i].barrier).prepare();
    await_previous();
    for (uint32_t i = 0; i < t.stages && i * t.g.parts + part < all; i++)
        load_step<SINGLE>(t, find_step<SINGLE>(t, first_unit, part, i), &notes[i], memory + i * t.stage_bytes);
    if (present)
        find_unit_rows(t, first_unit, units, part, rows);
    unit_share<DTYPE, ANGLES, OWN, TWINS> share(t);
    walk_steps<DTYPE, ANGLES, OWN, TWINS, SINGLE>(t, angle_steps.of, first_unit, units, part, memory, rows, notes, &share);
    if (t.g.parts > 1) {
        share.add_slots(t);
        share.add_parts(t, part, memory);
        if (present && part == 0)
            share.emit(t, rows[0]);
    }
    if (present && part == 0 && t.g.mode == GRADIENT_FREQUENCIES)
        share.end_group(t, number);
    if (t.g.plan.plan.sequences.boundaries)
        check_sequences(t.g.plan.plan);
}

#endif
