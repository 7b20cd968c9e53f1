/* What caller.c hands over: it is compiled against the header of 0.2.0 (v0.2/trope/trope.h) and against this version's. */
#ifndef TESTS_API_CALLER_H
#define TESTS_API_CALLER_H

#include <stddef.h>

enum { CALLER_BYTES = 1 << 16 };

typedef struct caller_results {
    int minor_version; /* of the header */
    size_t args_size;
    size_t count; /* of bytes: every status, and all that the calls wrote */
    unsigned char bytes[CALLER_BYTES];
    int failures;
    char failure[256]; /* the first one */
} caller_results;

/* Makes the calls. The results begin as zeros. */
void caller_of_0_2(caller_results *results);
void caller_of_today(caller_results *results);

#endif
