/* The gradient of the angles on CUDA: what the one pass over dy, x and dx is told by the host, and in which order it adds.
 *
 * A unit is a token, with as many batch entries as share its angles and are taken together. Its steps are some heads of an
 * operand and batch entry each, and are dealt out to its parts: part p has steps p, p + parts, ... The heads of an operand
 * are dealt out to slots: head h is of slot h mod slots. Each slot of a part adds in the order of steps and heads; its
 * slots are then added by halves, and the parts in their order. Where units are small, some whose tokens follow each other
 * are a group. So the order depends on the shapes alone, and the two kernels (by tiles, or by pairs for strides that
 * vectors cannot have) give the same bits. */
#ifndef TROPE_BWD_CUDA_GRADIENT_CALL_CUH
#define TROPE_BWD_CUDA_GRADIENT_CALL_CUH

#include "fwd/cuda/angles.cuh"
#include "core/cuda/early_launch.cuh"

#define MAX_GROUP_UNITS 32

/* What becomes of the sums of a unit. */
enum gradient_mode {
    GRADIENT_DIRECT,     /* no other unit has its angles: they are the result */
    GRADIENT_PARTS,      /* `sums`, where units that follow each other in a known way are added */
    GRADIENT_PACKED,     /* `sums`, where those of the tokens at one place of their sequences are added */
    GRADIENT_SORTED,     /* `sums`, with the angle row of each unit in `keys` */
    GRADIENT_FREQUENCIES /* times the position, and the group's units added: a row of `sums` for each group */
};

struct gradient_call {
    cuda_plan plan;  /* plan.batch is how many units have the same token. plan.rounding is ONCE: */
    uint32_t native; /* what is turned by may be rounded to the dtype, what is summed with never is */
    uint32_t batch;  /* batch entries of the tensors */
    uint32_t batch_per_unit;
    uint32_t units;
    uint32_t group_units; /* at most; if more than one, a unit has one step */
    uint32_t groups;
    fast_divisor groups_of_batch;
    uint32_t slots; /* a power of two */
    uint32_t parts;
    uint32_t heads_of_step[MAX_CUDA_OPERANDS];
    gradient_mode mode;
    uint32_t key_axes;       /* axes with positions of their own */
    uint32_t angle_rows;     /* SORTED: of all batch entries that have their own */
    double *sums;            /* a row: the first elements of all pairs, then (per_element) the second */
    uint32_t *keys, *values; /* [key_axes, units] */
};

/* ---- one pair ---- */

/* The products of dy and x of a pair, summed: that is all of
 *
 *     dL/da1 = sum dy1 (-x1 s1 - x2 c1)        dL/da2 = sum dy2 (x1 c2 - x2 s2)
 *
 * that differs from head to head. Where the two angles are one, two sums are enough. */
template <bool OWN> struct pair_sums {
    double of[OWN ? 4 : 2];

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int i = 0; i < (OWN ? 4 : 2); i++)
            of[i] = 0;
    }

    __device__ __forceinline__ void add(double dy1, double dy2, double x1, double x2)
    {
        if constexpr (OWN) {
            of[0] = fma(dy1, x1, of[0]);
            of[1] = fma(dy1, x2, of[1]);
            of[2] = fma(dy2, x1, of[2]);
            of[3] = fma(dy2, x2, of[3]);
        } else {
            of[0] = fma(dy2, x2, fma(dy1, x1, of[0]));
            of[1] = fma(-dy1, x2, fma(dy2, x1, of[1]));
        }
    }

    __device__ __forceinline__ void add_from(const pair_sums &other)
    {
#pragma unroll
        for (int i = 0; i < (OWN ? 4 : 2); i++)
            of[i] += other.of[i];
    }

    /* Those of another thread of the warp. */
    __device__ __forceinline__ pair_sums of_thread(int thread) const
    {
        pair_sums other;
#pragma unroll
        for (int i = 0; i < (OWN ? 4 : 2); i++)
            other.of[i] = __shfl_sync(UINT32_MAX, of[i], thread);
        return other;
    }

    /* dL/da1 and dL/da2; without own angles their sum. What is at hand are the cos and sin of the backward call: (c1, -s2)
     * and (c2, -s1). */
    template <typename REAL>
    __device__ __forceinline__ void finish(REAL c1, REAL s1, REAL c2, REAL s2, double *first, double *second) const
    {
        if constexpr (OWN) {
            *first = fma((double)s2, of[0], -((double)c1 * of[1]));
            *second = fma((double)c2, of[2], (double)s1 * of[3]);
        } else {
            *first = fma((double)s1, of[0], (double)c1 * of[1]);
            *second = 0;
        }
    }
};

/* ---- units ---- */

struct unit_group {
    uint32_t batch, token; /* of the first unit */
    uint32_t units;
};

__device__ __forceinline__ unit_group find_group(const gradient_call &g, uint32_t number)
{
    unit_group of;
    of.batch = g.groups_of_batch.divide(number);
    of.token = (number - of.batch * g.groups_of_batch.divisor) * g.group_units;
    of.units = min(g.group_units, (uint32_t)g.plan.plan.tokens - of.token);
    return of;
}

/* ---- results ---- */

/* Stored like a tile: it should not stay in L2. (Nor should sums of units, although they are read once.) */
__device__ __forceinline__ void store_angle(const trope_plan &plan, int64_t offset, double value)
{
    if (plan.dtype == TROPE_F64)
        __stcs((double *)plan.d_freqs + offset, value);
    else
        __stcs((float *)plan.d_freqs + offset, (float)value);
}

/* For inverse the angle that is turned by is -a. (0 - x, so that an angle that nothing uses gets 0 and not -0.) */
__device__ __forceinline__ double turn_sum(const trope_plan &plan, double sum)
{
    return plan.inverse ? 0 - sum : sum;
}

__device__ __forceinline__ int64_t offset_of_angle_row(const trope_plan &plan, int64_t batch, int64_t row)
{
    return batch * plan.angles.stride.batch + row * plan.angles.stride.row;
}

/* The offset in d_freqs of the first (0) or second (1) element's angle of a pair at an angle row. */
__device__ __forceinline__ int64_t offset_of_angle(const trope_plan &plan, int64_t batch, int64_t row, uint32_t pair,
                                                   int which)
{
    const int64_t base = offset_of_angle_row(plan, batch, row);
    if (!plan.angles.per_element)
        return base + pair;
    return base + (which ? trope_second_of_pair(plan.interleaved_columns, plan.parts, plan.pairs, (int)pair)
                         : trope_first_of_pair(plan.interleaved_columns, plan.parts, plan.pairs, (int)pair));
}

/* The sum of a unit for the first (0) or second (1) element's angle of a pair, or for both, at the pair's position. */
__device__ __forceinline__ void emit_sum(const gradient_call &g, const trope_row &row, int64_t position, uint32_t pair,
                                         int which, double sum)
{
    const trope_plan &plan = g.plan.plan;
    if (g.mode == GRADIENT_DIRECT) {
        store_angle(plan, offset_of_angle(plan, row.batch, position, pair, which), turn_sum(plan, sum));
    } else {
        const int64_t unit = row.batch * plan.tokens + row.token;
        __stcs(g.sums + (plan.angles.per_element ? 2 * unit + which : unit) * plan.pairs + pair, sum);
    }
}

/* Whether a unit leaves sums: one that has no angle does, where nobody asks whether it has. */
__device__ __forceinline__ bool leaves_sums(const gradient_call &g, const trope_row &row)
{
    return row.action == TROPE_ROW_ROTATE || g.mode == GRADIENT_PACKED;
}

/* Whether these are zeros: it has no angle, or none that counts. */
__device__ __forceinline__ bool leaves_zeros(const gradient_call &g, const trope_row &row)
{
    return g.mode == GRADIENT_PACKED && (row.action != TROPE_ROW_ROTATE || row.poisoned);
}

/* Emits the sums of a pair of a unit, or adds them to `group`. A poisoned row has no place in a sum over rows; in one of
 * its own nobody looks for it. */
template <bool OWN, typename REAL>
__device__ __forceinline__ void emit_pair(const gradient_call &g, const trope_row &row, int64_t position, uint32_t pair,
                                          const pair_sums<OWN> &sums, REAL c1, REAL s1, REAL c2, REAL s2, double *group)
{
    double first, second;
    sums.finish(c1, s1, c2, s2, &first, &second);
    if (leaves_zeros(g, row))
        first = second = 0;
    if (g.mode != GRADIENT_FREQUENCIES) {
        emit_sum(g, row, position, pair, 0, first);
        if (OWN)
            emit_sum(g, row, position, pair, 1, second);
    } else if (!row.poisoned) {
        *group += (double)position * first;
    }
}

/* The angle row of a unit on each axis that has positions of its own; units without one go last. */
__device__ __forceinline__ void emit_keys(const gradient_call &g, const trope_row &row)
{
    const trope_plan &plan = g.plan.plan;
    const uint32_t unit = (uint32_t)(row.batch * plan.tokens + row.token);
    for (uint32_t axis = 0; axis < g.key_axes; axis++) {
        const bool counts = row.action == TROPE_ROW_ROTATE && (plan.used_axes >> axis & 1) && !(row.poisoned >> axis & 1);
        const int64_t angle_row =
            counts ? (plan.angles.stride.batch ? row.batch * plan.angles.rows : 0) + position_of_axis(row, (int)axis) : 0;
        g.keys[axis * g.units + unit] = counts ? axis * g.angle_rows + (uint32_t)angle_row : g.key_axes * g.angle_rows;
        g.values[axis * g.units + unit] = unit;
    }
}

#endif
