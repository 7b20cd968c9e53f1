#include "api/args.h"

#include <string.h>

#include "core/error.h"
#include "core/require.h"

typedef unsigned long long ull;

#define MOST_BYTES ((uint64_t)1 << 20) /* of a struct: more is not a size */

static trope_status check_struct_size(const char *function, const char *name, uint64_t given, size_t known)
{
    REQUIRE(given >= known && given <= MOST_BYTES, TROPE_ERROR_ARGUMENT,
            "%s (%llu) must be the sizeof of the struct that is passed, at least the %zu bytes of this version", name,
            (ull)given, known);
    return TROPE_OK;
}

/* What a newer caller's struct has more must be 0. */
static trope_status check_tail(const char *function, const char *name, const void *from, const uint64_t size[2])
{
    for (uint64_t i = size[0]; i < size[1]; i++)
        REQUIRE(!((const unsigned char *)from)[i], TROPE_ERROR_ARGUMENT,
                "%s (%llu) is more than the %llu bytes that this version knows, and byte %llu is not 0", name, (ull)size[1],
                (ull)size[0], (ull)i);
    return TROPE_OK;
}

trope_status trope_copy_struct(const char *function, const char *name, void *to, size_t size, const void *from)
{
    uint64_t from_size;
    REQUIRE(from, TROPE_ERROR_NULL, "%s is NULL", name);
    memcpy(&from_size, from, sizeof from_size);
    CHECK(check_struct_size(function, "struct_size", from_size, size));
    CHECK(check_tail(function, "struct_size", from, (const uint64_t[]){size, from_size}));
    memcpy(to, from, size);
    return TROPE_OK;
}

static void replace_zero(int32_t *field, int32_t value)
{
    if (*field == 0)
        *field = value;
}

static void fill_defaults(trope_args *a)
{
    replace_zero(&a->pairing_out, a->pairing);
    replace_zero(&a->parts, 1);
    if (a->mscale == 0)
        a->mscale = 1;
}

static trope_status copy_operands(const char *function, trope_call *call)
{
    const trope_args *a = &call->args;
    REQUIRE(a->operand_count >= 1 && a->operand_count <= TROPE_MAX_OPERANDS, TROPE_ERROR_ARGUMENT,
            "operand_count (%d) must be 1 to %d", a->operand_count, TROPE_MAX_OPERANDS);
    REQUIRE(a->operands, TROPE_ERROR_NULL, "operands is NULL and operand_count is %d", a->operand_count);
    CHECK(check_struct_size(function, "operand_size", a->operand_size, sizeof(trope_operand)));
    for (int i = 0; i < a->operand_count; i++) {
        const char *from = (const char *)a->operands + (uint64_t)i * a->operand_size;
        CHECK(check_tail(function, "operand_size", from, (const uint64_t[]){sizeof(trope_operand), a->operand_size}));
        memcpy(&call->operands[i], from, sizeof(trope_operand));
        replace_zero(&call->operands[i].groups, 1);
    }
    return TROPE_OK;
}

trope_status trope_copy_call(const char *function, const trope_args *callers, trope_call *call)
{
    CHECK(trope_copy_struct(function, "args", &call->args, sizeof call->args, callers));
    CHECK(copy_operands(function, call));
    fill_defaults(&call->args);
    call->callers = callers;
    call->callers_operands = call->args.operands;
    call->args.operands = call->operands;
    return TROPE_OK;
}

trope_status trope_copy_positions(const char *function, const trope_args *callers, trope_args *args)
{
    CHECK(trope_copy_struct(function, "args", args, sizeof *args, callers));
    args->operands = NULL;
    args->operand_count = 0;
    return TROPE_OK;
}
