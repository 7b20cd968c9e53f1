/* The device code that the library contains. The build makes the array (sources.cmake). */
#ifndef TROPE_JIT_SOURCES_H
#define TROPE_JIT_SOURCES_H

#include <stddef.h>

typedef struct trope_source {
    const char *name; /* as in #include */
    const char *text; /* ends with a 0, which bytes does not count */
    size_t bytes;
} trope_source;

extern const trope_source trope_sources[];
extern const int trope_source_count;

#endif
