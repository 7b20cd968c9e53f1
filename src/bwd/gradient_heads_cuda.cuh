/* The gradient of the angles on CUDA: a thread's share of a head, as 16-byte vectors (vector_head) or as one pair with any
 * strides (scalar_head). Either loads dy and x, adds the terms of its pairs and stores dx. */
#ifndef TROPE_BWD_GRADIENT_HEADS_CUDA_CUH
#define TROPE_BWD_GRADIENT_HEADS_CUDA_CUH

#include "bwd/gradient_coefficients_cuda.cuh"

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

#endif
