/* A call reads and writes no byte outside the memory that its arguments describe. All of this memory (tensors, tables,
 * indices, host arrays, workspace and the structs themselves) lies next to a page without access, once above that page and
 * once below it. The results must have the same bits as without the page.
 *
 *     parity_guarded [--seed S] [--count N] */
#include <stdlib.h>
#include <string.h>

#include "parity/parity.h"
#include "support/guarded.h"
#include "support/seeds.h"

static trope_status run_guarded(const call *k, int backward, guarded_side side)
{
    const trope_norm *norms[TROPE_MAX_OPERANDS];
    trope_args args = k->args;
    for (int i = 0; i < args.operand_count; i++)
        norms[i] = k->norm[i].struct_size ? guarded_copy(GUARDED_NORM + i, &k->norm[i], sizeof k->norm[i], side) : NULL;
    args.norms = guarded_copy(GUARDED_NORMS, norms, (size_t)args.operand_count * sizeof *norms, side);
    args.operands = guarded_copy(GUARDED_OPERANDS, k->operands, (size_t)args.operand_count * sizeof *k->operands, side);
    const trope_args *guarded = guarded_copy(GUARDED_ARGS, &args, sizeof args, side);
    return backward ? trope_backward(guarded) : trope_forward(guarded);
}

static void check_side(config *c, int backward, guarded_side side, const unsigned char *expected)
{
    call k = config_call(c, backward);
    config_reset(c);
    guarded_depart(c, &k);
    if (!CHECK(guarded_arrive(c, &k, backward, side)))
        return;
    guarded_remember();
    const trope_status status = run_guarded(&k, backward, side);
    CHECK_MESSAGE(status == TROPE_OK, "%s", trope_last_error());
    check_parity(c, guarded_is_remembered(0), "parity_guarded, memory around the buffers");
    guarded_return(c);
    check_parity(c, is_snapshot(c, expected), side == GUARDED_BELOW ? "parity_guarded, below" : "parity_guarded, above");
}

static void check(config *c, int backward)
{
    config_reset(c);
    call k = config_call(c, backward);
    run_call(call_args(&k), backward);
    unsigned char *expected = snapshot(c);
    check_side(c, backward, GUARDED_BELOW, expected);
    check_side(c, backward, GUARDED_ABOVE, expected);
    free(expected);
}

int main(int argc, char **argv)
{
    const seed_range seeds = parse_seeds(argc, argv, 3000);
    for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; seed++)
        run_directions(seed, NULL, 0, 1, check);
    return check_result();
}
