#include "api/call_text.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "api/fields.h"

/* The text so far. `used` counts also the bytes that do not fit. */
typedef struct call_writer {
    char *text;
    size_t size, used;
    const trope_places *places;
    int is_kind;
} call_writer;

__attribute__((format(printf, 2, 3))) static void put(call_writer *w, const char *format, ...)
{
    const size_t at = w->used < w->size ? w->used : w->size;
    va_list arguments;
    va_start(arguments, format);
    w->used += (size_t)vsnprintf(w->text + at, w->size - at, format, arguments);
    va_end(arguments);
}

static void put_int32(call_writer *w, const trope_field *f, int32_t value)
{
    if (value == f->absent)
        return;
    if (f->words && value > 0)
        put(w, " %s=%s", f->name, f->words[value - 1]);
    else
        put(w, " %s=%" PRId32, f->name, value);
}

static void put_int64(call_writer *w, const trope_field *f, int64_t value)
{
    if (value != f->absent && !w->is_kind)
        put(w, " %s=%" PRId64, f->name, value);
}

static void put_double(call_writer *w, const trope_field *f, double value)
{
    if (value != f->absent && !w->is_kind)
        put(w, " %s=%.17g", f->name, value);
}

/* The first two strides follow from the sizes that change from step to step. */
static void put_strides(call_writer *w, const trope_field *f, const int64_t *stride)
{
    int is_present = 0;
    for (int32_t i = 0; i < f->count; i++)
        is_present |= stride[i] != 0;
    for (int32_t i = 0; is_present && i < f->count; i++) {
        put(w, i ? "," : " %s=", f->name);
        put(w, "%" PRId64, w->is_kind && i < 2 ? stride[i] != 0 : stride[i]);
    }
}

static void put_axes(call_writer *w, const trope_field *f, const uint8_t *axes, int32_t pairs)
{
    if (!axes)
        return;
    put(w, " %s=", f->name);
    for (int32_t pair = 0; pair < pairs; pair++)
        put(w, "%d", axes[pair]);
}

static void put_tensor(call_writer *w, const trope_field *f, int operand, int role)
{
    const int32_t area = w->places->area[operand][role];
    if (area < 0)
        return;
    put(w, " %s=%c", f->name, area < 26 ? 'a' + area : 'A' + area - 26);
    if (w->places->offset[operand][role])
        put(w, "+%" PRId64, w->places->offset[operand][role]);
}

static void put_struct(call_writer *w, const char *name, const void *from, int operand, int32_t pairs)
{
    int role = TROPE_TENSOR_SRC;
    for (const trope_field *f = trope_find_struct(name)->fields; f->name; f++) {
        const void *value = (const char *)from + f->offset;
        switch (f->kind) {
        case TROPE_FIELD_HIDDEN:
            break;
        case TROPE_FIELD_INT32:
            put_int32(w, f, *(const int32_t *)value);
            break;
        case TROPE_FIELD_INT64:
            put_int64(w, f, *(const int64_t *)value);
            break;
        case TROPE_FIELD_DOUBLE:
            put_double(w, f, *(const double *)value);
            break;
        case TROPE_FIELD_STRIDES:
            put_strides(w, f, value);
            break;
        case TROPE_FIELD_AXES:
            put_axes(w, f, *(const uint8_t *const *)value, pairs);
            break;
        case TROPE_FIELD_TENSOR:
            put_tensor(w, f, operand, role++);
            break;
        case TROPE_FIELD_ARRAY:
            if (*(const void *const *)value)
                put(w, " %s", f->name);
        }
    }
}

size_t trope_format_call(const trope_call *call, const trope_places *places, int backward, int is_kind, char *text,
                         size_t size)
{
    call_writer w = {text, size, 0, places, is_kind};
    trope_args args = call->args;
    if (args.pairing_out == args.pairing)
        args.pairing_out = 0;
    put(&w, "%s", backward ? "backward" : "forward");
    put_struct(&w, "trope_args", &args, 0, trope_widest_pairs(&args));
    for (int i = 0; i < args.operand_count; i++) {
        const trope_norm *norm = trope_norm_of(&args, i);
        put(&w, " operand");
        put_struct(&w, "trope_operand", &args.operands[i], i, 0);
        if (norm) {
            put(&w, " norm");
            put_struct(&w, "trope_norm", norm, i, 0);
        }
    }
    return w.used;
}
