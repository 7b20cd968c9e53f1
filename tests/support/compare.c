#include "support/compare.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/number.h"

typedef long long ll;

typedef struct compare_state {
    const config *c;
    const trope_args *args;
    unsigned char *written[CONFIG_MAX_BUFFERS]; /* which bytes the call had to write */
    comparison *result;
} compare_state;

__attribute__((format(printf, 2, 3))) static void complain(compare_state *s, const char *format, ...)
{
    va_list arguments;
    if (s->result->why[0])
        return;
    va_start(arguments, format);
    vsnprintf(s->result->why, sizeof s->result->why, format, arguments);
    va_end(arguments);
}

static void mark(compare_state *s, const void *address, size_t size)
{
    const int i = config_buffer_of(s->c, address);
    const size_t offset = (size_t)((const unsigned char *)address - s->c->buffers[i].bytes);
    if (offset + size > s->c->buffers[i].size || s->c->buffers[i].role != CONFIG_WRITTEN)
        abort(); /* the config is wrong, not the library */
    memset(s->written[i] + offset, 1, size);
}

/* ---- Operands ---- */

static int is_right(compare_state *s, const reference_element *expected, const void *address)
{
    const int32_t dtype = s->args->dtype;
    const uint64_t bits = number_bits(dtype, address), unwritten = UINT64_MAX >> (64 - 8 * number_size(dtype));
    const double got = number_load(dtype, address), error = (double)fabsl(got - expected->value);
    switch (expected->kind) {
    case REFERENCE_BITS:
        return bits == expected->bits;
    case REFERENCE_NAN:
        return isnan(got) && bits != unwritten;
    default:
        if (expected->tolerance > 0 && error / expected->tolerance > s->result->worst_ratio[dtype])
            s->result->worst_ratio[dtype] = error / expected->tolerance;
        return error <= expected->tolerance;
    }
}

static void complain_about(compare_state *s, int operand, int64_t number, const reference_element *expected,
                           const void *address)
{
    const trope_operand *o = &s->args->operands[operand];
    const int64_t heads = (o->groups ? o->groups : 1) * o->heads_per_group;
    const int64_t element = number % o->head_dim, head = number / o->head_dim % heads, row = number / o->head_dim / heads;
    static const char *const kinds[] = {"a number", "bits", "NaN"};
    complain(s,
             "operand %d batch %lld token %lld head %lld element %lld: %.17g (0x%llx), expected %s %.17Lg +- %.3g (0x%llx)",
             operand, (ll)(row / s->args->tokens), (ll)(row % s->args->tokens), (ll)head, (ll)element,
             number_load(s->args->dtype, address), (unsigned long long)number_bits(s->args->dtype, address),
             kinds[expected->kind], expected->value, expected->tolerance, (unsigned long long)expected->bits);
}

static void compare_operand(compare_state *s, int operand, const reference_element *expected)
{
    const trope_operand *o = &s->args->operands[operand];
    const int64_t groups = o->groups ? o->groups : 1, *stride = o->dst_stride;
    const size_t size = number_size(s->args->dtype);
    int64_t number = 0;
    for (int64_t row = 0; row < s->args->batch * s->args->tokens; row++)
        for (int64_t head = 0; head < groups * o->heads_per_group; head++)
            for (int64_t e = 0; e < o->head_dim; e++, number++) {
                const int64_t offset = row / s->args->tokens * stride[0] + row % s->args->tokens * stride[1] +
                                       head / o->heads_per_group * stride[2] + head % o->heads_per_group * stride[3] +
                                       e * stride[4];
                const char *address = (const char *)o->dst + offset * (int64_t)size;
                mark(s, address, size);
                if (!is_right(s, &expected[number], address))
                    complain_about(s, operand, number, &expected[number], address);
            }
    s->result->elements += number;
    for (int64_t i = 0; i < number; i++)
        s->result->kinds[expected[i].kind]++;
}

/* ---- The gradient of the angles, the status word ---- */

static void compare_sum(compare_state *s, int64_t i, const reference_sum *expected, const void *address)
{
    const int32_t dtype = s->args->inv_freq || s->args->dtype == TROPE_F64 ? TROPE_F64 : TROPE_F32;
    const double got = number_load(dtype, address);
    mark(s, address, number_size(dtype));
    s->result->sums[expected->terms > 0]++;
    if (expected->terms == 0 ? number_bits(dtype, address) != 0 : !(fabsl(got - expected->value) <= expected->tolerance))
        complain(s, "%s[%lld]: %.17g, expected %.17Lg +- %.3g", s->args->inv_freq ? "d_inv_freq" : "d_freqs", (ll)i, got,
                 expected->value, expected->tolerance);
}

static void compare_angles(compare_state *s, const reference_result *expected)
{
    const trope_args *a = s->args;
    const int64_t row_stride = a->angle_row_stride ? a->angle_row_stride : a->angle_cols;
    const int64_t size = a->dtype == TROPE_F64 ? 8 : 4;
    for (int64_t i = 0; i < expected->angle_count; i++) {
        if (a->inv_freq) {
            compare_sum(s, i, &expected->angles[i], a->d_inv_freq + i);
            continue;
        }
        const int64_t row = i / a->angle_cols;
        const int64_t offset =
            row / a->angle_rows * a->angle_batch_stride + row % a->angle_rows * row_stride + i % a->angle_cols;
        compare_sum(s, i, &expected->angles[i], (const char *)a->d_freqs + offset * size);
    }
}

static void compare_status(compare_state *s, const reference_result *expected)
{
    if (!s->args->status)
        return;
    const config_buffer *buffer = &s->c->buffers[config_buffer_of(s->c, s->args->status)];
    int32_t before;
    memcpy(&before, buffer->initial + ((unsigned char *)s->args->status - buffer->bytes), sizeof before);
    mark(s, s->args->status, sizeof before);
    if (*s->args->status != (before | expected->status))
        complain(s, "status 0x%x, expected 0x%x", *s->args->status, before | expected->status);
}

/* ---- The rest ---- */

static void compare_untouched(compare_state *s)
{
    for (int i = 0; i < s->c->buffer_count; i++) {
        const config_buffer *buffer = &s->c->buffers[i];
        for (size_t at = 0; at < buffer->size && buffer->role != CONFIG_SCRATCH; at++)
            if (!s->written[i][at] && buffer->bytes[at] != buffer->initial[at])
                complain(s, "buffer %d, byte %zu of %zu: 0x%02x was overwritten by 0x%02x", i, at, buffer->size,
                         buffer->initial[at], buffer->bytes[at]);
    }
}

int compare_buffers(const config *c, const trope_args *args, const reference_result *expected, comparison *result)
{
    compare_state s = {.c = c, .args = args, .result = result};
    result->why[0] = 0;
    for (int i = 0; i < c->buffer_count; i++)
        s.written[i] = calloc(c->buffers[i].size + 1, 1);
    for (int i = 0; i < args->operand_count; i++)
        if (args->operands[i].dst)
            compare_operand(&s, i, expected->operands[i]);
    if (expected->angles)
        compare_angles(&s, expected);
    compare_status(&s, expected);
    compare_untouched(&s);
    for (int i = 0; i < c->buffer_count; i++)
        free(s.written[i]);
    return !result->why[0];
}

int compare_call(config *c, int backward, comparison *result)
{
    config_reset(c);
    const trope_args args = config_args(c, backward);
    reference_result expected = reference_run(&args, backward);
    const trope_status status = backward ? trope_backward(&args) : trope_forward(&args);
    int holds = status == TROPE_OK;
    if (holds)
        holds = compare_buffers(c, &args, &expected, result);
    else
        snprintf(result->why, sizeof result->why, "%s: %s", trope_status_name(status), trope_last_error());
    reference_free(&expected);
    return holds;
}
