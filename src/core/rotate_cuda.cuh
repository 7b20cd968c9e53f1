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

struct cuda_call {
    trope_plan plan;
    operand_items items[TROPE_MAX_OPERANDS];
    fast_divisor items_per_row; /* of one share */
    fast_divisor pairs;
    int64_t rows;
    uint32_t rows_per_block;
    uint32_t shares; /* blocks among which the items of a row are divided */
    uint32_t row_items;
    uint32_t rows_fastest; /* neighbouring threads take neighbouring rows */
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

/* cos and sin of one column of the row, scaled, as they are rotated by. */
template <typename REAL>
__device__ __forceinline__ void column_coefficients(const trope_plan &plan, const trope_row &row, const uint64_t *steps, int axis,
                                                    int column, REAL *c, REAL *s)
{
    const trope_plan_angles &a = plan.angles;
    const int64_t offset = row.batch * a.batch_stride + row.position[axis] * a.row_stride + column;
    if (a.source == TROPE_ANGLES_PHASE) {
        sincos_of_phase(row.position[axis], steps[column], s, c);
    } else if (a.source == TROPE_ANGLES_FREQS) {
        sincos_of(table_entry<REAL>(a, a.freqs, offset), s, c);
    } else {
        *c = table_entry<REAL>(a, a.cos, offset);
        *s = table_entry<REAL>(a, a.sin, offset);
    }
    *c *= (REAL)plan.cosine_scale;
    *s *= (REAL)plan.sine_scale;
    if (row.poisoned >> axis & 1)
        *c = *s = (REAL)NAN;
    if (plan.rounding == TROPE_ROUND_NATIVE) {
        *c = round_native(plan, *c);
        *s = round_native(plan, *s);
    }
}

/* Coefficients of the block's rows, in shared memory: for each row c1[pairs], s1[pairs] and, where a pair's elements have
 * their own angles, c2[pairs], s2[pairs]. */
template <typename REAL> __device__ __forceinline__ void fill_coefficients(const cuda_call &call, const trope_row *rows, uint32_t count,
                                                                                        const uint64_t *steps, REAL *space)
{
    const trope_plan &plan = call.plan;
    const uint32_t pairs = (uint32_t)plan.pairs;
    for (uint32_t i = threadIdx.x; i < count * pairs; i += blockDim.x) {
        const uint32_t r = call.pairs.divide(i), pair = i - r * pairs;
        const trope_row &row = rows[r];
        if (row.action != TROPE_ROW_ROTATE)
            continue;
        REAL *to = space + r * call.coefficients_per_pair * pairs + pair;
        const int axis = trope_pair_axis(&plan, (int)pair);
        if (!plan.angles.per_element) {
            column_coefficients(plan, row, steps, axis, (int)pair, &to[0], &to[pairs]);
            continue;
        }
        const int first = trope_first_of_pair(plan.interleaved_columns, plan.windows, plan.pairs, (int)pair);
        const int second = trope_second_of_pair(plan.interleaved_columns, plan.windows, plan.pairs, (int)pair);
        column_coefficients(plan, row, steps, axis, first, &to[0], &to[(plan.swap_sines ? 3 : 1) * pairs]);
        column_coefficients(plan, row, steps, axis, second, &to[2 * pairs], &to[(plan.swap_sines ? 1 : 3) * pairs]);
    }
}

/* ---- one pair ---- */

template <int DTYPE, typename REAL>
__device__ __forceinline__ void rotate_pair(int native, REAL x1, REAL x2, const REAL t[4], REAL *y1, REAL *y2)
{
    if constexpr (DTYPE == TROPE_F64)
        native ? trope_rotate_native_f64(x1, x2, t[0], t[1], t[2], t[3], y1, y2)
               : trope_rotate_once_f64(x1, x2, t[0], t[1], t[2], t[3], y1, y2);
    else if (!native)
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

/* Which head of which operand an item belongs to, and where that head is. */
struct item_place {
    const char *src;
    char *dst;
    uint32_t operand, item;
    bool valid;
};

__device__ __forceinline__ item_place find_item(const cuda_call &call, const trope_row &row, uint32_t item)
{
    const trope_plan &plan = call.plan;
    item_place p;
    p.operand = 0;
    for (int k = 1; k < TROPE_MAX_OPERANDS; k++)
        p.operand += k < plan.operand_count && item >= call.items[k].first;
    const operand_items &items = call.items[p.operand];
    const trope_plan_operand &o = plan.operands[p.operand];
    item -= items.first;
    const uint32_t head = items.per_head.divide(item), group = items.heads_per_group.divide(head);
    const uint32_t in_group = head - group * items.heads_per_group.divisor;
    p.item = item - head * items.per_head.divisor;
    const int64_t from = row.batch * o.src_stride[0] + row.token * o.src_stride[1] + group * o.src_stride[2] + in_group * o.src_stride[3];
    const int64_t to = row.batch * o.dst_stride[0] + row.token * o.dst_stride[1] + group * o.dst_stride[2] + in_group * o.dst_stride[3];
    p.src = o.src + from * plan.element_size;
    p.dst = o.dst + to * plan.element_size;
    p.valid = p.item < items.count;
    return p;
}

/* Two 16-byte vectors of a head. A rotating item has vector j of the first half of a window and vector j of its second half,
 * whichever way it is paired: so the loads of neighbouring threads are neighbours. */
template <int DTYPE> struct vector_item {
    typedef typename elements<DTYPE>::real real;
    typedef vector_of<DTYPE> vec;
    enum { V = vec::COUNT };

    item_place place;
    uint32_t first, second; /* elements of the head where the vectors start; second = first where there is only one */
    uint32_t pair;          /* rotating: vector j starts here in its window, plus the window's first pair */
    uint32_t window_start;  /* element of the head */
    vec a, b;

    __device__ __forceinline__ bool rotating(const cuda_call &call) const
    {
        return place.item < call.items[place.operand].rotating;
    }

    __device__ __forceinline__ void locate(const cuda_call &call)
    {
        const trope_plan_operand &o = call.plan.operands[place.operand];
        if (rotating(call)) {
            const uint32_t per_window = (uint32_t)o.window_pairs / V;
            const uint32_t window = call.plan.windows > 1 ? place.item / per_window : 0, j = place.item - window * per_window;
            window_start = (uint32_t)o.rotary_offset + 2 * window * (uint32_t)o.window_pairs;
            pair = j * V;
            first = window_start + pair;
            second = first + (uint32_t)o.window_pairs;
        } else {
            const uint32_t passing = (uint32_t)(o.head_dim - o.rotary_dim) / V;
            const uint32_t i = 2 * (place.item - call.items[place.operand].rotating), k = i + 1 < passing ? i + 1 : i;
            first = i * V + (i * V >= (uint32_t)o.rotary_offset ? (uint32_t)o.rotary_dim : 0);
            second = k * V + (k * V >= (uint32_t)o.rotary_offset ? (uint32_t)o.rotary_dim : 0);
        }
    }

    __device__ __forceinline__ void load(const cuda_call &call)
    {
        a.bits = __ldcs((const uint4 *)(place.src + first * call.plan.element_size));
        b.bits = __ldcs((const uint4 *)(place.src + second * call.plan.element_size));
    }

    __device__ __forceinline__ void put(const cuda_call &call, uint32_t element, uint4 bits) const
    {
        __stcs((uint4 *)(place.dst + element * call.plan.element_size), bits);
    }

    /* Half a vector: what a mixed pairing writes. */
    __device__ __forceinline__ void put_half(const cuda_call &call, uint32_t element, const real *values) const
    {
        union {
            uint2 bits;
            typename elements<DTYPE>::type element[V / 2];
        } h;
#pragma unroll
        for (int e = 0; e < V / 2; e++)
            h.element[e] = from_real<DTYPE>(values[e]);
        __stcs((uint2 *)(place.dst + element * call.plan.element_size), h.bits);
    }

    /* The coefficients of V / 2 pairs from `from` on. */
    __device__ __forceinline__ void turn(const cuda_call &call, const real *row, uint32_t from, const real *x1, const real *x2,
                                         real *y1, real *y2) const
    {
        const uint32_t pairs = (uint32_t)call.plan.pairs;
        const int native = call.plan.rounding == TROPE_ROUND_NATIVE, own = call.coefficients_per_pair == 4;
        real c1[V / 2], s1[V / 2], c2[V / 2], s2[V / 2];
        load_run<real, V / 2>(row + from, c1);
        load_run<real, V / 2>(row + pairs + from, s1);
        if (own) {
            load_run<real, V / 2>(row + 2 * pairs + from, c2);
            load_run<real, V / 2>(row + 3 * pairs + from, s2);
        }
#pragma unroll
        for (int e = 0; e < V / 2; e++) {
            const real t[4] = {c1[e], s1[e], own ? c2[e] : c1[e], own ? s2[e] : s1[e]};
            rotate_pair<DTYPE>(native, x1[e], x2[e], t, &y1[e], &y2[e]);
        }
    }

    __device__ __forceinline__ void rotate(const cuda_call &call, const real *row) const
    {
        const trope_plan &plan = call.plan;
        const uint32_t half = (uint32_t)plan.operands[place.operand].window_pairs;
        const uint32_t window_pair = (window_start - (uint32_t)plan.operands[place.operand].rotary_offset) / 2;
        /* The pairs at hand come in two runs of V / 2. */
        const uint32_t low = plan.interleaved_src ? pair / 2 : pair, high = plan.interleaved_src ? half / 2 + pair / 2 : pair + V / 2;
        real x1[V], x2[V], y1[V], y2[V];
#pragma unroll
        for (int e = 0; e < V; e++) {
            const int run = e / (V / 2), i = e % (V / 2);
            const vec &v = run ? b : a;
            x1[e] = to_real<DTYPE>(plan.interleaved_src ? v.element[2 * i] : a.element[e]);
            x2[e] = to_real<DTYPE>(plan.interleaved_src ? v.element[2 * i + 1] : b.element[e]);
        }
        turn(call, row, window_pair + low, x1, x2, y1, y2);
        turn(call, row, window_pair + high, x1 + V / 2, x2 + V / 2, y1 + V / 2, y2 + V / 2);
        store(call, low, high, y1, y2);
    }

    __device__ __forceinline__ void store(const cuda_call &call, uint32_t low, uint32_t high, const real *y1, const real *y2) const
    {
        const trope_plan &plan = call.plan;
        const uint32_t half = (uint32_t)plan.operands[place.operand].window_pairs;
        vec p, q;
        if (plan.interleaved_dst) {
#pragma unroll
            for (int i = 0; i < V / 2; i++) {
                p.element[2 * i] = from_real<DTYPE>(y1[i]);
                p.element[2 * i + 1] = from_real<DTYPE>(y2[i]);
                q.element[2 * i] = from_real<DTYPE>(y1[V / 2 + i]);
                q.element[2 * i + 1] = from_real<DTYPE>(y2[V / 2 + i]);
            }
            put(call, window_start + 2 * low, p.bits);
            put(call, window_start + 2 * high, q.bits);
        } else if (!plan.interleaved_src) {
#pragma unroll
            for (int i = 0; i < V; i++) {
                p.element[i] = from_real<DTYPE>(y1[i]);
                q.element[i] = from_real<DTYPE>(y2[i]);
            }
            put(call, window_start + low, p.bits);
            put(call, window_start + half + low, q.bits);
        } else {
            put_half(call, window_start + low, y1);
            put_half(call, window_start + half + low, y2);
            put_half(call, window_start + high, y1 + V / 2);
            put_half(call, window_start + half + high, y2 + V / 2);
        }
    }

    __device__ __forceinline__ void finish(const cuda_call &call, const trope_row &row, const real *coefficients) const
    {
        if (row.action == TROPE_ROW_ROTATE && rotating(call)) {
            rotate(call, coefficients);
        } else if (row.action == TROPE_ROW_ZERO) {
            put(call, first, make_uint4(0, 0, 0, 0));
            put(call, second, make_uint4(0, 0, 0, 0));
        } else if (!call.plan.operands[place.operand].in_place) {
            put(call, first, a.bits);
            put(call, second, b.bits);
        }
    }
};

/* One pair, or one element that passes through, with any strides. */
template <int DTYPE> struct scalar_item {
    typedef typename elements<DTYPE>::real real;
    typedef typename elements<DTYPE>::type element;

    item_place place;
    int32_t first, second;        /* elements of the head in src; second = first for one that passes through */
    int32_t to_first, to_second;  /* in dst */
    element a, b;

    __device__ __forceinline__ bool rotating(const cuda_call &call) const
    {
        return place.item < call.items[place.operand].rotating;
    }

    __device__ __forceinline__ void locate(const cuda_call &call)
    {
        const trope_plan &plan = call.plan;
        const trope_plan_operand &o = plan.operands[place.operand];
        const int32_t item = (int32_t)place.item, pairs = o.rotary_dim / 2;
        if (rotating(call)) {
            first = o.rotary_offset + trope_first_of_pair(plan.interleaved_src, plan.windows, pairs, item);
            second = o.rotary_offset + trope_second_of_pair(plan.interleaved_src, plan.windows, pairs, item);
            to_first = o.rotary_offset + trope_first_of_pair(plan.interleaved_dst, plan.windows, pairs, item);
            to_second = o.rotary_offset + trope_second_of_pair(plan.interleaved_dst, plan.windows, pairs, item);
        } else {
            first = item - pairs;
            first += first >= o.rotary_offset ? o.rotary_dim : 0;
            second = to_first = to_second = first;
        }
    }

    __device__ __forceinline__ void load(const cuda_call &call)
    {
        const int64_t stride = call.plan.operands[place.operand].src_stride[TROPE_DIM_ELEMENT];
        a = ((const element *)place.src)[first * stride];
        b = ((const element *)place.src)[second * stride];
    }

    __device__ __forceinline__ void put(const cuda_call &call, element x, element y) const
    {
        const int64_t stride = call.plan.operands[place.operand].dst_stride[TROPE_DIM_ELEMENT];
        ((element *)place.dst)[to_first * stride] = x;
        if (to_second != to_first)
            ((element *)place.dst)[to_second * stride] = y;
    }

    __device__ __forceinline__ void finish(const cuda_call &call, const trope_row &row, const real *coefficients) const
    {
        if (row.action == TROPE_ROW_ROTATE && rotating(call)) {
            real t[4], y1, y2;
            load_turn(call, coefficients, place.item, t);
            rotate_pair<DTYPE>(call.plan.rounding == TROPE_ROUND_NATIVE, to_real<DTYPE>(a), to_real<DTYPE>(b), t, &y1, &y2);
            put(call, from_real<DTYPE>(y1), from_real<DTYPE>(y2));
        } else if (row.action == TROPE_ROW_ZERO) {
            put_source_order(call, (element)0, (element)0);
        } else if (!call.plan.operands[place.operand].in_place) {
            put_source_order(call, a, b);
        }
    }

    /* Elements that stay where they are in the head, whatever the pairings. */
    __device__ __forceinline__ void put_source_order(const cuda_call &call, element x, element y) const
    {
        const int64_t stride = call.plan.operands[place.operand].dst_stride[TROPE_DIM_ELEMENT];
        ((element *)place.dst)[first * stride] = x;
        ((element *)place.dst)[second * stride] = y;
    }
};

#define TROPE_BLOCK_THREADS 256

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

template <int DTYPE, template <int> class ITEM, int ITEMS>
__global__ void __launch_bounds__(TROPE_BLOCK_THREADS) rotate_kernel(const __grid_constant__ cuda_call call)
{
    typedef typename elements<DTYPE>::real real;
    extern __shared__ __align__(16) char shared[];
    trope_row *rows = (trope_row *)shared;
    uint64_t *steps = (uint64_t *)(rows + call.rows_per_block);
    real *coefficients = (real *)(steps + (call.plan.angles.source == TROPE_ANGLES_PHASE ? (call.plan.pairs + 1) & ~1 : 0));

    const uint32_t share = call.shares > 1 ? blockIdx.x % call.shares : 0;
    const int64_t first_row = (int64_t)(call.shares > 1 ? blockIdx.x / call.shares : blockIdx.x) * call.rows_per_block;
    const uint32_t count = (uint32_t)(call.rows - first_row < call.rows_per_block ? call.rows - first_row : call.rows_per_block);
    const uint32_t per_share = call.items_per_row.divisor, offset = share * per_share;

    /* Loads first: an address needs only batch and token. */
    ITEM<DTYPE> items[ITEMS];
    uint32_t item_row[ITEMS];
#pragma unroll
    for (int k = 0; k < ITEMS; k++) {
        const uint32_t n = threadIdx.x + k * TROPE_BLOCK_THREADS;
        const uint32_t r = call.rows_fastest ? n % call.rows_per_block : call.items_per_row.divide(n);
        const uint32_t item = call.rows_fastest ? n / call.rows_per_block : n - r * per_share;
        items[k].place.valid = r < count && item < per_share && offset + item < call.row_items;
        item_row[k] = r;
        if (items[k].place.valid) {
            trope_row row;
            trope_locate_row(&call.plan, first_row + r, &row);
            items[k].place = find_item(call, row, offset + item);
        }
        if (items[k].place.valid) {
            items[k].locate(call);
            if (items[k].rotating(call) || !call.plan.operands[items[k].place.operand].in_place)
                items[k].load(call);
        }
    }

    find_rows(call, first_row, count, rows);
    if (call.plan.angles.source == TROPE_ANGLES_PHASE) /* indexed by thread, which shared memory serves at once and parameters do not */
        for (int i = (int)threadIdx.x; i < call.plan.pairs; i += TROPE_BLOCK_THREADS)
            steps[i] = call.plan.angles.step[i];
    if (call.plan.sequences.boundaries)
        check_sequences(call.plan);
    __syncthreads();
    fill_coefficients(call, rows, count, steps, coefficients);
    __syncthreads();

#pragma unroll
    for (int k = 0; k < ITEMS; k++)
        if (items[k].place.valid)
            items[k].finish(call, rows[item_row[k]], coefficients + item_row[k] * call.coefficients_per_pair * (uint32_t)call.plan.pairs);
}

#endif
