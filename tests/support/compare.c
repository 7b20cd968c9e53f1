#include "support/compare.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/number.h"
#include "support/tensor.h"

typedef long long ll;

typedef struct compare_state {
    const config *c;
    const trope_args *args;
    unsigned char *written[CONFIG_MAX_BUFFERS]; /* 1 for each byte that the call had to write */
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
    default: /* no ratio for native roundings: the reference repeats them, so errors are usually 0 or the tolerance */
        if (s->args->rounding == TROPE_ROUND_ONCE && expected->tolerance > 0)
            s->result->worst_ratio[dtype] = fmax(s->result->worst_ratio[dtype], error / expected->tolerance);
        return error <= expected->tolerance;
    }
}

static void complain_about(compare_state *s, int operand, const tensor *t, int64_t number,
                           const reference_element *expected, const void *address)
{
    const int64_t element = number % t->size[4], head = number / t->size[4] % (t->size[2] * t->size[3]);
    const int64_t row = number / t->size[4] / (t->size[2] * t->size[3]);
    static const char *const kinds[] = {"a number", "bits", "NaN"};
    complain(s,
             "operand %d batch %lld token %lld head %lld element %lld: %.17g (0x%llx), expected %s %.17Lg +- %.3g (0x%llx)",
             operand, (ll)(row / t->size[1]), (ll)(row % t->size[1]), (ll)head, (ll)element,
             number_load(s->args->dtype, address), (unsigned long long)number_bits(s->args->dtype, address),
             kinds[expected->kind], expected->value, expected->tolerance, (unsigned long long)expected->bits);
}

static void compare_operand(compare_state *s, int operand, const reference_element *expected, int backward)
{
    const tensor dst = tensor_of(s->args, operand, TENSOR_DST, backward);
    const size_t size = number_size(s->args->dtype);
    for (int64_t i = 0; i < tensor_count(&dst); i++) {
        const char *address = (const char *)dst.base + tensor_offset(&dst, i) * (int64_t)size;
        mark(s, address, size);
        if (!is_right(s, &expected[i], address))
            complain_about(s, operand, &dst, i, &expected[i], address);
        s->result->kinds[expected[i].kind]++;
    }
    s->result->elements += tensor_count(&dst);
}

/* ---- Gradients of angles and weights, rstd, the status word ---- */

/* Compares element i of the array `sums`. */
static void compare_sum(compare_state *s, const char *name, const void *sums, int32_t dtype, int64_t i,
                        const reference_sum *expected)
{
    const char *address = (const char *)sums + (size_t)i * number_size(dtype);
    const double got = number_load(dtype, address);
    mark(s, address, number_size(dtype));
    s->result->sums[expected->terms > 0]++;
    if (expected->terms == 0 ? number_bits(dtype, address) != 0 : !(fabsl(got - expected->value) <= expected->tolerance))
        complain(s, "%s[%lld]: %.17g, expected %.17Lg +- %.3g", name, (ll)i, got, expected->value, expected->tolerance);
}

static void compare_angles(compare_state *s, const reference_result *expected)
{
    const trope_args *a = s->args;
    for (int64_t i = 0; i < expected->angle_count; i++) {
        if (expected->angles[i].exists && a->d_inv_freq)
            compare_sum(s, "d_inv_freq", a->d_inv_freq, TROPE_F64, i, &expected->angles[i]);
        else if (expected->angles[i].exists)
            compare_sum(s, "d_freqs", a->d_freqs, a->dtype == TROPE_F64 ? TROPE_F64 : TROPE_F32, i, &expected->angles[i]);
    }
}

/* An array of a norm in the arithmetic type (f32, or f64 for f64 operands). */
typedef struct named_real {
    const char *name;
    int operand;
    const void *numbers;
} named_real;

static void compare_real(compare_state *s, named_real of, int64_t i, const reference_element *expected)
{
    const int32_t dtype = s->args->dtype == TROPE_F64 ? TROPE_F64 : TROPE_F32;
    const char *address = (const char *)of.numbers + (size_t)i * number_size(dtype);
    const double got = number_load(dtype, address);
    const int is_nan = expected->kind == REFERENCE_NAN;
    const uint64_t unwritten = UINT64_MAX >> (64 - 8 * number_size(dtype));
    mark(s, address, number_size(dtype));
    if (is_nan ? !isnan(got) || number_bits(dtype, address) == unwritten
               : !(fabsl(got - expected->value) <= expected->tolerance))
        complain(s, "norms[%d].%s[%lld]: %.17g, expected %s%.17Lg +- %.3g", of.operand, of.name, (ll)i, got,
                 is_nan ? "NaN, not " : "", expected->value, expected->tolerance);
}

static void compare_norm(compare_state *s, int operand, const reference_result *expected)
{
    const trope_args *a = s->args;
    const trope_norm *norm = reference_norm(a, operand);
    const int32_t dtype = a->dtype == TROPE_F64 ? TROPE_F64 : TROPE_F32;
    for (int64_t i = 0; expected->weights[operand] && i < reference_weights(a, operand); i++)
        compare_sum(s, "d_weight", norm->d_weight, dtype, i, &expected->weights[operand][i]);
    const int64_t rows = a->batch * a->tokens;
    for (int64_t i = 0; expected->rstd[operand] && i < rows * reference_rstds(a, operand); i++)
        compare_real(s, (named_real){"rstd", operand, norm->rstd}, i, &expected->rstd[operand][i]);
    for (int64_t i = 0; expected->sums[operand] && i < rows * reference_heads(a, operand); i++)
        compare_real(s, (named_real){"token_sums", operand, norm->token_sums}, i, &expected->sums[operand][i]);
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

/* ---- The rest of the memory ---- */

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
    for (int i = 0; i < args->operand_count; i++) {
        if (args->operands[i].dst)
            compare_operand(&s, i, expected->operands[i], expected->backward);
        compare_norm(&s, i, expected);
    }
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
    call k = config_call(c, backward);
    const trope_args *args = call_args(&k);
    reference_result expected = reference_run(args, backward);
    const trope_status status = config_run(c, args, backward);
    int holds = status == TROPE_OK;
    if (holds)
        holds = compare_buffers(c, args, &expected, result);
    else
        snprintf(result->why, sizeof result->why, "%s: %s", trope_status_name(status), trope_last_error());
    reference_free(&expected);
    return holds;
}
