/* The CUDA kernel of the rotation. A thread has one lane of a head (two 16-byte vectors, or one pair), and a few heads of a
 * row, which all turn by the same angles: it starts its loads, works out the cosines and sines of its pairs while they are
 * under way, rotates and stores. It shares nothing with other threads and waits for none, except that a block looks its
 * rows up together where positions are not simply tokens. Direction, layout and positions are data in the plan; compiled in
 * are the dtype, whether a lane is vectors or a pair, how many heads a thread has, the source of the usual angles, and
 * whether rows are plain. docs/cuda.md says what that buys. */
#ifndef TROPE_CORE_ROTATE_CUDA_CUH
#define TROPE_CORE_ROTATE_CUDA_CUH

#include "core/angles_cuda.cuh"

/* One tensor of an operand. Rows are as far apart as bytes say, heads as units of a lane say: 16 bytes for vectors, of
 * which 32 bits count enough, and one byte for pairs. */
struct cuda_tensor {
    char *base;
    int64_t outer, inner;
    int64_t group, head;
    int64_t element; /* bytes */
};

/* How the lanes of an operand's heads are dealt out. Lanes are numbered through: rotating ones first, then those that pass
 * through. A thread has heads chunk, chunk + chunks, ... of one lane. */
struct cuda_operand {
    cuda_tensor src, dst;
    uint32_t rotating, lanes;
    uint32_t heads, chunks;
    uint32_t slice_groups; /* of a y of the grid, so that 32 bits number the threads of each */
    fast_divisor columns;  /* of a row: lanes times chunks, and maybe some that are empty */
    fast_divisor lanes_of_chunk;
    fast_divisor heads_per_group;
    uint32_t groups, in_place;
    uint32_t head_dim, rotary_dim, rotary_offset, window_pairs;
    uint32_t low_step, high_gap; /* pairs from a lane's first run to the next lane's, and to its second run */
};

/* What varies fastest over neighbouring threads: what is nearest in memory. */
enum cuda_order { ORDER_LANES, ORDER_HEADS, ORDER_ROWS };

/* Each operand has blocks of its own. Their threads are numbered through: number = group * columns + column, or
 * column * groups + group, where a group are rows_per_thread rows that follow each other. */
struct cuda_call {
    int64_t rows, row_groups;
    uint32_t first_blocks[TROPE_MAX_OPERANDS]; /* UINT32_MAX where there is no operand */
    uint32_t rows_per_thread;
    uint32_t order;
    uint32_t rearranges;     /* in place: what a head's threads write, others of them read */
    uint32_t has_outer;      /* rows have two dimensions: outer is batch or token, whichever is further apart in memory */
    fast_divisor row_length; /* inner ones of each outer; if rows are below 2^31 */
    int32_t batch_outermost, interleaved_src, interleaved_dst; /* as in the plan */
    cuda_operand operands[TROPE_MAX_OPERANDS];
    cuda_plan plan;
};

/* ---- places ---- */

__device__ __forceinline__ uint32_t operand_of_block(const cuda_call &call)
{
    static_assert(TROPE_MAX_OPERANDS == 4, "operand_of_block");
    return (blockIdx.x >= call.first_blocks[1]) + (blockIdx.x >= call.first_blocks[2]) +
           (blockIdx.x >= call.first_blocks[3]);
}

/* What a thread has: a group of rows of its slice, and its first head. Threads that have nothing load what others do, and
 * write nothing. */
struct thread_place {
    uint32_t group;
    uint32_t lane, head;
    bool present;
};

/* `number` of a thread among those of its operand and slice. PLAIN: there is one slice, and no column is empty. */
template <bool PLAIN, bool VECTOR>
__device__ __forceinline__ thread_place find_place(const cuda_call &call, const cuda_operand &o, uint32_t number)
{
    thread_place p;
    uint32_t column;
    if (!VECTOR && call.order == ORDER_ROWS) {
        column = number / o.slice_groups;
        p.group = number - column * o.slice_groups;
    } else {
        p.group = o.columns.divide(number);
        column = number - p.group * o.columns.divisor;
    }
    const uint32_t outer = o.lanes_of_chunk.divide(column), inner = column - outer * o.lanes_of_chunk.divisor;
    const bool heads_first = !VECTOR && call.order == ORDER_HEADS;
    p.lane = heads_first ? outer : inner;
    p.head = heads_first ? inner : outer;
    if (PLAIN) {
        p.present = p.group < (uint32_t)call.row_groups && (VECTOR || column < o.columns.divisor);
    } else {
        p.present = p.group < o.slice_groups && (int64_t)blockIdx.y * o.slice_groups + p.group < call.row_groups &&
                    p.lane < o.lanes && p.head < o.chunks;
    }
    if (!PLAIN || !VECTOR) {
        p.lane = p.present ? p.lane : 0;
        p.head = p.present ? p.head : 0;
    }
    return p;
}

/* The two dimensions of a row. PLAIN: in 32 bits. */
struct row_place {
    int64_t outer, inner;
};

template <bool PLAIN> __device__ __forceinline__ row_place locate_row(const cuda_call &call, int64_t number)
{
    row_place p = {0, PLAIN ? (uint32_t)number : number};
    if (call.has_outer) {
        if (PLAIN || call.rows <= INT32_MAX) {
            const uint32_t outer = call.row_length.divide((uint32_t)number);
            p.outer = outer;
            p.inner = (uint32_t)number - outer * call.row_length.divisor;
        } else {
            p.outer = number / call.row_length.divisor;
            p.inner = number - p.outer * call.row_length.divisor;
        }
    }
    return p;
}

__device__ __forceinline__ void set_row(const cuda_call &call, const row_place &p, trope_row *row)
{
    row->batch = call.batch_outermost ? p.outer : p.inner;
    row->token = call.batch_outermost ? p.inner : p.outer;
}

/* Where a thread's heads are in one tensor, from its row on. Those it has not are its first one. */
template <class OFFSET, int HEADS> struct head_offsets {
    OFFSET head[HEADS];

    __device__ __forceinline__ head_offsets(const cuda_operand &o, const cuda_tensor &t, uint32_t first)
    {
        uint32_t number[HEADS];
#pragma unroll
        for (int k = 0; k < HEADS; k++) {
            number[k] = first + k * o.chunks;
            number[k] = k > 0 && number[k] >= o.heads ? first : number[k];
            head[k] = (OFFSET)number[k] * (OFFSET)t.head;
        }
        if (__builtin_expect(o.groups == 1, 1))
            return;
#pragma unroll
        for (int k = 0; k < HEADS; k++) {
            const OFFSET group = (OFFSET)o.heads_per_group.divide(number[k]);
            head[k] += group * ((OFFSET)t.group - (OFFSET)o.heads_per_group.divisor * (OFFSET)t.head);
        }
    }
};

__device__ __forceinline__ char *row_of_tensor(const cuda_call &call, const cuda_tensor &t, const row_place &p)
{
    return t.base + p.inner * t.inner + (call.has_outer ? p.outer * t.outer : 0);
}

/* ---- lanes of vectors ---- */

/* Two 16-byte vectors of each of HEADS heads. A rotating lane has vector j of the first half of a window and vector j of
 * its second half, whichever way it is paired, so that the loads of neighbouring threads are neighbours. Its pairs are in
 * two runs, which are one after the other in a half-paired head. */
template <int DTYPE, int ANGLES, int HEADS> struct vector_lane {
    typedef typename elements<DTYPE>::real real;
    typedef typename elements<DTYPE>::type element;
    typedef vector_pair<DTYPE> vectors;
    typedef int32_t offset;
    enum { VECTOR = 1, UNIT = 16, V = vectors::WIDTH, RUN = V / 2, BYTES = sizeof(element) };

    /* Where the vectors are in the head, in elements, and the first pair of each run. */
    struct position {
        uint32_t first, second;
        uint32_t low, high;
        uint32_t skipped; /* pairs of the windows before */
    };

    /* What a thread's pairs need in every row. */
    struct steps {
        steps_of<ANGLES, RUN> low, high;

        __device__ __forceinline__ steps(const cuda_call &call, const position &p)
            : low(call.plan, (int)p.low), high(call.plan, (int)p.high)
        {
        }
    };

    /* And in one row. */
    struct angles {
        angles_of<real, RUN> run[2];

        template <bool PLAIN>
        __device__ __forceinline__ void load(const cuda_call &call, const trope_row &row, const position &p, const steps &s)
        {
            run[0] = load_angles<ANGLES, PLAIN, real, RUN>(call.plan, row, (int)p.low, s.low);
            run[1] = load_angles<ANGLES, PLAIN, real, RUN>(call.plan, row, (int)p.high, s.high);
        }
    };

    vectors v[HEADS];

    template <bool PLAIN>
    static __device__ __forceinline__ position locate(const cuda_call &call, const cuda_operand &o, uint32_t lane)
    {
        position p;
        p.skipped = 0;
        if (__builtin_expect(lane < o.rotating, 1)) {
            if (!PLAIN && call.plan.plan.windows > 1) /* 2 or 3 */
                p.skipped = lane * V >= 2 * o.window_pairs ? 2 * o.window_pairs
                            : lane * V >= o.window_pairs   ? o.window_pairs
                                                           : 0;
            p.first = o.rotary_offset + lane * V + p.skipped;
            p.second = p.first + o.window_pairs;
            p.low = lane * o.low_step + (call.interleaved_src ? p.skipped / 2 : 0);
            p.high = p.low + o.high_gap;
        } else {
            const uint32_t last = o.head_dim - o.rotary_dim - V, i = 2 * (lane - o.rotating) * V, k = i < last ? i + V : i;
            p.low = p.high = 0;
            p.first = i + (i >= o.rotary_offset ? o.rotary_dim : 0);
            p.second = k + (k >= o.rotary_offset ? o.rotary_dim : 0);
        }
        return p;
    }

    __device__ __forceinline__ void load(int k, const cuda_operand &, const char *row, int32_t head, const position &p)
    {
        v[k].bits[0] = __ldcs((const uint4 *)(row + p.first * BYTES) + head);
        v[k].bits[1] = __ldcs((const uint4 *)(row + p.second * BYTES) + head);
    }

    __device__ __forceinline__ void store(int k, const cuda_operand &, char *row, int32_t head, const position &p) const
    {
        __stcs((uint4 *)(row + p.first * BYTES) + head, v[k].bits[0]);
        __stcs((uint4 *)(row + p.second * BYTES) + head, v[k].bits[1]);
    }

    __device__ __forceinline__ void clear(int k)
    {
        v[k].bits[0] = v[k].bits[1] = make_uint4(0, 0, 0, 0);
    }

    /* Pairs that were read half-paired and are written interleaved, or the other way round. */
    __device__ __forceinline__ void store_rearranged(int k, bool interleave, const cuda_operand &o, char *row, int32_t head,
                                                     const position &p)
    {
        char *const window = row + (int64_t)head * UNIT + (o.rotary_offset + (interleave ? 0 : p.skipped)) * BYTES;
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

    __device__ __forceinline__ void store_rotated(int k, const cuda_call &call, const cuda_operand &o, char *row,
                                                  int32_t head, const position &p)
    {
        if (__builtin_expect(call.interleaved_src != call.interleaved_dst, 0)) {
            store_rearranged(k, call.interleaved_dst, o, row, head, p);
            return;
        }
        if (call.interleaved_dst)
            v[k].join();
        store(k, o, row, head, p);
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

    __device__ __forceinline__ void rotate(const cuda_call &call, const trope_row &row, const position &p, const angles &a)
    {
        const bool native = is_native<ANGLES>(call.plan);
        const int pair[2] = {(int)p.low, (int)p.high};
        if (call.interleaved_src) {
#pragma unroll
            for (int k = 0; k < HEADS; k++)
                v[k].separate();
        }
#pragma unroll
        for (int run = 0; run < 2; run++) {
            turns_of<real, RUN> turns;
            const bool own = find_turns<ANGLES, real, RUN>(call.plan, row, pair[run], a.run[run], &turns);
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
    typedef int64_t offset;
    enum { VECTOR = 0, UNIT = 1 };

    /* Elements of the head in src, and where they go if they are rotated. */
    struct position {
        int32_t from[2], to[2];
        int pair;
    };

    struct steps {
        steps_of<ANGLES, 1> pair;

        __device__ __forceinline__ steps(const cuda_call &call, const position &p) : pair(call.plan, p.pair)
        {
        }
    };

    struct angles {
        angles_of<real, 1> pair;

        template <bool PLAIN>
        __device__ __forceinline__ void load(const cuda_call &call, const trope_row &row, const position &p, const steps &s)
        {
            pair = load_angles<ANGLES, PLAIN, real, 1>(call.plan, row, p.pair, s.pair);
        }
    };

    element a[HEADS], b[HEADS];

    template <bool PLAIN>
    static __device__ __forceinline__ position locate(const cuda_call &call, const cuda_operand &o, uint32_t lane)
    {
        const trope_plan &plan = call.plan.plan;
        const int32_t pairs = (int32_t)o.rotary_dim / 2, offset = (int32_t)o.rotary_offset;
        position p;
        p.pair = (int)lane;
        if (lane < o.rotating) {
            p.from[0] = offset + trope_first_of_pair(plan.interleaved_src, plan.windows, pairs, p.pair);
            p.from[1] = offset + trope_second_of_pair(plan.interleaved_src, plan.windows, pairs, p.pair);
            p.to[0] = offset + trope_first_of_pair(plan.interleaved_dst, plan.windows, pairs, p.pair);
            p.to[1] = offset + trope_second_of_pair(plan.interleaved_dst, plan.windows, pairs, p.pair);
        } else {
            const int32_t i = (int32_t)(lane - o.rotating);
            p.from[0] = p.from[1] = p.to[0] = p.to[1] = i + (i >= offset ? (int32_t)o.rotary_dim : 0);
        }
        return p;
    }

    __device__ __forceinline__ void load(int k, const cuda_operand &o, const char *row, int64_t head, const position &p)
    {
        a[k] = *(const element *)(row + head + p.from[0] * o.src.element);
        b[k] = *(const element *)(row + head + p.from[1] * o.src.element);
    }

    __device__ __forceinline__ void store_at(int k, const cuda_operand &o, char *row, int64_t head, const int32_t *at) const
    {
        *(element *)(row + head + at[0] * o.dst.element) = a[k];
        *(element *)(row + head + at[1] * o.dst.element) = b[k];
    }

    __device__ __forceinline__ void store(int k, const cuda_operand &o, char *row, int64_t head, const position &p) const
    {
        store_at(k, o, row, head, p.from);
    }

    __device__ __forceinline__ void clear(int k)
    {
        a[k] = b[k] = 0;
    }

    __device__ __forceinline__ void store_rotated(int k, const cuda_call &, const cuda_operand &o, char *row, int64_t head,
                                                  const position &p)
    {
        store_at(k, o, row, head, p.to);
    }

    __device__ __forceinline__ void rotate(const cuda_call &call, const trope_row &row, const position &p,
                                           const angles &angles)
    {
        turns_of<real, 1> t;
        const bool own = find_turns<ANGLES, real, 1>(call.plan, row, p.pair, angles.pair, &t);
        if (!own) {
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
__device__ __forceinline__ trope_row plain_row(const cuda_call &call, const row_place &p)
{
    trope_row row;
    set_row(call, p, &row);
    row.token = (uint32_t)row.token; /* which lets the compiler forget the other 32 bits */
    row.action = TROPE_ROW_ROTATE;
    row.poisoned = 0;
    row.position[0] = row.token;
    return row;
}

/* The groups of rows that a block has: `count` from `first` on, after the slice's last one the first. */
struct block_groups {
    uint32_t first, count, slice;

    __device__ __forceinline__ block_groups(const cuda_call &call, const cuda_operand &o, uint32_t first_thread)
        : slice(o.slice_groups)
    {
        if (call.order == ORDER_ROWS) {
            first = first_thread % slice;
            count = blockDim.x < slice ? blockDim.x : slice;
        } else {
            first = o.columns.divide(first_thread);
            count = o.columns.divide(first_thread + blockDim.x - 1) - first + 1;
        }
    }

    __device__ __forceinline__ uint32_t group(uint32_t i) const
    {
        return first + i < slice ? first + i : first + i - slice;
    }

    __device__ __forceinline__ uint32_t index(uint32_t group) const
    {
        return group >= first ? group - first : group + slice - first;
    }
};

/* Looks the block's rows up, one a thread, so that those who rotate them need not. */
__device__ __forceinline__ void find_rows(const cuda_call &call, const cuda_operand &o, const block_groups &groups,
                                          trope_row *rows)
{
    const uint32_t count = groups.count * call.rows_per_thread;
    for (uint32_t base = threadIdx.x / 32 * 32; base < count; base += blockDim.x) {
        const uint32_t i = base + threadIdx.x % 32 < count ? base + threadIdx.x % 32 : count - 1;
        const uint32_t group = i / call.rows_per_thread;
        const int64_t number = ((int64_t)blockIdx.y * o.slice_groups + groups.group(group)) * call.rows_per_thread +
                               (i - group * call.rows_per_thread);
        trope_row row;
        set_row(call, locate_row<false>(call, number < call.rows ? number : call.rows - 1), &row);
        find_row(call.plan.plan, &row);
        if (base + threadIdx.x % 32 < count)
            rows[i] = row;
    }
    __syncthreads();
}

template <class LANE, bool PLAIN, int HEADS, int THREADS, int BLOCKS>
__global__ void __launch_bounds__(THREADS, BLOCKS) rotate_kernel(const __grid_constant__ cuda_call call)
{
    enum { ONE_ROW = LANE::VECTOR && PLAIN && HEADS > 1 };
    typedef head_offsets<typename LANE::offset, HEADS> offsets;
    extern __shared__ __align__(16) char shared[];
    trope_row *const rows = (trope_row *)shared;
    const uint32_t operand = operand_of_block(call);
    const cuda_operand &o = call.operands[operand];
    const uint32_t first_thread = (blockIdx.x - call.first_blocks[operand]) * THREADS;
    const thread_place place = find_place<PLAIN, LANE::VECTOR>(call, o, first_thread + threadIdx.x);
    const typename LANE::position at = LANE::template locate<PLAIN>(call, o, place.lane);
    const bool rotating = place.lane < o.rotating;
    const int64_t group = PLAIN ? place.group : (int64_t)blockIdx.y * o.slice_groups + place.group;
    const trope_row *looked_up = rows;
    if (!PLAIN) {
        const block_groups groups(call, o, first_thread);
        find_rows(call, o, groups, rows);
        looked_up += place.present ? groups.index(place.group) * call.rows_per_thread : 0;
    }

    for (uint32_t i = 0; i < (ONE_ROW ? 1 : call.rows_per_thread); i++) {
        const int64_t number = ONE_ROW ? group : group * call.rows_per_thread + i;
        const bool present = place.present && (ONE_ROW || number < call.rows);
        const row_place from = locate_row<PLAIN>(call, present ? number : 0);
        const trope_row row = PLAIN ? plain_row(call, from) : looked_up[i];

        /* Loads come back in the order in which they were issued: those that others wait for go first. */
        const bool zero = row.action == TROPE_ROW_ZERO, turns = row.action == TROPE_ROW_ROTATE && rotating;
        typename LANE::angles angles;
        if (PLAIN || turns)
            angles.template load<PLAIN>(call, row, at, typename LANE::steps(call, at));
        LANE lane;
        const offsets src(o, o.src, place.head);
        const char *const src_row = row_of_tensor(call, o.src, from);
#pragma unroll
        for (int k = 0; k < HEADS; k++)
            lane.load(k, o, src_row, src.head[k], at);
        if (!PLAIN && call.rearranges)
            __syncthreads();

        if (!present || (o.in_place && !turns && !zero))
            continue;
        if (turns)
            lane.rotate(call, row, at, angles);
        const offsets dst(o, o.dst, place.head);
        char *const dst_row = row_of_tensor(call, o.dst, from);
#pragma unroll
        for (int k = 0; k < HEADS; k++) {
            if (place.head + k * o.chunks >= o.heads)
                break;
            if (__builtin_expect(zero, 0))
                lane.clear(k);
            if (turns)
                lane.store_rotated(k, call, o, dst_row, dst.head[k], at);
            else
                lane.store(k, o, dst_row, dst.head[k], at);
        }
    }
    if (!PLAIN && call.plan.plan.sequences.boundaries)
        check_sequences(call.plan.plan);
}

#endif
