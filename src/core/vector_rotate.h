/* The rotation of a window in one pass through registers, for f32, f16 and bf16 rounded once, which is what training runs
 * spend their time in. The compiler's own vectors (rows_template.h) take three passes through memory and do everything else.
 *
 * A file vector_*.h has the vocabulary: load, store, (de)interleave. Without one there is no VECTOR_WIDTH and no such path. */
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
ALWAYS_INLINE void vector_rotate_step(int dtype, int from_interleaved, int to_interleaved, int pairs, const char *from, char *to,
                                      vector_turns t, int i)
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
ALWAYS_INLINE void vector_rotate_loop(int dtype, int from_interleaved, int to_interleaved, int pairs, const char *from, char *to,
                                      vector_turns t)
{
    int i = 0;
    for (; i + VECTOR_WIDTH <= pairs; i += VECTOR_WIDTH)
        vector_rotate_step(dtype, from_interleaved, to_interleaved, pairs, from, to, t, i);
    if (i < pairs)
        vector_rotate_step(dtype, from_interleaved, to_interleaved, pairs, from, to, t, pairs - VECTOR_WIDTH);
}

ALWAYS_INLINE void vector_rotate_dtype(int dtype, const trope_plan *plan, int pairs, const char *from, char *to, vector_turns t)
{
    if (plan->interleaved_src)
        plan->interleaved_dst ? vector_rotate_loop(dtype, 1, 1, pairs, from, to, t) : vector_rotate_loop(dtype, 1, 0, pairs, from, to, t);
    else
        plan->interleaved_dst ? vector_rotate_loop(dtype, 0, 1, pairs, from, to, t) : vector_rotate_loop(dtype, 0, 0, pairs, from, to, t);
}

/* Whether the window of `pairs` pairs can go this way. In place a pair may be read only once and must be written where it
 * was read. */
static inline int vector_can_rotate(const trope_plan *plan, int pairs, int in_place)
{
    if (plan->rounding != TROPE_ROUND_ONCE || pairs < VECTOR_WIDTH)
        return 0;
    return !in_place || (plan->interleaved_src == plan->interleaved_dst && pairs % VECTOR_WIDTH == 0);
}

static void vector_rotate(const trope_plan *plan, int pairs, const char *from, char *to, vector_turns t)
{
    if (plan->dtype == TROPE_F32)
        vector_rotate_dtype(TROPE_F32, plan, pairs, from, to, t);
    else if (plan->dtype == TROPE_BF16)
        vector_rotate_dtype(TROPE_BF16, plan, pairs, from, to, t);
    else
        vector_rotate_dtype(TROPE_F16, plan, pairs, from, to, t);
}

#endif
#endif
