/* What all launches of the CUDA backend ask and say: whether tensors can be moved by 16-byte vectors, and what has failed.
 */
#ifndef TROPE_FWD_CUDA_LAUNCH_CUH
#define TROPE_FWD_CUDA_LAUNCH_CUH

#include "core/error.h"
#include "core/cuda/early_launch.cuh"
#include "fwd/cuda/rows.cuh"

static inline bool is_multiple(int64_t value, int64_t of)
{
    return value % of == 0;
}

static inline int64_t quotient_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static inline int64_t magnitude(int64_t x)
{
    return x < 0 ? -x : x;
}

static inline bool clears_padding(const trope_plan &plan)
{
    return plan.sequences.boundaries && plan.sequences.padding == TROPE_PADDING_ZERO;
}

/* Whether what is not rotated of an operand is written as well: somewhere else, or zeros where it is padding. */
static inline bool writes_rest(const trope_plan &plan, const trope_plan_operand &o)
{
    return !o.in_place || clears_padding(plan);
}

static inline int64_t bytes_of_head(const trope_plan &plan, const trope_plan_operand &o)
{
    return (int64_t)o.head_dim * plan.element_size;
}

/* The two dimensions of rows. */
static inline int outer_dim(const trope_plan &plan)
{
    return plan.batch_outermost ? TROPE_DIM_BATCH : TROPE_DIM_TOKEN;
}

static inline int inner_dim(const trope_plan &plan)
{
    return plan.batch_outermost ? TROPE_DIM_TOKEN : TROPE_DIM_BATCH;
}

/* Whether every head of a tensor is made of whole vectors. */
static inline bool tensor_is_vector(const trope_plan &plan, const trope_plan_operand &o, const void *base,
                                    const int64_t *stride)
{
    const int64_t count = 16 / plan.element_size;
    const int64_t size[] = {plan.batch, plan.tokens, o.groups, o.heads_per_group};
    for (int d = 0; d < TROPE_DIM_ELEMENT; d++)
        if (size[d] > 1 && !is_multiple(stride[d], count))
            return false;
    return stride[TROPE_DIM_ELEMENT] == 1 && is_multiple((int64_t)(uintptr_t)base, 16);
}

/* Of src and dst, and of the parts of a head. */
static inline bool operand_is_vector(const trope_plan &plan, const trope_plan_operand &o)
{
    const int64_t count = 16 / plan.element_size;
    return is_multiple(o.head_dim, count) && is_multiple(o.rotary_offset, count) && is_multiple(o.part_pairs, count) &&
           tensor_is_vector(plan, o, o.src, o.src_stride) && (!o.dst || tensor_is_vector(plan, o, o.dst, o.dst_stride));
}

/* Groups that follow each other like heads are one group. `input` is read where the operand is rotated and a gradient of
 * the angles is asked for. */
static inline void join_groups(trope_plan_operand *o, bool with_input)
{
    int64_t *const strides[] = {o->src_stride, with_input && o->rotary_dim ? o->forward_src_stride : o->src_stride,
                                o->dst ? o->dst_stride : o->src_stride};
    for (int i = 0; i < 3; i++) {
        if (o->heads_per_group == 1)
            strides[i][TROPE_DIM_HEAD] = strides[i][TROPE_DIM_GROUP];
        if (strides[i][TROPE_DIM_GROUP] != strides[i][TROPE_DIM_HEAD] * o->heads_per_group)
            return;
    }
    o->heads_per_group *= o->groups;
    o->groups = 1;
}

/* Whether positions follow from the tokens, on a context parallel rank as well, and are in range: nothing is to be looked
 * up for a row. */
static inline bool is_plain(const trope_plan &plan)
{
    const trope_sequences &s = plan.sequences;
    const trope_plan_angles &a = plan.angles;
    const bool has_table = a.source == TROPE_ANGLES_FREQS || a.source == TROPE_ANGLES_TABLE;
    return !s.boundaries && !s.ids && !s.starts && plan.parts == 1 && plan.axes == 1 && s.tokens < INT32_MAX / s.cp_size &&
           (!has_table || s.tokens * s.cp_size <= a.rows);
}

static inline token_positions plan_positions(const trope_sequences &s)
{
    const int64_t half = s.tokens / 2, first = trope_dense_position(&s, 0);
    token_positions p;
    p.scale = s.cp_layout == TROPE_CP_STRIPED ? (uint32_t)s.cp_size : 1;
    p.first = (uint32_t)first;
    p.second_run = (uint32_t)half;
    p.gap = (uint32_t)(trope_dense_position(&s, half) - first - half * p.scale);
    return p;
}

static inline cuda_rows plan_rows(const trope_plan &plan)
{
    const int64_t length = trope_inner_rows(&plan);
    cuda_rows rows;
    rows.count = plan.batch * plan.tokens;
    rows.two_dimensions = rows.count > length;
    rows.length.set((uint32_t)(length < INT32_MAX ? length : INT32_MAX));
    rows.batch_outermost = plan.batch_outermost;
    rows.positions = is_plain(plan) ? plan_positions(plan.sequences) : token_positions{0, 0, 0, 0};
    return rows;
}

/* Whether a row of angles is needed by neighbours only, and not again by other sequences, or by batch entries or heads that
 * are further apart than tokens. (Other operands need it again as well, but keeping it for them did not pay.) */
static inline bool uses_rows_once(const trope_plan &plan)
{
    bool once = is_plain(plan) && (plan.batch == 1 || !plan.batch_outermost || plan.angles.stride.batch != 0);
    for (int i = 0; i < plan.operand_count; i++) {
        const trope_plan_operand &o = plan.operands[i];
        const int64_t token = magnitude(o.src_stride[TROPE_DIM_TOKEN]);
        once = once && (o.groups == 1 || magnitude(o.src_stride[TROPE_DIM_GROUP]) <= token) &&
               (o.heads_per_group == 1 || magnitude(o.src_stride[TROPE_DIM_HEAD]) <= token);
    }
    return once;
}

/* Whether four neighbouring columns of a table can be loaded at once. */
static inline bool table_is_vector(const trope_plan &plan)
{
    const trope_plan_angles &a = plan.angles;
    const uintptr_t bases = (uintptr_t)a.freqs | (uintptr_t)a.cos | (uintptr_t)a.sin;
    return plan.dtype != TROPE_F64 && plan.axes == 1 && bases % 16 == 0 && is_multiple(a.stride.row, 4) &&
           is_multiple(a.stride.batch, 4);
}

/* What of cuda_angles a plan can be run by. (freqs are fp32 unless the operands are f64.) */
static inline int kind_of_angles(const trope_plan &plan)
{
    if (plan.dtype == TROPE_F64 || plan.rounding == TROPE_ROUND_NATIVE)
        return ANGLES_ANY;
    if (plan.angles.source == TROPE_ANGLES_PHASE || plan.angles.source == TROPE_ANGLES_NONE)
        return plan.pairs <= USUAL_PAIRS ? ANGLES_PHASE : ANGLES_ANY;
    if (!table_is_vector(plan))
        return ANGLES_ANY;
    if (plan.angles.source == TROPE_ANGLES_TABLE)
        return ANGLES_TABLES;
    return plan.angles.per_element ? ANGLES_OWN_FREQS : ANGLES_FREQS;
}

static inline void fill_cuda_plan(const trope_plan &plan, cuda_plan *p)
{
    p->plan = plan;
    p->cosine_scale = (float)plan.cosine_scale;
    p->sine_scale = (float)plan.sine_scale;
    p->scaled = plan.cosine_scale != 1 || plan.sine_scale != 1;
    p->own_angles = plan.angles.per_element;
    p->part_pairs = plan.pairs / plan.parts;
    p->rows_once = uses_rows_once(plan);
    p->table_vectors = table_is_vector(plan) && plan.angles.dtype == TROPE_F32;
}

static inline trope_status fail_cuda(const char *function, cudaError_t error)
{
    return trope_fail(TROPE_ERROR_DEVICE, "%s: CUDA says: %s", function, cudaGetErrorString(error));
}

#endif
