/* Two ways to specify the same angles give the same bits, also for gradients. The test compares three pairs:
 * - phase_step, and the inv_freq that it was computed from (at the address where an earlier call had other frequencies);
 * - no pair_axis, and a pair_axis that gives each pair the axis of its part;
 * - ids with one axis, and the same ids repeated for each axis.
 *
 *     parity_same_angles [--seed S] [--count N] */
#include <stdlib.h>
#include <string.h>

#include "parity/parity.h"
#include "support/reference.h"
#include "support/seeds.h"
#include "support/tensor.h"

static void check_phase_step(config *c, int backward)
{
    call k = config_call(c, backward), other = k;
    double inv_freq[TROPE_MAX_ROTARY_DIM / 2];
    const int pairs = reference_pairs(call_args(&k));
    memcpy(inv_freq, c->inv_freq, (size_t)pairs * sizeof *inv_freq);
    other.args.phase_step = NULL;
    other.args.inv_freq = inv_freq;
    inv_freq[pairs - 1] += 0.5; /* the library must not remember the frequencies of an earlier call at this address */
    run_call(call_args(&other), backward);
    inv_freq[pairs - 1] = c->inv_freq[pairs - 1];
    check_parity(c, same_bytes(c, &k, &other, backward), "parity_same_angles, phase_step");
}

static void check_pair_axis(config *c, int backward)
{
    call k = config_call(c, backward), other = k;
    uint8_t axis[TROPE_MAX_ROTARY_DIM / 2];
    const int pairs = reference_pairs(call_args(&k)), parts = k.args.parts ? k.args.parts : 1;
    if (!pairs)
        return;
    for (int i = 0; i < pairs; i++)
        axis[i] = (uint8_t)(i / (pairs / parts));
    other.args.pair_axis = axis;
    check_parity(c, same_bytes(c, &k, &other, backward), "parity_same_angles, pair_axis");
}

static void check_ids(config *c, int backward)
{
    call k = config_call(c, backward), other = k;
    trope_args *a = call_args(&other);
    const size_t size = (a->position_dtype == TROPE_I64 ? 8 : 4);
    const int64_t count = a->batch * a->tokens;
    const int axes = reference_axes(a); /* with more axes, a gradient with axes would have more planes */
    if (axes == 1)
        return;
    char *ids = malloc((size_t)(axes * count) * size);
    int64_t stride[3];
    tensor_ids_strides(a, stride);
    for (int64_t i = 0; i < axes * count; i++) {
        const int64_t offset = i % count / a->tokens * stride[1] + i % a->tokens * stride[2];
        memcpy(ids + (size_t)i * size, (const char *)a->position_ids + offset * (int64_t)size, size);
    }
    a->position_ids = ids;
    a->position_axes = axes;
    a->ids_layout = TROPE_IDS_AXES_BATCH_TOKENS;
    memset(a->ids_stride, 0, sizeof a->ids_stride);
    check_parity(c, same_bytes(c, &k, &other, backward), "parity_same_angles, ids");
    free(ids);
}

int main(int argc, char **argv)
{
    const seed_range seeds = parse_seeds(argc, argv, 500);
    const uint8_t phase_step[][2] = {{OPTION_ANGLES, ANGLES_PHASE_STEP}};
    const uint8_t parts[][2] = {{OPTION_AXES, AXES_PARTS}};
    const uint8_t ids[][2] = {{OPTION_AXES, AXES_RANDOM}, {OPTION_POSITIONS, POSITIONS_IDS}};
    for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; seed++) {
        run_directions(seed, phase_step, 1, 0, check_phase_step);
        run_directions(seed, parts, 1, 0, check_pair_axis);
        run_directions(seed, ids, 2, 0, check_ids);
    }
    return check_result();
}
