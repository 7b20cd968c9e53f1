/* The results of caller.c, which is compiled with the header of 0.2.0 (v0.2/trope/trope.h) and with the current header. */
#ifndef TESTS_API_CALLER_H
#define TESTS_API_CALLER_H

#include <stddef.h>

enum { CALLER_BYTES = 1 << 16 };

typedef struct caller_results {
    int minor_version; /* the minor version of the header */
    size_t args_size;
    size_t count; /* bytes in use: statuses, kernel names, workspace sizes, and bytes that the calls changed */
    unsigned char bytes[CALLER_BYTES];
    int failures;
    char failure[256]; /* the message of the first failure */
} caller_results;

/* Makes the calls. The caller passes results that are filled with 0. */
void caller_of_0_2(caller_results *results);
void caller_of_today(caller_results *results);

#endif
