/* The rotation of a window in one pass through registers, for f32, f16 and bf16 with the rounding ONCE. Training runs spend
 * most of their time here. tokens_template.h, which the compiler vectorizes, takes three passes through memory and handles
 * all other cases.
 *
 * A file vector_*.h defines the operations: load, store, (de)interleave. Without such a file, VECTOR_WIDTH is not defined,
 * and this path does not exist. */
#ifndef TROPE_FWD_CPU_VECTOR_ROTATE_H
#define TROPE_FWD_CPU_VECTOR_ROTATE_H

#if defined(__AVX512F__)
#include "fwd/cpu/vector_avx512.h"
#elif defined(__AVX2__)
#include "fwd/cpu/vector_avx2.h"
#elif defined(ISA_NEON)
#include "fwd/cpu/vector_neon.h"
#endif

#ifdef VECTOR_WIDTH

#include "core/element.h"
#include "core/pairs.h"
#include "core/plan.h"
#include "core/rotate.h"
#include "fwd/cpu/vector_memory.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

TROPE_DEFINE_PAIR(vector, vector_pair, vector_coefficients)
TROPE_DEFINE_ROTATE_ONCE(vector_rotate_once, vector_pair, vector_coefficients, vector_fma, vector_mul)

/* The parameters that a loop is compiled for. Callers pass constants, so that the compiler removes every branch on them. */
typedef struct vector_kind {
    int dtype, to_dtype; /* the dtypes of the input and of the output */
    int normed;          /* 0, or TROPE_NORM_... */
    int from_interleaved, to_interleaved;
} vector_kind;

/* The coefficients of the pairs of a window. */
typedef struct vector_part_coefficients {
    const float *c1, *s1, *c2, *s2;
} vector_part_coefficients;

ALWAYS_INLINE vector_coefficients vector_load_coefficients(vector_part_coefficients t, int i)
{
    return (vector_coefficients){vector_load_f32(t.c1 + i), vector_load_f32(t.s1 + i), vector_load_f32(t.c2 + i),
                                 vector_load_f32(t.s2 + i)};
}

ALWAYS_INLINE vector_part_coefficients vector_skip_coefficients(vector_part_coefficients t, int pairs)
{
    return (vector_part_coefficients){t.c1 + pairs, t.s1 + pairs, t.c2 + pairs, t.s2 + pairs};
}

ALWAYS_INLINE vector_pair vector_load_neighbours(int dtype, const char *p)
{
    const int bytes = VECTOR_WIDTH * trope_element_size(dtype);
    vector_pair x;
    if (dtype == TROPE_BF16)
        vector_split_bf16(p, &x.first, &x.second);
    else
        vector_deinterleave(vector_load(dtype, p), vector_load(dtype, p + bytes), &x.first, &x.second);
    return x;
}

ALWAYS_INLINE void vector_store_neighbours(int dtype, char *p, vector_pair y)
{
    const int bytes = VECTOR_WIDTH * trope_element_size(dtype);
    if (dtype == TROPE_BF16) {
        vector_join_bf16(p, y.first, y.second);
        return;
    }
    vector low, high;
    vector_interleave(y.first, y.second, &low, &high);
    vector_store(dtype, p, low);
    vector_store(dtype, p + bytes, high);
}

/* ---- a norm ---- */

/* Adds one level of the tree of a sum: elements 2i and 2i + 1 of two consecutive vectors. */
ALWAYS_INLINE vector vector_add_neighbours(vector low, vector high)
{
    vector even, odd;
    vector_deinterleave(low, high, &even, &odd);
    return vector_add(even, odd);
}

/* Returns the squares of 2 * VECTOR_WIDTH elements, with neighbours added. */
ALWAYS_INLINE vector vector_add_squares(int dtype, const char *p)
{
    const vector_pair x = vector_load_neighbours(dtype, p);
    return vector_add(vector_mul(x.first, x.first), vector_mul(x.second, x.second));
}

/* Adds the squares of a head until one vector is left. This is the tree of norm_template.h, in vectors. */
ALWAYS_INLINE vector vector_sum_squares(int dtype, int64_t head_dim, const char *x)
{
    enum { BLOCK = 4 * VECTOR_WIDTH };
    const int64_t size = trope_element_size(dtype);
    int64_t padded = BLOCK;
    while (padded < head_dim)
        padded *= 2;
    char rest[BLOCK * sizeof(float)];
    vector level[8], sum = vector_set(0);
    for (int64_t e = 0; e < padded; e += BLOCK) {
        const char *block = x + e * size;
        if (head_dim - e < BLOCK) {
            memset(rest, 0, sizeof rest);
            if (e < head_dim)
                memcpy(rest, block, (size_t)((head_dim - e) * size));
            block = rest;
        }
        sum = vector_add_neighbours(vector_add_squares(dtype, block), vector_add_squares(dtype, block + BLOCK / 2 * size));
        int l = 0;
        for (; e / BLOCK >> l & 1; l++)
            sum = vector_add_neighbours(level[l], sum);
        level[l] = sum;
    }
    return sum;
}

/* Returns the sums of VECTOR_WIDTH vectors, one in each element of the result. Overwrites the vectors. */
ALWAYS_INLINE vector vector_sum_each(vector *v)
{
    for (int n = VECTOR_WIDTH / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++)
            v[i] = vector_add_neighbours(v[2 * i], v[2 * i + 1]);
    return v[0];
}

/* The source of contiguous elements. With a norm, it includes the factors of the elements, and rstd in every element of a
 * vector. */
typedef struct vector_source {
    const char *x;
    const float *weight;
    vector rstd;
} vector_source;

ALWAYS_INLINE vector_source vector_skip(vector_source from, int dtype, int64_t elements)
{
    return (vector_source){from.x + elements * trope_element_size(dtype), from.weight + elements, from.rstd};
}

/* Loads pairs [i, i + VECTOR_WIDTH) of the `pairs` pairs at p. */
ALWAYS_INLINE vector_pair vector_load_pairs(int dtype, int interleaved, int pairs, const void *p, int i)
{
    const int64_t size = trope_element_size(dtype);
    const char *part = p, *first = part + trope_first_in_part(interleaved, i) * size;
    if (interleaved)
        return vector_load_neighbours(dtype, first);
    return (vector_pair){vector_load(dtype, first), vector_load(dtype, part + trope_second_in_part(0, pairs, i) * size)};
}

ALWAYS_INLINE vector vector_normalise(vector x, vector rstd, vector weight)
{
    return vector_mul(vector_mul(x, rstd), weight);
}

/* Rotates pairs [i, i + VECTOR_WIDTH) of `pairs`. */
ALWAYS_INLINE void vector_rotate_step(vector_kind kind, int pairs, vector_source from, char *to, vector_coefficients t,
                                      int i)
{
    const int64_t size = trope_element_size(kind.to_dtype);
    vector_pair x = vector_load_pairs(kind.dtype, kind.from_interleaved, pairs, from.x, i);
    if (kind.normed) {
        const vector_pair weight = vector_load_pairs(TROPE_F32, kind.from_interleaved, pairs, from.weight, i);
        x.first = vector_normalise(x.first, from.rstd, weight.first);
        x.second = vector_normalise(x.second, from.rstd, weight.second);
    }
    const vector_pair y = vector_rotate_once(x, t);
    char *to_first = to + trope_first_in_part(kind.to_interleaved, i) * size;
    if (kind.to_interleaved) {
        vector_store_neighbours(kind.to_dtype, to_first, y);
    } else {
        vector_store(kind.to_dtype, to_first, y.first);
        vector_store(kind.to_dtype, to + trope_second_in_part(0, pairs, i) * size, y.second);
    }
}

/* Rotates all pairs of a part. If the last vector would go beyond the end, it starts earlier and rotates some pairs a
 * second time. */
ALWAYS_INLINE void vector_rotate_loop(vector_kind kind, int pairs, vector_source from, char *to, vector_part_coefficients t)
{
    int i = 0;
    for (; i + VECTOR_WIDTH <= pairs; i += VECTOR_WIDTH)
        vector_rotate_step(kind, pairs, from, to, vector_load_coefficients(t, i), i);
    if (i < pairs)
        vector_rotate_step(kind, pairs, from, to, vector_load_coefficients(t, pairs - VECTOR_WIDTH), pairs - VECTOR_WIDTH);
}

/* Returns whether vectors can rotate an operand. In place, each pair may be read only once, and must be written where it
 * was read. */
static inline int vector_can_rotate(const trope_plan *plan, const trope_plan_operand *o)
{
    if (plan->rounding != TROPE_ROUND_ONCE || (o->rotary_dim && o->part_pairs < VECTOR_WIDTH) ||
        (o->norm.is_given && o->head_dim > TROPE_MAX_ROTARY_DIM) || o->src_stride[TROPE_DIM_ELEMENT] != 1 ||
        o->dst_stride[TROPE_DIM_ELEMENT] != 1)
        return 0;
    return !o->in_place || (plan->interleaved_src == plan->interleaved_dst && o->part_pairs % VECTOR_WIDTH == 0);
}

/* Normalises fewer elements than a vector has. */
ALWAYS_INLINE void vector_normalise_rest(vector_kind kind, vector_source from, char *to, int64_t count)
{
    char x[4 * VECTOR_WIDTH] = {0};
    float weight[VECTOR_WIDTH] = {0};
    memcpy(x, from.x, (size_t)(count * trope_element_size(kind.dtype)));
    memcpy(weight, from.weight, (size_t)count * sizeof *weight);
    vector_store(kind.to_dtype, x, vector_normalise(vector_load(kind.dtype, x), from.rstd, vector_load_f32(weight)));
    memcpy(to, x, (size_t)(count * trope_element_size(kind.to_dtype)));
}

/* Copies or normalises elements outside the window. In place, elements that would be copied stay unchanged. */
ALWAYS_INLINE void vector_pass(vector_kind kind, vector_source from, char *to, int64_t count)
{
    const int64_t size = trope_element_size(kind.dtype), to_size = trope_element_size(kind.to_dtype);
    if (kind.normed) {
        int64_t i = 0;
        for (; i + VECTOR_WIDTH <= count; i += VECTOR_WIDTH)
            vector_store(
                kind.to_dtype, to + i * to_size,
                vector_normalise(vector_load(kind.dtype, from.x + i * size), from.rstd, vector_load_f32(from.weight + i)));
        if (i < count)
            vector_normalise_rest(kind, vector_skip(from, kind.dtype, i), to + i * to_size, count - i);
    } else if (from.x != to) {
        trope_copy_short(to, from.x, (size_t)(count * size));
    }
}

/* Rotates the window of a head with contiguous elements. */
ALWAYS_INLINE void vector_rotate_window(vector_kind kind, const trope_plan_operand *o, vector_source from, char *to,
                                        vector_part_coefficients t)
{
    const int64_t after = o->rotary_offset + o->rotary_dim;
    for (int64_t start = o->rotary_offset; start < after; start += 2 * o->part_pairs) {
        vector_rotate_loop(kind, o->part_pairs, vector_skip(from, kind.dtype, start),
                           to + start * trope_element_size(kind.to_dtype), t);
        t = vector_skip_coefficients(t, o->part_pairs);
    }
}

/* Writes a whole head with contiguous elements. If `stage` is not NULL, the head is assembled there before it is streamed
 * out. */
ALWAYS_INLINE void vector_rotate_head(vector_kind kind, const trope_plan_operand *o, vector_source from, char *dst,
                                      char *stage, vector_part_coefficients t)
{
    const int64_t size = trope_element_size(kind.dtype), before = o->rotary_offset, after = before + o->rotary_dim;
    char *out = stage ? stage : dst;
    vector_pass(kind, from, out, before);
    vector_pass(kind, vector_skip(from, kind.dtype, after), out + after * size, o->head_dim - after);
    vector_rotate_window(kind, o, from, out, t);
    if (stage)
        trope_stream_copy(dst, stage, (size_t)(o->head_dim * size));
}

#endif
#endif
