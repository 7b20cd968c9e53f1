/* The two elements of each pair. No other file knows the pairings. Elements are numbered from the start of the rotary
 * window. Pairs are numbered through all parts of the window. If a table has one column for each element, a column has the
 * number of its element. */
#ifndef TROPE_CORE_PAIRS_H
#define TROPE_CORE_PAIRS_H

#include <stdint.h>

#include "core/host_device.h"

/* The two elements of pair i, in a part with `pairs` pairs. */
TROPE_HD int32_t trope_first_in_part(int32_t interleaved, int32_t i)
{
    return interleaved ? 2 * i : i;
}

TROPE_HD int32_t trope_second_in_part(int32_t interleaved, int32_t pairs, int32_t i)
{
    return interleaved ? 2 * i + 1 : i + pairs;
}

/* The two elements of a pair, in a window that has `pairs` pairs in all, divided into `parts` parts. */
TROPE_HD int32_t trope_first_of_pair(int32_t interleaved, int32_t parts, int32_t pairs, int32_t pair)
{
    const int32_t per_part = pairs / parts;
    return interleaved ? 2 * pair : pair + pair / per_part * per_part;
}

TROPE_HD int32_t trope_second_of_pair(int32_t interleaved, int32_t parts, int32_t pairs, int32_t pair)
{
    return trope_first_of_pair(interleaved, parts, pairs, pair) + (interleaved ? 1 : pairs / parts);
}

#endif
