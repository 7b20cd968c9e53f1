/* The rotation of a window in one pass through registers, for f32, f16 and bf16 rounded once, which is what training runs
 * spend their time in. The compiler's own vectors (rows_template.h) take three passes through memory and do everything
 * else.
 *
 * A file vector_*.h has the vocabulary: load, store, (de)interleave. Without one there is no VECTOR_WIDTH and no such path.
 */
#ifndef TROPE_FWD_CPU_VECTOR_ROTATE_H
#define TROPE_FWD_CPU_VECTOR_ROTATE_H

#if defined(__AVX512F__)
#include "fwd/cpu/vector_avx512.h"
#elif defined(__AVX2__)
#include "fwd/cpu/vector_avx2.h"
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

/* What a loop is compiled for. A constant wherever it is passed, so that every branch on it goes away. */
typedef struct vector_kind {
    int dtype, from_interleaved, to_interleaved;
} vector_kind;

/* The coefficients of a window's pairs. */
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

/* Pairs [i, i + VECTOR_WIDTH) of `pairs`. */
ALWAYS_INLINE void vector_rotate_step(vector_kind kind, int pairs, const char *from, char *to, vector_coefficients t, int i)
{
    const int64_t size = trope_element_size(kind.dtype);
    const char *first = from + trope_first_in_part(kind.from_interleaved, i) * size;
    vector_pair x;
    if (kind.from_interleaved)
        x = vector_load_neighbours(kind.dtype, first);
    else
        x = (vector_pair){vector_load(kind.dtype, first),
                          vector_load(kind.dtype, from + trope_second_in_part(0, pairs, i) * size)};
    const vector_pair y = vector_rotate_once(x, t);
    char *to_first = to + trope_first_in_part(kind.to_interleaved, i) * size;
    if (kind.to_interleaved) {
        vector_store_neighbours(kind.dtype, to_first, y);
    } else {
        vector_store(kind.dtype, to_first, y.first);
        vector_store(kind.dtype, to + trope_second_in_part(0, pairs, i) * size, y.second);
    }
}

/* All pairs of a window. A last vector that would go over the end starts earlier and does some pairs a second time. */
ALWAYS_INLINE void vector_rotate_loop(vector_kind kind, int pairs, const char *from, char *to, vector_part_coefficients t)
{
    int i = 0;
    for (; i + VECTOR_WIDTH <= pairs; i += VECTOR_WIDTH)
        vector_rotate_step(kind, pairs, from, to, vector_load_coefficients(t, i), i);
    if (i < pairs)
        vector_rotate_step(kind, pairs, from, to, vector_load_coefficients(t, pairs - VECTOR_WIDTH), pairs - VECTOR_WIDTH);
}

/* Whether an operand can go this way. In place a pair may be read only once and must be written where it was read. */
static inline int vector_can_rotate(const trope_plan *plan, const trope_plan_operand *o)
{
    if (plan->rounding != TROPE_ROUND_ONCE || o->part_pairs < VECTOR_WIDTH || o->src_stride[TROPE_DIM_ELEMENT] != 1 ||
        o->dst_stride[TROPE_DIM_ELEMENT] != 1)
        return 0;
    return !o->in_place || (plan->interleaved_src == plan->interleaved_dst && o->part_pairs % VECTOR_WIDTH == 0);
}

/* Where a head comes from and goes to. `stage`, if not NULL, is where it is put together before it is streamed out. */
typedef struct vector_place {
    const char *src;
    char *dst, *stage;
} vector_place;

/* A whole head whose elements are contiguous. */
ALWAYS_INLINE void vector_rotate_head(vector_kind kind, const trope_plan_operand *o, int parts, vector_place place,
                                      vector_part_coefficients t)
{
    const int64_t size = trope_element_size(kind.dtype), before = o->rotary_offset * size;
    const int64_t window = 2 * o->part_pairs * size, after = before + parts * window, end = o->head_dim * size;
    char *out = place.stage ? place.stage : place.dst;
    if (!o->in_place) {
        trope_copy_short(out, place.src, (size_t)before);
        trope_copy_short(out + after, place.src + after, (size_t)(end - after));
    }
    for (int part = 0; part < parts; part++) {
        const int64_t start = before + part * window;
        vector_rotate_loop(kind, o->part_pairs, place.src + start, out + start, t);
        t = vector_skip_coefficients(t, o->part_pairs);
    }
    if (place.stage)
        trope_stream_copy(place.dst, place.stage, (size_t)end);
}

#endif
#endif
