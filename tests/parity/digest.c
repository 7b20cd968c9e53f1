/* Prints a hash of the results of each random call in f32, f16 or bf16, forward and backward, with the best instruction
 * set of the machine. Half of the calls have infinities, NaNs and subnormals among their elements. Two machines must print
 * the same lines: tests/cross compares x86-64 with other processors.
 *
 *     parity_digest [--seed S] [--count N] */
#include <math.h>
#include <string.h>

#include "parity/parity.h"
#include "support/seeds.h"

/* Gives each NaN of d_inv_freq the same bits. It is in f64, whose NaNs differ between processors. */
static void forget_nans(const config *c)
{
    unsigned char *const gradient = (unsigned char *)c->args.d_inv_freq;
    const config_buffer *const buffer = gradient ? &c->buffers[config_buffer_of(c, gradient)] : NULL;
    for (unsigned char *at = gradient; buffer && at + sizeof(double) <= buffer->bytes + buffer->size;
         at += sizeof(double)) {
        double value;
        memcpy(&value, at, sizeof value);
        if (isnan(value))
            memset(at, 0xff, sizeof value);
    }
}

/* Returns the FNV-1a hash of all buffers of a call except scratch memory. */
static uint64_t hash_of(const config *c)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (int i = 0; i < c->buffer_count; i++)
        for (size_t j = 0; c->buffers[i].role != CONFIG_SCRATCH && j < c->buffers[i].size; j++)
            hash = (hash ^ c->buffers[i].bytes[j]) * UINT64_C(0x100000001b3);
    return hash;
}

static void print_hash(config *c, int backward)
{
    call k = config_call(c, backward);
    config_reset(c);
    run_call(call_args(&k), backward);
    forget_nans(c);
    printf("seed 0x%llx, %s: %016llx\n", (unsigned long long)c->seed, backward ? "backward" : "forward",
           (unsigned long long)hash_of(c));
}

int main(int argc, char **argv)
{
    const seed_range seeds = parse_seeds(argc, argv, 1000);
    for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; seed++) {
        const uint8_t fixed[][2] = {{OPTION_DTYPE, (uint8_t)(DTYPE_F32 + seed % 3)}};
        run_directions(seed, fixed, 1, 1, print_hash);
    }
    return 0;
}
