/* Decides which calls the kernels for 16-byte vectors can take. Their parameters are small, and 32 bits hold all
 * offsets. Host only. */
#ifndef TROPE_FWD_CUDA_VECTOR_CALLS_CUH
#define TROPE_FWD_CUDA_VECTOR_CALLS_CUH

#include "fwd/cuda/launch.cuh"
#include "fwd/cuda/register_block.cuh"

/* ---- the ranges of a head ---- */

/* A range of elements of each head. */
struct head_run {
    int32_t begin, count;
    bool rotates;
};

static inline bool norms_rotate(const trope_plan &plan)
{
    bool rotate = false;
    for (int i = 0; i < plan.operand_count; i++)
        rotate = rotate || (plan.operands[i].norm.is_given && plan.operands[i].rotary_dim);
    return rotate;
}

/* Cuts a head into its window and the elements before and after it, if the call writes them. With a norm, the whole head
 * is one run. It is cut into items like a window if any head with a norm rotates. Returns the number of runs. */
static inline int cut_head(const trope_plan &plan, const trope_plan_operand &o, head_run *runs)
{
    const int32_t end = o.rotary_offset + o.rotary_dim;
    int count = 0;
    if (!moves_operand(plan, o))
        return 0;
    if (o.norm.is_given)
        runs[count++] = {0, o.head_dim, norms_rotate(plan)};
    else if (o.rotary_dim)
        runs[count++] = {o.rotary_offset, o.rotary_dim, true};
    if (o.norm.is_given || !writes_rest(plan, o))
        return count;
    if (o.rotary_offset)
        runs[count++] = {0, o.rotary_offset, false};
    if (o.head_dim > end)
        runs[count++] = {end, o.head_dim - end, false};
    return count;
}

/* Returns the axes that drive the pairs of an operand, one bit for each. */
static inline uint32_t axes_of(const trope_plan &plan, const trope_plan_operand &o)
{
    uint32_t axes = 0;
    for (int pair = 0; pair < o.rotary_dim / 2; pair++)
        axes |= 1u << trope_pair_axis(&plan, pair);
    return axes;
}

static inline bool rearranges_in_place(const trope_plan &plan)
{
    bool in_place = false;
    for (int i = 0; i < plan.operand_count; i++)
        in_place = in_place || plan.operands[i].in_place;
    return in_place && plan.interleaved_src != plan.interleaved_dst;
}

static inline double elements_of_token(const trope_plan &plan)
{
    double elements = 0;
    for (int i = 0; i < plan.operand_count; i++)
        elements += (double)plan.operands[i].groups * plan.operands[i].heads_per_group * plan.operands[i].head_dim;
    return elements;
}

static inline int64_t magnitude(int64_t x)
{
    return x < 0 ? -x : x;
}

/* Returns whether the tokens of a head are closer to each other in memory than two heads. */
static inline bool tokens_are_near(const trope_plan &plan)
{
    const trope_plan_operand &o = plan.operands[0];
    return o.groups * o.heads_per_group > 1 &&
           std::max(magnitude(o.src_stride[TROPE_DIM_HEAD]), magnitude(o.src_stride[TROPE_DIM_GROUP])) >
               magnitude(o.src_stride[inner_dim(plan)]);
}

/* ---- vectors ---- */

/* Returns whether every head of a tensor consists of whole vectors. */
static inline bool tensor_is_vector(const trope_plan &plan, const void *base, const int64_t *stride)
{
    const int64_t count = 16 / plan.element_size; /* (the stride of a dimension of size 1 is 0) */
    for (int d = 0; d < TROPE_DIM_ELEMENT; d++)
        if (stride[d] % count)
            return false;
    return stride[TROPE_DIM_ELEMENT] == 1 && (uintptr_t)base % 16 == 0;
}

/* Returns whether src, dst and the ranges of a head consist of whole vectors. */
static inline bool operand_is_vector(const trope_plan &plan, const trope_plan_operand &o)
{
    const int64_t count = 16 / plan.element_size;
    return o.head_dim % count == 0 && o.rotary_offset % count == 0 && o.part_pairs % count == 0 &&
           tensor_is_vector(plan, o.src, o.src_stride) && (!o.dst || tensor_is_vector(plan, o.dst, o.dst_stride));
}

/* ---- offsets of 32 bits ---- */

/* Returns whether 32 bits can hold the offset of any table entry, in bytes. */
static inline bool table_is_narrow(const trope_plan &plan)
{
    const trope_table_stride &s = plan.angles.stride;
    return plan.angles.source == TROPE_ANGLES_PHASE ||
           (double)magnitude(s.batch) * (double)plan.batch + (double)magnitude(s.row) * (double)plan.angles.rows +
                   (double)magnitude(s.column) * 2.0 * plan.pairs + (double)magnitude(s.axis) * TROPE_MAX_AXES <
               INT32_MAX / sizeof(float);
}

/* Returns whether 32 bits can hold the strides of ids, in bytes. */
static inline bool ids_are_narrow(const trope_position_source &s)
{
    return !s.ids || (magnitude(s.id_batch_stride) <= INT32_MAX / 8 && magnitude(s.id_token_stride) <= INT32_MAX / 8 &&
                      magnitude(s.id_axis_stride) <= INT32_MAX / 8);
}

/* Returns whether the tokens and positions of a plan fit into the 32 bits of vector kernels. */
static inline bool tokens_are_narrow(const trope_plan &plan)
{
    return plan.dtype != TROPE_F64 && plan.batch * plan.tokens <= INT32_MAX && table_is_narrow(plan) &&
           ids_are_narrow(plan.position_source) &&
           !(plan.position_source.boundaries && is_wide_search(plan.position_source));
}

/* Returns whether the phase steps of a plan fit into the parameters of the fast paths. */
static inline bool pairs_fit(const trope_plan &plan)
{
    return plan.pairs <= FAST_PAIRS;
}

/* Returns whether 32 bits can hold strides of elements, in bytes. */
static inline bool strides_are_narrow(const int64_t *stride)
{
    bool are = true;
    for (int d = 0; d < TROPE_DIM_ELEMENT; d++)
        are = are && magnitude(stride[d]) <= INT32_MAX / 4;
    return are;
}

/* Returns whether vector kernels can run a plan: positions and strides fit into 32 bits, heads consist of vectors, and
 * there are few segments. */
static inline bool can_be_vectors(const trope_plan &plan)
{
    head_run runs[3];
    int segments = 0;
    bool fits = tokens_are_narrow(plan);
    for (int i = 0; i < plan.operand_count; i++) {
        const trope_plan_operand &o = plan.operands[i];
        segments += cut_head(plan, o, runs);
        fits = fits && (!moves_operand(plan, o) || operand_is_vector(plan, o)) && strides_are_narrow(o.src_stride) &&
               strides_are_narrow(o.dst_stride);
    }
    return fits && segments <= NARROW_SEGMENTS;
}

/* Returns whether a plan rounds once, has the same coefficients for both elements of a pair, and overwrites dst. (If src
 * and dst differ in pairing, it must not copy padding, because copied elements keep their places.) */
static inline bool rotates_fast(const trope_plan &plan)
{
    bool fast = plan.rounding == TROPE_ROUND_ONCE && !plan.angles.per_element &&
                (plan.interleaved_src == plan.interleaved_dst ||
                 trope_action_of_padding(&plan.position_source) != TROPE_TOKEN_COPY);
    for (int i = 0; i < plan.operand_count; i++)
        fast = fast && !plan.operands[i].accumulate;
    return fast;
}

/* Returns whether every address is base + token * a + head * b + item * c. There must be one batch entry, one group and
 * one part, all windows must have the same size, and no other elements may be moved. The number of items of heads that
 * are rearranged in place must be a power of two, so that no item is idle. */
static inline bool addresses_are_simple(const trope_plan &plan)
{
    const uint32_t window_items = (uint32_t)(plan.pairs * plan.element_size / 16);
    bool simple =
        plan.batch == 1 && plan.parts == 1 && (!rearranges_in_place(plan) || power_of_two(window_items) == window_items);
    for (int i = 0; i < plan.operand_count; i++) {
        head_run runs[3];
        trope_plan_operand o = plan.operands[i];
        join_groups(&o, o.norm.is_backward);
        const bool is_window = o.norm.is_given ? o.rotary_dim == o.head_dim : o.in_place || cut_head(plan, o, runs) == 1;
        if (moves_operand(plan, o))
            simple = simple && o.groups == 1 && o.rotary_dim == 2 * plan.pairs && is_window;
    }
    return simple;
}

#endif
