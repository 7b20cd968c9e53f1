#include "api/args.h"

#include <stddef.h>
#include <string.h>

#include "core/error.h"
#include "core/require.h"

typedef unsigned long long ull;

#define MOST_BYTES ((uint64_t)1 << 20) /* a larger struct_size is refused as a mistake */

/* `known` is the size of the struct in this version. `older` is the size in an older version that is also accepted. It is
 * `known` if there is none. */
static trope_status check_struct_size(const char *function, const char *name, uint64_t given, size_t known, size_t older)
{
    REQUIRE((given >= known && given <= MOST_BYTES) || given == older, TROPE_ERROR_ARGUMENT,
            "%s (%llu) must be the sizeof of the struct, which has at least %zu bytes in this version", name, (ull)given,
            known);
    return TROPE_OK;
}

/* A newer caller's struct may be larger. All its bytes after the ones that this version knows must be 0. `size` holds the
 * known and the given size. */
static trope_status check_tail(const char *function, const char *name, const void *from, const uint64_t size[2])
{
    for (uint64_t i = size[0]; i < size[1]; i++)
        REQUIRE(!((const unsigned char *)from)[i], TROPE_ERROR_ARGUMENT,
                "%s (%llu) is more than the %llu bytes that this version knows, and byte %llu is not 0", name, (ull)size[1],
                (ull)size[0], (ull)i);
    return TROPE_OK;
}

/* Copies a caller's struct. Fields that an older caller's struct lacks become 0. `size_name` is the name of the struct's
 * first member in messages. `sizes` holds the known and the older size. */
static trope_status copy_struct(const char *function, const char *size_name, void *to, const size_t sizes[2],
                                const void *from)
{
    const size_t known = sizes[0], older = sizes[1];
    uint64_t from_size;
    memcpy(&from_size, from, sizeof from_size);
    CHECK(check_struct_size(function, size_name, from_size, known, older));
    CHECK(check_tail(function, size_name, from, (const uint64_t[]){known, from_size}));
    memset(to, 0, known);
    memcpy(to, from, from_size < known ? from_size : known);
    return TROPE_OK;
}

trope_status trope_copy_struct(const char *function, const char *name, void *to, size_t size, const void *from)
{
    REQUIRE(from, TROPE_ERROR_NULL, "%s is NULL", name);
    REQUIRE((uintptr_t)from % sizeof(uint64_t) == 0, TROPE_ERROR_ARGUMENT, "%s (%p) must be aligned to 8 bytes", name,
            from);
    return copy_struct(function, "struct_size", to, (const size_t[]){size, size}, from);
}

/* Callers that were compiled against version 0.2 pass args that end before the field `norms`. */
static trope_status copy_args(const char *function, trope_args *to, const trope_args *from)
{
    REQUIRE(from, TROPE_ERROR_NULL, "%s is NULL", "args");
    return copy_struct(function, "struct_size", to, (const size_t[]){sizeof *to, offsetof(trope_args, norms)}, from);
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
    CHECK(check_struct_size(function, "operand_size", a->operand_size, sizeof(trope_operand), sizeof(trope_operand)));
    for (int i = 0; i < a->operand_count; i++) {
        const char *from = (const char *)a->operands + (uint64_t)i * a->operand_size;
        CHECK(check_tail(function, "operand_size", from, (const uint64_t[]){sizeof(trope_operand), a->operand_size}));
        memcpy(&call->operands[i], from, sizeof(trope_operand));
        replace_zero(&call->operands[i].groups, 1);
    }
    return TROPE_OK;
}

#define SIZE_NAME(i)                "norms[" #i "].struct_size"
#define FOUR_SIZE_NAMES(a, b, c, d) SIZE_NAME(a), SIZE_NAME(b), SIZE_NAME(c), SIZE_NAME(d)
static const char *const norm_size_names[TROPE_MAX_OPERANDS] = {FOUR_SIZE_NAMES(0, 1, 2, 3), FOUR_SIZE_NAMES(4, 5, 6, 7),
                                                                FOUR_SIZE_NAMES(8, 9, 10, 11),
                                                                FOUR_SIZE_NAMES(12, 13, 14, 15)};

/* Copies the norms of operands that have one. */
static trope_status copy_norms(const char *function, trope_call *call)
{
    const trope_norm *const *norms = call->args.norms;
    REQUIRE((uintptr_t)norms % _Alignof(const trope_norm *) == 0, TROPE_ERROR_ARGUMENT,
            "norms (%p) must be aligned to %zu bytes", (const void *)norms, _Alignof(const trope_norm *));
    call->callers_norms = norms;
    call->args.norms = NULL;
    for (int i = 0; norms && i < call->args.operand_count; i++) {
        call->norms[i] = NULL;
        if (!norms[i])
            continue;
        const size_t size = sizeof call->norm[i];
        CHECK(copy_struct(function, norm_size_names[i], &call->norm[i], (const size_t[]){size, size}, norms[i]));
        call->norms[i] = &call->norm[i];
        call->args.norms = call->norms;
    }
    return TROPE_OK;
}

trope_status trope_copy_call(const char *function, const trope_args *callers, trope_call *call)
{
    CHECK(copy_args(function, &call->args, callers));
    CHECK(copy_operands(function, call));
    CHECK(copy_norms(function, call));
    fill_defaults(&call->args);
    call->callers = callers;
    call->callers_operands = call->args.operands;
    call->args.operands = call->operands;
    return TROPE_OK;
}

trope_status trope_copy_positions(const char *function, const trope_args *callers, trope_args *args)
{
    CHECK(copy_args(function, args, callers));
    args->operands = NULL;
    args->operand_count = 0;
    return TROPE_OK;
}
