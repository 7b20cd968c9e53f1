/* What the parity tests share: running a call and comparing bits. */
#ifndef TESTS_PARITY_PARITY_H
#define TESTS_PARITY_PARITY_H

#include "support/check.h"
#include "support/config.h"

/* Runs one direction and checks that it was accepted. */
void run_call(const trope_args *args, int backward);

/* All bytes that a config's calls may have written, to be freed. */
unsigned char *snapshot(const config *c);

/* Whether the bytes are those of a snapshot; prints where they first differ. */
int is_snapshot(const config *c, const unsigned char *before);

/* Whether the destinations of two calls in one direction hold the same bits, element by element, wherever those are. */
int same_elements(const trope_args *a, const trope_args *b, int backward);

/* Runs a check on the config of a seed, forward and backward. Infinities, NaNs and subnormals are among the elements
 * of every second one, if `specials` says so. */
typedef void (*parity_check)(config *c, int backward);
void run_directions(uint64_t seed, const uint8_t (*fixed)[2], int count, int specials, parity_check check);

/* Whether two calls of one direction write the same bytes. */
int same_bytes(config *c, call *first, call *second, int backward);

/* Counts a check; prints what reproduces a failure. */
static inline void check_parity(const config *c, int holds, const char *what)
{
    char description[2048];
    config_describe(c, description, sizeof description);
    CHECK_MESSAGE(holds, "%s: the bits differ; --seed 0x%llx --count 1\n    %s", what, (unsigned long long)c->seed,
                  description);
}

#endif
