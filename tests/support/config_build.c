/* Makes a config from its seed and choices. */
#include "support/config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/number.h"
#include "support/reference.h"
#include "support/tensor.h"

typedef struct builder {
    config *c;
    trope_args *a;
    trope_operand *operands; /* of the backward call */
    const uint8_t *v;        /* the choices */
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
    b->a->cp_layout = b->v[OPTION_CP];
    if (b->a->cp_layout == 0)
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
        if (i == b->a->sequences - 1 && end == 0)
            end = unit;
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
    a->cu_seqlens_dtype = TROPE_I32 + b->v[OPTION_CU_DTYPE];
    a->sequences = between(b, 1, 7);
    if (b->c->choices.sequences)
        a->sequences = b->c->choices.sequences;
    void *stored = new_indices(b, a->cu_seqlens_dtype, a->sequences + 1);
    const int64_t end = fill_stored_boundaries(b, stored, gaps ? unit_of_length(b) * between(b, 0, 2) : 0);
    a->tokens = (end + ranks(b) - 1) / ranks(b) + (gaps ? between(b, 0, 3) : 0);
    a->cu_seqlens = stored;
    if (padded) {
        void *real = new_indices(b, a->cu_seqlens_dtype, a->sequences + 1);
        fill_real_boundaries(b, real, stored);
        a->cu_seqlens = real;
        a->cu_seqlens_padded = stored;
    }
    a->padding = b->v[OPTION_PADDING];
    a->stream_positions = b->v[OPTION_POSITIONS] == POSITIONS_STREAM;
}

/* ---- The rotation ---- */

/* Which axis drives each pair, of up to `axes`. */
static void make_pair_axis(builder *b, int pairs, int axes)
{
    uint8_t *axis = b->c->pair_axis;
    const int64_t stops[] = {between(b, 0, pairs), between(b, 0, pairs), between(b, 0, pairs)};
    for (int i = 0; i < pairs; i++)
        switch (b->v[OPTION_AXES]) {
        case AXES_SECTIONS: /* ascending, some of them empty */
            axis[i] = (uint8_t)((i >= stops[0]) + (axes > 2 && i >= stops[1]) + (axes > 3 && i >= stops[2]));
            break;
        case AXES_INTERLEAVED: /* every third, up to where a section ends */
            axis[i] = (uint8_t)(i < stops[i % 3] ? i % 3 : 0);
            break;
        case AXES_ALTERNATING:
            axis[i] = i % 2;
            break;
        case AXES_HWT:
            axis[i] = (uint8_t)(i < stops[0] ? 1 + i % 2 : 0);
            break;
        default:
            axis[i] = (uint8_t)between(b, 0, axes - 1);
        }
    b->a->pair_axis = axis;
}

/* Pairs of a part; now and then as many as there may be. */
static int choose_pairs(builder *b, int parts)
{
    static const int usual[] = {8, 16, 24, 32, 48, 64};
    switch (b->v[OPTION_SIZE]) {
    case SIZE_TINY:
        return (int)between(b, 1, 4);
    case SIZE_ODD:
        return (int)between(b, 1, parts > 1 ? 19 : 37);
    default:
        if (once_in(b, 40))
            return (int)between(b, 65, TROPE_MAX_ROTARY_DIM / 2 / parts);
        return usual[between(b, 0, parts > 1 ? 2 : 5)];
    }
}

/* Returns the rotary_dim of the widest operand. */
static int32_t choose_rotation(builder *b)
{
    static const int32_t pairings[][2] = {{TROPE_PAIRING_HALF, 0},
                                          {TROPE_PAIRING_INTERLEAVED, 0},
                                          {TROPE_PAIRING_HALF, TROPE_PAIRING_INTERLEAVED},
                                          {TROPE_PAIRING_INTERLEAVED, TROPE_PAIRING_HALF}};
    const int parts = b->v[OPTION_PARTS] + 1, pairs = choose_pairs(b, parts) * parts;
    b->a->parts = parts == 1 ? (int32_t)between(b, 0, 1) : parts;
    b->a->pairing = pairings[b->v[OPTION_PAIRING]][0];
    b->a->pairing_out = pairings[b->v[OPTION_PAIRING]][1];
    b->a->inverse = b->v[OPTION_TURN] == TURN_INVERSE;
    b->a->mscale = b->v[OPTION_MSCALE] == MSCALE_ONE      ? 1
                   : b->v[OPTION_MSCALE] == MSCALE_RANDOM ? 2 * random_real(&b->random)
                                                          : 0;
    if (b->v[OPTION_AXES] != AXES_PARTS)
        make_pair_axis(b, pairs, (int)between(b, 2, TROPE_MAX_AXES));
    return 2 * pairs;
}

/* ---- Operands ---- */

static void choose_window(builder *b, trope_operand *o)
{
    const int place = b->v[OPTION_WINDOW];
    const int64_t step = once_in(b, b->v[OPTION_SIZE] == SIZE_VECTORS ? 4 : 2) ? 1 : 8;
    const int64_t before = place == WINDOW_BACK || place == WINDOW_MIDDLE ? step * between(b, 1, 7) : 0;
    const int64_t after = place == WINDOW_FRONT || place == WINDOW_MIDDLE ? step * between(b, 1, 7) : 0;
    const int rotates = o->rotary_dim != TROPE_COPY;
    o->rotary_offset = rotates ? (int32_t)before : 0;
    o->head_dim = (int32_t)(before + (rotates ? o->rotary_dim : 0) + after);
    if (o->head_dim == 0)
        o->head_dim = (int32_t)(b->v[OPTION_SIZE] == SIZE_VECTORS ? 16 * between(b, 1, 8) : between(b, 1, 40));
}

static void choose_heads(builder *b, trope_operand *o)
{
    static const int32_t shared[] = {
        [SHARED_NONE] = TROPE_SHARED_NONE, [SHARED_GROUP] = TROPE_SHARED_GROUP, [SHARED_ALL] = TROPE_SHARED_ALL};
    o->groups = b->v[OPTION_HEADS] == HEADS_GROUPS ? (int32_t)between(b, 2, 3) : (int32_t)between(b, 0, 1);
    const int fill_warp = b->v[OPTION_SIZE] == SIZE_VECTORS && once_in(b, 2);
    const int many = fill_warp ? 5 + 512 / (o->rotary_dim > 0 ? o->rotary_dim : 128) : 5;
    o->heads_per_group =
        b->v[OPTION_HEADS] == HEADS_ONE ? 1 : (int32_t)between(b, 1, b->v[OPTION_HEADS] == HEADS_MANY ? many : 3);
    if (b->c->choices.heads && b->v[OPTION_HEADS] != HEADS_ONE)
        o->heads_per_group = b->c->choices.heads;
    o->shared_heads = b->v[OPTION_SHARED] == SHARED_EACH ? (int32_t)between(b, 0, 2) : shared[b->v[OPTION_SHARED]];
}

static int is_in_place(builder *b, const trope_operand *o)
{
    if (o->shared_heads)
        return 0;
    return b->v[OPTION_PLACE] == PLACE_IN || (b->v[OPTION_PLACE] == PLACE_EACH && once_in(b, 2));
}

static int is_accumulated(builder *b)
{
    return b->v[OPTION_ACCUMULATE] == ACCUMULATE_ALL || (b->v[OPTION_ACCUMULATE] == ACCUMULATE_EACH && once_in(b, 2));
}

/* Windows and heads of all operands; one of them, at random, is the widest. */
static void choose_operands(builder *b, int32_t widest)
{
    trope_args *a = b->a;
    a->operand_count = b->v[OPTION_OPERANDS] == OPERANDS_MANY ? (int32_t)between(b, OPERANDS_MANY + 1, TROPE_MAX_OPERANDS)
                                                              : b->v[OPTION_OPERANDS] + 1;
    const int64_t first = between(b, 0, a->operand_count - 1);
    for (int i = 0; i < a->operand_count; i++) {
        trope_operand *o = &b->operands[i];
        o->rotary_dim = widest;
        if (i != first && once_in(b, 4))
            o->rotary_dim = TROPE_COPY;
        else if (i != first && a->parts < 2 && once_in(b, 3))
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
static void fill_tensor(builder *b, const tensor *t)
{
    const size_t element = number_size(b->a->dtype);
    const double magnitude = (double)((int64_t)1 << between(b, 0, 6)) / 8;
    for (int64_t i = 0; i < tensor_count(t); i++) {
        unsigned char *address = (unsigned char *)(uintptr_t)t->base + tensor_offset(t, i) * (int64_t)element;
        number_store(b->a->dtype, address, magnitude * random_real(&b->random));
        if (b->c->choices.specials && once_in(b, 24))
            store_special(b, address);
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

/* A contiguous layout that has these strides, or TROPE_STRIDED. */
static int32_t name_layout(builder *b, const int64_t *size, const int64_t *stride)
{
    const int32_t first = (int32_t)between(b, 0, 3);
    if (b->v[OPTION_SAID] == SAID_STRIDES || (b->v[OPTION_SAID] == SAID_EACH && once_in(b, 2)))
        return TROPE_STRIDED;
    for (int32_t i = 0; i < 4; i++) {
        const int32_t layout = TROPE_SBHD + (first + i) % 4;
        int64_t contiguous[TROPE_MAX_DIMS];
        int same = layout != TROPE_THD || size[TROPE_DIM_BATCH] == 1;
        tensor_fill_strides(layout, size, contiguous);
        for (int d = 0; d < TROPE_MAX_DIMS; d++)
            same &= size[d] == 1 || stride[d] == contiguous[d];
        if (same)
            return layout;
    }
    return TROPE_STRIDED;
}

/* The sizes of a tensor in memory. */
static void sizes_of(const builder *b, const trope_operand *o, tensor_role role, int backward, int64_t *size)
{
    trope_args args = *b->a;
    args.operands = o;
    const tensor t = tensor_of(&args, 0, role, backward);
    memcpy(size, t.size, sizeof t.size);
}

/* How a tensor of an operand that lies at `base` is said. */
static void say_tensor(builder *b, trope_operand *o, tensor_role role, int backward, const arrangement *r, void *base)
{
    int32_t *const layouts[] = {&o->src_layout, &o->dst_layout, &o->forward_src_layout};
    int64_t *const strides[] = {o->src_stride, o->dst_stride, o->forward_src_stride}, size[TROPE_MAX_DIMS];
    const int is_shared = o->shared_heads && tensor_is_shared(role, backward), is_odd = once_in(b, 8);
    sizes_of(b, o, role, backward, size);
    *layouts[role] = name_layout(b, size, r->stride);
    memset(strides[role], 0, TROPE_MAX_DIMS * sizeof *strides[role]);
    for (int d = 0; d < TROPE_MAX_DIMS && *layouts[role] == TROPE_STRIDED; d++)
        strides[role][d] = size[d] == 1 && is_odd ? between(b, -1000, 1000) * ((int64_t)1 << 40) : r->stride[d];
    if (is_shared)
        strides[role][TROPE_DIM_HEAD] = 0;
    if (is_shared && o->shared_heads == TROPE_SHARED_ALL)
        strides[role][TROPE_DIM_GROUP] = 0;
    if (role == TENSOR_SRC)
        o->src = base;
    else if (role == TENSOR_DST)
        o->dst = base;
    else
        o->forward_src = base;
}

static void fill_operand(builder *b, const trope_operand *o, tensor_role role, int backward)
{
    trope_args args = *b->a;
    args.operands = o;
    const tensor t = tensor_of(&args, 0, role, backward);
    fill_tensor(b, &t);
}

/* A tensor that is read. */
static void make_source(builder *b, trope_operand *o, tensor_role role, int backward)
{
    int64_t size[TROPE_MAX_DIMS];
    sizes_of(b, o, role, backward, size);
    const arrangement r = arrange(b, size, once_in(b, 2) ? b->v[OPTION_LAYOUT] : LAYOUT_ANY_ORDER, b->v[OPTION_SOURCE]);
    say_tensor(b, o, role, backward, &r, add_source(b, &r));
    fill_operand(b, o, role, backward);
}

static arrangement arrange_destination(builder *b, const trope_operand *o, int backward)
{
    int64_t size[TROPE_MAX_DIMS];
    const int layout = b->v[OPTION_LAYOUT];
    sizes_of(b, o, TENSOR_DST, backward, size);
    return arrange(b, size, layout, layout == LAYOUT_ANY_ORDER ? SOURCE_REVERSED : SOURCE_OTHER);
}

/* dst, and src in place, in the very same place if so, or elsewhere. */
static void make_tensors(builder *b, trope_operand *o)
{
    const arrangement dst = arrange_destination(b, o, 1);
    void *base = add_destination(b, &dst);
    say_tensor(b, o, TENSOR_DST, 1, &dst, base);
    if (is_in_place(b, o)) {
        say_tensor(b, o, TENSOR_SRC, 1, &dst, base);
        fill_operand(b, o, TENSOR_SRC, 1);
        return;
    }
    if (b->v[OPTION_SOURCE] == SOURCE_LIKE_DESTINATION && !o->shared_heads) {
        say_tensor(b, o, TENSOR_SRC, 1, &dst, add_source(b, &dst));
        fill_operand(b, o, TENSOR_SRC, 1);
    } else {
        make_source(b, o, TENSOR_SRC, 1);
    }
    o->accumulate = is_accumulated(b);
    if (o->accumulate)
        fill_operand(b, o, TENSOR_DST, 1);
}

/* Of the forward call, when heads are shared: there src has one of them. */
static void make_forward_tensors(builder *b, int i)
{
    trope_operand *forward = &b->c->operands[0][i];
    const trope_operand *backward = &b->operands[i];
    const arrangement dst = arrange_destination(b, forward, 0);
    say_tensor(b, forward, TENSOR_DST, 0, &dst, add_destination(b, &dst));
    if (!backward->forward_src) {
        make_source(b, forward, TENSOR_SRC, 0);
        return;
    }
    forward->src = backward->forward_src;
    forward->src_layout = backward->forward_src_layout;
    memcpy(forward->src_stride, backward->forward_src_stride, sizeof forward->src_stride);
}

/* Q, K and perhaps V as slices of one buffer [.., groups, (q_per_group + 2) * d]. */
static void make_packed_operands(builder *b)
{
    const int32_t groups = (int32_t)between(b, 1, 3), q_heads = (int32_t)between(b, 1, 4), d = b->operands[0].head_dim;
    const trope_operand first = b->operands[0];
    int64_t size[TROPE_MAX_DIMS] = {b->a->batch, b->a->tokens, groups, q_heads + 2, d};
    const arrangement r = arrange(b, size, b->v[OPTION_LAYOUT], SOURCE_OTHER);
    char *destination = add_destination(b, &r), *source = add_source(b, &r);
    for (int i = 0; i < b->a->operand_count; i++) {
        trope_operand *o = &b->operands[i];
        const size_t offset = (i == 0 ? 0 : (size_t)(q_heads + i - 1) * (size_t)d) * number_size(b->a->dtype);
        const int in_place = is_in_place(b, o);
        *o = (trope_operand){.groups = groups, .heads_per_group = i == 0 ? q_heads : 1, .head_dim = d};
        o->rotary_dim = i < 2 ? first.rotary_dim : TROPE_COPY;
        o->rotary_offset = i < 2 ? first.rotary_offset : 0;
        say_tensor(b, o, TENSOR_DST, 1, &r, destination + offset);
        say_tensor(b, o, TENSOR_SRC, 1, &r, (in_place ? destination : source) + offset);
        fill_operand(b, o, TENSOR_SRC, 1);
        o->accumulate = !in_place && is_accumulated(b);
        if (o->accumulate)
            fill_operand(b, o, TENSOR_DST, 1);
    }
}

static void make_operands(builder *b)
{
    if (b->v[OPTION_HEADS] == HEADS_PACKED_QKV) {
        b->operands[0].rotary_dim = 2 * reference_pairs(b->a);
        choose_window(b, &b->operands[0]);
        make_packed_operands(b);
    } else {
        for (int i = 0; i < b->a->operand_count; i++)
            make_tensors(b, &b->operands[i]);
    }
    for (int i = 0; i < b->a->operand_count; i++) {
        trope_operand *o = &b->operands[i];
        if (b->v[OPTION_GRADIENT] != GRADIENT_NONE && o->rotary_dim != TROPE_COPY)
            make_source(b, o, TENSOR_FORWARD_SRC, 1);
        b->c->operands[0][i] = *o;
        b->c->operands[0][i].accumulate = 0;
        if (o->shared_heads)
            make_forward_tensors(b, i);
    }
}

/* ---- Positions ---- */

/* A position or id. Small ones for tables, now and then one below 0 when that is allowed; anything for inv_freq. */
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

/* Strides {axis, batch, token} of ids that are not contiguous, or not said to be. */
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

/* The ids of padding that is not turned are nobody's business and may be anything. */
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

/* Axes of ids: as many as drive pairs, or some more that drive none. */
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

static void make_positions(builder *b)
{
    if (b->v[OPTION_POSITIONS] == POSITIONS_START || b->v[OPTION_POSITIONS] >= POSITIONS_IDS)
        b->a->position_dtype = TROPE_I32 + b->v[OPTION_POSITION_DTYPE];
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

/* Sizes of a gradient: {axes, batch, rows, columns}. A table may have fewer axes. */
static void table_sizes(const trope_args *a, int64_t size[4])
{
    size[0] = reference_planes(a);
    size[1] = a->batch;
    size[2] = a->angle_rows;
    size[3] = reference_pairs(a) * (a->angle_columns == TROPE_COLUMNS_PAIR ? 1 : 2);
}

/* Elements from the first to the last of a table of `axes` planes. */
static int64_t table_extent(const trope_args *a, int axes, int32_t layout, const int64_t given[4])
{
    int64_t size[4], stride[4], extent = 1;
    table_sizes(a, size);
    size[0] = axes;
    tensor_table_strides(a, layout, given, size[3], stride);
    for (int d = 0; d < 4; d++)
        extent += (size[d] - 1) * stride[d];
    return extent;
}

/* Strides in this order, outermost first, with room between; those that `missing` says (bit d: dimension d) are 0. */
static void arrange_table(builder *b, const int *order, int missing, int64_t stride[4])
{
    int64_t size[4], step = order[3] == 3 ? 1 : between(b, 1, 2);
    table_sizes(b->a, size);
    for (int i = 3; i >= 0; i--) {
        const int d = order[i];
        stride[d] = missing >> d & 1 ? 0 : step;
        if (stride[d])
            step = step * size[d] + between(b, 0, 5);
    }
}

/* Which dimensions {axis, batch, row, column} a table has once, as bits: with one axis that; and not columns where a
 * gradient is laid out like the table, because it sums none. */
static int choose_missing(builder *b, int choice)
{
    const int one_axis = b->v[OPTION_AXES] == AXES_PARTS && b->a->parts < 2;
    const int no_gradient = b->v[OPTION_GRADIENT] == GRADIENT_NONE;
    if (choice == TABLE_ANY_ORDER)
        return one_axis;
    if (choice == TABLE_COLLAPSED)
        return (int)between(b, 1, no_gradient ? 15 : 7) | one_axis;
    return (int)between(b, 0, 3) | one_axis;
}

/* The strides of a table, or of its gradient, that is not contiguous. */
static void choose_table_strides(builder *b, int choice, int64_t stride[4])
{
    int order[4] = {0, 1, 2, 3};
    if (choice == TABLE_ANY_ORDER || (choice == TABLE_COLLAPSED && once_in(b, 2)))
        shuffle(b, order, 4);
    arrange_table(b, order, choose_missing(b, choice), stride);
    for (int d = 0; d < 4 && choice == TABLE_COMPLEX; d++)
        stride[d] *= 2;
}

/* Says a table of one of the contiguous layouts, or by the same strides. */
static void say_table(builder *b, int32_t layout, int32_t *said, int64_t stride[4])
{
    int64_t size[4];
    table_sizes(b->a, size);
    *said = layout;
    if (once_in(b, 2))
        return;
    tensor_table_strides(b->a, layout, stride, size[3], stride);
    *said = TROPE_TABLE_STRIDED;
}

static void choose_table_shape(builder *b)
{
    static const int32_t columns[] = {[COLUMNS_PAIR] = TROPE_COLUMNS_PAIR,
                                      [COLUMNS_HALF] = TROPE_COLUMNS_HALF,
                                      [COLUMNS_INTERLEAVED] = TROPE_COLUMNS_INTERLEAVED};
    trope_args *a = b->a;
    const int64_t highest = highest_position(a), most = highest < 200 ? highest : 200;
    a->angle_dtype = TROPE_F32 + b->v[OPTION_ANGLE_DTYPE];
    a->angle_columns = columns[b->v[OPTION_COLUMNS]];
    a->angle_rows = b->v[OPTION_RANGE] == RANGE_INSIDE ? highest + between(b, 1, 3) : between(b, 1, most + 1);
    a->out_of_range = b->v[OPTION_RANGE] == RANGE_CLAMP ? TROPE_RANGE_CLAMP : TROPE_RANGE_POISON;
    if (b->v[OPTION_TABLE] < TABLE_PADDED) {
        say_table(b, TROPE_TABLE_ROWS + b->v[OPTION_TABLE], &a->angle_layout, a->angle_stride);
    } else {
        a->angle_layout = TROPE_TABLE_STRIDED;
        choose_table_strides(b, b->v[OPTION_TABLE], a->angle_stride);
    }
}

static char *make_table(builder *b, int64_t count, double magnitude)
{
    const size_t element = number_size(b->a->angle_dtype);
    unsigned char *table = add_buffer(b, (size_t)count * element, CONFIG_READ);
    for (int64_t i = 0; i < count; i++)
        number_store(b->a->angle_dtype, table + (size_t)i * element, magnitude * random_real(&b->random));
    return (char *)table;
}

static void make_tables(builder *b)
{
    static const double magnitudes[] = {3.2, 3.2, 40, 1e4, 1e9};
    trope_args *a = b->a;
    choose_table_shape(b);
    const int64_t count = table_extent(a, reference_axes(a), a->angle_layout, a->angle_stride);
    const char *table;
    switch (b->v[OPTION_ANGLES]) {
    case ANGLES_FREQS:
        a->freqs = make_table(b, count, magnitudes[between(b, 0, a->angle_dtype == TROPE_F16 ? 3 : 4)]);
        break;
    default:
        table = make_table(b, b->v[OPTION_TABLE] == TABLE_COMPLEX ? count + 1 : count, 1);
        a->cos = table;
        a->sin = b->v[OPTION_TABLE] == TABLE_COMPLEX ? table + number_size(a->angle_dtype) : make_table(b, count, 1);
    }
}

static void make_frequencies(builder *b, int pairs)
{
    for (int i = 0; i < pairs; i++) {
        b->c->inv_freq[i] = random_real(&b->random);
        b->c->inv_freq[i] /= (double)((int64_t)1 << between(b, 0, 20));
    }
    if (b->v[OPTION_ANGLES] == ANGLES_INV_FREQ) {
        b->a->inv_freq = b->c->inv_freq;
        return;
    }
    if (trope_phase_steps(b->c->inv_freq, pairs, b->c->phase_step)) {
        fprintf(stderr, "config_make(0x%llx): %s\n", (unsigned long long)b->c->seed, trope_last_error());
        abort();
    }
    b->a->phase_step = b->c->phase_step;
}

static void make_angles(builder *b, int32_t rotary_dim)
{
    if (b->v[OPTION_ANGLES] >= ANGLES_INV_FREQ)
        make_frequencies(b, rotary_dim / 2);
    else
        make_tables(b);
}

/* ---- The gradient of the angles, the status word ---- */

static void make_gradient_table(builder *b)
{
    trope_args *a = b->a;
    switch (b->v[OPTION_GRADIENT_TABLE]) {
    case GRADIENT_LIKE_TABLE:
        a->d_freqs_layout = a->angle_layout;
        memcpy(a->d_freqs_stride, a->angle_stride, sizeof a->d_freqs_stride);
        break;
    case GRADIENT_STRIDED:
        a->d_freqs_layout = TROPE_TABLE_STRIDED;
        choose_table_strides(b, once_in(b, 2) ? TABLE_ANY_ORDER : TABLE_COLLAPSED, a->d_freqs_stride);
        break;
    default:
        say_table(b, TROPE_TABLE_ROWS + b->v[OPTION_GRADIENT_TABLE] - GRADIENT_ROWS, &a->d_freqs_layout, a->d_freqs_stride);
    }
    const int64_t extent = table_extent(a, reference_planes(a), a->d_freqs_layout, a->d_freqs_stride);
    a->d_freqs = add_guarded(b, extent, a->dtype == TROPE_F64 ? 8 : 4);
}

static void make_gradient(builder *b)
{
    trope_args *a = b->a;
    uint64_t bytes;
    if (b->v[OPTION_ANGLES] >= ANGLES_INV_FREQ)
        a->d_inv_freq = add_guarded(b, reference_pairs(a), sizeof(double));
    else
        make_gradient_table(b);
    if (trope_workspace_size(a, &bytes)) {
        char text[2048];
        config_describe(b->c, text, sizeof text);
        fprintf(stderr, "config_make(0x%llx): %s\n    %s\n", (unsigned long long)b->c->seed, trope_last_error(), text);
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
    a->operands = b->operands;
    a->operand_size = sizeof *a->operands;
    a->device = TROPE_DEVICE_CPU;
    a->threads = once_in(b, 16) ? (int32_t)between(b, 2, 3) : 1;
    a->dtype = TROPE_F32 + b->v[OPTION_DTYPE];
    a->rounding = b->v[OPTION_ROUNDING];
    choose_context_parallel(b);
    if (b->v[OPTION_SEQUENCES] == SEQUENCES_NONE)
        choose_dense_shape(b);
    else
        choose_packed_shape(b);
    const int32_t rotary_dim = choose_rotation(b);
    choose_operands(b, rotary_dim);
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
    builder b = {.c = c, .a = &c->args, .operands = c->operands[1], .v = c->choices.value, .random = {~seed}};
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
