#include "seconds.h"

#include <stdlib.h>
#include <time.h>

double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

void seconds_sort(double *seconds, int count)
{
    qsort(seconds, (size_t)count, sizeof *seconds, by_value);
}

double seconds_median(double *seconds, int count)
{
    seconds_sort(seconds, count);
    return (seconds[(count - 1) / 2] + seconds[count / 2]) / 2;
}
