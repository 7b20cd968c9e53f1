/* Two strided regions share a byte exactly if a sum(stride * index) of the first equals such a sum of the second. This is
 * one linear equation in bounded integers. The search goes from the largest stride down. At each stride, it tries the
 * indices that leave a remainder within reach of the smaller strides. The strides of a tensor, or of a slice of one, are
 * nested. So at most two indices fit at each stride, and the search is a walk down the dimensions. */
#include "core/overlap.h"

#define MAX_TERMS  (2 * TROPE_MAX_DIMS + 1)
#define MAX_STEPS  20000
#define MAX_EXTENT ((int64_t)1 << 60)

typedef struct term {
    int64_t stride;    /* > 0 */
    int64_t low, high; /* the range of its index */
} term;

typedef struct equation {
    term terms[MAX_TERMS];
    int64_t low[MAX_TERMS + 1], high[MAX_TERMS + 1]; /* the range of the sum of terms [k, count) */
    int count;
    int steps;
} equation;

static void add_term(equation *e, int64_t stride, int64_t low, int64_t high)
{
    const term t = stride < 0 ? (term){-stride, -high, -low} : (term){stride, low, high};
    for (int k = 0; k < e->count; k++) {
        if (e->terms[k].stride == t.stride) {
            e->terms[k].low += t.low;
            e->terms[k].high += t.high;
            return;
        }
    }
    int k = e->count++;
    for (; k > 0 && e->terms[k - 1].stride < t.stride; k--)
        e->terms[k] = e->terms[k - 1];
    e->terms[k] = t;
}

static void add_region(equation *e, const trope_region *region, int negative)
{
    for (int d = 0; d < TROPE_MAX_DIMS; d++) {
        const int64_t last = region->size[d] - 1;
        if (last > 0 && region->stride[d] != 0)
            add_term(e, region->stride[d] * region->element_size, negative ? -last : 0, negative ? 0 : last);
    }
}

static void find_reach(equation *e)
{
    e->low[e->count] = e->high[e->count] = 0;
    for (int k = e->count - 1; k >= 0; k--) {
        e->low[k] = e->low[k + 1] + e->terms[k].stride * e->terms[k].low;
        e->high[k] = e->high[k + 1] + e->terms[k].stride * e->terms[k].high;
    }
}

static int64_t floor_divide(int64_t a, int64_t b)
{
    return a / b - (a % b < 0);
}

/* Returns whether terms [k, count) can add up to `target`. With `nonzero`, at least one index of these terms must not be 0.
 * Returns 1 if the search takes too many steps. */
static int solvable(equation *e, int k, int64_t target, int nonzero)
{
    if (k == e->count)
        return target == 0 && !nonzero;
    if (++e->steps > MAX_STEPS)
        return 1;
    const term *t = &e->terms[k];
    int64_t first = -floor_divide(e->high[k + 1] - target, t->stride);
    int64_t last = floor_divide(target - e->low[k + 1], t->stride);
    first = first > t->low ? first : t->low;
    last = last < t->high ? last : t->high;
    for (int64_t v = first; v <= last; v++)
        if (solvable(e, k + 1, target - v * t->stride, nonzero && v == 0))
            return 1;
    return 0;
}

int trope_region_extent(const trope_region *region, int64_t *first, int64_t *last)
{
    int64_t low = 0, high = region->element_size - 1;
    for (int d = 0; d < TROPE_MAX_DIMS; d++) {
        int64_t reach;
        if (__builtin_mul_overflow(region->size[d] - 1, region->stride[d], &reach) ||
            __builtin_mul_overflow(reach, region->element_size, &reach) || reach > MAX_EXTENT || reach < -MAX_EXTENT)
            return 0;
        *(reach < 0 ? &low : &high) += reach;
        if (high > MAX_EXTENT || low < -MAX_EXTENT)
            return 0;
    }
    *first = low;
    *last = high;
    return 1;
}

int trope_overlaps_itself(const trope_region *region)
{
    equation e = {.count = 0};
    for (int d = 0; d < TROPE_MAX_DIMS; d++) {
        const int64_t last = region->size[d] - 1;
        if (last > 0 && region->stride[d] == 0)
            return 1;
        for (int other = 0; other < d; other++) /* add_term would merge equal strides, and hide the overlap */
            if (last > 0 && region->size[other] > 1 &&
                (region->stride[d] == region->stride[other] || region->stride[d] == -region->stride[other]))
                return 1;
        if (last > 0)
            add_term(&e, region->stride[d], -last, last);
    }
    find_reach(&e);
    return solvable(&e, 0, 0, 1);
}

int trope_regions_overlap(const trope_region *a, const trope_region *b)
{
    int64_t a_first, a_last, b_first, b_last;
    if (!trope_region_extent(a, &a_first, &a_last) || !trope_region_extent(b, &b_first, &b_last))
        return 1;
    const int64_t distance = (int64_t)((uintptr_t)b->base - (uintptr_t)a->base);
    if (a_last < b_first + distance || b_last + distance < a_first)
        return 0;
    equation e = {.count = 0};
    add_region(&e, a, 0);
    add_region(&e, b, 1);
    add_term(&e, 1, 1 - b->element_size, a->element_size - 1); /* the bytes inside an element */
    find_reach(&e);
    return solvable(&e, 0, distance, 0);
}
