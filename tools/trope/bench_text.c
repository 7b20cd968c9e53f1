#include "bench_text.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "api/fields.h"
#include "command.h"
#include "value.h"

/* Stands for an array that is present. */
static char present[1];

/* The state of a reader: the struct that the next words fill in. */
typedef struct text_reader {
    const char *name;
    bench_text *to;
    const char *struct_name;
    char *base;
} text_reader;

static int wrong(const text_reader *r, const char *word, const char *what)
{
    return complain("%s: '%.80s' %s", r->name, word, what);
}

static int read_word(const trope_field *f, const char *text, int32_t *value)
{
    for (int32_t i = 0; f->words && f->words[i]; i++)
        if (!strcmp(f->words[i], text)) {
            *value = i + 1;
            return 0;
        }
    return -1;
}

/* Reads an integer and moves *text behind it. */
static int read_integer(const char **text, int64_t low, int64_t high, int64_t *value)
{
    char *end;
    errno = 0;
    const long long number = strtoll(*text, &end, 10);
    if (errno || end == *text || isspace((unsigned char)**text) || number < low || number > high)
        return -1;
    *value = number;
    *text = end;
    return 0;
}

static int read_int32(const trope_field *f, const char *text, int32_t *value)
{
    int64_t number;
    if (!read_word(f, text, value))
        return 0;
    if (f->words || read_integer(&text, INT32_MIN, INT32_MAX, &number) || *text)
        return -1;
    *value = (int32_t)number;
    return 0;
}

static int read_strides(const trope_field *f, const char *text, int64_t *stride)
{
    for (int32_t i = 0; i < f->count; i++) {
        if (read_integer(&text, INT64_MIN, INT64_MAX, &stride[i]))
            return -1;
        if (*text++ != (i + 1 < f->count ? ',' : 0))
            return -1;
    }
    return 0;
}

static int read_double(const char *text, double *value)
{
    char *end;
    *value = strtod(text, &end);
    return end == text || *end ? -1 : 0;
}

static int read_axes(const char *text, bench_text *to)
{
    const size_t count = strlen(text);
    if (!count || count > sizeof to->pair_axis)
        return -1;
    for (size_t i = 0; i < count; i++) {
        if (text[i] < '0' || text[i] >= '0' + TROPE_MAX_AXES)
            return -1;
        to->pair_axis[i] = (uint8_t)(text[i] - '0');
    }
    to->args.pair_axis = to->pair_axis;
    return 0;
}

static int read_place(const char *text, bench_place *place)
{
    place->area = *text - 'a';
    place->offset = 0;
    if (*text < 'a' || place->area >= BENCH_TEXT_AREAS)
        return -1;
    text++;
    if (*text == '+') {
        text++;
        if (read_integer(&text, 0, (int64_t)1 << 40, &place->offset))
            return -1;
    }
    return *text ? -1 : 0;
}

/* src, dst and forward_src are the first fields of an operand, in this order. */
static bench_place *place_of(const text_reader *r, const trope_field *f)
{
    const int operand = r->to->args.operand_count - 1;
    return &r->to->place[operand][f->offset / sizeof(void *)];
}

static int read_value(const text_reader *r, const trope_field *f, const char *text)
{
    void *value = r->base + f->offset;
    if (f->kind == TROPE_FIELD_ARRAY) {
        *(void **)value = present;
        return text ? -1 : 0;
    }
    if (!text)
        return -1;
    switch (f->kind) {
    case TROPE_FIELD_INT32:
        return read_int32(f, text, value);
    case TROPE_FIELD_INT64:
        return read_integer(&text, 0, (int64_t)1 << 60, value) || *text ? -1 : 0;
    case TROPE_FIELD_DOUBLE:
        return read_double(text, value);
    case TROPE_FIELD_STRIDES:
        return read_strides(f, text, value);
    case TROPE_FIELD_AXES:
        return read_axes(text, r->to);
    default:
        return read_place(text, place_of(r, f));
    }
}

static int begin_operand(text_reader *r, const char *word)
{
    bench_text *to = r->to;
    if (to->args.operand_count == TROPE_MAX_OPERANDS)
        return wrong(r, word, "is one operand too many");
    r->struct_name = "trope_operand";
    r->base = (char *)&to->operands[to->args.operand_count++];
    return 0;
}

static int begin_norm(text_reader *r, const char *word)
{
    bench_text *to = r->to;
    const int operand = to->args.operand_count - 1;
    if (operand < 0 || to->has_norm[operand])
        return wrong(r, word, "must follow the operand that it belongs to");
    to->has_norm[operand] = 1;
    to->norm[operand].struct_size = sizeof(trope_norm);
    r->struct_name = "trope_norm";
    r->base = (char *)&to->norm[operand];
    return 0;
}

static int read_field(const text_reader *r, char *word)
{
    char *equals = strchr(word, '=');
    if (equals)
        *equals = 0;
    const trope_field *f = trope_find_field(trope_find_struct(r->struct_name), word);
    if (!f || f->kind == TROPE_FIELD_HIDDEN)
        return wrong(r, word, "is not a field of a call's text");
    if (read_value(r, f, equals ? equals + 1 : NULL)) {
        if (equals)
            *equals = '=';
        return wrong(r, word, "has a value that the field cannot have");
    }
    return 0;
}

static int read_all(text_reader *r, char *text)
{
    char *state = NULL;
    const char *direction = strtok_r(text, " \n\t", &state);
    if (!direction || (strcmp(direction, "forward") && strcmp(direction, "backward")))
        return wrong(r, direction ? direction : "", "must be forward or backward");
    r->to->backward = !strcmp(direction, "backward");
    for (char *word; (word = strtok_r(NULL, " \n\t", &state));) {
        const int failed = !strcmp(word, "operand") ? begin_operand(r, word)
                           : !strcmp(word, "norm")  ? begin_norm(r, word)
                                                    : read_field(r, word);
        if (failed)
            return RESULT_REFUSED;
    }
    return r->to->args.operand_count ? 0 : wrong(r, direction, "has no operand");
}

int bench_read_text(const char *name, const char *text, bench_text *to)
{
    memset(to, 0, sizeof *to);
    for (int i = 0; i < TROPE_MAX_OPERANDS; i++)
        for (int role = 0; role < BENCH_TEXT_ROLES; role++)
            to->place[i][role].area = -1;
    text_reader r = {name, to, "trope_args", (char *)&to->args};
    char *copy = strdup(text);
    const int failed = copy ? read_all(&r, copy) : complain("out of memory");
    free(copy);
    if (failed)
        return RESULT_REFUSED;
    if (to->args.dtype == 0 || to->args.batch < 1 || to->args.tokens < 1)
        return complain("%s: needs dtype, batch and tokens", name);
    return 0;
}

/* ---- extents ---- */

static bench_extent extent_of(const int64_t *size, const int64_t *stride, int count)
{
    bench_extent e = {1, 1};
    for (int d = 0; d < count; d++) {
        if (size[d] <= 1)
            continue;
        e.elements += stride[d] > 0 ? (size[d] - 1) * stride[d] : 0;
        e.distinct *= stride[d] ? (double)size[d] : 1;
    }
    return e;
}

bench_extent bench_text_tensor(const bench_text *t, int operand, int role)
{
    const trope_operand *o = &t->operands[operand];
    const int has_one_head = o->shared_heads && (t->backward ? role != 0 : role == 0);
    const int64_t groups = o->groups ? o->groups : 1;
    const int64_t size[] = {t->args.batch, t->args.tokens, has_one_head && o->shared_heads == TROPE_SHARED_ALL ? 1 : groups,
                            has_one_head ? 1 : o->heads_per_group, o->head_dim};
    const int32_t layout = role == 0 ? o->src_layout : role == 1 ? o->dst_layout : o->forward_src_layout;
    const int64_t *const strides[] = {o->src_stride, o->dst_stride, o->forward_src_stride};
    if (layout == TROPE_STRIDED)
        return extent_of(size, strides[role], TROPE_MAX_DIMS);
    const int64_t elements = size[0] * size[1] * size[2] * size[3] * size[4];
    return (bench_extent){elements, (double)elements};
}

int32_t bench_text_pairs(const bench_text *t)
{
    int32_t widest = 0;
    for (int i = 0; i < t->args.operand_count; i++)
        widest = t->operands[i].rotary_dim / 2 > widest ? t->operands[i].rotary_dim / 2 : widest;
    return widest;
}

int32_t bench_text_columns(const bench_text *t)
{
    return bench_text_pairs(t) * (t->args.angle_columns == TROPE_COLUMNS_PAIR ? 1 : 2);
}

static int64_t count_axes(const bench_text *t)
{
    int64_t axes = t->args.position_axes > t->args.parts ? t->args.position_axes : t->args.parts;
    for (int32_t i = 0; t->args.pair_axis && i < bench_text_pairs(t); i++)
        axes = t->pair_axis[i] >= axes ? t->pair_axis[i] + 1 : axes;
    return axes ? axes : 1;
}

bench_extent bench_text_table(const bench_text *t, int32_t layout, const int64_t *given)
{
    const int64_t columns = bench_text_columns(t), rows = t->args.angle_rows;
    const int64_t size[] = {count_axes(t), t->args.batch, rows, columns};
    const int64_t contiguous[] = {layout == TROPE_TABLE_AXES_BATCH_ROWS ? t->args.batch * rows * columns : 0,
                                  layout == TROPE_TABLE_ROWS ? 0 : rows * columns, columns, 1};
    return extent_of(size, layout == TROPE_TABLE_STRIDED ? given : contiguous, 4);
}

bench_extent bench_text_ids(const bench_text *t)
{
    const trope_args *a = &t->args;
    const int64_t size[] = {a->position_axes ? a->position_axes : 1, a->batch, a->tokens};
    const int64_t contiguous[] = {a->batch * a->tokens, a->ids_layout == TROPE_IDS_TOKENS ? 0 : a->tokens, 1};
    return extent_of(size, a->ids_layout == TROPE_IDS_STRIDED ? a->ids_stride : contiguous, 3);
}

static int64_t heads_of(const trope_operand *o)
{
    return (int64_t)(o->groups ? o->groups : 1) * o->heads_per_group;
}

int64_t bench_text_weights(const bench_text *t, int operand)
{
    const trope_operand *o = &t->operands[operand];
    return o->head_dim * (t->norm[operand].weight_per_head ? heads_of(o) : 1);
}

int64_t bench_text_rstds(const bench_text *t, int operand)
{
    const int is_token = t->norm[operand].scope == TROPE_NORM_TOKEN;
    return t->args.batch * t->args.tokens * (is_token ? 1 : heads_of(&t->operands[operand]));
}

int64_t bench_text_sums(const bench_text *t, int operand)
{
    const trope_norm *n = &t->norm[operand];
    return t->args.batch * t->args.tokens *
           (n->token_sums_use == TROPE_SUMS_READ ? n->heads_of_all_ranks : heads_of(&t->operands[operand]));
}

int bench_text_is_in_place(const bench_text *t, int operand)
{
    const bench_place *place = t->place[operand];
    const trope_operand *o = &t->operands[operand];
    return place[0].area == place[1].area && place[0].offset == place[1].offset && o->src_layout == o->dst_layout &&
           !memcmp(o->src_stride, o->dst_stride, sizeof o->src_stride);
}
