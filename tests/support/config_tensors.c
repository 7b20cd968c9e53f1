/* Makes the tensors of operands: the order of their dimensions, strides, specification, memory and contents. */
#include <math.h>
#include <string.h>

#include "support/config_builder.h"
#include "support/number.h"
#include "support/reference.h"
#include "support/tensor.h"

/* ---- Strides ---- */

/* The locations of the elements of a tensor in its buffer. */
typedef struct arrangement {
    int64_t stride[TROPE_MAX_DIMS];
    int64_t first; /* index of element [0, 0, 0, 0, 0] */
    int64_t count; /* number of elements from the lowest to the highest index */
} arrangement;

/* Chooses the order of the dimensions, outermost first. */
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

/* Reverses some dimensions of an arrangement, or (for sources) sets some strides to 0. */
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

/* ---- Memory and contents ---- */

/* f64 gets only finite values. The compiler chooses the sign and payload of NaNs in f64, so the library guarantees the
 * bits of NaNs only in the other dtypes. */
static void store_special(builder *b, unsigned char *element)
{
    static const double values[] = {-0.0, 5e-324, 1e-45, 6e-8, -1e-40, 65504, 3.4e38, NAN, INFINITY, -INFINITY};
    const int64_t kind = between(b, 0, b->a->dtype == TROPE_F64 ? 6 : 10);
    if (kind < 10)
        number_store(b->a->dtype, element, values[kind]);
    else
        memset(element, 0xff, number_size(b->a->dtype)); /* a NaN with all bits set */
}

/* Fills every element with a random number. The magnitude differs from tensor to tensor. */
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
    return config_add_buffer(b, (before + (size_t)r->count) * element, CONFIG_READ) + (before + (size_t)r->first) * element;
}

static void *add_destination(builder *b, const arrangement *r)
{
    const size_t element = number_size(b->a->dtype);
    return (char *)config_add_guarded(b, r->count, element) + (size_t)r->first * element;
}

/* ---- How tensors are specified ---- */

/* Returns a contiguous layout that has these strides, or TROPE_STRIDED. */
static int32_t name_layout(builder *b, const int64_t *size, const int64_t *stride)
{
    const int32_t first = (int32_t)between(b, 0, 3);
    if (b->v[OPTION_GIVEN_BY] == GIVEN_BY_STRIDES || (b->v[OPTION_GIVEN_BY] == GIVEN_BY_EACH && once_in(b, 2)))
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

/* Specifies a tensor of an operand: sets its layout, strides and address `base`. */
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

/* ---- Operands ---- */

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

static void fill_operand(builder *b, const trope_operand *o, tensor_role role, int backward)
{
    trope_args args = *b->a;
    args.operands = o;
    const tensor t = tensor_of(&args, 0, role, backward);
    fill_tensor(b, &t);
}

/* Makes a tensor that the call reads. */
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

/* Makes dst and src. An operand in place gets the same memory for both. */
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

/* Makes the forward call's tensors for an operand with shared heads. Its src stores these heads as one head. */
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

/* Makes Q, K and possibly V as slices of one packed QKV buffer [.., groups, (q_per_group + 2) * d]. */
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

void config_make_operands(builder *b)
{
    if (b->v[OPTION_HEADS] == HEADS_PACKED_QKV) {
        b->operands[0].rotary_dim = reference_pairs(b->a) ? 2 * reference_pairs(b->a) : TROPE_COPY;
        config_choose_window(b, &b->operands[0]);
        make_packed_operands(b);
    } else {
        for (int i = 0; i < b->a->operand_count; i++)
            make_tensors(b, &b->operands[i]);
    }
    for (int i = 0; i < b->a->operand_count; i++) {
        trope_operand *o = &b->operands[i];
        const int has_norm = config_make_norm(b, i);
        if (has_norm || (b->v[OPTION_GRADIENT] != GRADIENT_NONE && o->rotary_dim != TROPE_COPY))
            make_source(b, o, TENSOR_FORWARD_SRC, 1);
        b->c->operands[0][i] = *o;
        b->c->operands[0][i].accumulate = 0;
        if (o->shared_heads)
            make_forward_tensors(b, i);
    }
}
