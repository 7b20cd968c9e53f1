/* Helpers of the parity tests: running a call and comparing bits. */
#ifndef TESTS_PARITY_PARITY_H
#define TESTS_PARITY_PARITY_H

#include "support/check.h"
#include "support/config.h"

/* Runs a forward or backward call. Ends the program if the call fails. */
void run_call(const trope_args *args, int backward);

/* Returns a copy of all buffers of a config. The caller frees it. */
unsigned char *snapshot(const config *c);

/* Returns whether the buffers, except scratch memory, equal a snapshot. If not, prints the first difference. */
int is_snapshot(const config *c, const unsigned char *before);

/* Returns whether the destinations of two calls in one direction have the same bits, element by element, in any layout. */
int same_elements(const trope_args *a, const trope_args *b, int backward);

/* Runs a check on the config of a seed, forward and backward. With `specials`, the configs of odd seeds have infinities,
 * NaNs and subnormals among their elements. */
typedef void (*parity_check)(config *c, int backward);
void run_directions(uint64_t seed, const uint8_t (*fixed)[2], int count, int specials, parity_check check);

/* Returns whether two calls in one direction write the same bytes. */
int same_bytes(config *c, call *first, call *second, int backward);

/* Counts a check. If it fails, prints the arguments that reproduce it. */
static inline void check_parity(const config *c, int holds, const char *what)
{
    char description[2048];
    config_describe(c, description, sizeof description);
    CHECK_MESSAGE(holds, "%s: the bits differ; --seed 0x%llx --count 1\n    %s", what, (unsigned long long)c->seed,
                  description);
}

#endif
