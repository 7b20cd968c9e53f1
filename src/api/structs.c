/* Sizes and offsets of the public structs, for callers without a C compiler, which declare the structs themselves. */
#include "api/fields.h"

size_t trope_sizeof(const char *struct_name)
{
    const trope_struct *found = trope_find_struct(struct_name);
    return found ? found->size : 0;
}

int64_t trope_offsetof(const char *struct_name, const char *field)
{
    const trope_struct *found = trope_find_struct(struct_name);
    const trope_field *f = found && field ? trope_find_field(found, field) : NULL;
    return f ? (int64_t)f->offset : -1;
}
