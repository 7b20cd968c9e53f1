/* The CUDA kernel of the rotation. A thread has one lane of a head (two 16-byte vectors, or one pair), and a few heads of a
 * row, which all turn by the same angles: it starts its loads, works out the row's position and the cosines and sines of its
 * pairs while they are under way, rotates and stores. It shares nothing with other threads and waits for none. Direction,
 * layout, positions and angles are data in the plan; what is compiled in is the dtype, whether a lane is vectors or a pair,
 * and how many heads a thread has. */
#ifndef TROPE_CORE_ROTATE_CUDA_CUH
#define TROPE_CORE_ROTATE_CUDA_CUH

#include "core/angles_cuda.cuh"

/* One tensor of an operand: distances in bytes. */
struct cuda_tensor {
    char *base;
    int64_t batch, token, group, head, element;
};

/* How the lanes of an operand's heads are dealt out. Lanes are numbered through: rotating ones first, then those that pass
 * through. A thread has heads chunk, chunk + chunks, ... of one lane. */
struct cuda_operand {
    cuda_tensor src, dst;
    uint32_t first_block; /* UINT32_MAX where there is no operand */
    uint32_t rotating, lanes;
    uint32_t heads, chunks;
    uint32_t columns;     /* of a row: lanes times chunks, and maybe some that are empty */
    uint32_t slice_rows;  /* rows of a y of the grid, so that 32 bits number the threads of each */
    fast_divisor nearest; /* columns, or with ORDER_ROWS slice_rows */
    fast_divisor columns_per_outer; /* lanes of a chunk, or chunks of a lane where heads are nearer than elements */
    fast_divisor heads_per_group;
    uint32_t groups, in_place;
    uint32_t head_dim, rotary_dim, rotary_offset, window_pairs;
};

/* What varies fastest over neighbouring threads: what is nearest in memory. */
enum cuda_order { ORDER_LANES, ORDER_HEADS, ORDER_ROWS };

/* Each operand has blocks of its own. Their threads are numbered through: number = row * columns + column, or
 * column * rows + row. A thread has `passes` rows, pass_rows apart. */
struct cuda_call {
    uint32_t order;
    uint32_t passes;
    uint32_t rearranges; /* in place: what a head's threads write, others of them read */
    int64_t rows, pass_rows;
    fast_divisor row_length; /* rows of the same batch entry or token, whichever is further apart; if rows are below 2^31 */
    cuda_operand operands[TROPE_MAX_OPERANDS];
    cuda_plan plan;
};

/* ---- places ---- */

__device__ __forceinline__ uint32_t operand_of_block(const cuda_call &call)
{
    static_assert(TROPE_MAX_OPERANDS == 4, "operand_of_block");
    return (blockIdx.x >= call.operands[1].first_block) + (blockIdx.x >= call.operands[2].first_block) +
           (blockIdx.x >= call.operands[3].first_block);
}

/* What a thread has: its first row and first head. */
struct thread_place {
    int64_t row;
    uint32_t lane, head;
    bool present;
};

__device__ __forceinline__ thread_place find_place(const cuda_call &call, const cuda_operand &o)
{
    const uint32_t number = (blockIdx.x - o.first_block) * blockDim.x + threadIdx.x;
    const uint32_t quotient = o.nearest.divide(number), rest = number - quotient * o.nearest.divisor;
    const bool rows_first = call.order == ORDER_ROWS;
    const uint32_t row = rows_first ? rest : quotient, column = rows_first ? quotient : rest;
    const uint32_t outer = o.columns_per_outer.divide(column), inner = column - outer * o.columns_per_outer.divisor;
    thread_place p;
    p.row = (int64_t)blockIdx.y * o.slice_rows + row;
    p.lane = call.order == ORDER_HEADS ? outer : inner;
    p.head = call.order == ORDER_HEADS ? inner : outer;
    p.present = row < o.slice_rows && p.row < call.pass_rows && p.lane < o.lanes && p.head < o.chunks;
    if (!p.present) /* loads as its neighbours do, and writes nothing */
        p.lane = p.head = 0;
    return p;
}

/* The batch entry and the token of a row. Where rows are plain there are less than 2^31 of them. */
template <bool PLAIN> __device__ __forceinline__ void locate_row(const cuda_call &call, int64_t number, trope_row *row)
{
    const trope_plan &plan = call.plan.plan;
    int64_t outer = 0, inner = PLAIN ? (uint32_t)number : number;
    if (call.rows > call.row_length.divisor) {
        if (PLAIN || call.rows <= INT32_MAX) {
            outer = call.row_length.divide((uint32_t)number);
            inner = (uint32_t)number - (uint32_t)outer * call.row_length.divisor;
        } else {
            outer = number / call.row_length.divisor;
            inner = number - outer * call.row_length.divisor;
        }
    }
    row->batch = plan.batch_outermost ? outer : inner;
    row->token = plan.batch_outermost ? inner : outer;
}

/* Where a thread's heads are in one tensor. Those it has not are its last one. */
template <int HEADS> struct head_pointers {
    char *head[HEADS];

    __device__ __forceinline__ head_pointers(const cuda_operand &o, const cuda_tensor &t, const trope_row &row, uint32_t first)
    {
        char *const base = t.base + row.batch * t.batch + row.token * t.token;
        uint32_t number[HEADS];
#pragma unroll
        for (int k = 0; k < HEADS; k++) {
            number[k] = first + k * o.chunks;
            number[k] = k > 0 && number[k] >= o.heads ? first : number[k];
            head[k] = base + number[k] * t.head;
        }
        if (__builtin_expect(o.groups == 1, 1))
            return;
#pragma unroll
        for (int k = 0; k < HEADS; k++) {
            const uint32_t group = o.heads_per_group.divide(number[k]);
            head[k] += group * (t.group - o.heads_per_group.divisor * t.head);
        }
    }
};

/* ---- lanes of vectors ---- */

/* Two 16-byte vectors of each of HEADS heads. A rotating lane has vector j of the first half of a window and vector j of its
 * second half, whichever way it is paired, so that the loads of neighbouring threads are neighbours. Its pairs are in two
 * runs, which are one after the other in a half-paired head. */
template <int DTYPE, int ANGLES, int HEADS> struct vector_lane {
    typedef typename elements<DTYPE>::real real;
    typedef typename elements<DTYPE>::type element;
    typedef vector_pair<DTYPE> vectors;
    enum { V = vectors::WIDTH, RUN = V / 2, BYTES = sizeof(element) };

    /* Where the vectors are in the head, in elements, and the first pair of each run. */
    struct position {
        uint32_t first, second;
        uint32_t low, high;
        uint32_t skipped; /* pairs of the windows before */
    };

    vectors v[HEADS];

    static __device__ __forceinline__ position locate(const cuda_call &call, const cuda_operand &o, uint32_t lane)
    {
        position p;
        p.skipped = 0;
        if (lane < o.rotating) {
            if (__builtin_expect(call.plan.plan.windows > 1, 0)) /* 2 or 3 */
                p.skipped = lane * V >= 2 * o.window_pairs ? 2 * o.window_pairs : lane * V >= o.window_pairs ? o.window_pairs : 0;
            p.first = o.rotary_offset + lane * V + p.skipped;
            p.second = p.first + o.window_pairs;
            p.low = call.plan.plan.interleaved_src ? (lane * V + p.skipped) / 2 : lane * V;
            p.high = p.low + (call.plan.plan.interleaved_src ? o.window_pairs / 2 : RUN);
        } else {
            const uint32_t last = o.head_dim - o.rotary_dim - V, i = 2 * (lane - o.rotating) * V, k = i < last ? i + V : i;
            p.low = p.high = 0;
            p.first = i + (i >= o.rotary_offset ? o.rotary_dim : 0);
            p.second = k + (k >= o.rotary_offset ? o.rotary_dim : 0);
        }
        return p;
    }

    __device__ __forceinline__ void load(int k, const cuda_operand &, const char *head, const position &p)
    {
        v[k].bits[0] = __ldcs((const uint4 *)(head + p.first * BYTES));
        v[k].bits[1] = __ldcs((const uint4 *)(head + p.second * BYTES));
    }

    __device__ __forceinline__ void store(int k, const cuda_operand &, char *head, const position &p) const
    {
        __stcs((uint4 *)(head + p.first * BYTES), v[k].bits[0]);
        __stcs((uint4 *)(head + p.second * BYTES), v[k].bits[1]);
    }

    __device__ __forceinline__ void clear(int k)
    {
        v[k].bits[0] = v[k].bits[1] = make_uint4(0, 0, 0, 0);
    }

    /* Pairs that were read half-paired and are written interleaved, or the other way round. */
    __device__ __forceinline__ void store_rearranged(int k, const cuda_operand &o, char *head, const position &p, bool interleave)
    {
        char *const window = head + (o.rotary_offset + (interleave ? 0 : p.skipped)) * BYTES;
        if (interleave) {
            v[k].join();
            __stcs((uint4 *)(window + 2 * p.low * BYTES), v[k].bits[0]);
            __stcs((uint4 *)(window + 2 * p.high * BYTES), v[k].bits[1]);
            return;
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            __stcs((uint2 *)(window + (i * o.window_pairs + p.low) * BYTES), make_uint2(v[k].bits[i].x, v[k].bits[i].y));
            __stcs((uint2 *)(window + (i * o.window_pairs + p.high) * BYTES), make_uint2(v[k].bits[i].z, v[k].bits[i].w));
        }
    }

    __device__ __forceinline__ void store_rotated(int k, const cuda_call &call, const cuda_operand &o, char *head,
                                                  const position &p)
    {
        const bool from = call.plan.plan.interleaved_src, to = call.plan.plan.interleaved_dst;
        if (__builtin_expect(from != to, 0)) {
            store_rearranged(k, o, head, p, to);
            return;
        }
        if (to)
            v[k].join();
        store(k, o, head, p);
    }

    /* The pairs of one run of all heads. */
    template <bool NATIVE, bool OWN> __device__ __forceinline__ void rotate_run(int run, const turns_of<real, RUN> &t)
    {
#pragma unroll
        for (int k = 0; k < HEADS; k++) {
            real y[2][RUN];
#pragma unroll
            for (int e = 0; e < RUN; e++) {
                const int i = run * RUN + e;
                const typename pair_types<DTYPE>::pair x = {to_real<DTYPE>(v[k].get(0, i)), to_real<DTYPE>(v[k].get(1, i))};
                const typename pair_types<DTYPE>::pair turned =
                    rotate_pair<DTYPE, NATIVE>(x, {t.c1[e], t.s1[e], OWN ? t.c2[e] : t.c1[e], OWN ? t.s2[e] : t.s1[e]});
                y[0][e] = turned.first;
                y[1][e] = turned.second;
            }
            v[k].template set<RUN>(0, run * RUN, y[0]);
            v[k].template set<RUN>(1, run * RUN, y[1]);
        }
    }

    __device__ __forceinline__ void rotate(const cuda_call &call, const trope_row &row, const position &p)
    {
        const trope_plan &plan = call.plan.plan;
        const bool native = is_native<ANGLES>(call.plan), own = has_own_angles<ANGLES>(call.plan);
        const int pair[2] = {(int)p.low, (int)p.high};
        angles_of<real, RUN> angles[2];
#pragma unroll
        for (int run = 0; run < 2; run++)
            angles[run] = load_angles<ANGLES, real, RUN>(call.plan, row, pair[run]);
        if (plan.interleaved_src) {
#pragma unroll
            for (int k = 0; k < HEADS; k++)
                v[k].separate();
        }
#pragma unroll
        for (int run = 0; run < 2; run++) {
            turns_of<real, RUN> turns;
            find_turns<ANGLES, real, RUN>(call.plan, row, pair[run], angles[run], &turns);
            if (native)
                own ? rotate_run<true, true>(run, turns) : rotate_run<true, false>(run, turns);
            else
                own ? rotate_run<false, true>(run, turns) : rotate_run<false, false>(run, turns);
        }
    }
};

/* ---- lanes of one pair ---- */

/* One pair, or one element that passes through, of each of HEADS heads, with any strides. */
template <int DTYPE, int ANGLES, int HEADS> struct scalar_lane {
    typedef typename elements<DTYPE>::real real;
    typedef typename elements<DTYPE>::type element;

    /* Offsets in bytes in src and dst. */
    struct position {
        int64_t src[2], dst[2];
        int pair;
    };

    element a[HEADS], b[HEADS];

    static __device__ __forceinline__ position locate(const cuda_call &call, const cuda_operand &o, uint32_t lane)
    {
        const trope_plan &plan = call.plan.plan;
        const int32_t pairs = (int32_t)o.rotary_dim / 2, offset = (int32_t)o.rotary_offset;
        position p;
        p.pair = (int)lane;
        if (lane < o.rotating) {
            p.src[0] = (offset + trope_first_of_pair(plan.interleaved_src, plan.windows, pairs, p.pair)) * o.src.element;
            p.src[1] = (offset + trope_second_of_pair(plan.interleaved_src, plan.windows, pairs, p.pair)) * o.src.element;
            p.dst[0] = (offset + trope_first_of_pair(plan.interleaved_dst, plan.windows, pairs, p.pair)) * o.dst.element;
            p.dst[1] = (offset + trope_second_of_pair(plan.interleaved_dst, plan.windows, pairs, p.pair)) * o.dst.element;
        } else {
            const int64_t i = lane - o.rotating, at = i + (i >= o.rotary_offset ? o.rotary_dim : 0);
            p.src[0] = p.src[1] = at * o.src.element;
            p.dst[0] = p.dst[1] = at * o.dst.element;
        }
        return p;
    }

    __device__ __forceinline__ void load(int k, const cuda_operand &, const char *head, const position &p)
    {
        a[k] = *(const element *)(head + p.src[0]);
        b[k] = *(const element *)(head + p.src[1]);
    }

    __device__ __forceinline__ void store(int k, const cuda_operand &, char *head, const position &p) const
    {
        *(element *)(head + p.dst[0]) = a[k];
        *(element *)(head + p.dst[1]) = b[k];
    }

    __device__ __forceinline__ void clear(int k)
    {
        a[k] = b[k] = 0;
    }

    __device__ __forceinline__ void store_rotated(int k, const cuda_call &, const cuda_operand &o, char *head, const position &p)
    {
        store(k, o, head, p);
    }

    __device__ __forceinline__ void rotate(const cuda_call &call, const trope_row &row, const position &p)
    {
        turns_of<real, 1> t;
        find_turns<ANGLES, real, 1>(call.plan, row, p.pair, load_angles<ANGLES, real, 1>(call.plan, row, p.pair), &t);
        if (!call.plan.own_angles) {
            t.c2[0] = t.c1[0];
            t.s2[0] = t.s1[0];
        }
#pragma unroll
        for (int k = 0; k < HEADS; k++) {
            const typename pair_types<DTYPE>::pair x = {to_real<DTYPE>(a[k]), to_real<DTYPE>(b[k])};
            const typename pair_types<DTYPE>::turn turn = {t.c1[0], t.s1[0], t.c2[0], t.s2[0]};
            const typename pair_types<DTYPE>::pair y = call.plan.plan.rounding == TROPE_ROUND_NATIVE
                                                           ? rotate_pair<DTYPE, true>(x, turn)
                                                           : rotate_pair<DTYPE, false>(x, turn);
            a[k] = from_real<DTYPE>(y.first);
            b[k] = from_real<DTYPE>(y.second);
        }
    }
};

/* ---- the kernel ---- */

/* The rows of a call whose positions are its tokens have nothing to be looked up for. */
template <bool PLAIN> __device__ __forceinline__ void find_row_of_call(const trope_plan &plan, trope_row *row)
{
    if (!PLAIN) {
        find_row(plan, row);
        return;
    }
    row->action = TROPE_ROW_ROTATE;
    row->poisoned = 0;
    row->position[0] = row->token;
}

template <class LANE, bool PLAIN, int HEADS, int THREADS, int BLOCKS>
__global__ void __launch_bounds__(THREADS, BLOCKS) rotate_kernel(const __grid_constant__ cuda_call call)
{
    const cuda_operand &o = call.operands[operand_of_block(call)];
    const thread_place place = find_place(call, o);
    const typename LANE::position at = LANE::locate(call, o, place.lane);
    const bool rotating = place.lane < o.rotating;
    if (!PLAIN && call.plan.plan.sequences.boundaries)
        check_sequences(call.plan.plan);

    int64_t number = place.row;
    for (uint32_t pass = 0; pass < (HEADS == 1 ? call.passes : 1); pass++, number += call.pass_rows) {
        const bool present = place.present && number < call.rows;
        trope_row row;
        locate_row<PLAIN>(call, present ? number : 0, &row);

        LANE lane;
        const head_pointers<HEADS> src(o, o.src, row, place.head);
#pragma unroll
        for (int k = 0; k < HEADS; k++)
            lane.load(k, o, src.head[k], at);
        find_row_of_call<PLAIN>(call.plan.plan, &row);
        if (__builtin_expect(call.rearranges, 0))
            __syncthreads();

        const bool zero = row.action == TROPE_ROW_ZERO, turns = row.action == TROPE_ROW_ROTATE && rotating;
        if (!present || (o.in_place && !turns && !zero))
            continue;
        if (turns)
            lane.rotate(call, row, at);
        const head_pointers<HEADS> dst(o, o.dst, row, place.head);
#pragma unroll
        for (int k = 0; k < HEADS; k++) {
            if (place.head + k * o.chunks >= o.heads)
                break;
            if (__builtin_expect(zero, 0))
                lane.clear(k);
            if (turns)
                lane.store_rotated(k, call, o, dst.head[k], at);
            else
                lane.store(k, o, dst.head[k], at);
        }
    }
}

#endif
