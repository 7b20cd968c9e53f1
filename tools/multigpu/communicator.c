#include "communicator.h"

#include <stdlib.h>
#include <string.h>

#include "trope/trope.h"

static void add(void *sum, const void *values, int64_t count, int32_t dtype)
{
    for (int64_t i = 0; i < count && dtype == TROPE_F64; i++)
        ((double *)sum)[i] += ((const double *)values)[i];
    for (int64_t i = 0; i < count && dtype == TROPE_F32; i++)
        ((float *)sum)[i] += ((const float *)values)[i];
}

int communicator_sum_by_gather(communicator *c, void *values, int64_t count, int32_t dtype)
{
    const size_t bytes = (size_t)count * (dtype == TROPE_F64 ? sizeof(double) : sizeof(float));
    char *all = malloc(bytes * (size_t)c->size + 1);
    if (!all)
        return watch_fail(c->watch, WATCH_CAUSE, "rank %d is out of memory", c->rank);
    const int failed = c->all_gather(c, values, all, bytes);
    memset(values, 0, bytes);
    for (int32_t r = 0; r < c->size && !failed; r++)
        add(values, all + (size_t)r * bytes, count, dtype);
    free(all);
    return failed;
}

int communicator_ring_by_gather(communicator *c, const ring_step *step)
{
    char *all = malloc(step->bytes * (size_t)c->size + 1);
    if (!all)
        return watch_fail(c->watch, WATCH_CAUSE, "rank %d is out of memory", c->rank);
    const int failed = c->all_gather(c, step->send, all, step->bytes);
    if (!failed)
        memcpy(step->receive, all + (size_t)step->from * step->bytes, step->bytes);
    free(all);
    return failed;
}

int communicator_barrier(communicator *c)
{
    char mine = 0, *all = malloc((size_t)c->size);
    if (!all)
        return watch_fail(c->watch, WATCH_CAUSE, "rank %d is out of memory", c->rank);
    const int failed = c->all_gather(c, &mine, all, 1);
    free(all);
    return failed;
}
