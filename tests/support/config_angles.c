/* Makes the angles (frequencies, or tables in every layout) and the memory for their gradient. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/config_builder.h"
#include "support/number.h"
#include "support/reference.h"
#include "support/tensor.h"

/* ---- Layouts of tables ---- */

/* The sizes {axes, batch, rows, columns} of a gradient. A table may have fewer axes. */
static void table_sizes(const trope_args *a, int64_t size[4])
{
    size[0] = reference_planes(a);
    size[1] = a->batch;
    size[2] = a->angle_rows;
    size[3] = reference_columns(a);
}

/* The number of elements from the first to the last element of a table with `axes` planes, gaps included. */
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

/* Strides for the dimensions in this order, outermost first, with gaps. If bit d of `missing` is set, the stride of
 * dimension d is 0. */
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

/* Chooses the dimensions {axis, batch, row, column} that get stride 0, as bits. With one axis, the axis bit is always set.
 * In a call with a gradient, the column bit is never set: d_freqs may have the layout of the table, and its column stride
 * must not be 0. */
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

/* Chooses the strides of a table or a gradient that is not contiguous. */
static void choose_table_strides(builder *b, int choice, int64_t stride[4])
{
    int order[4] = {0, 1, 2, 3};
    if (choice == TABLE_ANY_ORDER || (choice == TABLE_COLLAPSED && once_in(b, 2)))
        shuffle(b, order, 4);
    arrange_table(b, order, choose_missing(b, choice), stride);
    for (int d = 0; d < 4 && choice == TABLE_COMPLEX; d++)
        stride[d] *= 2;
}

/* Specifies a table by its contiguous layout or, in half of the cases, by the same strides. */
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

/* ---- Angles ---- */

/* The highest position that rotates a token. */
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
    unsigned char *table = config_add_buffer(b, (size_t)count * element, CONFIG_READ);
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

void config_make_angles(builder *b, int32_t rotary_dim)
{
    if (b->v[OPTION_ANGLES] >= ANGLES_INV_FREQ)
        make_frequencies(b, rotary_dim / 2);
    else
        make_tables(b);
}

/* ---- The gradient ---- */

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
    a->d_freqs = config_add_guarded(b, extent, a->dtype == TROPE_F64 ? 8 : 4);
}

void config_make_gradient(builder *b)
{
    trope_args *a = b->a;
    if (b->v[OPTION_ANGLES] >= ANGLES_INV_FREQ)
        a->d_inv_freq = config_add_guarded(b, reference_pairs(a), sizeof(double));
    else
        make_gradient_table(b);
}

void config_make_workspace(builder *b)
{
    call k = config_call(b->c, 1);
    uint64_t bytes;
    if (trope_workspace_size(call_args(&k), &bytes)) {
        char text[2048];
        config_describe(b->c, text, sizeof text);
        fprintf(stderr, "config_make(0x%llx): %s\n    %s\n", (unsigned long long)b->c->seed, trope_last_error(), text);
        abort();
    }
    if (!bytes)
        return;
    b->a->workspace = config_add_buffer(b, bytes, CONFIG_SCRATCH);
    b->a->workspace_size = bytes;
}
