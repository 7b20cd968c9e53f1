/* The gradient of the angles on CUDA, first part: the one pass over dy, x and dx.
 *
 * A unit is a token, with as many batch entries as share its angles and are taken together. The heads of a unit, of all
 * operands and batch entries, are dealt out to a fixed number of slots: slot s walks heads s, s + slots, ... with as many
 * threads as a head has vectors, each of which keeps its pairs, adds their terms in double and stores dx on the way. The
 * slots are then added in their order. So the order of a sum depends on the shapes alone: the scalar kernel, for strides
 * that vectors cannot have, deals heads to the same slots and gives the same bits. */
#ifndef TROPE_BWD_ANGLE_GRADIENT_CUDA_CUH
#define TROPE_BWD_ANGLE_GRADIENT_CUDA_CUH

#include "core/angles_cuda.cuh"

/* What becomes of the sums of a unit. */
enum gradient_mode {
    GRADIENT_DIRECT,     /* no other unit has its angles: they are the result */
    GRADIENT_PARTS,      /* `sums`, where units that follow each other in a known way are added */
    GRADIENT_SORTED,     /* `sums`, with the angle row of each unit in `keys` */
    GRADIENT_FREQUENCIES /* times the position, and the block's units added: a row of `sums` for each block */
};

/* The heads of one operand, and the items (vectors or elements) of a head that pass through. */
struct gradient_heads {
    uint32_t first; /* in a row */
    fast_divisor per_group;
    int64_t src_step, input_step, dst_step; /* bytes from a head to the next of the same slot and group */
    uint32_t first_passing;                 /* in a row */
    fast_divisor passing;
};

struct gradient_call {
    cuda_plan plan; /* its rows are units: plan.batch is how many units have the same token. plan.rounding is ONCE: */
    bool native;    /* what is turned by may be rounded to the dtype, what is summed with never is */
    gradient_heads operands[TROPE_MAX_OPERANDS];
    int64_t batch; /* batch entries of the tensors */
    fast_divisor pair_lanes; /* coefficients: thread t has row t / pair_lanes and pair t % pair_lanes, */
    uint32_t pair_row_step;  /* and goes on by this */
    uint32_t batch_per_unit;
    uint32_t units_per_block;
    fast_divisor row_heads; /* heads of a row */
    fast_divisor slots;     /* of a unit */
    fast_divisor head_threads;
    uint32_t steps;       /* heads that a slot walks, at most */
    uint32_t row_passing; /* items of a row that pass through */
    fast_divisor unit_passing;
    uint32_t interleaved_gap; /* bytes from a thread's first vector to its second in a tensor of interleaved pairs */
    uint32_t spread;          /* a thread's vectors are half a window apart: see thread_pairs */
    uint32_t rearranges;      /* what a head's threads write in place, others of them read */
    gradient_mode mode;
    uint32_t key_axes;   /* axes with positions of their own */
    uint32_t angle_rows; /* SORTED: of all batch entries that have their own */
    uint32_t units;
    double *sums;            /* a row: the first elements of all pairs, then (per_element) the second */
    uint32_t *keys, *values; /* [key_axes, units] */
};

/* cos and sin of the angles that one element of a pair is turned by, as the plan's direction has them. */
template <typename REAL> struct alignas(2 * sizeof(REAL)) gradient_turn {
    REAL c, s;
};

/* Where a thread finds the coefficients of its pairs, one after another. Per-element angles have a second run. */
template <typename REAL> struct gradient_turns {
    const gradient_turn<REAL> *rotate;
    const gradient_turn<double> *gradient;
    uint32_t rotate_run, gradient_run; /* from the first run to the second */
};

/* ---- places ---- */

struct gradient_head {
    const char *src, *input;
    char *dst;
    uint32_t operand;
    uint32_t left; /* of the heads of its group, with itself; 0: there is no such head */
};

__device__ __forceinline__ int64_t offset_of_head(const int64_t *stride, int64_t batch, int64_t token, uint32_t group,
                                                  uint32_t head)
{
    return batch * stride[TROPE_DIM_BATCH] + token * stride[TROPE_DIM_TOKEN] + group * stride[TROPE_DIM_GROUP] +
           head * stride[TROPE_DIM_HEAD];
}

/* Head `number` of a unit, which has the heads of its batch entries one after another. */
__device__ __forceinline__ gradient_head find_gradient_head(const gradient_call &g, int64_t unit_batch, int64_t token,
                                                            uint32_t number)
{
    const trope_plan &plan = g.plan.plan;
    const uint32_t entry = g.batch_per_unit > 1 ? g.row_heads.divide(number) : 0,
                   row_head = number - entry * g.row_heads.divisor;
    const int64_t batch = unit_batch * g.batch_per_unit + entry;
    gradient_head h = {NULL, NULL, NULL, 0, 0};
    if (row_head >= g.row_heads.divisor || entry >= g.batch_per_unit || batch >= g.batch)
        return h;
    for (int k = 1; k < TROPE_MAX_OPERANDS; k++)
        h.operand += k < plan.operand_count && row_head >= g.operands[k].first;
    const trope_plan_operand &o = plan.operands[h.operand];
    const uint32_t head = row_head - g.operands[h.operand].first;
    const uint32_t group = o.groups > 1 ? g.operands[h.operand].per_group.divide(head) : 0,
                   in_group = head - group * o.heads_per_group;
    h.src = o.src + offset_of_head(o.src_stride, batch, token, group, in_group) * plan.element_size;
    h.input = o.input + offset_of_head(o.input_stride, batch, token, group, in_group) * plan.element_size;
    h.dst = o.dst + offset_of_head(o.dst_stride, batch, token, group, in_group) * plan.element_size;
    h.left = o.heads_per_group - in_group;
    return h;
}

/* Where a thread's first vectors or elements of a head are. */
struct gradient_place {
    const char *src, *input;
    char *dst;
    uint32_t operand, left;
    uint32_t flags;
};

enum { PLACE_FIRST = 1, PLACE_SECOND = 2, PLACE_WRITES = 4 };

/* The pairs of one thread, in two runs of half a vector that start at `low` and `high` of its window. Where a tensor is
 * half paired the runs adjoin, so that first and second elements are a vector each; where all are interleaved they are
 * vector j of the window's first half and vector j of its second, so that neighbouring threads read neighbouring vectors.
 */
struct thread_pairs {
    uint32_t window, low, high;
};

template <int WIDTH> __device__ __forceinline__ thread_pairs find_thread_pairs(const gradient_call &g, uint32_t j)
{
    const uint32_t window_pairs = (uint32_t)(g.plan.plan.pairs / g.plan.plan.windows), per_window = window_pairs / WIDTH;
    thread_pairs t;
    t.window = g.plan.plan.windows > 1 ? j / per_window : 0;
    j -= t.window * per_window;
    t.low = j * (g.spread ? WIDTH / 2 : WIDTH);
    t.high = g.spread ? window_pairs / 2 + t.low : t.low + WIDTH / 2;
    return t;
}

/* Pair number e of the thread whose number in the head is j. */
template <int WIDTH> __device__ __forceinline__ uint32_t pair_of(const gradient_call &g, uint32_t j, uint32_t e)
{
    if (!g.spread)
        return j * WIDTH + e;
    const thread_pairs t = find_thread_pairs<WIDTH>(g, j);
    const uint32_t pair = e < (WIDTH + 1) / 2 ? t.low + e : t.high + e - WIDTH / 2;
    return t.window * (uint32_t)(g.plan.plan.pairs / g.plan.plan.windows) + pair;
}

/* Coefficients lie thread by thread, with a gap after each: 16-byte accesses of threads next to each other are then at odd
 * multiples of 16 bytes, which shared memory serves at once. */
template <typename TURN, int WIDTH> struct turn_layout {
    enum { PER_THREAD = WIDTH == 1 ? 1 : WIDTH + (sizeof(TURN) == 16 ? 1 : 2) };
};

/* ---- terms ---- */

/* One pair: turns it and adds its terms,
 *
 *     dL/da1 = dy1 (-x1 s1 - x2 c1)        dL/da2 = dy2 (x1 c2 - x2 s2)
 *
 * with the cos and sin of the forward call. What is at hand are those of the backward call: (c1, -s2) and (c2, -s1). */
template <int DTYPE, bool NATIVE, bool OWN, typename REAL>
__device__ __forceinline__ void add_pair(const gradient_turns<REAL> &t, int e, const REAL dy[2], const REAL x[2],
                                         REAL dx[2], double *sums[2])
{
    const gradient_turn<REAL> r1 = t.rotate[e], r2 = OWN ? t.rotate[t.rotate_run + e] : r1;
    const gradient_turn<double> g1 = t.gradient[e], g2 = OWN ? t.gradient[t.gradient_run + e] : g1;
    const typename pair_types<DTYPE>::pair turned = rotate_pair<DTYPE, NATIVE>({dy[0], dy[1]}, {r1.c, r1.s, r2.c, r2.s});
    dx[0] = turned.first;
    dx[1] = turned.second;
    const double x1 = x[0], x2 = x[1];
    *sums[0] = fma((double)dy[0], fma(-x2, g1.c, x1 * g2.s), *sums[0]);
    *sums[1] = fma((double)dy[1], fma(x1, g2.c, x2 * g1.s), *sums[1]);
}

/* What the rotary elements of a row become that has no terms: what they were, zero, or NaN. */
template <int DTYPE> struct gradient_filling {
    bool fills;
    typename elements<DTYPE>::type with;
};

template <int DTYPE> __device__ __forceinline__ gradient_filling<DTYPE> find_filling(const trope_row &row)
{
    typedef typename elements<DTYPE>::real real;
    gradient_filling<DTYPE> f = {row.action != TROPE_ROW_COPY, 0};
    if (row.action == TROPE_ROW_ROTATE)
        f.with = from_real<DTYPE>(sizeof(real) == sizeof(float) ? (real)trope_float_from_bits(TROPE_NAN_F32) : (real)NAN);
    return f;
}

/* A head's share of one thread, as 16-byte vectors. */
template <int DTYPE> struct vector_head {
    typedef typename elements<DTYPE>::real real;
    typedef typename elements<DTYPE>::type element;
    struct place : gradient_place {
        uint32_t half_gap; /* bytes to the second vector, in a tensor that is half paired */
    };
    enum { WIDTH = vector_pair<DTYPE>::WIDTH, THREADS = 256 };

    vector_pair<DTYPE> dy, x;

    /* The byte of the head where vector `run` of a tensor starts. */
    static __device__ __forceinline__ uint32_t start(const trope_plan_operand &o, const thread_pairs &t,
                                                     int32_t interleaved, int run)
    {
        const uint32_t pairs = (uint32_t)o.window_pairs, window = (uint32_t)o.rotary_offset + 2 * t.window * pairs;
        return (window + (interleaved ? 2 * (run ? t.high : t.low) : run * pairs + t.low)) * sizeof(element);
    }

    /* An operand with fewer pairs than the widest lacks the last ones. */
    static __device__ __forceinline__ uint32_t find_flags(const trope_plan_operand &o, const thread_pairs &t)
    {
        const uint32_t pairs = (uint32_t)o.window_pairs;
        return (t.low < pairs ? PLACE_FIRST : 0) | (t.high < pairs ? PLACE_SECOND : 0) | (o.dst ? PLACE_WRITES : 0);
    }

    static __device__ __forceinline__ place locate(const gradient_call &g, const gradient_head &head, uint32_t j)
    {
        const trope_plan &plan = g.plan.plan;
        const thread_pairs t = find_thread_pairs<WIDTH>(g, j);
        const trope_plan_operand &o = plan.operands[head.operand];
        place p = {{head.src, head.input, head.dst, head.operand, head.left, 0}, 0};
        if (!head.left)
            return p;
        p.flags = find_flags(o, t);
        p.src += start(o, t, plan.interleaved_src, 0);
        p.input += start(o, t, plan.interleaved_input, 0);
        p.dst += start(o, t, plan.interleaved_dst, 0);
        p.half_gap = (uint32_t)o.window_pairs * sizeof(element);
        return p;
    }

    static __device__ __forceinline__ uint32_t gap(const gradient_call &g, int32_t interleaved, const place &p)
    {
        return interleaved ? g.interleaved_gap : p.half_gap;
    }

    __device__ __forceinline__ void load(const gradient_call &g, const place &p)
    {
        if (p.flags & PLACE_FIRST) {
            dy.bits[0] = __ldcs((const uint4 *)p.src);
            x.bits[0] = __ldcs((const uint4 *)p.input);
        } else {
            dy.bits[0] = x.bits[0] = make_uint4(0, 0, 0, 0);
        }
        if (p.flags & PLACE_SECOND) {
            dy.bits[1] = __ldcs((const uint4 *)(p.src + gap(g, g.plan.plan.interleaved_src, p)));
            x.bits[1] = __ldcs((const uint4 *)(p.input + gap(g, g.plan.plan.interleaved_input, p)));
        } else {
            dy.bits[1] = x.bits[1] = make_uint4(0, 0, 0, 0);
        }
    }

    static __device__ __forceinline__ void store(char *dst, uint32_t gap, uint32_t flags, const vector_pair<DTYPE> &v)
    {
        if (!(flags & PLACE_WRITES))
            return;
        if (flags & PLACE_FIRST)
            __stcs((uint4 *)dst, v.bits[0]);
        if (flags & PLACE_SECOND)
            __stcs((uint4 *)(dst + gap), v.bits[1]);
    }

    /* Pairs e and e + 1 of the thread (of one pair, where a vector holds two elements). */
    template <bool NATIVE, bool OWN>
    __device__ __forceinline__ void add_pairs(const gradient_turns<real> &turns, int e, vector_pair<DTYPE> *out,
                                              double *sums)
    {
        real dx[2][2];
#pragma unroll
        for (int i = e; i < e + 2; i++) {
            const real dy_pair[2] = {to_real<DTYPE>(dy.get(0, i)), to_real<DTYPE>(dy.get(1, i))};
            const real x_pair[2] = {to_real<DTYPE>(x.get(0, i)), to_real<DTYPE>(x.get(1, i))};
            double *to[2] = {&sums[i], &sums[WIDTH + i]};
            add_pair<DTYPE, NATIVE, OWN>(turns, i, dy_pair, x_pair, dx[i - e], to);
        }
        const real first[2] = {dx[0][0], dx[1][0]}, second[2] = {dx[0][1], dx[1][1]};
        out->template set<2>(0, e, first);
        out->template set<2>(1, e, second);
    }

    template <bool NATIVE, bool OWN>
    __device__ __forceinline__ void add(const gradient_call &g, const place &p, const gradient_turns<real> &turns,
                                        double *sums)
    {
        const trope_plan &plan = g.plan.plan;
        vector_pair<DTYPE> out;
        if (plan.interleaved_src)
            dy.separate();
        if (plan.interleaved_input)
            x.separate();
#pragma unroll
        for (int e = 0; e < WIDTH; e += 2)
            add_pairs<NATIVE, OWN>(turns, e, &out, sums);
        if (plan.interleaved_dst)
            out.join();
        store(p.dst, gap(g, plan.interleaved_dst, p), p.flags, out);
    }

    /* What is copied stays where it is in the head, whatever the pairings. */
    __device__ __forceinline__ void pass(const gradient_call &g, const gradient_head &head, uint32_t j,
                                         const trope_row &row)
    {
        const thread_pairs t = find_thread_pairs<WIDTH>(g, j);
        const int32_t interleaved = g.plan.plan.interleaved_src;
        const trope_plan_operand &o = g.plan.plan.operands[head.operand];
        const gradient_filling<DTYPE> filling = find_filling<DTYPE>(row);
        if (filling.fills)
            dy.fill(filling.with);
        else if (o.in_place)
            return;
        store(head.dst + start(o, t, interleaved, 0), start(o, t, interleaved, 1) - start(o, t, interleaved, 0),
              find_flags(o, t), dy);
    }
};

/* The same as one pair, with any strides. */
template <int DTYPE> struct scalar_head {
    typedef typename elements<DTYPE>::real real;
    typedef typename elements<DTYPE>::type element;
    struct place : gradient_place {
        int64_t src_gap, input_gap, dst_gap; /* bytes to the second element */
    };
    enum { WIDTH = 1, THREADS = TROPE_MAX_PAIRS }; /* so that the threads of a head are in one block, and read it at once */

    element dy[2], x[2];

    /* The offset in bytes of an element of the pair, first (0) or second (1). */
    static __device__ __forceinline__ int64_t start(const gradient_call &g, const trope_plan_operand &o,
                                                    const thread_pairs &t, int32_t interleaved, int64_t stride, int which)
    {
        const int32_t pair = (int32_t)(t.window * (uint32_t)o.window_pairs + t.low), windows = g.plan.plan.windows;
        const int32_t at = which ? trope_second_of_pair(interleaved, windows, o.rotary_dim / 2, pair)
                                 : trope_first_of_pair(interleaved, windows, o.rotary_dim / 2, pair);
        return (o.rotary_offset + at) * stride * (int64_t)sizeof(element);
    }

    static __device__ __forceinline__ place locate(const gradient_call &g, const gradient_head &head, uint32_t j)
    {
        const trope_plan &plan = g.plan.plan;
        const thread_pairs t = find_thread_pairs<WIDTH>(g, j);
        const trope_plan_operand &o = plan.operands[head.operand];
        place p = {{head.src, head.input, head.dst, head.operand, head.left, 0}, 0, 0, 0};
        if (!head.left || t.low >= (uint32_t)o.window_pairs)
            return p;
        const int64_t src = o.src_stride[TROPE_DIM_ELEMENT], input = o.input_stride[TROPE_DIM_ELEMENT],
                      dst = o.dst_stride[TROPE_DIM_ELEMENT];
        p.flags = PLACE_FIRST | (o.dst ? PLACE_WRITES : 0);
        p.src += start(g, o, t, plan.interleaved_src, src, 0);
        p.input += start(g, o, t, plan.interleaved_input, input, 0);
        p.dst += start(g, o, t, plan.interleaved_dst, dst, 0);
        p.src_gap = start(g, o, t, plan.interleaved_src, src, 1) - start(g, o, t, plan.interleaved_src, src, 0);
        p.input_gap = start(g, o, t, plan.interleaved_input, input, 1) - start(g, o, t, plan.interleaved_input, input, 0);
        p.dst_gap = start(g, o, t, plan.interleaved_dst, dst, 1) - start(g, o, t, plan.interleaved_dst, dst, 0);
        return p;
    }

    __device__ __forceinline__ void load(const gradient_call &, const place &p)
    {
        if (!p.flags)
            return;
        dy[0] = *(const element *)p.src;
        dy[1] = *(const element *)(p.src + p.src_gap);
        x[0] = *(const element *)p.input;
        x[1] = *(const element *)(p.input + p.input_gap);
    }

    template <bool NATIVE, bool OWN>
    __device__ __forceinline__ void add(const gradient_call &, const place &p, const gradient_turns<real> &turns,
                                        double *sums)
    {
        const real dy_pair[2] = {to_real<DTYPE>(dy[0]), to_real<DTYPE>(dy[1])};
        const real x_pair[2] = {to_real<DTYPE>(x[0]), to_real<DTYPE>(x[1])};
        double *to[2] = {&sums[0], &sums[1]};
        real dx[2];
        add_pair<DTYPE, NATIVE, OWN>(turns, 0, dy_pair, x_pair, dx, to);
        if (!(p.flags & PLACE_WRITES))
            return;
        *(element *)p.dst = from_real<DTYPE>(dx[0]);
        *(element *)(p.dst + p.dst_gap) = from_real<DTYPE>(dx[1]);
    }

    __device__ __forceinline__ void pass(const gradient_call &g, const gradient_head &head, uint32_t j,
                                         const trope_row &row)
    {
        const thread_pairs t = find_thread_pairs<WIDTH>(g, j);
        const int32_t interleaved = g.plan.plan.interleaved_src;
        const trope_plan_operand &o = g.plan.plan.operands[head.operand];
        const gradient_filling<DTYPE> filling = find_filling<DTYPE>(row);
        if (!o.dst || (!filling.fills && o.in_place))
            return;
        for (int i = 0; i < 2; i++)
            *(element *)(head.dst + start(g, o, t, interleaved, o.dst_stride[TROPE_DIM_ELEMENT], i)) =
                filling.fills ? filling.with : dy[i];
    }
};

/* ---- elements that pass through ---- */

struct gradient_passing {
    const char *from; /* NULL: zero is written */
    char *to;         /* NULL: nothing is */
};

/* Item `number`, of `width` elements, of those of the block's units. A function of its own: it is large and seldom called.
 */
static __device__ __noinline__ gradient_passing find_passing(const gradient_call &g, const trope_row *rows, uint32_t number,
                                                             uint32_t width)
{
    const trope_plan &plan = g.plan.plan;
    const trope_row &row = rows[g.unit_passing.divide(number)];
    uint32_t item = number - g.unit_passing.divide(number) * g.unit_passing.divisor;
    const uint32_t entry = item / g.row_passing;
    item -= entry * g.row_passing;
    uint32_t operand = 0;
    for (int k = 1; k < TROPE_MAX_OPERANDS; k++)
        operand += k < plan.operand_count && item >= g.operands[k].first_passing;
    const gradient_heads &heads = g.operands[operand];
    const trope_plan_operand &o = plan.operands[operand];
    item -= heads.first_passing;
    const uint32_t head = heads.passing.divide(item), group = heads.per_group.divide(head);
    const uint32_t in_group = head - group * o.heads_per_group, element = (item - head * heads.passing.divisor) * width;
    const int64_t at = element + (element >= (uint32_t)o.rotary_offset ? o.rotary_dim : 0);
    const int64_t batch = row.batch * g.batch_per_unit + entry;
    const int64_t from =
        offset_of_head(o.src_stride, batch, row.token, group, in_group) + at * o.src_stride[TROPE_DIM_ELEMENT];
    const int64_t to =
        offset_of_head(o.dst_stride, batch, row.token, group, in_group) + at * o.dst_stride[TROPE_DIM_ELEMENT];
    const bool zero = row.action == TROPE_ROW_ZERO, writes = batch < g.batch && (zero || !o.in_place);
    return {zero ? NULL : o.src + from * plan.element_size, writes ? o.dst + to * plan.element_size : NULL};
}

/* Copies what of each head is not rotated; a few items at a time, so that their loads are under way together. */
template <int DTYPE, int WIDTH>
__device__ __forceinline__ void copy_passing(const gradient_call &g, const trope_row *rows, uint32_t units)
{
    typedef std::conditional_t<WIDTH == 1, typename elements<DTYPE>::type, uint4> item;
    enum { AT_ONCE = 4 };
    const uint32_t count = units * g.unit_passing.divisor;
    for (uint32_t first = threadIdx.x; first < count; first += AT_ONCE * blockDim.x) {
        item items[AT_ONCE];
        item *to[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const uint32_t number = first + i * blockDim.x;
            gradient_passing p = {NULL, NULL};
            if (number < count)
                p = find_passing(g, rows, number, WIDTH);
            to[i] = (item *)p.to;
            items[i] = item();
            if (p.to && p.from)
                items[i] = *(const item *)p.from;
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (to[i])
                *to[i] = items[i];
    }
}

/* ---- shared memory ---- */

template <typename REAL> struct gradient_space {
    trope_row *rows;
    gradient_turn<double> *gradient; /* [units, 1 or 2, threads of a head] in the order of turn_layout */
    gradient_turn<REAL> *rotate;
    REAL *coefficients; /* as fill_coefficients leaves them; then */
    double *slots;      /* [units, slots, 2, pairs], in the same place */
    uint32_t gradient_run, rotate_run;
};

TROPE_HD uint32_t gradient_runs(const gradient_call &g)
{
    return g.plan.own_angles ? 2 : 1;
}

/* What is turned by is also what is summed with, in f64 and unless the position is a factor. */
TROPE_HD bool gradient_shares_turns(const gradient_call &g)
{
    return g.plan.plan.dtype == TROPE_F64 && g.mode != GRADIENT_FREQUENCIES;
}

template <typename REAL, int WIDTH>
__device__ __forceinline__ gradient_space<REAL> divide_space(const gradient_call &g, char *shared)
{
    const uint32_t runs = g.units_per_block * gradient_runs(g);
    gradient_space<REAL> s;
    s.gradient_run = g.head_threads.divisor * turn_layout<gradient_turn<double>, WIDTH>::PER_THREAD;
    s.rotate_run = g.head_threads.divisor * turn_layout<gradient_turn<REAL>, WIDTH>::PER_THREAD;
    s.rows = (trope_row *)shared;
    s.gradient = (gradient_turn<double> *)(s.rows + g.units_per_block);
    s.rotate = (gradient_turn<REAL> *)(s.gradient + (gradient_shares_turns(g) ? 0 : runs * s.gradient_run));
    s.slots = (double *)(s.rotate + runs * s.rotate_run);
    s.coefficients = (REAL *)s.slots;
    return s;
}

/* Finds the block's rows. */
__device__ __forceinline__ void find_rows(const trope_plan &plan, int64_t first_row, uint32_t count, trope_row *rows)
{
    if (threadIdx.x / 32 * 32 >= count)
        return;
    const uint32_t number = threadIdx.x < count ? threadIdx.x : count - 1;
    trope_row row;
    trope_locate_row(&plan, first_row + number, &row);
    find_row(plan, &row);
    if (threadIdx.x < count)
        rows[number] = row;
}

/* Coefficients of the block's rows, in shared memory: for each row c1[pairs], s1[pairs] and, where a pair's elements have
 * their own angles, c2[pairs], s2[pairs]. A thread keeps its pair and goes from row to row. */
template <typename REAL>
__device__ __forceinline__ void fill_coefficients(const gradient_call &g, const trope_row *rows, uint32_t count, REAL *space)
{
    const uint32_t pairs = (uint32_t)g.plan.plan.pairs, lanes = g.pair_lanes.divisor, per_row = 2 * gradient_runs(g) * pairs;
    const uint32_t first_row = g.pair_lanes.divide(threadIdx.x), row_step = g.pair_row_step;
    if (first_row >= row_step)
        return;
    for (uint32_t pair = threadIdx.x - first_row * lanes; pair < pairs; pair += lanes) {
        for (uint32_t r = first_row; r < count; r += row_step) {
            REAL *to = space + r * per_row + pair;
            if (rows[r].action != TROPE_ROW_ROTATE)
                continue;
            const steps_of<ANGLES_ANY, 1> steps(g.plan, (int)pair);
            turns_of<REAL, 1> t;
            const angles_of<REAL, 1> angles = load_angles<ANGLES_ANY, REAL, 1>(g.plan, rows[r], (int)pair, steps);
            const bool own = find_turns<ANGLES_ANY, REAL, 1>(g.plan, rows[r], (int)pair, angles, &t);
            to[0] = t.c1[0];
            to[pairs] = t.s1[0];
            if (g.plan.own_angles) {
                to[2 * pairs] = own ? t.c2[0] : t.c1[0];
                to[3 * pairs] = own ? t.s2[0] : t.s1[0];
            }
        }
    }
}

/* Coefficients of the units in the order in which the threads of a head read them. */
template <int WIDTH, typename REAL>
__device__ __forceinline__ void order_turns(const gradient_call &g, const gradient_space<REAL> &space, uint32_t units)
{
    const trope_plan &plan = g.plan.plan;
    const uint32_t pairs = (uint32_t)plan.pairs, runs = gradient_runs(g), lanes = g.pair_lanes.divisor;
    const uint32_t first_run = g.pair_lanes.divide(threadIdx.x), run_step = g.pair_row_step;
    if (first_run >= run_step)
        return;
    for (uint32_t q = threadIdx.x - first_run * lanes; q < pairs; q += lanes) {
        const uint32_t j = q / WIDTH, e = q % WIDTH, pair = pair_of<WIDTH>(g, j, e);
        const uint32_t to_gradient = j * turn_layout<gradient_turn<double>, WIDTH>::PER_THREAD + e;
        const uint32_t to_rotate = j * turn_layout<gradient_turn<REAL>, WIDTH>::PER_THREAD + e;
        const int axis = trope_pair_axis(&plan, (int)pair);
        for (uint32_t i = first_run; i < units * runs; i += run_step) {
            const trope_row &row = space.rows[runs == 2 ? i / 2 : i];
            if (row.action != TROPE_ROW_ROTATE)
                continue;
            const REAL c = space.coefficients[2 * i * pairs + pair], s = space.coefficients[(2 * i + 1) * pairs + pair];
            const double factor = g.mode == GRADIENT_FREQUENCIES ? (double)row.position[axis] : 1;
            space.gradient[i * space.gradient_run + to_gradient] = {c * factor, s * factor};
            space.rotate[i * space.rotate_run + to_rotate] = {g.native ? round_native(plan, c) : c,
                                                              g.native ? round_native(plan, s) : s};
        }
    }
}

/* ---- results ---- */

__device__ __forceinline__ void store_angle(const trope_plan &plan, int64_t offset, double value)
{
    if (plan.dtype == TROPE_F64)
        ((double *)plan.d_freqs)[offset] = value;
    else
        ((float *)plan.d_freqs)[offset] = (float)value;
}

/* For inverse the angle that is turned by is -a. (0 - x, so that an angle that nothing uses gets 0 and not -0.) */
__device__ __forceinline__ double turn_sum(const trope_plan &plan, double sum)
{
    return plan.inverse ? 0 - sum : sum;
}

/* The offset in d_freqs of the first (0) or second (1) element's angle of a pair at an angle row. */
__device__ __forceinline__ int64_t offset_of_angle(const trope_plan &plan, int64_t batch, int64_t row, uint32_t pair,
                                                   int which)
{
    const int64_t base = batch * plan.angles.batch_stride + row * plan.angles.row_stride;
    if (!plan.angles.per_element)
        return base + pair;
    return base + (which ? trope_second_of_pair(plan.interleaved_columns, plan.windows, plan.pairs, (int)pair)
                         : trope_first_of_pair(plan.interleaved_columns, plan.windows, plan.pairs, (int)pair));
}

/* A slot has a sum for each pair: the threads' first ones, the threads' second ones, and so on. */
template <int WIDTH> __device__ __forceinline__ uint32_t pair_of_slot(const gradient_call &g, uint32_t i)
{
    if constexpr (WIDTH == 1)
        return i;
    const uint32_t e = g.head_threads.divide(i);
    return pair_of<WIDTH>(g, i - e * g.head_threads.divisor, e);
}

/* The slots of a unit, or of all units of the block, added in their order. */
__device__ __forceinline__ double add_slots(const double *slots, uint32_t count, uint32_t pairs)
{
    double sum = 0;
#pragma unroll 8
    for (uint32_t i = 0; i < count; i++)
        sum += slots[(size_t)2 * i * pairs];
    return sum;
}

/* The sum of a unit for the first (0) or second (1) element's angle of a pair, or for both. */
__device__ __forceinline__ void emit_sum(const gradient_call &g, const trope_row &row, uint32_t pair, int which, double sum)
{
    const trope_plan &plan = g.plan.plan;
    if (g.mode == GRADIENT_DIRECT) {
        const int64_t position = row.position[trope_pair_axis(&plan, (int)pair)];
        store_angle(plan, offset_of_angle(plan, row.batch, position, pair, which), turn_sum(plan, sum));
    } else {
        const int64_t unit = row.batch * plan.tokens + row.token;
        g.sums[(plan.angles.per_element ? 2 * unit + which : unit) * plan.pairs + pair] = sum;
    }
}

template <int WIDTH, typename REAL>
__device__ __forceinline__ void emit_sums(const gradient_call &g, const gradient_space<REAL> &space, uint32_t units)
{
    const uint32_t pairs = (uint32_t)g.plan.plan.pairs, slots = g.slots.divisor;
    if (g.mode == GRADIENT_FREQUENCIES) {
        for (uint32_t i = threadIdx.x; i < pairs; i += blockDim.x) {
            const double first = add_slots(space.slots + i, units * slots, pairs);
            const double second = add_slots(space.slots + pairs + i, units * slots, pairs);
            g.sums[blockIdx.x * (int64_t)pairs + pair_of_slot<WIDTH>(g, i)] = first + second;
        }
        return;
    }
    for (uint32_t i = threadIdx.x; i < units * pairs; i += blockDim.x) {
        const uint32_t unit = i / pairs, at = i - unit * pairs;
        const double *of_unit = space.slots + (size_t)unit * slots * 2 * pairs + at;
        const double first = add_slots(of_unit, slots, pairs), second = add_slots(of_unit + pairs, slots, pairs);
        const trope_row &row = space.rows[unit];
        const uint32_t pair = pair_of_slot<WIDTH>(g, at);
        emit_sum(g, row, pair, 0, g.plan.plan.angles.per_element ? first : first + second);
        if (g.plan.plan.angles.per_element)
            emit_sum(g, row, pair, 1, second);
    }
}

/* The angle row of each unit on each axis that has positions of its own; units without one go last. */
__device__ __forceinline__ void emit_keys(const gradient_call &g, const trope_row *rows, uint32_t units)
{
    const trope_plan &plan = g.plan.plan;
    for (uint32_t i = threadIdx.x; i < units * g.key_axes; i += blockDim.x) {
        const uint32_t axis = i / units;
        const trope_row &row = rows[i - axis * units];
        const uint32_t unit = (uint32_t)(row.batch * plan.tokens + row.token);
        const bool counts = row.action == TROPE_ROW_ROTATE && (plan.used_axes >> axis & 1) && !(row.poisoned >> axis & 1);
        const int64_t angle_row =
            counts ? (plan.angles.batch_stride ? row.batch * plan.angles.rows : 0) + row.position[axis] : 0;
        g.keys[axis * g.units + unit] = counts ? axis * g.angle_rows + (uint32_t)angle_row : g.key_axes * g.angle_rows;
        g.values[axis * g.units + unit] = unit;
    }
}

/* ---- the kernel ---- */

/* Thread j of those that walk slot `slot` of unit `unit`, of the block's. */
struct gradient_thread {
    uint32_t j, slot, unit;
    bool works;
};

/* `done` slots of the block have been walked. */
__device__ __forceinline__ gradient_thread find_thread(const gradient_call &g, uint32_t units, uint32_t done)
{
    const uint32_t quotient = g.head_threads.divide(threadIdx.x), slot = done + quotient;
    gradient_thread t;
    t.j = threadIdx.x - quotient * g.head_threads.divisor;
    t.unit = g.slots.divide(slot);
    t.slot = slot - t.unit * g.slots.divisor;
    t.works = t.unit < units && quotient < g.head_threads.divide(blockDim.x);
    return t;
}

/* `row` is the unit's, of which batch and token are enough. */
__device__ __forceinline__ gradient_head head_of_step(const gradient_call &g, const gradient_thread &thread,
                                                      const trope_row &row, uint32_t step)
{
    const gradient_head none = {NULL, NULL, NULL, 0, 0};
    if (!thread.works || step >= g.steps)
        return none;
    return find_gradient_head(g, row.batch, row.token, thread.slot + step * g.slots.divisor);
}

/* The place in the head of the next step, from that of the step before: mostly a step away. */
template <class HEAD>
__device__ __forceinline__ typename HEAD::place next_place(const gradient_call &g, const gradient_thread &thread,
                                                           const trope_row &row, uint32_t step, typename HEAD::place p)
{
    if (p.left <= g.slots.divisor)
        return HEAD::locate(g, head_of_step(g, thread, row, step), thread.j);
    const gradient_heads &o = g.operands[p.operand];
    p.left -= g.slots.divisor;
    p.src += o.src_step;
    p.input += o.input_step;
    p.dst += o.dst_step;
    return p;
}

/* Turns a head and adds its terms to the thread's sums. */
template <class HEAD>
__device__ __forceinline__ void add_head(const gradient_call &g, const typename HEAD::place &p,
                                         const gradient_turns<typename HEAD::real> &turns, HEAD *head, double *sums)
{
    const bool own = g.plan.own_angles;
    if (g.native)
        own ? head->template add<true, true>(g, p, turns, sums) : head->template add<true, false>(g, p, turns, sums);
    else
        own ? head->template add<false, true>(g, p, turns, sums) : head->template add<false, false>(g, p, turns, sums);
}

/* The coefficients of a thread's pairs. */
template <class HEAD>
__device__ __forceinline__ gradient_turns<typename HEAD::real>
find_turns(const gradient_call &g, const gradient_space<typename HEAD::real> &space, uint32_t unit, uint32_t j)
{
    const uint32_t runs = unit * gradient_runs(g);
    gradient_turns<typename HEAD::real> t;
    t.rotate = space.rotate + runs * space.rotate_run +
               j * turn_layout<gradient_turn<typename HEAD::real>, HEAD::WIDTH>::PER_THREAD;
    t.gradient =
        space.gradient + runs * space.gradient_run + j * turn_layout<gradient_turn<double>, HEAD::WIDTH>::PER_THREAD;
    t.rotate_run = space.rotate_run;
    t.gradient_run = space.gradient_run;
    return t;
}

/* All heads of a slot. `head` is the first, whose loads are under way from place `p`. */
template <class HEAD>
__device__ __forceinline__ void walk_slot(const gradient_call &g, const gradient_space<typename HEAD::real> &space,
                                          const gradient_thread &thread, typename HEAD::place p, HEAD head)
{
    const uint32_t unit = thread.works ? thread.unit : 0;
    const gradient_turns<typename HEAD::real> turns = find_turns<HEAD>(g, space, unit, thread.j);
    /* A poisoned row has NaN for its dx and no place in a sum over rows; in one of its own nobody looks for it. */
    const trope_row &row = space.rows[unit];
    const bool passes = row.action != TROPE_ROW_ROTATE || (row.poisoned && g.mode == GRADIENT_FREQUENCIES);
    double sums[2 * HEAD::WIDTH] = {0};
    for (uint32_t step = 0; step < g.steps; step++) {
        const typename HEAD::place next = next_place<HEAD>(g, thread, row, step + 1, p);
        HEAD next_head;
        next_head.load(g, next);
        if (g.rearranges)
            __syncthreads();
        if (p.flags && passes)
            head.pass(g, head_of_step(g, thread, row, step), thread.j, row);
        else if (p.flags)
            add_head(g, p, turns, &head, sums);
        head = next_head;
        p = next;
    }
    if (!thread.works)
        return;
    double *to =
        space.slots + (size_t)(thread.unit * g.slots.divisor + thread.slot) * 2 * (uint32_t)g.plan.plan.pairs + thread.j;
#pragma unroll
    for (int e = 0; e < 2 * HEAD::WIDTH; e++)
        to[e * g.head_threads.divisor] = sums[e];
}

template <int DTYPE, template <int> class HEAD, int BLOCKS>
__global__ void __launch_bounds__(HEAD<DTYPE>::THREADS, BLOCKS) gradient_kernel(const __grid_constant__ gradient_call g)
{
    typedef typename elements<DTYPE>::real real;
    enum { WIDTH = HEAD<DTYPE>::WIDTH };
    extern __shared__ __align__(16) char shared[];
    const gradient_space<real> space = divide_space<real, WIDTH>(g, shared);
    const int64_t first_unit = (int64_t)blockIdx.x * g.units_per_block, left = g.units - first_unit;
    const uint32_t units = left < g.units_per_block ? (uint32_t)left : g.units_per_block;

    const uint32_t slots_at_once = g.head_threads.divide(blockDim.x);
    gradient_thread thread = find_thread(g, units, 0);
    trope_row row;
    trope_locate_row(&g.plan.plan, first_unit + (thread.works ? thread.unit : 0), &row);
    typename HEAD<DTYPE>::place place = HEAD<DTYPE>::locate(g, head_of_step(g, thread, row, 0), thread.j);
    HEAD<DTYPE> head;
    head.load(g, place);

    find_rows(g.plan.plan, first_unit, units, space.rows);
    if (g.plan.plan.sequences.boundaries)
        check_sequences(g.plan.plan);
    __syncthreads();
    fill_coefficients(g, space.rows, units, space.coefficients);
    __syncthreads();
    order_turns<WIDTH>(g, space, units);
    __syncthreads();

    walk_slot(g, space, thread, place, head);
    for (uint32_t done = slots_at_once; WIDTH == 1 && done < units * g.slots.divisor; done += slots_at_once) {
        thread = find_thread(g, units, done);
        place = HEAD<DTYPE>::locate(g, head_of_step(g, thread, space.rows[thread.works ? thread.unit : 0], 0), thread.j);
        head.load(g, place);
        walk_slot(g, space, thread, place, head);
    }
    if (g.row_passing)
        copy_passing<DTYPE, WIDTH>(g, space.rows, units);
    __syncthreads();
    emit_sums<WIDTH>(g, space, units);
    if (g.mode == GRADIENT_SORTED)
        emit_keys(g, space.rows, units);
}

#endif
