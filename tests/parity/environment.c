/* The bits of a result do not depend on the floating-point environment of the caller. In every environment,
 * the library keeps subnormals in inputs and results, rounds to nearest, and does not trap. It also restores the whole
 * environment of the caller, including the exception flags.
 *
 *     parity_environment [--seed S] [--count N] */
#include <stdlib.h>

#include "parity/parity.h"
#include "support/environment.h"
#include "support/seeds.h"

static void check(config *c, int backward)
{
    call k = config_call(c, backward);
    trope_args *args = call_args(&k);
    config_reset(c);
    run_call(args, backward);
    unsigned char *expected = snapshot(c);
    for (int i = 0; i < ENVIRONMENTS; i++) {
        config_reset(c);
        environment_enter(i);
        const trope_status status = config_run(c, args, backward);
        const int is_same = environment_leave(i);
        CHECK_MESSAGE(status == TROPE_OK && is_same, "environment %d: the call failed, or changed the environment", i);
        check_parity(c, is_snapshot(c, expected), "parity_environment");
    }
    free(expected);
}

int main(int argc, char **argv)
{
    const seed_range seeds = parse_seeds(argc, argv, 300);
    for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; seed++)
        run_directions(seed, NULL, 0, 1, check); /* elements include subnormals */
    return check_result();
}
