/* The largest of many errors, and the argument where it occurred. */
#ifndef TESTS_NUMERICS_WORST_H
#define TESTS_NUMERICS_WORST_H

#include <math.h>

typedef struct worst {
    double error;
    double at;
} worst;

static inline void worst_add(worst *w, double error, double at)
{
    if (error > w->error || isnan(error)) {
        w->error = error;
        w->at = at;
    }
}

static inline void worst_merge(worst *into, worst from)
{
    worst_add(into, from.error, from.at);
}

#endif
