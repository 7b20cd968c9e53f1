/* Structs of older (smaller) and newer (larger) callers. Each is copied to the end of an allocation of exactly its size, so
 * that a sanitizer sees any byte read beyond it. */
#include <stddef.h>
#include <stdlib.h>

#include "api/valid_call.h"
#include "support/check.h"

static trope_status forward_with_size(const trope_args *args, size_t size, size_t nonzero_byte)
{
    const size_t known = size < sizeof *args ? size : sizeof *args;
    unsigned char *copy = calloc(1, size);
    memcpy(copy, args, known);
    const uint64_t struct_size = size;
    memcpy(copy, &struct_size, sizeof struct_size);
    if (nonzero_byte)
        copy[nonzero_byte] = 1;
    const trope_status status = trope_forward((const trope_args *)(const void *)copy);
    free(copy);
    return status;
}

/* The result of the whole struct, to compare the others with. */
static double expected[Q_COUNT + 16];

static void fill_inputs(void)
{
    float *x = (float *)in.q, *angle = (float *)in.freqs;
    for (int i = 0; i < Q_COUNT; i++)
        x[i] = (float)(i % 37) - 18;
    for (int i = 0; i < TOKENS * PAIRS; i++)
        angle[i] = (float)i;
}

static void older_callers_work(void)
{
    const size_t fields[] = {offsetof(trope_args, workspace_size), offsetof(trope_args, d_freqs),
                             offsetof(trope_args, status),         offsetof(trope_args, cp_size),
                             offsetof(trope_args, cu_seqlens),     offsetof(trope_args, out_of_range)};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        const trope_args *args = dense();
        fill_inputs();
        CHECK_MESSAGE(forward_with_size(args, fields[i], 0) == TROPE_OK, "struct_size %zu: %s", fields[i],
                      trope_last_error());
        CHECK_MESSAGE(memcmp(out.q, expected, sizeof out.q) == 0, "struct_size %zu: another result", fields[i]);
    }
}

static void fields_beyond_the_size_are_not_read(void)
{
    trope_args *args = dense();
    fill_inputs();
    args->struct_size = offsetof(trope_args, cp_size);
    args->cp_size = -7;
    args->reserved = 3;
    CHECK_MESSAGE(trope_forward(args) == TROPE_OK, "%s", trope_last_error());
    CHECK(memcmp(out.q, expected, sizeof out.q) == 0);
}

static void newer_callers_work_when_the_tail_is_zero(void)
{
    const size_t sizes[] = {sizeof(trope_args) + 1, sizeof(trope_args) + 8, sizeof(trope_args) + 4096};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const trope_args *args = dense();
        fill_inputs();
        CHECK_MESSAGE(forward_with_size(args, sizes[i], 0) == TROPE_OK, "struct_size %zu: %s", sizes[i],
                      trope_last_error());
        CHECK(memcmp(out.q, expected, sizeof out.q) == 0);
        args = dense();
        CHECK(forward_with_size(args, sizes[i], sizes[i] - 1) == TROPE_ERROR_ARGUMENT);
        CHECK_MESSAGE(strstr(trope_last_error(), "struct_size"), "%s", trope_last_error());
        CHECK(outputs_are_untouched());
    }
}

static void frequency_args(void)
{
    struct {
        trope_frequency_args known;
        uint64_t newer;
    } args = {.known = {.struct_size = sizeof args, .rotary_dim = 8}};
    double inv_freq[4], older[4], mscale;
    CHECK(trope_frequencies(&args.known, inv_freq, &mscale) == TROPE_OK);
    args.known.struct_size = offsetof(trope_frequency_args, factor);
    args.known.factor = -1;
    CHECK(trope_frequencies(&args.known, older, &mscale) == TROPE_OK);
    CHECK(memcmp(inv_freq, older, sizeof older) == 0);
    args.known.factor = 0;
    args.known.struct_size = sizeof args;
    args.newer = 1;
    CHECK(trope_frequencies(&args.known, older, &mscale) == TROPE_ERROR_ARGUMENT);
    CHECK_MESSAGE(strstr(trope_last_error(), "trope_frequencies: struct_size"), "%s", trope_last_error());
}

static void sizes_by_name(void)
{
    CHECK(trope_sizeof("trope_args") == sizeof(trope_args));
    CHECK(trope_sizeof("trope_operand") == sizeof(trope_operand));
    CHECK(trope_sizeof("trope_frequency_args") == sizeof(trope_frequency_args));
    CHECK(trope_sizeof("trope_arg") == 0);
    CHECK(trope_sizeof("") == 0);
    CHECK(trope_sizeof(NULL) == 0);
}

int main(void)
{
    const trope_args *args = dense();
    fill_inputs();
    CHECK_MESSAGE(trope_forward(args) == TROPE_OK, "%s", trope_last_error());
    memcpy(expected, out.q, sizeof expected);
    older_callers_work();
    fields_beyond_the_size_are_not_read();
    newer_callers_work_when_the_tail_is_zero();
    frequency_args();
    sizes_by_name();
    return check_result();
}
