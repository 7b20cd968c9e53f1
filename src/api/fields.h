/* What the library knows about the fields of its public structs. */
#ifndef TROPE_API_FIELDS_H
#define TROPE_API_FIELDS_H

#include "trope/trope.h"

/* How the text of a call shows a field (call_text.h). */
typedef enum trope_field_kind {
    TROPE_FIELD_HIDDEN, /* it is not shown: sizes, reserved fields, the device, scratch memory */
    TROPE_FIELD_INT32,
    TROPE_FIELD_INT64,
    TROPE_FIELD_DOUBLE,
    TROPE_FIELD_STRIDES, /* int64_t [count] */
    TROPE_FIELD_ARRAY,   /* a pointer, of which only the presence is shown */
    TROPE_FIELD_TENSOR,  /* a pointer to src, dst or forward_src */
    TROPE_FIELD_AXES     /* pair_axis */
} trope_field_kind;

typedef struct trope_field {
    const char *name;
    size_t offset;
    trope_field_kind kind;
    int32_t count;
    int32_t absent;           /* the value of a field that is not shown */
    const char *const *words; /* names of the values 1, 2, ..., then NULL; NULL = numbers */
} trope_field;

typedef struct trope_struct {
    const char *name;
    size_t size;
    const trope_field *fields; /* in the order of the header; the last one has no name */
} trope_struct;

/* Both return NULL for an unknown name. */
const trope_struct *trope_find_struct(const char *name);
const trope_field *trope_find_field(const trope_struct *of, const char *name);

#endif
