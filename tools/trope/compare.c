#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "command.h"
#include "compare.h"

static double absolute_error(double a, double b)
{
    if (a == b || (isnan(a) && isnan(b)))
        return 0;
    return isnan(a) || isnan(b) ? INFINITY : fabs(a - b);
}

comparison compare_tensors(const safetensor *result, const safetensor *expected, uint64_t ulp)
{
    comparison c = {0};
    for (uint64_t i = 0; i < result->elements; i++) {
        const uint64_t distance = value_ulp(result->type, result->data, expected->data, (int64_t)i);
        if (!distance)
            continue;
        if (!c.differing++)
            c.first = i;
        c.over += distance > ulp;
        c.largest_ulp = distance > c.largest_ulp ? distance : c.largest_ulp;
        c.largest_error = fmax(c.largest_error, absolute_error(value_load(result->type, result->data, (int64_t)i),
                                                               value_load(result->type, expected->data, (int64_t)i)));
    }
    return c;
}

int compare_headers(const safetensors *result, const safetensors *expected)
{
    char have[SAFETENSORS_TEXT], want[SAFETENSORS_TEXT];
    for (int32_t i = 0; i < result->count; i++) {
        const safetensor *a = &result->tensors[i], *b = safetensors_find(expected, a->name);
        if (!b)
            return complain_about(expected->path, a->name, "is missing, but the result has it");
        if (a->type != b->type || a->rank != b->rank || memcmp(a->shape, b->shape, (size_t)a->rank * sizeof *a->shape))
            return complain_about(expected->path, a->name, "%s must have the dtype and shape of the result, %s",
                                  safetensor_describe(b, have), safetensor_describe(a, want));
    }
    return 0;
}

/* [2, 0, 5] of a flat index. */
static const char *index_text(const safetensor *tensor, uint64_t flat, char *text, size_t size)
{
    int64_t index[SAFETENSORS_MAX_RANK];
    for (int32_t i = tensor->rank - 1; i >= 0; i--) {
        index[i] = (int64_t)(flat % (uint64_t)tensor->shape[i]);
        flat /= (uint64_t)tensor->shape[i];
    }
    int used = snprintf(text, size, "[");
    for (int32_t i = 0; i < tensor->rank && used < (int)size; i++)
        used += snprintf(text + used, size - (size_t)used, "%s%" PRId64, i ? ", " : "", index[i]);
    if (used < (int)size)
        snprintf(text + used, size - (size_t)used, "]");
    return text;
}

static void print_row(const safetensor *tensor, const comparison *c)
{
    char ulp[32], first[SAFETENSORS_TEXT] = "-";
    snprintf(ulp, sizeof ulp, c->largest_ulp == VALUE_ULP_INFINITE ? "inf" : "%" PRIu64, c->largest_ulp);
    if (c->differing)
        index_text(tensor, c->first, first, sizeof first);
    printf("%-7s %-5s %12" PRIu64 " %13.6g %10s %12" PRIu64 " %12" PRIu64 "  %s\n", tensor->name,
           value_type_name(tensor->type), tensor->elements, c->largest_error, ulp, c->differing, c->over, first);
}

int compare_files(const safetensors *result, const safetensors *expected, uint64_t ulp)
{
    if (compare_headers(result, expected))
        return RESULT_REFUSED;
    printf("# %-5s %-5s %12s %13s %10s %12s %12s  %s\n", "tensor", "dtype", "elements", "max error", "max ulp", "differing",
           "over", "first differing");
    uint64_t over = 0;
    for (int32_t i = 0; i < result->count; i++) {
        const safetensor *tensor = &result->tensors[i];
        const comparison c = compare_tensors(tensor, safetensors_find(expected, tensor->name), ulp);
        print_row(tensor, &c);
        over += c.over;
    }
    if (!over) {
        printf("# equal within %" PRIu64 " ulp\n", ulp);
        return RESULT_OK;
    }
    printf("# DIFFERENT: %" PRIu64 " elements are more than %" PRIu64 " ulp apart\n", over, ulp);
    return RESULT_DIFFERS;
}
