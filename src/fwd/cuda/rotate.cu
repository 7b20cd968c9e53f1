/* Chooses the kernel that rotates a call, and launches it. */
#include "fwd/cuda/rotate.h"

#include "fwd/cuda/compiled.h"
#include "fwd/cuda/kernels.h"
#include "fwd/cuda/plan_blocks.cuh"

static const trope_rotation_kernels *kernels_of(int32_t dtype)
{
    return dtype == TROPE_F32    ? &trope_rotations_f32
           : dtype == TROPE_F16  ? &trope_rotations_f16
           : dtype == TROPE_BF16 ? &trope_rotations_bf16
                                 : &trope_rotations_f64;
}

/* The kernel of a plan, and the form of its blocks. */
struct rotation_choice {
    const trope_cuda_kernel *kernel;
    block_form form;
};

/* Returns whether a thread can load the freqs of its pairs as vectors. */
static bool has_freq_vectors(const trope_plan &plan)
{
    const trope_plan_angles &a = plan.angles;
    return a.source == TROPE_ANGLES_FREQS && !a.per_element && a.dtype == TROPE_F32 && a.stride.column == 1 &&
           !a.stride.axis && a.stride.row % 4 == 0 && a.stride.batch % 4 == 0 && (uintptr_t)a.freqs % 16 == 0;
}

/* Returns whether all pairs of each item have the same axis. */
static bool items_have_one_axis(const trope_plan &plan, int pairs_of_item)
{
    if (!axis_bits_of_tokens(plan))
        return true;
    for (int pair = 0; pair < plan.pairs; pair++)
        if (trope_pair_plane(&plan, pair) != trope_pair_plane(&plan, pair - pair % pairs_of_item))
            return false;
    return true;
}

/* With freqs and positions from tokens, calls of up to this many heads are faster if each thread computes the
 * coefficients of its own item. */
#define FEW_HEADS 3

/* Returns whether the kernel whose threads share nothing can run the plan. (It has no barrier, so it cannot rearrange
 * pairs in place.) */
static bool rotates_alone(const trope_plan &plan, position_kind positions, int pairs_of_item)
{
    const bool has_freqs_of_tokens = positions == POSITIONS_FROM_TOKENS && plan.angles.source == TROPE_ANGLES_FREQS;
    const int64_t heads = rotating_heads(plan), most = has_freqs_of_tokens ? FEW_HEADS : 1;
    return heads > 0 && heads <= most && rotates_fast(plan) && !rearranges_in_place(plan) &&
           (positions == POSITIONS_FROM_TOKENS || positions == POSITIONS_READ) &&
           items_have_one_axis(plan, pairs_of_item) &&
           (plan.angles.source == TROPE_ANGLES_PHASE ? pairs_fit(plan) : has_freq_vectors(plan));
}

static rotation_choice choose(const trope_plan &plan)
{
    const trope_rotation_kernels *const kernels = kernels_of(plan.dtype);
    const bool has_table = plan.angles.source != TROPE_ANGLES_PHASE;
    position_kind positions = kind_of_positions(plan);
    rotation_choice choice = {&kernels->elements, form_of(plan, can_be_vectors(plan))};
    block_form &form = choice.form;
    if (!form.vectors)
        return choice;
    if (rotates_alone(plan, positions, form.pairs_of_item)) {
        form.alone = true;
        form.most = ALONE_THREADS;
        form.splits = false;
        choice.kernel = &kernels->alone;
        return choice;
    }
    if ((positions != POSITIONS_FROM_TOKENS && !rotates_fast(plan)) || (!has_table && !pairs_fit(plan)))
        positions = POSITIONS_GENERIC;
    else if (positions == POSITIONS_SEARCHED && !addresses_are_simple(plan))
        positions = POSITIONS_SEARCHED_GENERIC;
    form.most = (uint32_t)block_limits(positions, false).threads;
    form.threads = SMALL_THREADS;
    form.searches_long = positions == POSITIONS_SEARCHED_GENERIC;
    /* (Heads that are rearranged in place must not be cut. Their number of items is a power of two.) */
    form.items = rearranges_in_place(plan) ? DEFAULT_THREADS : MOST_ITEMS;
    choice.kernel = positions == POSITIONS_GENERIC ? &kernels->vectors : &kernels->fast[positions][has_table];
    return choice;
}

const trope_cuda_kernel *trope_cuda_find_rotation(const trope_plan *plan)
{
    return choose(*plan).kernel;
}

trope_status trope_cuda_rotate(const char *function, const trope_plan *plan)
{
    int has_run = 0;
    const trope_status status = trope_cuda_rotate_compiled(function, plan, &has_run);
    if (status || has_run)
        return status;
    const rotation_choice chosen = choose(*plan);
    return chosen.form.vectors
               ? launch_blocks<narrow_call, rotation_blocks>(function, *plan, chosen.form, chosen.kernel->function)
               : launch_blocks<wide_call, rotation_blocks>(function, *plan, chosen.form, chosen.kernel->function);
}
