/* The rotation of a part of a window by the coefficients of a token. */

/* Rotates `count` pairs from x to y, which must not overlap. */
static inline __attribute__((always_inline)) void FN(rotate_run)(FN(kind) kind, int count, const REAL *restrict x,
                                                                 REAL *restrict y, FN(coefficients) t)
{
    const REAL *restrict c1 = t.c1, *restrict s1 = t.s1, *restrict c2 = t.c2, *restrict s2 = t.s2;
    for (int i = 0; i < count; i++) {
        const FN(pair) in = {x[trope_first_in_part(kind.from_interleaved, i)],
                             x[trope_second_in_part(kind.from_interleaved, count, i)]};
        const FN(pair_coefficients) c = {c1[i], s1[i], c2[i], s2[i]};
        const FN(pair) out = FN(rotate_pair)(kind.native, in, c);
        y[trope_first_in_part(kind.to_interleaved, i)] = FN(canonical)(out.first);
        y[trope_second_in_part(kind.to_interleaved, count, i)] = FN(canonical)(out.second);
    }
}

static inline __attribute__((always_inline)) void FN(rotate_by_pairing)(int native, FN(kind) kind, int count, const REAL *x,
                                                                        REAL *y, FN(coefficients) t)
{
    if (kind.from_interleaved)
        kind.to_interleaved ? FN(rotate_run)((FN(kind)){native, 1, 1}, count, x, y, t)
                            : FN(rotate_run)((FN(kind)){native, 1, 0}, count, x, y, t);
    else
        kind.to_interleaved ? FN(rotate_run)((FN(kind)){native, 0, 1}, count, x, y, t)
                            : FN(rotate_run)((FN(kind)){native, 0, 0}, count, x, y, t);
}

/* Rotates `count` pairs by a kind that is known only at run time. */
static void FN(rotate_part)(FN(kind) kind, int count, const REAL *x, REAL *y, FN(coefficients) t)
{
    switch (kind.native) {
    case 0:
        FN(rotate_by_pairing)(0, kind, count, x, y, t);
        break;
    case TROPE_F16:
        FN(rotate_by_pairing)(TROPE_F16, kind, count, x, y, t);
        break;
    case TROPE_BF16:
        FN(rotate_by_pairing)(TROPE_BF16, kind, count, x, y, t);
        break;
    default:
        FN(rotate_by_pairing)(TROPE_F32, kind, count, x, y, t);
    }
}
