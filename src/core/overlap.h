/* Which strided tensors share elements. */
#ifndef TROPE_CORE_OVERLAP_H
#define TROPE_CORE_OVERLAP_H

#include <stdint.h>

#include "trope/trope.h"

typedef struct trope_region {
    const char *base;
    int64_t size[TROPE_MAX_DIMS], stride[TROPE_MAX_DIMS]; /* elements */
    int64_t element_size;
} trope_region;

/* First and last byte offset that a region touches. Returns 0 if one is beyond +-2^60. A region must be non-empty. */
int trope_region_extent(const trope_region *region, int64_t *first, int64_t *last);

/* Whether two index tuples name the same element. */
int trope_overlaps_itself(const trope_region *region);

/* Whether two regions share a byte. Exact for tensors and their slices; strides too irregular to decide quickly count as
 * sharing. */
int trope_regions_overlap(const trope_region *a, const trope_region *b);

#endif
