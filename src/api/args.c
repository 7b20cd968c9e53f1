#include "api/args.h"

#include <string.h>

#include "core/error.h"

trope_status trope_copy_struct(const char *function, void *to, size_t size, const void *from)
{
    if (!from)
        return trope_fail(TROPE_ERROR_NULL, "%s: args is NULL", function);
    uint64_t from_size;
    memcpy(&from_size, from, sizeof from_size);
    if (from_size < sizeof from_size || from_size > (1u << 20))
        return trope_fail(TROPE_ERROR_ARGUMENT, "%s: struct_size (%llu) must be the sizeof of the struct that is passed",
                          function, (unsigned long long)from_size);
    for (uint64_t i = size; i < from_size; i++)
        if (((const unsigned char *)from)[i])
            return trope_fail(
                TROPE_ERROR_ARGUMENT,
                "%s: struct_size (%llu) is more than the %zu bytes that this version knows, and byte %llu is not 0",
                function, (unsigned long long)from_size, size, (unsigned long long)i);
    memset(to, 0, size);
    memcpy(to, from, from_size < size ? from_size : size);
    return TROPE_OK;
}

static void replace_zero(int32_t *field, int32_t value)
{
    if (*field == 0)
        *field = value;
}

void trope_fill_defaults(trope_args *args)
{
    for (int i = 0; i < TROPE_MAX_OPERANDS; i++)
        replace_zero(&args->operands[i].groups, 1);
    replace_zero(&args->pairing, TROPE_PAIRING_HALF);
    replace_zero(&args->pairing_out, args->pairing);
    replace_zero(&args->windows, 1);
    replace_zero(&args->position_axes, 1);
    replace_zero(&args->cp_size, 1);
    if (args->mscale == 0)
        args->mscale = 1;
    if (args->angle_row_stride == 0)
        args->angle_row_stride = args->angle_cols;
    if (args->position_token_stride == 0)
        args->position_token_stride = 1;
}
