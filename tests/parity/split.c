/* How the work is split changes no bits: operands one per call, each batch entry alone, each head alone.
 *
 *     parity_split [--seed S] [--count N] */
#include <stdlib.h>
#include <string.h>

#include "parity/parity.h"
#include "support/number.h"
#include "support/reference.h"
#include "support/seeds.h"

static const char *advance(const void *pointer, int64_t elements, int32_t dtype)
{
    return pointer ? (const char *)pointer + elements * (int64_t)number_size(dtype) : NULL;
}

static const void *advance_indices(const void *pointer, int64_t count, int32_t dtype)
{
    return pointer ? (const char *)pointer + count * (dtype == TROPE_I64 ? 8 : 4) : NULL;
}

/* ---- Operands ---- */

static int is_interleaved_out(const trope_args *a)
{
    return (a->pairing_out ? a->pairing_out : a->pairing) == TROPE_PAIRING_INTERLEAVED;
}

/* The angles of an operand that is narrower than the widest are those of the first pairs. Says so in the terms of a call in
 * which it is the widest; returns 0 where that cannot be said. */
static int narrow_angles(trope_args *a, int pairs, int widest)
{
    int left = pairs;
    if (pairs == widest)
        return 1;
    if (a->axis_map == TROPE_AXES_INTERLEAVED && pairs)
        return 0;
    for (int axis = 0; axis < TROPE_MAX_AXES; left -= a->axis_sections[axis], axis++)
        a->axis_sections[axis] = a->axis_sections[axis] < left ? a->axis_sections[axis] : left;
    if (pairs == 0)
        a->axis_map = TROPE_AXES_WINDOWS;
    if (a->inv_freq || pairs == 0)
        return 1;
    if (a->angle_cols == 2 * widest && !is_interleaved_out(a))
        return 0;
    a->angle_row_stride = a->angle_row_stride ? a->angle_row_stride : a->angle_cols;
    a->angle_cols = a->angle_cols == 2 * widest ? 2 * pairs : pairs;
    return 1;
}

static void check_operands(config *c, int backward)
{
    config_reset(c);
    const trope_args together = config_args(c, backward);
    run_call(&together, backward);
    unsigned char *first = snapshot(c);
    config_reset(c);
    for (int i = 0; i < together.operand_count; i++) {
        trope_args alone = together;
        alone.operand_count = 1;
        alone.operands[0] = together.operands[i];
        if (!narrow_angles(&alone, together.operands[i].rotary_dim / 2, reference_pairs(&together))) {
            free(first);
            return;
        }
        run_call(&alone, backward);
    }
    check_parity(c, is_snapshot(c, first), "parity_split, operands");
    free(first);
}

/* ---- Batch ---- */

static trope_args entry_of_batch(const trope_args *args, int64_t entry)
{
    trope_args a = *args;
    a.batch = 1;
    for (int i = 0; i < a.operand_count; i++) {
        trope_operand *o = &a.operands[i];
        o->src = advance(o->src, entry * o->src_stride[TROPE_DIM_BATCH], a.dtype);
        o->dst = (void *)(uintptr_t)advance(o->dst, entry * o->dst_stride[TROPE_DIM_BATCH], a.dtype);
    }
    a.freqs = advance(a.freqs, entry * a.angle_batch_stride, a.angle_dtype);
    a.cos = advance(a.cos, entry * a.angle_batch_stride, a.angle_dtype);
    a.sin = advance(a.sin, entry * a.angle_batch_stride, a.angle_dtype);
    a.start_positions = advance_indices(a.start_positions, entry, a.position_dtype);
    a.position_ids = advance_indices(a.position_ids, entry * a.position_batch_stride, a.position_dtype);
    return a;
}

static void check_batch(config *c, int backward)
{
    config_reset(c);
    const trope_args together = config_args(c, backward);
    run_call(&together, backward);
    unsigned char *first = snapshot(c);
    config_reset(c);
    for (int64_t entry = 0; entry < together.batch; entry++) {
        const trope_args alone = entry_of_batch(&together, entry);
        run_call(&alone, backward);
    }
    check_parity(c, is_snapshot(c, first), "parity_split, batch");
    free(first);
}

/* ---- Heads, as tensor parallel ranks have them ---- */

static void check_heads(config *c, int backward)
{
    config_reset(c);
    const trope_args together = config_args(c, backward);
    const trope_operand *o = &together.operands[0];
    run_call(&together, backward);
    unsigned char *first = snapshot(c);
    config_reset(c);
    for (int group = 0; group < (o->groups ? o->groups : 1); group++)
        for (int head = 0; head < o->heads_per_group; head++) {
            trope_args alone = together;
            alone.operands[0].groups = alone.operands[0].heads_per_group = 1;
            alone.operands[0].src = advance(o->src, group * o->src_stride[2] + head * o->src_stride[3], together.dtype);
            alone.operands[0].dst =
                (void *)(uintptr_t)advance(o->dst, group * o->dst_stride[2] + head * o->dst_stride[3], together.dtype);
            run_call(&alone, backward);
        }
    check_parity(c, is_snapshot(c, first), "parity_split, heads");
    free(first);
}

typedef void (*split_check)(config *c, int backward);

static void check_seed(uint64_t seed, const uint8_t (*fixed)[2], int count, split_check check)
{
    config_choices choices = config_choose_with(seed, fixed, count);
    choices.specials = (int32_t)(seed % 2);
    config *c = config_make(seed, &choices);
    check(c, 0);
    check(c, 1);
    config_free(c);
}

int main(int argc, char **argv)
{
    const seed_range seeds = parse_seeds(argc, argv, 1000);
    const uint8_t any[][2] = {{OPTION_GRADIENT, GRADIENT_NONE}};
    const uint8_t dense[][2] = {{OPTION_GRADIENT, GRADIENT_NONE}, {OPTION_SEQUENCES, SEQUENCES_NONE}};
    const uint8_t one[][2] = {{OPTION_GRADIENT, GRADIENT_NONE}, {OPTION_OPERANDS, 0}};
    for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; seed++) {
        check_seed(seed, any, 1, check_operands);
        check_seed(seed, dense, 2, check_batch);
        check_seed(seed, one, 2, check_heads);
    }
    return check_result();
}
