/* Chooses the positions of tokens: packed sequences and the padding between them, start positions, and ids. */
#include <stdint.h>

#include "support/config_builder.h"
#include "support/reference.h"
#include "support/tensor.h"

static void *new_indices(builder *b, int32_t dtype, int64_t count)
{
    return config_add_buffer(b, (size_t)count * (dtype == TROPE_I64 ? 8 : 4), CONFIG_READ);
}

static void set_index(void *array, int32_t dtype, int64_t i, int64_t value)
{
    if (dtype == TROPE_I64)
        ((int64_t *)array)[i] = value;
    else
        ((int32_t *)array)[i] = (int32_t)value;
}

/* ---- Sequences ---- */

static int64_t ranks(const builder *b)
{
    return b->a->cp_size ? b->a->cp_size : 1;
}

/* Each stored length is a multiple of this unit, so that the context parallel layout can split every sequence. */
static int64_t unit_of_length(const builder *b)
{
    if (b->a->cp_layout == TROPE_CP_FLAT)
        return 1;
    return b->a->cp_layout == TROPE_CP_ZIGZAG ? 2 * ranks(b) : ranks(b);
}

/* Fills in the boundaries of sequences, many of which are empty, and returns the last boundary. */
static int64_t fill_stored_boundaries(builder *b, void *array, int64_t first)
{
    const int64_t unit = unit_of_length(b);
    int64_t end = first;
    set_index(array, b->a->cu_seqlens_dtype, 0, end);
    for (int64_t i = 0; i < b->a->sequences; i++) {
        const int64_t longest = once_in(b, 4) ? 8 : 3;
        end += once_in(b, 3) ? 0 : unit * between(b, 1, longest) * b->c->choices.times;
        if (i == b->a->sequences - 1 && end == 0)
            end = unit;
        if (i == b->a->sequences - 1 && b->v[OPTION_SEQUENCES] == SEQUENCES_EXACT && b->a->cp_layout == TROPE_CP_FLAT)
            end += ranks(b) - 1 - (end + ranks(b) - 1) % ranks(b); /* so that no token is after the last sequence */
        set_index(array, b->a->cu_seqlens_dtype, i + 1, end);
    }
    return end;
}

/* Fills in the boundaries of the unpadded sequences. Each is at most as long as its stored sequence. */
static void fill_unpadded_boundaries(builder *b, void *array, const void *stored)
{
    const int32_t dtype = b->a->cu_seqlens_dtype;
    int64_t end = once_in(b, 4) ? between(b, 0, 3) : 0;
    set_index(array, dtype, 0, end);
    for (int64_t i = 0; i < b->a->sequences; i++) {
        const int64_t room = tensor_index(stored, dtype, i + 1) - tensor_index(stored, dtype, i);
        end += once_in(b, 3) ? room : between(b, 0, room);
        set_index(array, dtype, i + 1, end);
    }
}

void config_choose_packed_shape(builder *b)
{
    const int choice = b->v[OPTION_SEQUENCES];
    const int gaps = choice == SEQUENCES_GAPS || choice == SEQUENCES_PADDED_GAPS;
    const int padded = choice == SEQUENCES_PADDED || choice == SEQUENCES_PADDED_GAPS;
    trope_args *a = b->a;
    a->batch = 1;
    a->cu_seqlens_dtype = TROPE_I32 + b->v[OPTION_CU_DTYPE];
    a->sequences = between(b, 1, 7);
    if (b->c->choices.sequences)
        a->sequences = b->c->choices.sequences;
    void *stored = new_indices(b, a->cu_seqlens_dtype, a->sequences + 1);
    const int64_t end = fill_stored_boundaries(b, stored, gaps ? unit_of_length(b) * between(b, 0, 2) : 0);
    a->tokens = (end + ranks(b) - 1) / ranks(b) + (gaps ? between(b, 0, 3) : 0);
    a->cu_seqlens = stored;
    if (padded) {
        void *unpadded = new_indices(b, a->cu_seqlens_dtype, a->sequences + 1);
        fill_unpadded_boundaries(b, unpadded, stored);
        a->cu_seqlens = unpadded;
        a->cu_seqlens_padded = stored;
    }
    a->padding = b->v[OPTION_PADDING];
    a->stream_positions = b->v[OPTION_POSITIONS] == POSITIONS_STREAM;
}

/* ---- Positions ---- */

/* A position or id. For tables it is small and, if OPTION_RANGE allows it, sometimes below 0 or far outside the
 * table. For inv_freq and phase_step it may have any sign and magnitude. */
static int64_t random_position(builder *b, int64_t most)
{
    const int outside = b->v[OPTION_RANGE] != RANGE_INSIDE;
    if (b->v[OPTION_ANGLES] >= ANGLES_INV_FREQ) {
        const int64_t limit = once_in(b, 2) ? 200 : once_in(b, 2) ? 1000000 : INT32_MAX - 1000;
        return between(b, once_in(b, 4) ? -limit : 0, limit);
    }
    if (outside && once_in(b, 16))
        return once_in(b, 2) ? INT32_MAX - 1000 : -1000000;
    return between(b, outside ? -4 : 0, most);
}

static void make_start_positions(builder *b)
{
    const int64_t count = b->a->cu_seqlens ? b->a->sequences : b->a->batch;
    void *starts = new_indices(b, b->a->position_dtype, count);
    for (int64_t i = 0; i < count; i++)
        set_index(starts, b->a->position_dtype, i, random_position(b, 12));
    b->a->start_positions = starts;
}

/* Chooses the strides {axis, batch, token} of ids that are specified by strides. The ids may be contiguous or not. */
static void choose_id_strides(builder *b, int axes)
{
    trope_args *a = b->a;
    const int64_t step = between(b, 1, 3), is_batch_inside = once_in(b, 2);
    int64_t *stride = a->ids_stride;
    stride[2] = is_batch_inside ? step * a->batch : step;
    stride[1] = is_batch_inside ? step : step * a->tokens;
    stride[0] = axes == 1 ? 0 : step * a->batch * a->tokens + between(b, 0, 5);
    if (b->v[OPTION_IDS] == IDS_STRIDED)
        return;
    stride[1] = 0;
    if (once_in(b, 4))
        stride[2] = 0;
}

/* Sets the ids of padding that is not rotated to arbitrary values, because the call ignores them. */
static void spoil_ids_of_padding(builder *b, void *ids, int axes)
{
    const trope_args *a = b->a;
    int64_t stride[3];
    tensor_ids_strides(a, stride);
    if (!a->cu_seqlens || a->padding == TROPE_PADDING_ROTATE || stride[2] == 0)
        return;
    for (int64_t token = 0; token < a->tokens; token++)
        for (int axis = 0; axis < axes && reference_find(a, 0, token).is_padding; axis++)
            set_index(ids, a->position_dtype, axis * stride[0] + token * stride[2], between(b, -9, 9) * 100000000);
}

/* The number of axes of ids: as many as pairs use, or more. */
static int choose_id_axes(builder *b)
{
    const int needed = reference_axes(b->a);
    if (b->v[OPTION_POSITIONS] == POSITIONS_IDS)
        return 1;
    return b->a->pair_axis ? (int)between(b, needed > 2 ? needed : 2, TROPE_MAX_AXES) : needed;
}

static void make_position_ids(builder *b)
{
    static const int32_t layouts[] = {[IDS_AXES_BATCH_TOKENS] = TROPE_IDS_AXES_BATCH_TOKENS,
                                      [IDS_BATCH_TOKENS] = TROPE_IDS_BATCH_TOKENS,
                                      [IDS_TOKENS] = TROPE_IDS_TOKENS,
                                      [IDS_STRIDED] = TROPE_IDS_STRIDED,
                                      [IDS_SHARED] = TROPE_IDS_STRIDED};
    trope_args *a = b->a;
    const int axes = choose_id_axes(b);
    int64_t stride[3];
    a->ids_layout = layouts[b->v[OPTION_IDS]];
    a->position_axes = axes;
    if (a->ids_layout == TROPE_IDS_STRIDED)
        choose_id_strides(b, axes);
    else if (a->ids_layout != TROPE_IDS_AXES_BATCH_TOKENS)
        a->position_axes = (int32_t)between(b, 0, 1);
    tensor_ids_strides(a, stride);
    const int64_t highest = (axes - 1) * stride[0] + (a->batch - 1) * stride[1] + (a->tokens - 1) * stride[2];
    void *ids = new_indices(b, a->position_dtype, highest + 1);
    for (int64_t i = 0; i <= highest; i++)
        set_index(ids, a->position_dtype, i, random_position(b, 24));
    spoil_ids_of_padding(b, ids, axes);
    a->position_ids = ids;
}

void config_make_positions(builder *b)
{
    if (b->v[OPTION_POSITIONS] == POSITIONS_START || b->v[OPTION_POSITIONS] >= POSITIONS_IDS)
        b->a->position_dtype = TROPE_I32 + b->v[OPTION_POSITION_DTYPE];
    if (b->v[OPTION_POSITIONS] == POSITIONS_START)
        make_start_positions(b);
    if (b->v[OPTION_POSITIONS] >= POSITIONS_IDS)
        make_position_ids(b);
}
