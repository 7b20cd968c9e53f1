/* The CUDA kernels. A block takes some rows and an equal share of their heads: first where its rows are, then the
 * coefficients of each row into shared memory, then the elements, item by item. The loads of a thread's items are under way
 * while the coefficients are computed. Direction, layout, positions and angles are data in the plan; what is compiled in is
 * the dtype and whether an item is two 16-byte vectors or one pair. */
#ifndef TROPE_CORE_ROTATE_CUDA_CUH
#define TROPE_CORE_ROTATE_CUDA_CUH

#include <cuda_runtime.h>
#include <stdint.h>
#include <type_traits>

#include "core/plan.h"
#include "core/rotate.h"
#include "core/sincos.h"
#include "varlen/row.h"

#define TROPE_BLOCK_THREADS 256

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
    fast_divisor per_head;
    fast_divisor heads_per_group;
};

/* How a block's threads are spread over its rows and their items. Thread t starts at row t / lanes and item t % lanes; from
 * one of its items to the next it goes `row_step` rows and `item_step` items on, one of which is 0. */
struct cuda_call {
    trope_plan plan;
    operand_items items[TROPE_MAX_OPERANDS];
    fast_divisor lanes;
    fast_divisor pair_lanes; /* the same for the coefficients: thread t starts at row t / pair_lanes, pair t % pair_lanes */
    int64_t rows;
    uint32_t rows_per_block;
    uint32_t row_step, item_step;
    uint32_t row_items;   /* of all operands */
    uint32_t share_items; /* of those, what one block takes */
    uint32_t shares;      /* blocks to a row (or to as many rows as a block takes) */
    uint32_t rows_fastest; /* t % lanes is the row: where rows, not elements, are neighbours in memory */
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

/* cos and sin of one column of the row, scaled, as they are rotated by. `step` is the column's, for TROPE_ANGLES_PHASE. */
template <typename REAL>
__device__ __forceinline__ void column_coefficients(const trope_plan &plan, const trope_row &row, uint64_t step, int axis, int column,
                                                    REAL *cosine, REAL *sine)
{
    const trope_plan_angles &a = plan.angles;
    REAL c, s;
    if (a.source == TROPE_ANGLES_PHASE) {
        sincos_of_phase(row.position[axis], step, &s, &c);
    } else {
        const int64_t offset = row.batch * a.batch_stride + row.position[axis] * a.row_stride + column;
        if (a.source == TROPE_ANGLES_FREQS) {
            sincos_of(table_entry<REAL>(a, a.freqs, offset), &s, &c);
        } else {
            c = table_entry<REAL>(a, a.cos, offset);
            s = table_entry<REAL>(a, a.sin, offset);
        }
    }
    c *= (REAL)plan.cosine_scale;
    s *= (REAL)plan.sine_scale;
    if (row.poisoned >> axis & 1)
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
    const uint32_t first_row = call.pair_lanes.divide(threadIdx.x), row_step = TROPE_BLOCK_THREADS / lanes;
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
                column_coefficients(plan, row, step, axis, (int)pair, &to[0], &to[pairs]);
                continue;
            }
            const int first = trope_first_of_pair(plan.interleaved_columns, plan.windows, plan.pairs, (int)pair);
            const int second = trope_second_of_pair(plan.interleaved_columns, plan.windows, plan.pairs, (int)pair);
            column_coefficients(plan, row, step, axis, first, &to[0], &to[(plan.swap_sines ? 3 : 1) * pairs]);
            column_coefficients(plan, row, step, axis, second, &to[2 * pairs], &to[(plan.swap_sines ? 1 : 3) * pairs]);
        }
    }
}

/* ---- one pair ---- */

template <int DTYPE, bool NATIVE, typename REAL>
__device__ __forceinline__ void rotate_pair(REAL x1, REAL x2, const REAL t[4], REAL *y1, REAL *y2)
{
    if constexpr (DTYPE == TROPE_F64 && NATIVE)
        trope_rotate_native_f64(x1, x2, t[0], t[1], t[2], t[3], y1, y2);
    else if constexpr (DTYPE == TROPE_F64)
        trope_rotate_once_f64(x1, x2, t[0], t[1], t[2], t[3], y1, y2);
    else if constexpr (!NATIVE)
        trope_rotate_once(x1, x2, t[0], t[1], t[2], t[3], y1, y2);
    else if constexpr (DTYPE == TROPE_F32)
        trope_rotate_native_f32(x1, x2, t[0], t[1], t[2], t[3], y1, y2);
    else if constexpr (DTYPE == TROPE_F16)
        trope_rotate_native_f16(x1, x2, t[0], t[1], t[2], t[3], y1, y2);
    else
        trope_rotate_native_bf16(x1, x2, t[0], t[1], t[2], t[3], y1, y2);
}

template <typename REAL>
__device__ __forceinline__ void load_turn(const cuda_call &call, const REAL *row, uint32_t pair, REAL t[4])
{
    const uint32_t pairs = (uint32_t)call.plan.pairs;
    t[0] = row[pair];
    t[1] = row[pairs + pair];
    t[2] = call.coefficients_per_pair == 4 ? row[2 * pairs + pair] : t[0];
    t[3] = call.coefficients_per_pair == 4 ? row[3 * pairs + pair] : t[1];
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
    const trope_plan &plan = call.plan;
    uint32_t operand = 0;
    for (int k = 1; k < TROPE_MAX_OPERANDS; k++)
        operand += k < plan.operand_count && item >= call.items[k].first;
    const operand_items &items = call.items[operand];
    const trope_plan_operand &o = plan.operands[operand];
    item -= items.first;
    const uint32_t head = items.per_head.divide(item);
    const uint32_t group = o.groups > 1 ? items.heads_per_group.divide(head) : 0;
    const uint32_t in_group = head - group * items.heads_per_group.divisor;
    place->operand = operand;
    place->item = item - head * items.per_head.divisor;
    place->src = (group * o.src_stride[TROPE_DIM_GROUP] + in_group * o.src_stride[TROPE_DIM_HEAD]) * plan.element_size;
    place->dst = (group * o.dst_stride[TROPE_DIM_GROUP] + in_group * o.dst_stride[TROPE_DIM_HEAD]) * plan.element_size;
    return place->item < items.count;
}

__device__ __forceinline__ int64_t row_offset(const cuda_call &call, const int64_t *stride, const trope_row &row)
{
    int64_t offset = row.token * stride[TROPE_DIM_TOKEN];
    if (call.plan.batch > 1)
        offset += row.batch * stride[TROPE_DIM_BATCH];
    return offset * call.plan.element_size;
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
            const uint32_t per_window = (uint32_t)o.window_pairs / V;
            const uint32_t window = call.plan.windows > 1 ? place.item / per_window : 0;
            p.window = (uint32_t)o.rotary_offset + 2 * window * (uint32_t)o.window_pairs;
            p.first = p.window + (place.item - window * per_window) * V;
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
            const real t[4] = {c1[e], s1[e], OWN ? c2[e] : c1[e], OWN ? s2[e] : s1[e]};
            rotate_pair<DTYPE, NATIVE>(x1[e], x2[e], t, &y1[e], &y2[e]);
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
            for (int e = 0; e < V; e++) {
                u.element[e] = from_real<DTYPE>(TO_INTERLEAVED ? (e % 2 ? y2 : y1)[e / 2] : y1[e]);
                w.element[e] = from_real<DTYPE>(TO_INTERLEAVED ? (e % 2 ? y2 : y1)[H + e / 2] : y2[e]);
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
        real t[4], y1, y2;
        load_turn(call, row, (uint32_t)p.pair, t);
        if (plan.rounding == TROPE_ROUND_NATIVE)
            rotate_pair<DTYPE, true>(to_real<DTYPE>(a), to_real<DTYPE>(b), t, &y1, &y2);
        else
            rotate_pair<DTYPE, false>(to_real<DTYPE>(a), to_real<DTYPE>(b), t, &y1, &y2);
        ((element *)head)[first * o.dst_stride[TROPE_DIM_ELEMENT]] = from_real<DTYPE>(y1);
        ((element *)head)[second * o.dst_stride[TROPE_DIM_ELEMENT]] = from_real<DTYPE>(y2);
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
    trope_row row;
    trope_span span = {0, 0, 0, 0, 0};
    trope_locate_row(&call.plan, first_row + threadIdx.x, &row);
    trope_find_row(&call.plan, &span, &row);
    if (row.action == TROPE_ROW_ROTATE && row.poisoned && call.plan.status)
        atomicOr(call.plan.status, TROPE_STATUS_POSITION);
    if (call.plan.sequences.boundaries && span.sequence >= 0 && trope_sequence_fault(&call.plan.sequences, span.sequence))
        row.poisoned = (1u << TROPE_MAX_AXES) - 1;
    rows[threadIdx.x] = row;
}

/* Every sequence is looked at once by some thread of the grid, also those that hold no token. */
__device__ __forceinline__ void check_sequences(const trope_plan &plan)
{
    const trope_sequences &s = plan.sequences;
    int32_t fault = 0;
    for (int64_t i = (int64_t)blockIdx.x * TROPE_BLOCK_THREADS + threadIdx.x; i < s.count; i += (int64_t)gridDim.x * TROPE_BLOCK_THREADS)
        fault |= trope_sequence_fault(&s, i);
    if (fault && plan.status)
        atomicOr(plan.status, fault);
}

/* ---- the kernel ---- */

template <int DTYPE, template <int> class ITEM, int ITEMS>
__global__ void __launch_bounds__(TROPE_BLOCK_THREADS, 4) rotate_kernel(const __grid_constant__ cuda_call call)
{
    typedef typename elements<DTYPE>::real real;
    extern __shared__ __align__(16) char shared[];
    trope_row *rows = (trope_row *)shared;
    real *coefficients = (real *)(rows + call.rows_per_block);

    const uint32_t share = call.shares > 1 ? blockIdx.x % call.shares : 0;
    const int64_t first_row = (int64_t)(call.shares > 1 ? blockIdx.x / call.shares : blockIdx.x) * call.rows_per_block;
    const uint32_t count = (uint32_t)(call.rows - first_row < call.rows_per_block ? call.rows - first_row : call.rows_per_block);

    /* Loads first: an address needs only batch and token. */
    const uint32_t quotient = call.lanes.divide(threadIdx.x), lane = threadIdx.x - quotient * call.lanes.divisor;
    const uint32_t row0 = call.rows_fastest ? lane : quotient, item0 = call.rows_fastest ? quotient : lane;
    head_place place[ITEMS];
    typename ITEM<DTYPE>::position at[ITEMS];
    ITEM<DTYPE> items[ITEMS];
    bool valid[ITEMS];
#pragma unroll
    for (int k = 0; k < ITEMS; k++) {
        const uint32_t r = row0 + k * call.row_step, item = item0 + k * call.item_step;
        if (k == 0 || call.item_step) {
            valid[k] = item < call.share_items && share * call.share_items + item < call.row_items &&
                       find_head(call, share * call.share_items + item, &place[k]);
            if (valid[k])
                at[k] = ITEM<DTYPE>::locate(call, place[k]);
        } else {
            valid[k] = valid[0];
            place[k] = place[0];
            at[k] = at[0];
        }
        valid[k] = valid[k] && r < count && (k == 0 || r >= row0);
        if (valid[k]) {
            const trope_plan_operand &o = call.plan.operands[place[k].operand];
            trope_row row;
            trope_locate_row(&call.plan, first_row + r, &row);
            if (place[k].item < call.items[place[k].operand].rotating || !o.in_place)
                items[k].load(call, o, o.src + row_offset(call, o.src_stride, row) + place[k].src, at[k]);
        }
    }

    find_rows(call, first_row, count, rows);
    if (call.plan.sequences.boundaries)
        check_sequences(call.plan);
    __syncthreads();
    fill_coefficients(call, rows, count, coefficients);
    __syncthreads();

#pragma unroll
    for (int k = 0; k < ITEMS; k++) {
        if (!valid[k])
            continue;
        const uint32_t r = row0 + k * call.row_step;
        const trope_plan_operand &o = call.plan.operands[place[k].operand];
        const trope_row &row = rows[r];
        char *head = o.dst + row_offset(call, o.dst_stride, row) + place[k].dst;
        if (row.action == TROPE_ROW_ROTATE && place[k].item < call.items[place[k].operand].rotating) {
            items[k].write_rotated(call, o, head, at[k], coefficients + r * call.coefficients_per_pair * (uint32_t)call.plan.pairs);
        } else if (row.action == TROPE_ROW_ZERO) {
            items[k].clear();
            items[k].write_same(o, head, at[k]);
        } else if (!o.in_place) {
            items[k].write_same(o, head, at[k]);
        }
    }
}

#endif
