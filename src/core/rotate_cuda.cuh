/* The CUDA kernels. A block takes a tile: some rows that follow each other, or a share of their heads. A thread has one place
 * in a head, the same for each of its rows, so that a row costs it no more than an offset. Its loads are under way while the
 * block finds its rows and puts their coefficients into shared memory; then it rotates and stores. Direction, layout,
 * positions and angles are data in the plan; what is compiled in is the dtype and whether a place is two 16-byte vectors or
 * one pair. */
#ifndef TROPE_CORE_ROTATE_CUDA_CUH
#define TROPE_CORE_ROTATE_CUDA_CUH

#include <cuda_runtime.h>
#include <stdint.h>
#include <type_traits>

#include "core/plan.h"
#include "core/rotate.h"
#include "core/sincos.h"
#include "varlen/row.h"

/* Division of a number below 2^31 by a constant (Granlund and Montgomery, PLDI 1994). */
struct fast_divisor {
    uint32_t divisor, multiplier, shift;

    void set(uint32_t d)
    {
        divisor = d;
        shift = 0;
        while (((uint64_t)1 << shift) < d)
            shift++;
        multiplier = (uint32_t)((((uint64_t)1 << 32) * (((uint64_t)1 << shift) - d)) / d + 1);
    }

    __device__ __forceinline__ uint32_t divide(uint32_t n) const
    {
        return (__umulhi(n, multiplier) + n) >> shift;
    }
};

/* How the items of one operand's head are numbered: rotating ones first, then those that pass through. */
struct operand_items {
    uint32_t first;    /* of the operand, within a row */
    uint32_t rotating; /* of a head */
    uint32_t count;    /* of a head; per_head.divisor may be more, and those are none */
    uint32_t heads;    /* after the last one there may be a gap before the next operand */
    fast_divisor per_head;
    fast_divisor heads_per_group;
    int64_t src_head, src_group, dst_head, dst_group; /* distances in bytes, as below */
    int64_t src_inner, src_outer, dst_inner, dst_outer;
};

/* How rows are cut into tiles and threads are spread over a tile. A tile is `tile_rows` rows at one distance from each other:
 * they have the same outer index (batch or token, whichever is further apart) unless the rows of all tensors are evenly
 * spaced throughout, and then there is but one outer index. Thread t has row t / lanes and item t % lanes (the other way
 * round with rows_fastest), and goes on from row to row by row_step. */
struct column_places {
    int32_t interleaved, windows, window_pairs;

    /* As trope_first_of_pair, without its division, which the compiler would do for every thread. */
    __device__ __forceinline__ int first(int pair) const
    {
        int skipped = 0;
        for (int w = 1; w < windows; w++)
            skipped += pair >= w * window_pairs ? window_pairs : 0;
        return interleaved ? 2 * pair : pair + skipped;
    }

    __device__ __forceinline__ int second(int pair) const
    {
        return first(pair) + (interleaved ? 1 : window_pairs);
    }
};

struct cuda_call {
    trope_plan plan;
    column_places columns; /* of a table with a column per element */
    operand_items items[TROPE_MAX_OPERANDS];
    fast_divisor lanes;
    fast_divisor pair_lanes; /* the same for the coefficients: thread t has row t / pair_lanes and pair t % pair_lanes, */
    uint32_t pair_row_step;  /* and goes on by this */
    float cosine_scale, sine_scale;
    int64_t outer, inner;    /* rows = outer * inner */
    uint32_t tiles;          /* of an outer index */
    uint32_t tile_rows, row_step;
    uint32_t row_items;      /* of all operands */
    uint32_t share_items;    /* of those, what one block takes */
    uint32_t shares;         /* so many blocks take a tile together */
    uint32_t rows_fastest;   /* where rows, not elements, are neighbours in memory */
    uint32_t coefficients_per_pair; /* 2, or 4 when a pair's elements have their own angles */
};

/* ---- elements ---- */

template <int DTYPE> struct elements {
    typedef float real;
    typedef uint16_t type;
};
template <> struct elements<TROPE_F32> {
    typedef float real;
    typedef float type;
};
template <> struct elements<TROPE_F64> {
    typedef double real;
    typedef double type;
};

template <int DTYPE> __device__ __forceinline__ typename elements<DTYPE>::real to_real(typename elements<DTYPE>::type x)
{
    if constexpr (DTYPE == TROPE_F16)
        return trope_f16_to_f32(x);
    else if constexpr (DTYPE == TROPE_BF16)
        return trope_bf16_to_f32(x);
    else
        return x;
}

template <int DTYPE> __device__ __forceinline__ typename elements<DTYPE>::type from_real(typename elements<DTYPE>::real x)
{
    if constexpr (DTYPE == TROPE_F16)
        return trope_f32_to_f16(x);
    else if constexpr (DTYPE == TROPE_BF16)
        return trope_f32_to_bf16(x);
    else
        return x;
}

/* Two neighbours at once, which is one instruction for f16 and bf16. */
template <int DTYPE>
__device__ __forceinline__ void from_reals(typename elements<DTYPE>::real low, typename elements<DTYPE>::real high,
                                           typename elements<DTYPE>::type *to)
{
    if constexpr (DTYPE == TROPE_F16 || DTYPE == TROPE_BF16) {
        uint32_t both;
        if constexpr (DTYPE == TROPE_F16)
            asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
        else
            asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
        to[0] = (uint16_t)both;
        to[1] = (uint16_t)(both >> 16);
    } else {
        to[0] = low;
        to[1] = high;
    }
}

/* 16 bytes of elements. */
template <int DTYPE> union vector_of {
    enum { COUNT = 16 / sizeof(typename elements<DTYPE>::type) };
    uint4 bits;
    typename elements<DTYPE>::type element[COUNT];
};

/* ---- coefficients ---- */

template <typename REAL> __device__ __forceinline__ REAL table_entry(const trope_plan_angles &a, const void *table, int64_t offset)
{
    switch (a.dtype) {
    case TROPE_F64:
        return (REAL)((const double *)table)[offset];
    case TROPE_F16:
        return trope_f16_to_f32(((const uint16_t *)table)[offset]);
    case TROPE_BF16:
        return trope_bf16_to_f32(((const uint16_t *)table)[offset]);
    default:
        return ((const float *)table)[offset];
    }
}

__device__ __forceinline__ void sincos_of(float angle, float *sine, float *cosine)
{
    trope_sincos(angle, sine, cosine);
}

__device__ __forceinline__ void sincos_of(double angle, double *sine, double *cosine)
{
    sincos(angle, sine, cosine);
}

__device__ __forceinline__ void sincos_of_phase(int64_t position, uint64_t step, float *sine, float *cosine)
{
    trope_sincos_quarter(trope_reduce_phase(trope_phase(position, step)), sine, cosine);
}

__device__ __forceinline__ void sincos_of_phase(int64_t position, uint64_t step, double *sine, double *cosine)
{
    trope_sincos_phase_double((uint64_t)position * step, sine, cosine);
}

__device__ __forceinline__ float round_native(const trope_plan &plan, float x)
{
    if (plan.dtype == TROPE_F16)
        return trope_round_f16(x);
    return plan.dtype == TROPE_BF16 ? trope_round_bf16(x) : x;
}

__device__ __forceinline__ double round_native(const trope_plan &, double x)
{
    return x;
}

/* A column of the angles: the axis that drives it and, for TROPE_ANGLES_PHASE, its turns per position. */
struct angle_column {
    int axis, index;
    uint64_t step;
};

/* cos and sin of one column of the row, scaled, as they are rotated by. */
template <typename REAL>
__device__ __forceinline__ void column_coefficients(const cuda_call &call, const trope_row &row, angle_column column, REAL *cosine,
                                                    REAL *sine)
{
    const trope_plan &plan = call.plan;
    const trope_plan_angles &a = plan.angles;
    REAL c, s;
    if (a.source == TROPE_ANGLES_PHASE) {
        sincos_of_phase(row.position[column.axis], column.step, &s, &c);
    } else {
        const int64_t offset = row.batch * a.batch_stride + row.position[column.axis] * a.row_stride + column.index;
        if (a.source == TROPE_ANGLES_FREQS) {
            sincos_of(table_entry<REAL>(a, a.freqs, offset), &s, &c);
        } else {
            c = table_entry<REAL>(a, a.cos, offset);
            s = table_entry<REAL>(a, a.sin, offset);
        }
    }
    if constexpr (sizeof(REAL) == 8) {
        c *= plan.cosine_scale;
        s *= plan.sine_scale;
    } else {
        c *= call.cosine_scale;
        s *= call.sine_scale;
    }
    if (row.poisoned >> column.axis & 1)
        c = s = (REAL)NAN;
    if (plan.rounding == TROPE_ROUND_NATIVE) {
        c = round_native(plan, c);
        s = round_native(plan, s);
    }
    *cosine = c;
    *sine = s;
}

/* Coefficients of the block's rows, in shared memory: for each row c1[pairs], s1[pairs] and, where a pair's elements have
 * their own angles, c2[pairs], s2[pairs]. A thread keeps its pair and goes from row to row. */
template <typename REAL>
__device__ __forceinline__ void fill_coefficients(const cuda_call &call, const trope_row *rows, uint32_t count, REAL *space)
{
    const trope_plan &plan = call.plan;
    const uint32_t pairs = (uint32_t)plan.pairs, lanes = call.pair_lanes.divisor, per_row = call.coefficients_per_pair * pairs;
    const uint32_t first_row = call.pair_lanes.divide(threadIdx.x), row_step = call.pair_row_step;
    if (first_row >= row_step)
        return;
    for (uint32_t pair = threadIdx.x - first_row * lanes; pair < pairs; pair += lanes) {
        const int axis = trope_pair_axis(&plan, (int)pair);
        const uint64_t step = plan.angles.source == TROPE_ANGLES_PHASE ? plan.angles.step[pair] : 0;
        for (uint32_t r = first_row; r < count; r += row_step) {
            const trope_row &row = rows[r];
            REAL *to = space + r * per_row + pair;
            if (row.action != TROPE_ROW_ROTATE)
                continue;
            if (!plan.angles.per_element) {
                column_coefficients(call, row, {axis, (int)pair, step}, &to[0], &to[pairs]);
                continue;
            }
            const int first = call.columns.first((int)pair), second = call.columns.second((int)pair);
            column_coefficients(call, row, {axis, first, step}, &to[0], &to[(plan.swap_sines ? 3 : 1) * pairs]);
            column_coefficients(call, row, {axis, second, step}, &to[2 * pairs], &to[(plan.swap_sines ? 1 : 3) * pairs]);
        }
    }
}

/* ---- one pair ---- */

template <int DTYPE> struct pair_types {
    typedef trope_pair pair;
    typedef trope_turn turn;
};
template <> struct pair_types<TROPE_F64> {
    typedef trope_pair_f64 pair;
    typedef trope_turn_f64 turn;
};

template <int DTYPE, bool NATIVE>
__device__ __forceinline__ typename pair_types<DTYPE>::pair rotate_pair(typename pair_types<DTYPE>::pair x,
                                                                        typename pair_types<DTYPE>::turn t)
{
    if constexpr (DTYPE == TROPE_F64 && NATIVE)
        return trope_rotate_native_f64(x, t);
    else if constexpr (DTYPE == TROPE_F64)
        return trope_rotate_once_f64(x, t);
    else if constexpr (!NATIVE)
        return trope_rotate_once(x, t);
    else if constexpr (DTYPE == TROPE_F32)
        return trope_rotate_native_f32(x, t);
    else if constexpr (DTYPE == TROPE_F16)
        return trope_rotate_native_f16(x, t);
    else
        return trope_rotate_native_bf16(x, t);
}

/* The coefficients of one pair. */
template <int DTYPE, typename REAL>
__device__ __forceinline__ typename pair_types<DTYPE>::turn load_turn(const cuda_call &call, const REAL *row, uint32_t pair)
{
    const uint32_t pairs = (uint32_t)call.plan.pairs;
    const REAL c = row[pair], s = row[pairs + pair];
    if (call.coefficients_per_pair == 4)
        return {c, s, row[2 * pairs + pair], row[3 * pairs + pair]};
    return {c, s, c, s};
}

/* COUNT coefficients in a row, by loads as wide as COUNT allows. */
template <typename REAL, int COUNT> __device__ __forceinline__ void load_run(const REAL *from, REAL *to)
{
    constexpr int BYTES = COUNT * (int)sizeof(REAL);
    typedef std::conditional_t<BYTES % 16 == 0, uint4, std::conditional_t<BYTES % 8 == 0, uint2, uint32_t>> chunk;
    union {
        chunk chunks[BYTES / sizeof(chunk)];
        REAL values[COUNT];
    } u;
#pragma unroll
    for (int i = 0; i < BYTES / (int)sizeof(chunk); i++)
        u.chunks[i] = ((const chunk *)from)[i];
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        to[i] = u.values[i];
}

/* ---- items ---- */

/* The head that an item belongs to, and which of its items it is. Offsets are in bytes, without the row's. */
struct head_place {
    uint32_t operand, item;
    int64_t src, dst;
};

/* False where there is no such item. */
__device__ __forceinline__ bool find_head(const cuda_call &call, uint32_t item, head_place *place)
{
    uint32_t operand = 0;
    if (call.plan.operand_count > 1)
        for (int k = 1; k < TROPE_MAX_OPERANDS; k++)
            operand += k < call.plan.operand_count && item >= call.items[k].first;
    const operand_items &items = call.items[operand];
    item -= items.first;
    uint32_t head = items.per_head.divide(item);
    const bool present = head < items.heads;
    place->operand = operand;
    place->item = item - head * items.per_head.divisor;
    place->src = place->dst = 0;
    if (call.plan.operands[operand].groups > 1) {
        const uint32_t group = items.heads_per_group.divide(head);
        head -= group * items.heads_per_group.divisor;
        place->src = group * items.src_group;
        place->dst = group * items.dst_group;
    }
    place->src += head * items.src_head;
    place->dst += head * items.dst_head;
    return present && place->item < items.count;
}

/* Two 16-byte vectors of a head. A rotating item has vector j of the first half of a window and vector j of its second half,
 * whichever way it is paired: so the loads of neighbouring threads are neighbours. */
template <int DTYPE> struct vector_item {
    typedef typename elements<DTYPE>::real real;
    typedef typename elements<DTYPE>::type element;
    typedef vector_of<DTYPE> vec;
    enum { V = vec::COUNT, H = V / 2, BYTES = sizeof(element) };

    /* Where the vectors are in the head, and for a rotating item its window: the element where that starts. */
    struct position {
        uint32_t first, second, window;
    };

    vec a, b;

    static __device__ __forceinline__ position locate(const cuda_call &call, const head_place &place)
    {
        const trope_plan_operand &o = call.plan.operands[place.operand];
        position p;
        if (place.item < call.items[place.operand].rotating) {
            p.window = (uint32_t)o.rotary_offset;
            p.first = place.item * V;
            for (int w = 1; w < call.plan.windows && p.first >= (uint32_t)o.window_pairs; w++) {
                p.first -= (uint32_t)o.window_pairs;
                p.window += 2 * (uint32_t)o.window_pairs;
            }
            p.first += p.window;
            p.second = p.first + (uint32_t)o.window_pairs;
        } else {
            const uint32_t last = (uint32_t)(o.head_dim - o.rotary_dim) - V;
            const uint32_t i = 2 * (place.item - call.items[place.operand].rotating) * V, k = i < last ? i + V : i;
            p.window = 0;
            p.first = i + (i >= (uint32_t)o.rotary_offset ? (uint32_t)o.rotary_dim : 0);
            p.second = k + (k >= (uint32_t)o.rotary_offset ? (uint32_t)o.rotary_dim : 0);
        }
        return p;
    }

    __device__ __forceinline__ void load(const cuda_call &, const trope_plan_operand &, const char *head, const position &p)
    {
        a.bits = __ldcs((const uint4 *)(head + p.first * BYTES));
        b.bits = __ldcs((const uint4 *)(head + p.second * BYTES));
    }

    static __device__ __forceinline__ void put(char *head, uint32_t at, const vec &v)
    {
        __stcs((uint4 *)(head + at * BYTES), v.bits);
    }

    /* Half a vector: what a mixed pairing writes. */
    static __device__ __forceinline__ void put_half(char *head, uint32_t at, const real *values)
    {
        union {
            uint2 bits;
            element values[H];
        } h;
#pragma unroll
        for (int e = 0; e < H; e++)
            h.values[e] = from_real<DTYPE>(values[e]);
        __stcs((uint2 *)(head + at * BYTES), h.bits);
    }

    /* H pairs by the coefficients from `from` on. */
    template <bool NATIVE, bool OWN>
    static __device__ __forceinline__ void turn(const real *from, uint32_t pairs, const real *x1, const real *x2, real *y1, real *y2)
    {
        real c1[H], s1[H], c2[H], s2[H];
        load_run<real, H>(from, c1);
        load_run<real, H>(from + pairs, s1);
        if (OWN) {
            load_run<real, H>(from + 2 * pairs, c2);
            load_run<real, H>(from + 3 * pairs, s2);
        }
#pragma unroll
        for (int e = 0; e < H; e++) {
            const typename pair_types<DTYPE>::pair y =
                rotate_pair<DTYPE, NATIVE>({x1[e], x2[e]}, {c1[e], s1[e], OWN ? c2[e] : c1[e], OWN ? s2[e] : s1[e]});
            y1[e] = y.first;
            y2[e] = y.second;
        }
    }

    /* What is at hand are pairs in two runs of H: `low` and `high`, counted in the window. */
    template <bool FROM_INTERLEAVED, bool TO_INTERLEAVED, bool NATIVE, bool OWN>
    __device__ __forceinline__ void rotate(const cuda_call &call, const trope_plan_operand &o, char *head, const position &p,
                                           const real *row) const
    {
        const uint32_t half = (uint32_t)o.window_pairs, pair = p.first - p.window;
        const uint32_t low = FROM_INTERLEAVED ? pair / 2 : pair, high = FROM_INTERLEAVED ? (half + pair) / 2 : pair + H;
        const real *window_row = row + (p.window - (uint32_t)o.rotary_offset) / 2;
        real x1[V], x2[V], y1[V], y2[V];
#pragma unroll
        for (int e = 0; e < V; e++) {
            const vec &v = e < H ? a : b;
            x1[e] = to_real<DTYPE>(FROM_INTERLEAVED ? v.element[2 * (e % H)] : a.element[e]);
            x2[e] = to_real<DTYPE>(FROM_INTERLEAVED ? v.element[2 * (e % H) + 1] : b.element[e]);
        }
        turn<NATIVE, OWN>(window_row + low, (uint32_t)call.plan.pairs, x1, x2, y1, y2);
        turn<NATIVE, OWN>(window_row + high, (uint32_t)call.plan.pairs, x1 + H, x2 + H, y1 + H, y2 + H);
        if constexpr (FROM_INTERLEAVED && !TO_INTERLEAVED) {
            put_half(head, p.window + low, y1);
            put_half(head, p.window + half + low, y2);
            put_half(head, p.window + high, y1 + H);
            put_half(head, p.window + half + high, y2 + H);
        } else {
            vec u, w;
#pragma unroll
            for (int e = 0; e < V; e += 2) {
                from_reals<DTYPE>(y1[TO_INTERLEAVED ? e / 2 : e], TO_INTERLEAVED ? y2[e / 2] : y1[e + 1], &u.element[e]);
                from_reals<DTYPE>(TO_INTERLEAVED ? y1[H + e / 2] : y2[e], y2[TO_INTERLEAVED ? H + e / 2 : e + 1], &w.element[e]);
            }
            put(head, p.window + (TO_INTERLEAVED ? 2 * low : low), u);
            put(head, p.window + (TO_INTERLEAVED ? 2 * high : half + low), w);
        }
    }

    template <bool NATIVE, bool OWN>
    __device__ __forceinline__ void rotate_paired(const cuda_call &call, const trope_plan_operand &o, char *head, const position &p,
                                                  const real *row) const
    {
        if (call.plan.interleaved_src && call.plan.interleaved_dst)
            rotate<true, true, NATIVE, OWN>(call, o, head, p, row);
        else if (call.plan.interleaved_src)
            rotate<true, false, NATIVE, OWN>(call, o, head, p, row);
        else if (call.plan.interleaved_dst)
            rotate<false, true, NATIVE, OWN>(call, o, head, p, row);
        else
            rotate<false, false, NATIVE, OWN>(call, o, head, p, row);
    }

    __device__ __forceinline__ void write_rotated(const cuda_call &call, const trope_plan_operand &o, char *head, const position &p,
                                                  const real *row) const
    {
        const bool native = call.plan.rounding == TROPE_ROUND_NATIVE, own = call.coefficients_per_pair == 4;
        if (native)
            own ? rotate_paired<true, true>(call, o, head, p, row) : rotate_paired<true, false>(call, o, head, p, row);
        else
            own ? rotate_paired<false, true>(call, o, head, p, row) : rotate_paired<false, false>(call, o, head, p, row);
    }

    __device__ __forceinline__ void write_same(const trope_plan_operand &, char *head, const position &p) const
    {
        put(head, p.first, a);
        put(head, p.second, b);
    }

    __device__ __forceinline__ void clear()
    {
        a.bits = b.bits = make_uint4(0, 0, 0, 0);
    }
};

/* One pair, or one element that passes through, with any strides. */
template <int DTYPE> struct scalar_item {
    typedef typename elements<DTYPE>::real real;
    typedef typename elements<DTYPE>::type element;

    /* Elements of the head in src; `second` is `first` for one that passes through. */
    struct position {
        int32_t first, second, pair;
    };

    element a, b;

    static __device__ __forceinline__ position locate(const cuda_call &call, const head_place &place)
    {
        const trope_plan_operand &o = call.plan.operands[place.operand];
        position p;
        p.pair = (int32_t)place.item;
        if (place.item < call.items[place.operand].rotating) {
            const int32_t pairs = o.rotary_dim / 2, interleaved = call.plan.interleaved_src;
            p.first = o.rotary_offset + trope_first_of_pair(interleaved, call.plan.windows, pairs, p.pair);
            p.second = o.rotary_offset + trope_second_of_pair(interleaved, call.plan.windows, pairs, p.pair);
        } else {
            const int32_t i = (int32_t)(place.item - call.items[place.operand].rotating);
            p.first = p.second = i + (i >= o.rotary_offset ? o.rotary_dim : 0);
        }
        return p;
    }

    __device__ __forceinline__ void load(const cuda_call &, const trope_plan_operand &o, const char *head, const position &p)
    {
        a = ((const element *)head)[p.first * o.src_stride[TROPE_DIM_ELEMENT]];
        b = ((const element *)head)[p.second * o.src_stride[TROPE_DIM_ELEMENT]];
    }

    __device__ __forceinline__ void write_rotated(const cuda_call &call, const trope_plan_operand &o, char *head, const position &p,
                                                  const real *row) const
    {
        const trope_plan &plan = call.plan;
        const int32_t pairs = o.rotary_dim / 2;
        const int32_t first = o.rotary_offset + trope_first_of_pair(plan.interleaved_dst, plan.windows, pairs, p.pair);
        const int32_t second = o.rotary_offset + trope_second_of_pair(plan.interleaved_dst, plan.windows, pairs, p.pair);
        const typename pair_types<DTYPE>::turn t = load_turn<DTYPE>(call, row, (uint32_t)p.pair);
        const typename pair_types<DTYPE>::pair x = {to_real<DTYPE>(a), to_real<DTYPE>(b)};
        const typename pair_types<DTYPE>::pair y =
            plan.rounding == TROPE_ROUND_NATIVE ? rotate_pair<DTYPE, true>(x, t) : rotate_pair<DTYPE, false>(x, t);
        ((element *)head)[first * o.dst_stride[TROPE_DIM_ELEMENT]] = from_real<DTYPE>(y.first);
        ((element *)head)[second * o.dst_stride[TROPE_DIM_ELEMENT]] = from_real<DTYPE>(y.second);
    }

    __device__ __forceinline__ void write_same(const trope_plan_operand &o, char *head, const position &p) const
    {
        ((element *)head)[p.first * o.dst_stride[TROPE_DIM_ELEMENT]] = a;
        ((element *)head)[p.second * o.dst_stride[TROPE_DIM_ELEMENT]] = b;
    }

    __device__ __forceinline__ void clear()
    {
        a = b = 0;
    }
};

/* ---- rows ---- */

/* Finds the block's rows. A sequence that cannot be right poisons its rows. */
__device__ __forceinline__ void find_rows(const cuda_call &call, int64_t first_row, uint32_t count, trope_row *rows)
{
    if (threadIdx.x >= count)
        return;
    trope_row &row = rows[threadIdx.x];
    trope_span span = {0, 0, 0, 0, 0};
    trope_locate_row(&call.plan, first_row + threadIdx.x, &row);
    trope_find_row(&call.plan, &span, &row);
    if (row.action == TROPE_ROW_ROTATE && row.poisoned && call.plan.status)
        atomicOr(call.plan.status, TROPE_STATUS_POSITION);
    if (call.plan.sequences.boundaries && span.sequence >= 0 && trope_sequence_fault(&call.plan.sequences, span.sequence))
        row.poisoned = (1u << TROPE_MAX_AXES) - 1;
}

/* Every sequence is looked at once by some thread of the grid, also those that hold no token. */
__device__ __forceinline__ void check_sequences(const trope_plan &plan)
{
    const trope_sequences &s = plan.sequences;
    int32_t fault = 0;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < s.count; i += (int64_t)gridDim.x * blockDim.x)
        fault |= trope_sequence_fault(&s, i);
    if (fault && plan.status)
        atomicOr(plan.status, fault);
}

/* ---- the kernel ---- */

template <int DTYPE, template <int> class ITEM, int ITEMS, int THREADS, int BLOCKS>
__global__ void __launch_bounds__(THREADS, BLOCKS) rotate_kernel(const __grid_constant__ cuda_call call)
{
    typedef typename elements<DTYPE>::real real;
    extern __shared__ __align__(16) char shared[];
    trope_row *const rows = (trope_row *)shared;
    real *const coefficients = (real *)(rows + call.tile_rows);

    /* The block's tile. */
    uint32_t tile = blockIdx.x, share = 0, outer = 0;
    if (call.shares > 1) {
        share = tile % call.shares;
        tile /= call.shares;
    }
    if (call.outer > 1) {
        outer = tile / call.tiles;
        tile -= outer * call.tiles;
    }
    const int64_t inner = (int64_t)tile * call.tile_rows, left = call.inner - inner;
    const uint32_t count = left < call.tile_rows ? (uint32_t)left : call.tile_rows;

    /* The thread's place. */
    const uint32_t quotient = call.lanes.divide(threadIdx.x), lane = threadIdx.x - quotient * call.lanes.divisor;
    const uint32_t row0 = call.rows_fastest ? lane : quotient, item = call.rows_fastest ? quotient : lane;
    head_place place = {0, 0, 0, 0};
    typename ITEM<DTYPE>::position at = {};
    const bool present = row0 < call.row_step && item < call.share_items && share * call.share_items + item < call.row_items &&
                         find_head(call, share * call.share_items + item, &place);
    if (present)
        at = ITEM<DTYPE>::locate(call, place);
    const trope_plan_operand &o = call.plan.operands[place.operand];
    const bool rotating = place.item < call.items[place.operand].rotating;

    ITEM<DTYPE> items[ITEMS];
    if (present && (rotating || !o.in_place)) {
        const int64_t step = call.items[place.operand].src_inner;
        const char *head = o.src + place.src + outer * call.items[place.operand].src_outer + (inner + row0) * step;
#pragma unroll
        for (int k = 0; k < ITEMS; k++)
            if (row0 + k * call.row_step < count)
                items[k].load(call, o, head + k * call.row_step * step, at);
    }

    find_rows(call, outer * call.inner + inner, count, rows);
    if (call.plan.sequences.boundaries)
        check_sequences(call.plan);
    __syncthreads();
    fill_coefficients(call, rows, count, coefficients);
    __syncthreads();

    if (!present)
        return;
    const int64_t step = call.items[place.operand].dst_inner;
    char *const first_head = o.dst + place.dst + outer * call.items[place.operand].dst_outer + (inner + row0) * step;
    const real *const first_row = coefficients + row0 * call.coefficients_per_pair * (uint32_t)call.plan.pairs;
#pragma unroll
    for (int k = 0; k < ITEMS; k++) {
        const uint32_t r = row0 + k * call.row_step;
        if (r >= count)
            break;
        char *const head = first_head + k * call.row_step * step;
        const trope_row_action action = rows[r].action;
        if (action == TROPE_ROW_ROTATE && rotating) {
            items[k].write_rotated(call, o, head, at,
                                   first_row + k * call.row_step * call.coefficients_per_pair * (uint32_t)call.plan.pairs);
        } else if (action == TROPE_ROW_ZERO) {
            items[k].clear();
            items[k].write_same(o, head, at);
        } else if (!o.in_place) {
            items[k].write_same(o, head, at);
        }
    }
}

#endif
