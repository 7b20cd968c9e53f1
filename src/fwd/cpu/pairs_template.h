/* The rotation of pairs by the coefficients of a token. */

#ifdef REAL_IS_DOUBLE
typedef trope_pair_f64 FN(pair);
typedef trope_coefficients_f64 FN(pair_coefficients);
#else
typedef trope_pair FN(pair);
typedef trope_coefficients FN(pair_coefficients);
#endif

/* The parameters that a loop is compiled for. Callers pass constants. */
typedef struct FN(kind) {
    int native; /* the dtype that each operation is rounded to, or 0: rounded once */
    int from_interleaved, to_interleaved;
} FN(kind);

/* Returns the argument `native` of rotate_pair for the plan's rounding. */
static inline int FN(native_kind)(const trope_plan *plan)
{
    return plan->rounding == TROPE_ROUND_ONCE ? 0 : plan->rounding == TROPE_ROUND_NATIVE ? plan->dtype : TROPE_F32;
}

static inline FN(pair) FN(rotate_pair)(int native, FN(pair) x, FN(pair_coefficients) t)
{
#ifdef REAL_IS_DOUBLE
    return native == 0 ? trope_rotate_once_f64(x, t) : trope_rotate_native_f64(x, t);
#else
    return native == 0           ? trope_rotate_once(x, t)
           : native == TROPE_F32 ? trope_rotate_native_f32(x, t)
           : native == TROPE_F16 ? trope_rotate_native_f16(x, t)
                                 : trope_rotate_native_bf16(x, t);
#endif
}

/* Rounds the rotated values before a norm, as NATIVE and NATIVE_F32 require. */
static inline void FN(round_rotated)(const trope_plan *plan, int count, REAL *y)
{
    if (plan->rounding != TROPE_ROUND_ONCE)
        FN(round_values)(plan->dtype, count, y);
}
