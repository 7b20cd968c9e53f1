#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "command.h"
#include "compare.h"
#include "parallel.h"

/* Two NaN are equal, and so are 0 and -0. A NaN beside a number differs by infinitely much. */
typedef struct comparison {
    double largest_error; /* absolute, in double */
    uint64_t largest_ulp; /* VALUE_ULP_INFINITE for a NaN beside a number */
    uint64_t differing;   /* elements that are not equal */
    uint64_t over;        /* elements that are more ulp apart than allowed */
    uint64_t first;       /* the first differing element, UINT64_MAX if there is none */
    uint64_t both_nan;    /* elements that are NaN here and there */
    uint64_t nan[2];      /* elements that are NaN only here, only there */
    uint64_t infinite[2]; /* elements that are infinite only here, only there, beside a number */
} comparison;

static double absolute_error(double a, double b)
{
    if (a == b || (isnan(a) && isnan(b)))
        return 0;
    return isnan(a) || isnan(b) ? INFINITY : fabs(a - b);
}

static void count_special(double here, double there, comparison *c)
{
    if (isnan(here) || isnan(there)) {
        c->both_nan += isnan(here) && isnan(there);
        c->nan[0] += isnan(here) && !isnan(there);
        c->nan[1] += isnan(there) && !isnan(here);
        return;
    }
    c->infinite[0] += isinf(here) && !isinf(there);
    c->infinite[1] += isinf(there) && !isinf(here);
}

/* Of elements begin to end. */
static comparison compare_range(const safetensor *result, const safetensor *expected, uint64_t ulp, uint64_t begin,
                                uint64_t end)
{
    comparison c = {.first = UINT64_MAX};
    for (uint64_t i = begin; i < end; i++) {
        const uint64_t distance = value_ulp(result->type, result->data, expected->data, (int64_t)i);
        if (!distance) {
            c.both_nan += (uint64_t)value_is_nan(result->type, result->data, (int64_t)i);
            continue;
        }
        const double here = value_load(result->type, result->data, (int64_t)i);
        const double there = value_load(result->type, expected->data, (int64_t)i);
        if (!c.differing++)
            c.first = i;
        c.over += distance > ulp;
        c.largest_ulp = distance > c.largest_ulp ? distance : c.largest_ulp;
        c.largest_error = fmax(c.largest_error, absolute_error(here, there));
        count_special(here, there, &c);
    }
    return c;
}

static void add(comparison *total, const comparison *part)
{
    total->largest_error = fmax(total->largest_error, part->largest_error);
    total->largest_ulp = part->largest_ulp > total->largest_ulp ? part->largest_ulp : total->largest_ulp;
    total->first = part->first < total->first ? part->first : total->first;
    total->differing += part->differing;
    total->over += part->over;
    total->both_nan += part->both_nan;
    for (int side = 0; side < 2; side++) {
        total->nan[side] += part->nan[side];
        total->infinite[side] += part->infinite[side];
    }
}

/* One comparison, shared by threads. */
typedef struct compare_job {
    const safetensor *result, *expected;
    uint64_t ulp;
    pthread_mutex_t lock; /* of total */
    comparison total;
} compare_job;

static void compare_part(void *context, size_t begin, size_t end)
{
    compare_job *job = context;
    const size_t size = (size_t)value_size(job->result->type);
    const comparison part = compare_range(job->result, job->expected, job->ulp, begin / size, end / size);
    pthread_mutex_lock(&job->lock);
    add(&job->total, &part);
    pthread_mutex_unlock(&job->lock);
}

/* Of two tensors of the same type and shape. */
static comparison compare_tensors(const safetensor *result, const safetensor *expected, uint64_t ulp, int32_t threads)
{
    const size_t bytes = (size_t)safetensor_bytes(result);
    compare_job job = {result, expected, ulp, PTHREAD_MUTEX_INITIALIZER, {.first = UINT64_MAX}};
    parallel_bytes(compare_part, &job, bytes, parallel_useful_threads(parallel_threads(threads), bytes));
    pthread_mutex_destroy(&job.lock);
    return job.total;
}

int compare_headers(const safetensor *result, const safetensors *expected)
{
    char have[SAFETENSORS_TEXT], want[SAFETENSORS_TEXT];
    const safetensor *b = safetensors_find(expected, result->name);
    if (!b)
        return complain_about(expected->path, result->name, "is missing, but the result has it");
    if (result->type != b->type || result->rank != b->rank ||
        memcmp(result->shape, b->shape, (size_t)b->rank * sizeof *b->shape))
        return complain_about(expected->path, result->name, "%s must have the dtype and shape of the result, %s",
                              safetensor_describe(b, have), safetensor_describe(result, want));
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

static void say(const safetensor *tensor, uint64_t count, const char *what)
{
    if (count)
        printf("# %s: %" PRIu64 " of %" PRIu64 " elements are %s\n", tensor->name, count, tensor->elements, what);
}

void compare_pair(const safetensor *result, const safetensor *expected, uint64_t ulp, int32_t threads, comparisons *found)
{
    if (!found->tensors++)
        printf("# %-5s %-5s %12s %13s %10s %12s %12s  %s\n", "tensor", "dtype", "elements", "max error", "max ulp",
               "differing", "over", "first differing");
    const comparison c = compare_tensors(result, expected, ulp, threads);
    print_row(result, &c);
    say(result, c.both_nan, "NaN in both");
    say(result, c.nan[0], "NaN in the result only");
    say(result, c.nan[1], "NaN in the expected file only");
    say(result, c.infinite[0], "infinite in the result only: beyond its dtype, or computed from infinity");
    say(result, c.infinite[1], "infinite in the expected file only: beyond its dtype, or computed from infinity");
    found->over += c.over;
    found->all_nan += result->elements && c.both_nan == result->elements;
}

int compare_verdict(const comparisons *found, uint64_t ulp)
{
    if (found->over) {
        printf("# DIFFERENT: %" PRIu64 " elements are more than %" PRIu64 " ulp apart\n", found->over, ulp);
        return RESULT_DIFFERS;
    }
    if (found->all_nan)
        return complain("--expect: %d of %d tensors hold nothing but NaN, here and there, so that nothing is compared",
                        found->all_nan, found->tensors);
    printf("# equal within %" PRIu64 " ulp\n", ulp);
    return RESULT_OK;
}
