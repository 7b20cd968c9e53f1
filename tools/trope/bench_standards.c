/* Earlier times of copies and moves, as yardsticks for other cases of the same size. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "command.h"

/* Two sizes are the same if their ratio is at most this. */
#define NEAR 1.03
/* Number of ways that are timed beside a case whose size has been timed before. */
#define BEST_WAYS 2

static int is_near(const bench_standard *s, const device_runs *runs, double bytes)
{
    return !memcmp(&s->runs, runs, sizeof *runs) && bytes <= NEAR * s->bytes && s->bytes <= NEAR * bytes;
}

int bench_find_standard(bench_standards *standards, const device_runs *runs, double bytes)
{
    for (int i = 0; i < standards->count; i++)
        if (is_near(&standards->all[i], runs, bytes))
            return i;
    bench_standard *more = realloc(standards->all, ((size_t)standards->count + 1) * sizeof *more);
    if (!more) {
        complain("out of memory");
        return -1;
    }
    standards->all = more;
    more[standards->count] = (bench_standard){.runs = *runs, .bytes = bytes};
    return standards->count++;
}

/* Returns the fastest way, except `excluded`. */
static int best_but(const bench_standard *standard, int count, int excluded)
{
    int best = -1;
    for (int way = 0; way < count; way++)
        if (way != excluded && (best < 0 || standard->seconds[way] < standard->seconds[best]))
            best = way;
    return best;
}

int bench_choose_ways(const bench_standard *standard, int count, int *ways)
{
    if (count > BEST_WAYS && standard->seconds[0] > 0) {
        ways[0] = best_but(standard, count, -1);
        ways[1] = best_but(standard, count, ways[0]);
        return BEST_WAYS;
    }
    for (int way = 0; way < count; way++)
        ways[way] = way;
    return count;
}

void bench_keep_time(bench_standard *standard, int way, double bytes, double seconds)
{
    const double scaled = seconds * standard->bytes / bytes;
    if (!(standard->seconds[way] > 0 && standard->seconds[way] <= scaled))
        standard->seconds[way] = scaled;
}

bench_yardstick bench_best_way(const bench_standard *standard, const char *const *names, int count, double bytes)
{
    const int best = best_but(standard, count, -1);
    return (bench_yardstick){names[best], standard->seconds[best] * bytes / standard->bytes};
}
