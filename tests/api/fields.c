/* trope_sizeof and trope_offsetof return the sizes and offsets of all public structs and fields. Callers without a compiler
 * check their own declarations against them. */
#include <string.h>

#include "api/fields.h"
#include "support/check.h"

/* Each field begins where the previous one ends. So this test knows every field, and no struct has padding bytes that a
 * caller would have to set to 0. */
static void check_struct(const char *name, size_t size, const field *fields, size_t count)
{
    size_t end = 0;
    CHECK_MESSAGE(trope_sizeof(name) == size, "%s has %zu bytes, not %zu", name, size, trope_sizeof(name));
    for (size_t i = 0; i < count; i++) {
        const int64_t offset = trope_offsetof(name, fields[i].name);
        CHECK_MESSAGE(offset == (int64_t)fields[i].offset, "%s.%s is at %zu, not %lld", name, fields[i].name,
                      fields[i].offset, (long long)offset);
        CHECK_MESSAGE(fields[i].offset == end, "%s has bytes before %s that this test does not know", name, fields[i].name);
        end = fields[i].offset + fields[i].size;
    }
    CHECK_MESSAGE(end == size, "%s has bytes after %s that this test does not know", name, fields[count - 1].name);
}

#define CHECK_STRUCT(type, fields) check_struct(#type, sizeof(type), fields, FIELD_COUNT(fields))

static void unknown_names(void)
{
    CHECK(trope_sizeof("trope_arg") == 0);
    CHECK(trope_sizeof("trope_args ") == 0);
    CHECK(trope_sizeof("") == 0);
    CHECK(trope_sizeof(NULL) == 0);
    CHECK(trope_offsetof("trope_args", "nothing") == -1);
    CHECK(trope_offsetof("trope_args", "src") == -1); /* a field of trope_operand */
    CHECK(trope_offsetof("trope_args", "operand") == -1);
    CHECK(trope_offsetof("trope_operand", "src_stride[1]") == -1);
    CHECK(trope_offsetof("trope_args", "") == -1);
    CHECK(trope_offsetof("trope_args", NULL) == -1);
    CHECK(trope_offsetof("trope_arg", "struct_size") == -1);
    CHECK(trope_offsetof(NULL, "struct_size") == -1);
}

int main(void)
{
    CHECK_STRUCT(trope_operand, operand_fields);
    CHECK_STRUCT(trope_args, args_fields);
    CHECK_STRUCT(trope_norm, norm_fields);
    CHECK_STRUCT(trope_qkv, qkv_fields);
    CHECK_STRUCT(trope_frequency_args, frequency_fields);
    unknown_names();
    return check_result();
}
