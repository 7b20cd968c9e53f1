/* The coefficients of a token: cos and sin of its angles, times the scales of the plan. Functions with their own arrays are
 * not inlined, so that their arrays are not on the stack at the same time: a caller's stack may have only 64 KB. */

/* The coefficients of one token, plan->pairs of each kind. If the elements of a pair share an angle, c2 is c1 and s2 is
 * s1. */
typedef struct FN(coefficients) {
    const REAL *c1, *s1, *c2, *s2;
} FN(coefficients);

/* Converts the columns of a table row to REAL. Each column comes from the plane and the row of its pair's axis. */
static void FN(gather_columns)(const trope_plan *plan, const trope_token *token, const void *table, REAL *to)
{
    const trope_plan_angles *a = &plan->angles;
    const int64_t size = trope_element_size(a->dtype), step = a->stride.column;
    const char *entry = (const char *)table + token->batch * a->stride.batch * size;
    if (plan->pair_axes == 1 && (plan->planes == 1 || a->stride.axis == 0)) {
        FN(load_strided)
        (to, entry + token->position[0] * a->stride.row * size, step, a->dtype, plan->pairs * (a->per_element ? 2 : 1));
        return;
    }
    for (int pair = 0; pair < plan->pairs; pair++) {
        const char *from = entry + (token->position[trope_pair_axis(plan, pair)] * a->stride.row +
                                    trope_pair_plane(plan, pair) * a->stride.axis) *
                                       size;
        if (!a->per_element) {
            FN(load)(to + pair, from + pair * step * size, a->dtype, 1);
            continue;
        }
        const int first = trope_first_of_pair(plan->interleaved_columns, plan->parts, plan->pairs, pair);
        const int second = trope_second_of_pair(plan->interleaved_columns, plan->parts, plan->pairs, pair);
        FN(load)(to + first, from + first * step * size, a->dtype, 1);
        FN(load)(to + second, from + second * step * size, a->dtype, 1);
    }
}

/* Computes cos and sin, times the scales (mscale and the sign of the direction). */
static void FN(sincos_of_angles)(const trope_plan *plan, const REAL *restrict angle, int count, REAL *restrict cosine,
                                 REAL *restrict sine)
{
    const REAL cosine_scale = (REAL)plan->cosine_scale, sine_scale = (REAL)plan->sine_scale;
#ifdef REAL_IS_DOUBLE
    for (int i = 0; i < count; i++) {
        cosine[i] = cos(angle[i]) * cosine_scale;
        sine[i] = sin(angle[i]) * sine_scale;
    }
#else
    int large = 0;
    for (int i = 0; i < count; i++) {
        float s, c;
        large |= trope_is_large_angle(angle[i]);
        trope_sincos_quarter(trope_reduce_angle(angle[i]), &s, &c);
        cosine[i] = c * cosine_scale;
        sine[i] = s * sine_scale;
    }
    for (int i = 0; large && i < count; i++) {
        float s, c;
        if (!trope_is_large_angle(angle[i]))
            continue;
        trope_sincos(angle[i], &s, &c);
        cosine[i] = c * cosine_scale;
        sine[i] = s * sine_scale;
    }
#endif
}

static inline void FN(sincos_of_phase)(int64_t position, uint64_t step, const REAL scale[2], REAL *cosine, REAL *sine)
{
    REAL s, c;
#ifdef REAL_IS_DOUBLE
    trope_sincos_phase_double((uint64_t)position * step, &s, &c);
#else
    trope_sincos_quarter(trope_reduce_phase(trope_phase(position, step)), &s, &c);
#endif
    *cosine = c * scale[0];
    *sine = s * scale[1];
}

static void FN(sincos_of_phases)(const trope_plan *plan, const trope_token *token, REAL *restrict cosine,
                                 REAL *restrict sine)
{
    const REAL scale[] = {(REAL)plan->cosine_scale, (REAL)plan->sine_scale};
    const uint64_t *restrict step = plan->step;
    const int64_t position = token->position[0];
    const int pairs = plan->pairs;
    if (plan->pair_axes > 1) {
        for (int i = 0; i < pairs; i++)
            FN(sincos_of_phase)(token->position[trope_pair_axis(plan, i)], step[i], scale, &cosine[i], &sine[i]);
        return;
    }
    for (int i = 0; i < pairs; i++)
        FN(sincos_of_phase)(position, step[i], scale, &cosine[i], &sine[i]);
}

static void FN(scale_columns)(int count, double scale, REAL *values)
{
    const REAL factor = (REAL)scale;
    for (int i = 0; i < count; i++)
        values[i] *= factor;
}

static void FN(poison)(const trope_plan *plan, const trope_token *token, REAL *values)
{
    for (int pair = 0; pair < plan->pairs; pair++) {
        if (!(token->poisoned >> trope_pair_axis(plan, pair) & 1))
            continue;
        if (!plan->angles.per_element) {
            values[pair] = (REAL)NAN;
            continue;
        }
        values[trope_first_of_pair(plan->interleaved_columns, plan->parts, plan->pairs, pair)] = (REAL)NAN;
        values[trope_second_of_pair(plan->interleaved_columns, plan->parts, plan->pairs, pair)] = (REAL)NAN;
    }
}

/* Reorders the columns of a table row: the first elements of all pairs come first, and the second elements follow. Tables
 * whose columns are already in this order need no work. */
static __attribute__((noinline)) void FN(split_columns)(const trope_plan *plan, REAL *restrict columns)
{
    const int pairs = plan->pairs, per_part = pairs / plan->parts;
    REAL copy[TROPE_MAX_ROTARY_DIM];
    if (!plan->interleaved_columns && plan->parts == 1)
        return;
    memcpy(copy, columns, 2 * (size_t)pairs * sizeof *copy);
    for (int part = 0; part < plan->parts; part++) {
        const REAL *restrict from = copy + 2 * part * per_part;
        REAL *restrict first = columns + part * per_part, *restrict second = first + pairs;
        for (int i = 0; i < per_part; i++) {
            first[i] = from[trope_first_in_part(plan->interleaved_columns, i)];
            second[i] = from[trope_second_in_part(plan->interleaved_columns, per_part, i)];
        }
    }
}

static __attribute__((noinline)) void FN(find_angles)(const trope_plan *plan, const trope_token *token, int columns,
                                                      REAL *c, REAL *s)
{
    REAL angle[TROPE_MAX_ROTARY_DIM];
    FN(gather_columns)(plan, token, plan->angles.freqs, angle);
    FN(sincos_of_angles)(plan, angle, columns, c, s);
}

/* Computes cos and sin of each column, with scales, poison and rounding. */
static void FN(find_columns)(const trope_plan *plan, const trope_token *token, int columns, REAL *c, REAL *s)
{
    if (plan->angles.source == TROPE_ANGLES_PHASE) {
        FN(sincos_of_phases)(plan, token, c, s);
    } else if (plan->angles.source == TROPE_ANGLES_FREQS) {
        FN(find_angles)(plan, token, columns, c, s);
    } else {
        FN(gather_columns)(plan, token, plan->angles.cos, c);
        FN(gather_columns)(plan, token, plan->angles.sin, s);
        FN(scale_columns)(columns, plan->cosine_scale, c);
        FN(scale_columns)(columns, plan->sine_scale, s);
    }
    if (token->poisoned) {
        FN(poison)(plan, token, c);
        FN(poison)(plan, token, s);
    }
    if (plan->rounding == TROPE_ROUND_NATIVE) { /* as a framework stores them */
        FN(round_values)(plan->dtype, columns, c);
        FN(round_values)(plan->dtype, columns, s);
    }
}

/* Writes the coefficients of a token to `space`, at most 4 * plan->pairs of them. */
static __attribute__((noinline)) FN(coefficients)
    FN(find_coefficients)(const trope_plan *plan, const trope_token *token, REAL *space)
{
    const int pairs = plan->pairs;
    if (!plan->angles.per_element) {
        FN(find_columns)(plan, token, pairs, space, space + pairs);
        return (FN(coefficients)){space, space + pairs, space, space + pairs};
    }
    REAL *cosine = space, *sine = space + 2 * pairs;
    FN(find_columns)(plan, token, 2 * pairs, cosine, sine);
    FN(split_columns)(plan, cosine);
    FN(split_columns)(plan, sine);
    return (FN(coefficients)){cosine, sine + (plan->swap_sines ? pairs : 0), cosine + pairs,
                              sine + (plan->swap_sines ? 0 : pairs)};
}
