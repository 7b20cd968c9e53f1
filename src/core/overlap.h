/* Finds out whether strided tensors share elements. */
#ifndef TROPE_CORE_OVERLAP_H
#define TROPE_CORE_OVERLAP_H

#include <stdint.h>

#include "trope/trope.h"

typedef struct trope_region {
    const char *base;
    int64_t size[TROPE_MAX_DIMS], stride[TROPE_MAX_DIMS]; /* strides count elements */
    int64_t element_size;
} trope_region;

/* Finds the first and the last byte offset of a region, which must not be empty. Returns 0 if one of them is beyond
 * +-2^60. */
int trope_region_extent(const trope_region *region, int64_t *first, int64_t *last);

/* Returns whether two index tuples refer to the same element. */
int trope_overlaps_itself(const trope_region *region);

/* Returns whether two regions share a byte. The answer is exact for tensors and their slices. It is 1 if the strides are
 * too irregular to decide quickly. */
int trope_regions_overlap(const trope_region *a, const trope_region *b);

#endif
