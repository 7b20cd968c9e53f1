/* The rotation of a window in one pass through registers, for f32, f16 and bf16 rounded once, which is what training runs
 * spend their time in. The compiler's own vectors (rows_template.h) take three passes through memory and do everything
 * else.
 *
 * A file vector_*.h has the vocabulary: load, store, (de)interleave. Without one there is no VECTOR_WIDTH and no such path.
 */
#ifndef TROPE_CORE_VECTOR_ROTATE_H
#define TROPE_CORE_VECTOR_ROTATE_H

#if defined(__AVX512F__)
#include "core/vector_avx512.h"
#elif defined(__AVX2__)
#include "core/vector_avx2.h"
#endif

#ifdef VECTOR_WIDTH

#include "core/plan.h"
#include "core/rotate.h"
#include "core/vector_memory.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

TROPE_DEFINE_ROTATE_ONCE(vector_rotate_once, vector, vector_fma, vector_mul)

/* The coefficients of a window's pairs. */
typedef struct vector_turns {
    const float *c1, *s1, *c2, *s2;
} vector_turns;

ALWAYS_INLINE void vector_load_neighbours(int dtype, const char *p, vector *x1, vector *x2)
{
    const int bytes = VECTOR_WIDTH * (dtype == TROPE_F32 ? 4 : 2);
    if (dtype == TROPE_BF16)
        vector_split_bf16(p, x1, x2);
    else
        vector_deinterleave(vector_load(dtype, p), vector_load(dtype, p + bytes), x1, x2);
}

ALWAYS_INLINE void vector_store_neighbours(int dtype, char *p, vector y1, vector y2)
{
    const int bytes = VECTOR_WIDTH * (dtype == TROPE_F32 ? 4 : 2);
    if (dtype == TROPE_BF16) {
        vector_join_bf16(p, y1, y2);
        return;
    }
    vector low, high;
    vector_interleave(y1, y2, &low, &high);
    vector_store(dtype, p, low);
    vector_store(dtype, p + bytes, high);
}

/* Pairs [i, i + VECTOR_WIDTH) of `pairs`. Inlined with constants for dtype and pairings. */
ALWAYS_INLINE void vector_rotate_step(int dtype, int from_interleaved, int to_interleaved, int pairs, const char *from,
                                      char *to, vector_turns t, int i)
{
    const int64_t size = dtype == TROPE_F32 ? 4 : 2;
    vector x1, x2, y1, y2;
    if (from_interleaved) {
        vector_load_neighbours(dtype, from + 2 * i * size, &x1, &x2);
    } else {
        x1 = vector_load(dtype, from + i * size);
        x2 = vector_load(dtype, from + (i + pairs) * size);
    }
    vector_rotate_once(x1, x2, vector_load_f32(t.c1 + i), vector_load_f32(t.s1 + i), vector_load_f32(t.c2 + i),
                       vector_load_f32(t.s2 + i), &y1, &y2);
    if (to_interleaved) {
        vector_store_neighbours(dtype, to + 2 * i * size, y1, y2);
    } else {
        vector_store(dtype, to + i * size, y1);
        vector_store(dtype, to + (i + pairs) * size, y2);
    }
}

/* All pairs of a window. A last vector that would go over the end starts earlier and does some pairs a second time. */
ALWAYS_INLINE void vector_rotate_loop(int dtype, int from_interleaved, int to_interleaved, int pairs, const char *from,
                                      char *to, vector_turns t)
{
    int i = 0;
    for (; i + VECTOR_WIDTH <= pairs; i += VECTOR_WIDTH)
        vector_rotate_step(dtype, from_interleaved, to_interleaved, pairs, from, to, t, i);
    if (i < pairs)
        vector_rotate_step(dtype, from_interleaved, to_interleaved, pairs, from, to, t, pairs - VECTOR_WIDTH);
}

/* Whether an operand can go this way. In place a pair may be read only once and must be written where it was read. */
static inline int vector_can_rotate(const trope_plan *plan, const trope_plan_operand *o)
{
    if (plan->rounding != TROPE_ROUND_ONCE || o->window_pairs < VECTOR_WIDTH || o->src_stride[TROPE_DIM_ELEMENT] != 1 ||
        o->dst_stride[TROPE_DIM_ELEMENT] != 1)
        return 0;
    return !o->in_place || (plan->interleaved_src == plan->interleaved_dst && o->window_pairs % VECTOR_WIDTH == 0);
}

/* A whole head whose elements are contiguous. `stage`, if not NULL, is where it is put together before it is streamed out.
 */
ALWAYS_INLINE void vector_rotate_head(int dtype, int from_interleaved, int to_interleaved, const trope_plan_operand *o,
                                      int windows, const char *src, char *dst, char *stage, vector_turns t)
{
    const int64_t size = dtype == TROPE_F32 ? 4 : 2, before = o->rotary_offset * size, window = 2 * o->window_pairs * size;
    const int64_t after = before + windows * window, end = o->head_dim * size;
    char *out = stage ? stage : dst;
    if (!o->in_place) {
        trope_copy_short(out, src, (size_t)before);
        trope_copy_short(out + after, src + after, (size_t)(end - after));
    }
    for (int w = 0; w < windows; w++) {
        const int64_t start = before + w * window;
        vector_rotate_loop(dtype, from_interleaved, to_interleaved, o->window_pairs, src + start, out + start, t);
        t = (vector_turns){t.c1 + o->window_pairs, t.s1 + o->window_pairs, t.c2 + o->window_pairs, t.s2 + o->window_pairs};
    }
    if (stage)
        trope_stream_copy(dst, stage, (size_t)end);
}

#endif
#endif
