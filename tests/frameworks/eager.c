#include "frameworks/eager.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/number.h"
#include "trope/trope.h"

float eager_round(int32_t dtype, float x)
{
    return (float)number_round(dtype, x);
}

/* The place in a window of one element of pair i: of its first one, or of its second. */
static int place(int32_t pairing, int width, int i, int second)
{
    return pairing == TROPE_PAIRING_HALF ? i + second * (width / 2) : 2 * i + second;
}

/* a * c + b * s as the rounding has it. Eager code rounds three times, to the dtype or to fp32; a fused kernel once. */
static float combine(const rotation *r, float a, float c, float b, float s)
{
    const int32_t dtype = r->rounding == TROPE_ROUND_NATIVE ? r->dtype : TROPE_F32;
    if (r->rounding == TROPE_ROUND_ONCE)
        return fmaf(a, c, b * s);
    c = eager_round(dtype, c);
    s = eager_round(dtype, s);
    const float first = eager_round(dtype, a * c), second = eager_round(dtype, b * s);
    return eager_round(dtype, first + second);
}

void eager_rotate(const rotation *r, const float *cos, const float *sin, const float *x, float *y)
{
    const int half = r->width / 2;
    for (int i = 0; i < half; i++) {
        const float x1 = x[place(r->pairing, r->width, i, 0)], x2 = x[place(r->pairing, r->width, i, 1)];
        y[place(r->pairing_out, r->width, i, 0)] = combine(r, x1, cos[i], -x2, sin[i]);
        y[place(r->pairing_out, r->width, i, 1)] = combine(r, x2, cos[i + half], x1, sin[i + half]);
    }
}

void eager_rotate_back(const rotation *r, const float *cos, const float *sin, const float *dy, float *dx)
{
    const int half = r->width / 2;
    for (int i = 0; i < half; i++) {
        const float dy1 = dy[place(r->pairing_out, r->width, i, 0)], dy2 = dy[place(r->pairing_out, r->width, i, 1)];
        dx[place(r->pairing, r->width, i, 0)] = combine(r, dy1, cos[i], dy2, sin[i + half]);
        dx[place(r->pairing, r->width, i, 1)] = combine(r, dy2, cos[i + half], -dy1, sin[i]);
    }
}

void exact_rotate(const rotation *r, const double *angle, const float *x, double *y)
{
    const int half = r->width / 2;
    for (int i = 0; i < half; i++) {
        const double x1 = x[place(r->pairing, r->width, i, 0)], x2 = x[place(r->pairing, r->width, i, 1)];
        y[place(r->pairing_out, r->width, i, 0)] = x1 * cos(angle[i]) - x2 * sin(angle[i]);
        y[place(r->pairing_out, r->width, i, 1)] = x2 * cos(angle[i + half]) + x1 * sin(angle[i + half]);
    }
}

void exact_rotate_back(const rotation *r, const double *angle, const float *dy, double *dx)
{
    const int half = r->width / 2;
    for (int i = 0; i < half; i++) {
        const double dy1 = dy[place(r->pairing_out, r->width, i, 0)], dy2 = dy[place(r->pairing_out, r->width, i, 1)];
        dx[place(r->pairing, r->width, i, 0)] = dy1 * cos(angle[i]) + dy2 * sin(angle[i + half]);
        dx[place(r->pairing, r->width, i, 1)] = dy2 * cos(angle[i + half]) - dy1 * sin(angle[i]);
    }
}

int64_t shape_count(const shape *s)
{
    return s->batch * s->tokens * s->heads * s->head_dim;
}

/* The first element of a head. */
static int64_t head_offset(const shape *s, int64_t batch, int64_t token, int64_t head)
{
    int64_t number = 0;
    if (s->layout == TROPE_SBHD)
        number = (token * s->batch + batch) * s->heads + head;
    else if (s->layout == TROPE_BHSD)
        number = (batch * s->heads + head) * s->tokens + token;
    else
        number = (batch * s->tokens + token) * s->heads + head;
    return number * s->head_dim;
}

void eager_apply(const rotation *r, const shape *s, const coefficients *c, int back, const void *x, void *y)
{
    float in[EAGER_MAX_WIDTH], out[EAGER_MAX_WIDTH];
    for (int64_t row = 0; row < s->batch * s->tokens; row++)
        for (int h = 0; h < s->heads; h++) {
            const int64_t offset = head_offset(s, row / s->tokens, row % s->tokens, h);
            const float *cos = c->cos + row * r->width, *sin = c->sin + row * r->width;
            load_elements(r->dtype, x, offset, s->head_dim, in);
            memcpy(out, in, sizeof out);
            (back ? eager_rotate_back : eager_rotate)(r, cos, sin, in, out);
            store_elements(r->dtype, y, offset, s->head_dim, out);
        }
}

void exact_apply(const rotation *r, const shape *s, const double *angle, int back, const void *x, double *y)
{
    float in[EAGER_MAX_WIDTH];
    for (int64_t row = 0; row < s->batch * s->tokens; row++)
        for (int h = 0; h < s->heads; h++) {
            const int64_t offset = head_offset(s, row / s->tokens, row % s->tokens, h);
            load_elements(r->dtype, x, offset, s->head_dim, in);
            for (int e = 0; e < s->head_dim; e++)
                y[offset + e] = in[e];
            (back ? exact_rotate_back : exact_rotate)(r, angle + row * r->width, in, y + offset);
        }
}

void *zero_tensor(int32_t dtype, int64_t count)
{
    void *tensor = calloc((size_t)count, number_size(dtype));
    if (!tensor)
        abort();
    return tensor;
}

void *element_of(int32_t dtype, void *tensor, int64_t index)
{
    return (char *)tensor + index * (int64_t)number_size(dtype);
}

void *random_tensor(random_state *random, int32_t dtype, int64_t count)
{
    void *tensor = zero_tensor(dtype, count);
    for (int64_t i = 0; i < count; i++)
        number_store(dtype, element_of(dtype, tensor, i), 2.0 * random_real(random));
    return tensor;
}

void *copy_tensor(int32_t dtype, const void *tensor, int64_t count)
{
    void *copy = zero_tensor(dtype, count);
    memcpy(copy, tensor, (size_t)count * number_size(dtype));
    return copy;
}

void *cast_tensor(int32_t to, int32_t from, const void *tensor, int64_t count)
{
    void *cast = zero_tensor(to, count);
    for (int64_t i = 0; i < count; i++)
        number_store(to, element_of(to, cast, i), number_load(from, (const char *)tensor + i * (int64_t)number_size(from)));
    return cast;
}

void load_elements(int32_t dtype, const void *tensor, int64_t index, int count, float *values)
{
    for (int i = 0; i < count; i++)
        values[i] = (float)number_load(dtype, (const char *)tensor + (index + i) * (int64_t)number_size(dtype));
}

void store_elements(int32_t dtype, void *tensor, int64_t index, int count, const float *values)
{
    for (int i = 0; i < count; i++)
        number_store(dtype, element_of(dtype, tensor, index + i), values[i]);
}
