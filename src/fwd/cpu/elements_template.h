/* Conversions of elements to and from REAL, the type of the arithmetic: float (for f32, f16 and bf16) or double (for f64).
 * REAL_IS_DOUBLE is defined with double. FN(name) is name_f32 or name_f64. Tables may have any dtype. */

/* Loads `count` contiguous elements. */
static inline void FN(load)(REAL *restrict to, const void *from, int32_t dtype, int count)
{
    if (dtype == TROPE_F32) {
        const float *restrict in = from;
        for (int i = 0; i < count; i++)
            to[i] = (REAL)in[i];
        return;
    }
#ifdef REAL_IS_DOUBLE
    if (dtype == TROPE_F64) {
        const double *restrict in = from;
        for (int i = 0; i < count; i++)
            to[i] = in[i];
        return;
    }
    const uint16_t *restrict in = from;
    for (int i = 0; i < count; i++)
        to[i] = dtype == TROPE_BF16 ? trope_bf16_to_f32(in[i]) : trope_f16_to_f32(in[i]);
#else
    if (dtype == TROPE_BF16) {
        const uint16_t *restrict in = from;
        for (int i = 0; i < count; i++)
            to[i] = trope_bf16_to_f32(in[i]);
        return;
    }
    trope_load_f16(to, from, count);
#endif
}

static inline void FN(store)(void *to, const REAL *restrict from, int32_t dtype, int count)
{
#ifndef REAL_IS_DOUBLE
    if (dtype == TROPE_BF16) {
        uint16_t *restrict out = to;
        for (int i = 0; i < count; i++)
            out[i] = trope_f32_to_bf16(from[i]);
        return;
    }
    if (dtype == TROPE_F16) {
        trope_store_f16(to, from, count);
        return;
    }
#endif
    (void)dtype;
    REAL *restrict out = to;
    for (int i = 0; i < count; i++)
        out[i] = from[i];
}

/* Loads elements with a stride of `step`. */
static inline void FN(load_strided)(REAL *restrict to, const char *from, int64_t step, int32_t dtype, int count)
{
    if (step == 1) {
        FN(load)(to, from, dtype, count);
        return;
    }
    const int64_t bytes = step * trope_element_size(dtype);
    for (int i = 0; i < count; i++)
        FN(load)(to + i, from + i * bytes, dtype, 1);
}

static inline void FN(store_strided)(char *to, const REAL *restrict from, int64_t step, int32_t dtype, int count)
{
    if (step == 1) {
        FN(store)(to, from, dtype, count);
        return;
    }
    const int64_t bytes = step * trope_element_size(dtype);
    for (int i = 0; i < count; i++)
        FN(store)(to + i * bytes, from + i, dtype, 1);
}

static inline REAL FN(canonical)(REAL x)
{
#ifdef REAL_IS_DOUBLE
    return x;
#else
    return trope_canonical(x);
#endif
}

/* Rounds values to the dtype. */
static inline void FN(round_values)(int32_t dtype, int count, REAL *values)
{
#ifdef REAL_IS_DOUBLE
    (void)dtype, (void)count, (void)values;
#else
    for (int i = 0; dtype == TROPE_BF16 && i < count; i++)
        values[i] = trope_round_bf16(values[i]);
    for (int i = 0; dtype == TROPE_F16 && i < count; i++)
        values[i] = trope_round_f16(values[i]);
#endif
}
