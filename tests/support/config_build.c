/* Makes a config from its seed and choices. This file makes the shape of the call, its rotation, heads and windows, and
 * decides the order in which the rest is made. */
#include <stdlib.h>
#include <string.h>

#include "support/config_builder.h"

/* ---- Buffers ---- */

unsigned char *config_add_buffer(builder *b, size_t size, config_role role)
{
    config_buffer *buffer = &b->c->buffers[b->c->buffer_count++];
    if (b->c->buffer_count > CONFIG_MAX_BUFFERS)
        abort();
    *buffer = (config_buffer){.bytes = malloc(size ? size : 1), .size = size, .role = role};
    memset(buffer->bytes, 0xff, size);
    return buffer->bytes;
}

#define GUARD_BYTES 64

void *config_add_guarded(builder *b, int64_t count, size_t element)
{
    const size_t before = GUARD_BYTES + (size_t)between(b, 0, 3) * element;
    return config_add_buffer(b, before + (size_t)count * element + GUARD_BYTES, CONFIG_WRITTEN) + before;
}

/* ---- The shape ---- */

static void choose_context_parallel(builder *b)
{
    b->a->cp_layout = b->v[OPTION_CP];
    if (b->a->cp_layout == 0)
        return;
    b->a->cp_size = (int32_t)between(b, once_in(b, 8) ? 1 : 2, 4);
    b->a->cp_rank = (int32_t)between(b, 0, b->a->cp_size - 1);
}

static void choose_dense_shape(builder *b)
{
    b->a->batch = b->v[OPTION_LAYOUT] == LAYOUT_THD ? 1 : between(b, 1, 3);
    b->a->tokens = between(b, 1, b->a->batch == 1 ? 12 : 5) * b->c->choices.times;
    if (b->a->cp_layout == TROPE_CP_ZIGZAG)
        b->a->tokens += b->a->tokens % 2;
}

/* ---- The rotation ---- */

/* Chooses the axis of each pair, among at most `axes` axes. */
static void make_pair_axis(builder *b, int pairs, int axes)
{
    uint8_t *axis = b->c->pair_axis;
    const int64_t stops[] = {between(b, 0, pairs), between(b, 0, pairs), between(b, 0, pairs)};
    for (int i = 0; i < pairs; i++)
        switch (b->v[OPTION_AXES]) {
        case AXES_SECTIONS: /* ascending; some may be empty */
            axis[i] = (uint8_t)((i >= stops[0]) + (axes > 2 && i >= stops[1]) + (axes > 3 && i >= stops[2]));
            break;
        case AXES_INTERLEAVED: /* every third pair, up to the end of a section */
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

/* Chooses the number of pairs of a part. Occasionally it is large, up to the limit. */
static int choose_pairs(builder *b, int parts)
{
    static const int typical[] = {8, 16, 24, 32, 48, 64};
    if (b->c->choices.pairs)
        return b->c->choices.pairs / parts;
    switch (b->v[OPTION_SIZE]) {
    case SIZE_TINY:
        return (int)between(b, 1, 4);
    case SIZE_ODD:
        return (int)between(b, 1, parts > 1 ? 19 : 37);
    default:
        if (once_in(b, 40))
            return (int)between(b, 65, TROPE_MAX_ROTARY_DIM / 2 / parts);
        return typical[between(b, 0, parts > 1 ? 2 : 5)];
    }
}

/* Chooses the rotation. Returns the rotary_dim of the widest operand. */
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
    b->a->inverse = b->v[OPTION_DIRECTION] == DIRECTION_INVERSE;
    b->a->mscale = b->v[OPTION_MSCALE] == MSCALE_ONE      ? 1
                   : b->v[OPTION_MSCALE] == MSCALE_RANDOM ? 2 * random_real(&b->random)
                                                          : 0;
    if (b->v[OPTION_AXES] != AXES_PARTS)
        make_pair_axis(b, pairs, (int)between(b, 2, TROPE_MAX_AXES));
    return 2 * pairs;
}

/* ---- Operands ---- */

void config_choose_window(builder *b, trope_operand *o)
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

/* Chooses the windows and heads of all operands. A random operand is the widest. */
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
        config_choose_window(b, o);
    }
}

/* ---- The order of building ---- */

static void make_status(builder *b)
{
    if (b->v[OPTION_RANGE] != RANGE_POISON && once_in(b, 2))
        return;
    b->a->status = config_add_guarded(b, 1, sizeof(int32_t));
    *b->a->status = once_in(b, 2) ? 0 : 0x100;
}

/* Removes the fields that a call without rotation must not have. All heads are normalised or copied. */
static void forget_rotation(builder *b)
{
    trope_args *a = b->a;
    a->pairing = a->parts = a->angle_dtype = a->angle_columns = a->angle_layout = 0;
    a->freqs = NULL;
    a->angle_rows = 0;
    memset(a->angle_stride, 0, sizeof a->angle_stride);
    for (int i = 0; i < a->operand_count; i++)
        b->operands[i].rotary_dim = TROPE_COPY;
    b->operands[0].shared_heads = TROPE_SHARED_NONE; /* operand 0 always has a norm */
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
        config_choose_packed_shape(b);
    const int32_t rotary_dim = choose_rotation(b);
    choose_operands(b, rotary_dim);
    config_make_positions(b);
    config_make_angles(b, rotary_dim);
    if (b->v[OPTION_NORM] == NORM_ALONE)
        forget_rotation(b);
    config_make_operands(b);
    make_status(b);
    if (b->v[OPTION_GRADIENT] != GRADIENT_NONE)
        config_make_gradient(b);
    config_make_workspace(b);
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
