/* The reference for the gradient of the angles. */
#include <stdlib.h>

#include "support/reference_parts.h"

static void add_to_sum(const walk *w, int64_t index, long double factor, term t)
{
    reference_sum *sum = &w->result->angles[index];
    sum->value += factor * t.x * t.coefficient;
    sum->magnitude += fabs((double)(factor * t.x * t.coefficient));
    sum->tolerance += fabs((double)factor * t.x) * t.error + fabs((double)(factor * t.coefficient)) * t.off;
    sum->tolerance += fabs((double)factor) * t.error * t.off;
    sum->terms++;
}

/* The tolerance of the library's coefficients m cos a and m sin a. */
static double coefficient_error(const trope_args *args, const turn *t, int i)
{
    const double m = scale(args), greatest = fabs(m) * fmax(fabs((double)t->cosine[i]), fabs((double)t->sine[i]));
    return fabs(m) * t->error + (m != 1 ? unit(args) * greatest : 0) + 0x1p-52 * greatest; /* the products are in double */
}

static void gradient_strides(const trope_args *args, int64_t stride[4])
{
    tensor_table_strides(args, args->d_freqs_layout, args->d_freqs_stride, reference_columns(args), stride);
}

/* Adds the terms of a pair of one head to the gradient of its angles. They are derivatives of
 *     y1 = m (x1 cos a1 - sign x2 sin a1)        y2 = m (x2 cos a2 + sign x1 sin a2). */
static void add_pair(const walk *w, int pair, const double x[2], const reference_element g[2])
{
    const trope_args *args = w->args;
    const turn *t = &w->turns[pair];
    const long double m = scale(args), sign = args->inverse ? -1 : 1;
    const double length = fabs(x[0]) + fabs(x[1]);
    const term first = {(double)g[0].value, m * (-x[0] * t->sine[0] - sign * x[1] * t->cosine[0]),
                        length * coefficient_error(args, t, 0), g[0].tolerance};
    const term second = {(double)g[1].value, m * (-x[1] * t->sine[1] + sign * x[0] * t->cosine[1]),
                         length * coefficient_error(args, t, 1), g[1].tolerance};
    if (args->d_inv_freq) {
        add_to_sum(w, pair, t->position, first);
        add_to_sum(w, pair, t->position, second);
        return;
    }
    int column[2];
    int64_t stride[4];
    reference_columns_of_pair(args, pair, column);
    gradient_strides(args, stride);
    const int64_t row = t->axis * stride[0] + w->batch * stride[1] + t->row * stride[2];
    add_to_sum(w, row + column[0] * stride[3], 1, first);
    add_to_sum(w, row + column[1] * stride[3], 1, second);
}

void reference_add_head(const walk *w, head h)
{
    const trope_operand *o = &w->args->operands[h.operand];
    reference_element *d = calloc((size_t)o->head_dim, sizeof *d);
    const int is_added = pairs_of(o) && reference_rotated_gradient(w, h, d);
    if (is_added) {
        reference_load_head(w, h, TENSOR_FORWARD_SRC);
        reference_normalise(w, h);
    }
    for (int pair = 0; is_added && pair < pairs_of(o); pair++) {
        int in[2], out[2];
        double x[2];
        reference_element g[2];
        reference_pair_elements(w->args, w->args->pairing, o->rotary_dim, pair, in);
        reference_pair_elements(w->args, pairing_out(w->args), o->rotary_dim, pair, out);
        for (int i = 0; i < 2; i++) {
            x[i] = w->x[o->rotary_offset + in[i]];
            g[i] = d[o->rotary_offset + out[i]];
        }
        if (!w->turns[pair].is_poisoned)
            add_pair(w, pair, x, g);
    }
    free(d);
}

static void finish_weights(const trope_args *args, reference_result *result)
{
    for (int i = 0; i < args->operand_count; i++)
        for (int64_t j = 0; result->weights[i] && j < reference_weights(args, i); j++)
            result->weights[i][j].tolerance += (is_double(args) ? 0x1p-49 : 0x1p-20) * result->weights[i][j].magnitude;
}

/* Adds the tolerance for adding the terms in double, and two ulp for rounding the sum once. */
void reference_finish_sums(const trope_args *args, reference_result *result)
{
    finish_weights(args, result);
    const int32_t dtype = args->d_inv_freq || is_double(args) ? TROPE_F64 : TROPE_F32;
    for (int64_t i = 0; i < result->angle_count; i++) {
        reference_sum *sum = &result->angles[i];
        sum->tolerance += (double)(sum->terms + 8) * 0x1p-53 * sum->magnitude;
        if (sum->terms)
            sum->tolerance += 4 * number_half_ulp(dtype, (double)sum->value);
    }
}

/* Makes an entry for each element that the layout of d_freqs has in memory. */
static void make_table_sums(const trope_args *args, reference_result *result)
{
    const int64_t size[4] = {reference_planes(args), args->batch, args->angle_rows, reference_columns(args)};
    int64_t stride[4];
    gradient_strides(args, stride);
    result->angle_count = 1;
    for (int d = 0; d < 4; d++)
        result->angle_count += (size[d] - 1) * stride[d];
    result->angles = calloc((size_t)result->angle_count, sizeof *result->angles);
    for (int64_t i = 0; i < size[0] * size[1] * size[2] * size[3]; i++) {
        const int64_t row = i / size[3], batch = row / size[2], axis = batch / size[1];
        const int64_t offset = axis * stride[0] + batch % size[1] * stride[1] + row % size[2] * stride[2];
        result->angles[offset + i % size[3] * stride[3]].exists = 1;
    }
}

void reference_make_sums(const trope_args *args, reference_result *result)
{
    if (args->d_freqs)
        make_table_sums(args, result);
    if (!args->d_inv_freq)
        return;
    result->angle_count = reference_pairs(args);
    result->angles = calloc((size_t)result->angle_count, sizeof *result->angles);
    for (int64_t i = 0; i < result->angle_count; i++)
        result->angles[i].exists = 1;
}
