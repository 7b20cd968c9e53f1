/* Makes a config from its seed and choices. */
#include "support/config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/number.h"
#include "support/reference.h"

typedef struct builder {
    config *c;
    trope_args *a;
    const uint8_t *v; /* the choices */
    random_state random;
} builder;

static int64_t between(builder *b, int64_t low, int64_t high)
{
    return random_between(&b->random, low, high);
}

/* True once in n times. */
static int once_in(builder *b, int n)
{
    return between(b, 1, n) == 1;
}

static unsigned char *add_buffer(builder *b, size_t size, config_role role)
{
    config_buffer *buffer = &b->c->buffers[b->c->buffer_count++];
    if (b->c->buffer_count > CONFIG_MAX_BUFFERS)
        abort();
    *buffer = (config_buffer){.bytes = malloc(size ? size : 1), .size = size, .role = role};
    memset(buffer->bytes, 0xff, size);
    return buffer->bytes;
}

#define GUARD_BYTES 64

/* Room for `count` elements that are written, in the middle of guard zones and at a random alignment. */
static void *add_guarded(builder *b, int64_t count, size_t element)
{
    const size_t before = GUARD_BYTES + (size_t)between(b, 0, 3) * element;
    return add_buffer(b, before + (size_t)count * element + GUARD_BYTES, CONFIG_WRITTEN) + before;
}

/* ---- Sequences ---- */

static void *new_indices(builder *b, int32_t dtype, int64_t count)
{
    return add_buffer(b, (size_t)count * (dtype == TROPE_I64 ? 8 : 4), CONFIG_READ);
}

static void set_index(void *array, int32_t dtype, int64_t i, int64_t value)
{
    if (dtype == TROPE_I64)
        ((int64_t *)array)[i] = value;
    else
        ((int32_t *)array)[i] = (int32_t)value;
}

static void choose_context_parallel(builder *b)
{
    static const int32_t layouts[] = {TROPE_CP_NONE, TROPE_CP_CONTIGUOUS, TROPE_CP_ZIGZAG, TROPE_CP_STRIPED, TROPE_CP_FLAT};
    b->a->cp_layout = layouts[b->v[OPTION_CP]];
    if (b->a->cp_layout == TROPE_CP_NONE)
        return;
    b->a->cp_size = (int32_t)between(b, once_in(b, 8) ? 1 : 2, 4);
    b->a->cp_rank = (int32_t)between(b, 0, b->a->cp_size - 1);
}

static int64_t ranks(const builder *b)
{
    return b->a->cp_size ? b->a->cp_size : 1;
}

/* Tokens of a sequence come in units that the layout can split. */
static int64_t unit_of_length(const builder *b)
{
    if (b->a->cp_layout == TROPE_CP_FLAT)
        return 1;
    return b->a->cp_layout == TROPE_CP_ZIGZAG ? 2 * ranks(b) : ranks(b);
}

static void choose_dense_shape(builder *b)
{
    b->a->batch = b->v[OPTION_LAYOUT] == LAYOUT_THD ? 1 : between(b, 1, 3);
    b->a->tokens = between(b, 1, b->a->batch == 1 ? 12 : 5) * b->c->choices.times;
    if (b->a->cp_layout == TROPE_CP_ZIGZAG)
        b->a->tokens += b->a->tokens % 2;
}

/* Fills boundaries with lengths of which many are 0 and returns the last. */
static int64_t fill_stored_boundaries(builder *b, void *array, int64_t first)
{
    const int64_t unit = unit_of_length(b);
    int64_t end = first;
    set_index(array, b->a->cu_seqlens_dtype, 0, end);
    for (int64_t i = 0; i < b->a->sequences; i++) {
        const int64_t longest = once_in(b, 4) ? 8 : 3;
        end += once_in(b, 3) ? 0 : unit * between(b, 1, longest) * b->c->choices.times;
        if (i == b->a->sequences - 1 && b->v[OPTION_SEQUENCES] == SEQUENCES_EXACT && b->a->cp_layout == TROPE_CP_FLAT)
            end += ranks(b) - 1 - (end + ranks(b) - 1) % ranks(b); /* so that the ranks' shares hold no more */
        set_index(array, b->a->cu_seqlens_dtype, i + 1, end);
    }
    return end;
}

/* Real lengths, none over the stored ones. */
static void fill_real_boundaries(builder *b, void *array, const void *stored)
{
    const int32_t dtype = b->a->cu_seqlens_dtype;
    int64_t end = once_in(b, 4) ? between(b, 0, 3) : 0;
    set_index(array, dtype, 0, end);
    for (int64_t i = 0; i < b->a->sequences; i++) {
        const int64_t room = dtype == TROPE_I64 ? ((const int64_t *)stored)[i + 1] - ((const int64_t *)stored)[i]
                                                : ((const int32_t *)stored)[i + 1] - ((const int32_t *)stored)[i];
        end += once_in(b, 3) ? room : between(b, 0, room);
        set_index(array, dtype, i + 1, end);
    }
}

static void choose_packed_shape(builder *b)
{
    const int choice = b->v[OPTION_SEQUENCES];
    const int gaps = choice == SEQUENCES_GAPS || choice == SEQUENCES_PADDED_GAPS;
    const int padded = choice == SEQUENCES_PADDED || choice == SEQUENCES_PADDED_GAPS;
    trope_args *a = b->a;
    a->batch = 1;
    a->cu_seqlens_dtype = b->v[OPTION_CU_DTYPE];
    a->sequences = once_in(b, 16) ? 0 : between(b, 1, 7);
    if (b->c->choices.sequences)
        a->sequences = b->c->choices.sequences;
    void *stored = new_indices(b, a->cu_seqlens_dtype, a->sequences + 1);
    const int64_t end = fill_stored_boundaries(b, stored, gaps ? unit_of_length(b) * between(b, 0, 2) : 0);
    a->tokens = (end + ranks(b) - 1) / ranks(b) + (gaps ? between(b, 0, 3) : 0);
    a->tokens += a->tokens == 0;
    a->cu_seqlens = stored;
    if (padded) {
        void *real = new_indices(b, a->cu_seqlens_dtype, a->sequences + 1);
        fill_real_boundaries(b, real, stored);
        a->cu_seqlens = real;
        a->cu_seqlens_padded = stored;
    }
    a->padding = b->v[OPTION_PADDING];
    a->packed_positions = b->v[OPTION_POSITIONS] == POSITIONS_PACKED;
}

/* ---- The rotation ---- */

static void choose_sections(builder *b, int pairs)
{
    int32_t *s = b->a->axis_sections;
    if (b->v[OPTION_AXES] == AXES_INTERLEAVED) {
        b->a->axis_map = TROPE_AXES_INTERLEAVED;
        s[1] = (int32_t)between(b, 0, (pairs + 1) / 3);
        s[2] = (int32_t)between(b, 0, pairs / 3);
        s[0] = pairs - s[1] - s[2];
    } else {
        b->a->axis_map = TROPE_AXES_SECTIONS;
        s[0] = (int32_t)between(b, 0, pairs);
        s[1] = (int32_t)between(b, 0, pairs - s[0]);
        s[2] = pairs - s[0] - s[1];
    }
}

/* Pairs of a window; now and then as many as there may be. */
static int choose_pairs(builder *b, int windows)
{
    static const int usual[] = {8, 16, 24, 32, 48, 64};
    switch (b->v[OPTION_SIZE]) {
    case SIZE_TINY:
        return (int)between(b, 1, 4);
    case SIZE_ODD:
        return (int)between(b, 1, windows > 1 ? 19 : 37);
    default:
        if (once_in(b, 40))
            return (int)between(b, 65, TROPE_MAX_ROTARY_DIM / 2 / windows);
        return usual[between(b, 0, windows > 1 ? 2 : 5)];
    }
}

/* Returns the rotary_dim of the widest operand. */
static int32_t choose_rotation(builder *b)
{
    static const int32_t pairings[][2] = {{0, 0},
                                          {TROPE_PAIRING_HALF, 0},
                                          {TROPE_PAIRING_INTERLEAVED, 0},
                                          {TROPE_PAIRING_HALF, TROPE_PAIRING_INTERLEAVED},
                                          {TROPE_PAIRING_INTERLEAVED, TROPE_PAIRING_HALF}};
    const int windows = b->v[OPTION_AXES] == AXES_TWO_WINDOWS ? 2 : b->v[OPTION_AXES] == AXES_THREE_WINDOWS ? 3 : 1;
    const int pairs = choose_pairs(b, windows) * windows;
    b->a->windows = windows == 1 ? (int32_t)between(b, 0, 1) : windows;
    b->a->pairing = pairings[b->v[OPTION_PAIRING]][0];
    b->a->pairing_out = pairings[b->v[OPTION_PAIRING]][1];
    b->a->inverse = b->v[OPTION_TURN] == TURN_INVERSE;
    b->a->mscale = b->v[OPTION_MSCALE] == MSCALE_ONE      ? 1
                   : b->v[OPTION_MSCALE] == MSCALE_RANDOM ? 2 * random_real(&b->random)
                                                          : 0;
    if (b->v[OPTION_AXES] >= AXES_SECTIONS)
        choose_sections(b, pairs);
    return 2 * pairs;
}

/* ---- Operands ---- */

static void choose_window(builder *b, trope_operand *o)
{
    const int place = b->v[OPTION_WINDOW];
    const int64_t step = once_in(b, b->v[OPTION_SIZE] == SIZE_VECTORS ? 4 : 2) ? 1 : 8;
    const int64_t before = place == WINDOW_BACK || place == WINDOW_MIDDLE ? step * between(b, 1, 7) : 0;
    const int64_t after = place == WINDOW_FRONT || place == WINDOW_MIDDLE ? step * between(b, 1, 7) : 0;
    o->rotary_offset = (int32_t)before;
    o->head_dim = (int32_t)(before + o->rotary_dim + after);
    if (o->head_dim == 0)
        o->head_dim = (int32_t)(b->v[OPTION_SIZE] == SIZE_VECTORS ? 16 * between(b, 1, 8) : between(b, 1, 40));
}

static void choose_heads(builder *b, trope_operand *o)
{
    o->groups = b->v[OPTION_HEADS] == HEADS_GROUPS ? (int32_t)between(b, 2, 3) : (int32_t)between(b, 0, 1);
    const int fill_warp = b->v[OPTION_SIZE] == SIZE_VECTORS && once_in(b, 2);
    const int many = fill_warp ? 5 + 512 / (o->rotary_dim ? o->rotary_dim : 128) : 5;
    o->heads_per_group =
        b->v[OPTION_HEADS] == HEADS_ONE ? 1 : (int32_t)between(b, 1, b->v[OPTION_HEADS] == HEADS_MANY ? many : 3);
}

/* Windows and heads of all operands; one of them, at random, is the widest. */
static void choose_operands(builder *b, int32_t widest)
{
    trope_args *a = b->a;
    a->operand_count = b->v[OPTION_OPERANDS] + 1;
    const int64_t first = between(b, 0, a->operand_count - 1);
    for (int i = 0; i < a->operand_count; i++) {
        trope_operand *o = &a->operands[i];
        o->rotary_dim = widest;
        if (i != first && once_in(b, 4))
            o->rotary_dim = 0;
        else if (i != first && a->windows < 2 && once_in(b, 3))
            o->rotary_dim = 2 * (int32_t)between(b, 1, widest / 2);
        choose_heads(b, o);
        choose_window(b, o);
    }
}

/* Where the elements of a tensor are in its buffer. */
typedef struct arrangement {
    int64_t stride[TROPE_MAX_DIMS];
    int64_t first; /* index of element 0, 0, 0, 0, 0 */
    int64_t count; /* elements from the lowest to the highest index */
} arrangement;

static void shuffle(builder *b, int *order, int count)
{
    for (int i = count - 1; i > 0; i--) {
        const int j = (int)between(b, 0, i), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

/* Dimensions, outermost first. */
static void choose_order(builder *b, int layout, int order[TROPE_MAX_DIMS])
{
    static const int orders[][TROPE_MAX_DIMS] = {
        [LAYOUT_SBHD] = {1, 0, 2, 3, 4}, [LAYOUT_BSHD] = {0, 1, 2, 3, 4},      [LAYOUT_BHSD] = {0, 2, 3, 1, 4},
        [LAYOUT_THD] = {0, 1, 2, 3, 4},  [LAYOUT_ANY_ORDER] = {0, 1, 2, 3, 4}, [LAYOUT_GAPS] = {0, 1, 2, 3, 4},
    };
    memcpy(order, orders[layout], sizeof orders[layout]);
    if (layout == LAYOUT_ANY_ORDER)
        shuffle(b, order, TROPE_MAX_DIMS);
    if (layout == LAYOUT_GAPS)
        shuffle(b, order, TROPE_MAX_DIMS - 1);
}

/* Turns some dimensions of an arrangement around, or (for sources) lets their elements coincide. */
static void reverse_or_broadcast(builder *b, int source, arrangement *r)
{
    for (int d = 0; d < TROPE_MAX_DIMS; d++) {
        if (source == SOURCE_BROADCAST && once_in(b, 2))
            r->stride[d] = 0;
        if (source == SOURCE_REVERSED && once_in(b, 2))
            r->stride[d] = -r->stride[d];
    }
}

static void measure(const int64_t *size, arrangement *r)
{
    int64_t lowest = 0, highest = 0;
    for (int d = 0; d < TROPE_MAX_DIMS; d++) {
        const int64_t reach = (size[d] - 1) * r->stride[d];
        lowest += reach < 0 ? reach : 0;
        highest += reach > 0 ? reach : 0;
    }
    r->first = -lowest;
    r->count = highest - lowest + 1;
}

static arrangement arrange(builder *b, const int64_t *size, int layout, int source)
{
    arrangement r = {.count = 1};
    int order[TROPE_MAX_DIMS];
    choose_order(b, layout, order);
    int64_t step = b->v[OPTION_ELEMENTS] == ELEMENTS_STRIDED ? between(b, 2, 3) : 1;
    for (int i = TROPE_MAX_DIMS - 1; i >= 0; i--) {
        r.stride[order[i]] = step;
        step = step * size[order[i]] + (layout == LAYOUT_GAPS ? between(b, 0, 5) : 0);
    }
    reverse_or_broadcast(b, source, &r);
    measure(size, &r);
    return r;
}

static void sizes_of(const trope_args *a, const trope_operand *o, int64_t *size)
{
    size[0] = a->batch;
    size[1] = a->tokens;
    size[2] = o->groups ? o->groups : 1;
    size[3] = o->heads_per_group;
    size[4] = o->head_dim;
}

/* In f64 only finite ones: the sign and payload of its NaNs are the compiler's choice, and only the other dtypes promise
 * their bits. */
static void store_special(builder *b, unsigned char *element)
{
    static const double values[] = {-0.0, 5e-324, 1e-45, 6e-8, -1e-40, 65504, 3.4e38, NAN, INFINITY, -INFINITY};
    const int64_t kind = between(b, 0, b->a->dtype == TROPE_F64 ? 6 : 10);
    if (kind < 10)
        number_store(b->a->dtype, element, values[kind]);
    else
        memset(element, 0xff, number_size(b->a->dtype)); /* a NaN with all bits */
}

/* Random numbers for every element, of a magnitude that differs from tensor to tensor. */
static void fill_tensor(builder *b, const trope_operand *o, void *base, const int64_t *stride)
{
    const size_t element = number_size(b->a->dtype);
    const double magnitude = (double)((int64_t)1 << between(b, 0, 6)) / 8;
    int64_t size[TROPE_MAX_DIMS], i[TROPE_MAX_DIMS] = {0};
    sizes_of(b->a, o, size);
    for (int64_t left = reference_count(b->a, (int)(o - b->a->operands)); left > 0; left--) {
        int64_t offset = 0;
        for (int d = 0; d < TROPE_MAX_DIMS; d++)
            offset += i[d] * stride[d];
        number_store(b->a->dtype, (char *)base + offset * (int64_t)element, magnitude * random_real(&b->random));
        if (b->c->choices.specials && once_in(b, 24))
            store_special(b, (unsigned char *)base + offset * (int64_t)element);
        for (int d = TROPE_MAX_DIMS - 1; d >= 0 && ++i[d] == size[d]; d--)
            i[d] = 0;
    }
}

static void *add_source(builder *b, const arrangement *r)
{
    const size_t element = number_size(b->a->dtype), before = (size_t)between(b, 0, 3);
    return add_buffer(b, (before + (size_t)r->count) * element, CONFIG_READ) + (before + (size_t)r->first) * element;
}

static void *add_destination(builder *b, const arrangement *r)
{
    const size_t element = number_size(b->a->dtype);
    return (char *)add_guarded(b, r->count, element) + (size_t)r->first * element;
}

static int is_in_place(builder *b)
{
    return b->v[OPTION_PLACE] == PLACE_IN || (b->v[OPTION_PLACE] == PLACE_EACH && once_in(b, 2));
}

static void make_operand(builder *b, trope_operand *o)
{
    int64_t size[TROPE_MAX_DIMS];
    sizes_of(b->a, o, size);
    const int layout = b->v[OPTION_LAYOUT], source = b->v[OPTION_SOURCE];
    const int dst_turn = layout == LAYOUT_ANY_ORDER ? SOURCE_REVERSED : SOURCE_OTHER;
    const arrangement dst = arrange(b, size, layout, dst_turn);
    arrangement src = dst;
    o->dst = add_destination(b, &dst);
    o->src = o->dst;
    if (!is_in_place(b)) {
        if (source != SOURCE_LIKE_DESTINATION)
            src = arrange(b, size, once_in(b, 2) ? layout : LAYOUT_ANY_ORDER, source);
        o->src = add_source(b, &src);
    }
    memcpy(o->dst_stride, dst.stride, sizeof dst.stride);
    memcpy(o->src_stride, src.stride, sizeof src.stride);
    fill_tensor(b, o, (void *)(uintptr_t)o->src, o->src_stride);
}

/* Q, K and perhaps V as slices of one buffer [.., groups, (q_per_group + 2) * d]. */
static void make_packed_operands(builder *b)
{
    trope_args *a = b->a;
    const int32_t groups = (int32_t)between(b, 1, 3), q_heads = (int32_t)between(b, 1, 4), d = a->operands[0].head_dim;
    trope_operand whole = a->operands[0];
    whole.groups = groups;
    whole.heads_per_group = q_heads + 2;
    int64_t size[TROPE_MAX_DIMS];
    sizes_of(a, &whole, size);
    const arrangement r = arrange(b, size, b->v[OPTION_LAYOUT], SOURCE_OTHER);
    char *destination = add_destination(b, &r), *source = add_source(b, &r);
    for (int i = 0; i < a->operand_count; i++) {
        trope_operand *o = &a->operands[i];
        const size_t offset = (i == 0 ? 0 : (size_t)(q_heads + i - 1) * (size_t)d) * number_size(a->dtype);
        o->groups = groups;
        o->heads_per_group = i == 0 ? q_heads : 1;
        o->rotary_offset = a->operands[0].rotary_offset;
        o->rotary_dim = i < 2 ? a->operands[0].rotary_dim : 0;
        o->head_dim = d;
        o->dst = destination + offset;
        o->src = is_in_place(b) ? destination + offset : source + offset;
        memcpy(o->dst_stride, r.stride, sizeof r.stride);
        memcpy(o->src_stride, r.stride, sizeof r.stride);
        fill_tensor(b, o, (void *)(uintptr_t)o->src, o->src_stride);
    }
}

static void make_operands(builder *b)
{
    if (b->v[OPTION_HEADS] == HEADS_PACKED_QKV) {
        b->a->operands[0].rotary_dim = 2 * reference_pairs(b->a);
        choose_window(b, &b->a->operands[0]);
        make_packed_operands(b);
    } else {
        for (int i = 0; i < b->a->operand_count; i++)
            make_operand(b, &b->a->operands[i]);
    }
    for (int i = 0; i < b->a->operand_count && b->v[OPTION_GRADIENT] != GRADIENT_NONE; i++) {
        trope_operand *o = &b->a->operands[i];
        int64_t size[TROPE_MAX_DIMS];
        if (o->rotary_dim == 0)
            continue;
        sizes_of(b->a, o, size);
        const arrangement r = arrange(b, size, once_in(b, 2) ? b->v[OPTION_LAYOUT] : LAYOUT_ANY_ORDER, b->v[OPTION_SOURCE]);
        o->input = add_source(b, &r);
        memcpy(o->input_stride, r.stride, sizeof r.stride);
        fill_tensor(b, o, (void *)(uintptr_t)o->input, o->input_stride);
    }
}

/* ---- Positions ---- */

/* A position or id. Small ones for tables, now and then one below 0 when that is allowed; anything for inv_freq. */
static int64_t random_position(builder *b, int64_t most)
{
    const int outside = b->v[OPTION_RANGE] != RANGE_INSIDE;
    if (b->a->inv_freq) {
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

static void choose_id_strides(builder *b)
{
    trope_args *a = b->a;
    const int kind = b->v[OPTION_ID_STRIDES];
    const int64_t step = kind == IDS_STRIDED ? between(b, 2, 3) : 1;
    const int batch_inside = kind == IDS_STRIDED && once_in(b, 2);
    a->position_token_stride = batch_inside ? step * a->batch : step == 1 ? between(b, 0, 1) : step;
    a->position_batch_stride = batch_inside ? step : step * a->tokens;
    a->position_axis_stride = step * a->batch * a->tokens + (kind == IDS_STRIDED ? between(b, 0, 5) : 0);
    if (kind == IDS_SHARED) {
        a->position_batch_stride = 0;
        a->position_axis_stride = once_in(b, 2) ? 0 : a->tokens;
    }
}

/* The ids of padding that is not turned are nobody's business and may be anything. */
static void spoil_ids_of_padding(builder *b, void *ids, int axes)
{
    const trope_args *a = b->a;
    const int64_t step = a->position_token_stride ? a->position_token_stride : 1;
    for (int64_t token = 0; token < a->tokens && a->cu_seqlens && a->padding != TROPE_PADDING_ROTATE; token++)
        for (int axis = 0; axis < axes && reference_find(a, 0, token).is_padding; axis++)
            set_index(ids, a->position_dtype, axis * a->position_axis_stride + token * step, between(b, -9, 9) * 100000000);
}

static void make_position_ids(builder *b)
{
    trope_args *a = b->a;
    const int axes = b->v[OPTION_POSITIONS] == POSITIONS_IDS_AXES ? (a->windows > 1 ? a->windows : 3) : 1;
    a->position_axes = axes > 1 ? axes : (int32_t)between(b, 0, 1);
    choose_id_strides(b);
    const int64_t step = a->position_token_stride ? a->position_token_stride : 1;
    const int64_t highest =
        (axes - 1) * a->position_axis_stride + (a->batch - 1) * a->position_batch_stride + (a->tokens - 1) * step;
    void *ids = new_indices(b, a->position_dtype, highest + 1);
    for (int64_t i = 0; i <= highest; i++)
        set_index(ids, a->position_dtype, i, random_position(b, 24));
    spoil_ids_of_padding(b, ids, axes);
    a->position_ids = ids;
}

static void make_positions(builder *b)
{
    b->a->position_dtype = b->v[OPTION_POSITION_DTYPE];
    if (b->v[OPTION_POSITIONS] == POSITIONS_START)
        make_start_positions(b);
    if (b->v[OPTION_POSITIONS] >= POSITIONS_IDS)
        make_position_ids(b);
}

/* ---- Angles ---- */

/* The highest position that turns a token. */
static int64_t highest_position(const trope_args *a)
{
    int64_t highest = 0;
    for (int64_t batch = 0; batch < a->batch; batch++)
        for (int64_t token = 0; token < a->tokens; token++) {
            const reference_place place = reference_find(a, batch, token);
            for (int axis = 0; axis < TROPE_MAX_AXES; axis++)
                if (place.position[axis] > highest && !(place.is_padding && a->padding != TROPE_PADDING_ROTATE))
                    highest = place.position[axis];
        }
    return highest;
}

static void *make_table(builder *b, int64_t count, double magnitude)
{
    const size_t element = number_size(b->a->angle_dtype);
    unsigned char *table = add_buffer(b, (size_t)count * element, CONFIG_READ);
    for (int64_t i = 0; i < count; i++)
        number_store(b->a->angle_dtype, table + (size_t)i * element, magnitude * random_real(&b->random));
    return table;
}

static int64_t table_count(const trope_args *a)
{
    const int64_t row = a->angle_row_stride ? a->angle_row_stride : a->angle_cols;
    return (reference_angle_batches(a) - 1) * a->angle_batch_stride + (a->angle_rows - 1) * row + a->angle_cols;
}

static void choose_table_shape(builder *b, int32_t rotary_dim)
{
    trope_args *a = b->a;
    const int strides = b->v[OPTION_ANGLE_STRIDES];
    const int64_t highest = highest_position(a), most = highest < 200 ? highest : 200;
    a->angle_dtype = b->v[OPTION_ANGLE_DTYPE] == ANGLE_OPERANDS ? a->dtype : TROPE_F32;
    a->angle_cols = b->v[OPTION_ANGLE_COLS] == COLS_FULL ? rotary_dim : rotary_dim / 2;
    a->angle_rows = b->v[OPTION_RANGE] == RANGE_INSIDE ? highest + between(b, 1, 3) : between(b, 1, most + 1);
    a->out_of_range = b->v[OPTION_RANGE] == RANGE_CLAMP ? TROPE_RANGE_CLAMP : TROPE_RANGE_POISON;
    if (strides == ANGLE_ROW_STRIDE || strides == ANGLE_BOTH_STRIDES)
        a->angle_row_stride = a->angle_cols + between(b, 1, 9);
    else if (once_in(b, 2))
        a->angle_row_stride = a->angle_cols;
    if (strides == ANGLE_BATCH_STRIDE || strides == ANGLE_BOTH_STRIDES)
        a->angle_batch_stride =
            (a->angle_row_stride ? a->angle_row_stride : a->angle_cols) * a->angle_rows + between(b, 0, 5);
}

static void make_angles(builder *b, int32_t rotary_dim)
{
    static const double magnitudes[] = {3.2, 3.2, 40, 1e4, 1e9};
    trope_args *a = b->a;
    if (a->inv_freq) {
        for (int i = 0; i < rotary_dim / 2; i++) {
            b->c->inv_freq[i] = random_real(&b->random);
            b->c->inv_freq[i] /= (double)((int64_t)1 << between(b, 0, 20));
        }
        return;
    }
    choose_table_shape(b, rotary_dim);
    if (b->v[OPTION_ANGLES] == ANGLES_FREQS) {
        a->freqs = make_table(b, table_count(a), magnitudes[between(b, 0, 4)]);
        return;
    }
    a->cos = make_table(b, table_count(a), 1);
    a->sin = make_table(b, table_count(a), 1);
}

/* ---- The gradient of the angles, the status word ---- */

static void make_gradient(builder *b)
{
    trope_args *a = b->a;
    uint64_t bytes;
    if (a->inv_freq)
        a->d_inv_freq = add_guarded(b, reference_pairs(a), sizeof(double));
    else
        a->d_freqs = add_guarded(b, table_count(a), a->dtype == TROPE_F64 ? 8 : 4);
    if (trope_workspace_size(a, &bytes)) {
        fprintf(stderr, "config_make(0x%llx): %s\n", (unsigned long long)b->c->seed, trope_last_error());
        abort();
    }
    a->workspace = add_buffer(b, bytes, CONFIG_SCRATCH);
    a->workspace_size = bytes;
}

static void make_status(builder *b)
{
    if (b->v[OPTION_RANGE] != RANGE_POISON && once_in(b, 2))
        return;
    b->a->status = add_guarded(b, 1, sizeof(int32_t));
    *b->a->status = once_in(b, 2) ? 0 : 0x100;
}

static void build(builder *b)
{
    trope_args *a = b->a;
    a->struct_size = sizeof *a;
    a->device = TROPE_DEVICE_CPU;
    a->threads = once_in(b, 16) ? (int32_t)between(b, 2, 3) : 1;
    a->dtype = b->v[OPTION_DTYPE];
    a->rounding = b->v[OPTION_ROUNDING];
    choose_context_parallel(b);
    if (b->v[OPTION_SEQUENCES] == SEQUENCES_NONE)
        choose_dense_shape(b);
    else
        choose_packed_shape(b);
    const int32_t rotary_dim = choose_rotation(b);
    choose_operands(b, rotary_dim);
    if (b->v[OPTION_ANGLES] == ANGLES_INV_FREQ)
        a->inv_freq = b->c->inv_freq;
    make_positions(b);
    make_angles(b, rotary_dim);
    make_operands(b);
    make_status(b);
    if (b->v[OPTION_GRADIENT] != GRADIENT_NONE)
        make_gradient(b);
}

config *config_make(uint64_t seed, const config_choices *choices)
{
    config *c = calloc(1, sizeof *c);
    c->seed = seed;
    c->choices = *choices;
    if (c->choices.times < 1)
        c->choices.times = 1;
    builder b = {.c = c, .a = &c->args, .v = c->choices.value, .random = {~seed}};
    build(&b);
    for (int i = 0; i < c->buffer_count; i++) {
        config_buffer *buffer = &c->buffers[i];
        buffer->initial = malloc(buffer->size ? buffer->size : 1);
        memcpy(buffer->initial, buffer->bytes, buffer->size);
    }
    return c;
}

void config_free(config *c)
{
    for (int i = 0; i < c->buffer_count; i++) {
        free(c->buffers[i].bytes);
        free(c->buffers[i].initial);
    }
    free(c);
}
