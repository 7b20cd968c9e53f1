/* Every instruction set and any number of threads give the same bytes, forward and backward, including the gradient of the
 * angles, the status word and the guard zones. Most calls are small. Some are large enough for several threads, and a few
 * for stores that bypass the caches. Half of them have infinities, NaNs and subnormals among the elements.
 *
 *     parity_isa_threads [--seed S] [--count N] */
#include <stdlib.h>

#include "parity/parity.h"
#include "support/number.h"
#include "support/seeds.h"
#include "support/tensor.h"

static const int32_t isas[] = {TROPE_ISA_PORTABLE, TROPE_ISA_AVX2, TROPE_ISA_AVX512, TROPE_ISA_NEON};
static const char *const isa_names[] = {"portable", "avx2", "avx512", "neon"};
static const int32_t thread_counts[] = {1, 2, 3, 7};
static long runs[4];

/* Runs one direction with each instruction set and the first `counts` thread counts. Compares all runs with the first. */
static int same_everywhere(config *c, int backward, int counts)
{
    unsigned char *first = NULL;
    int same = 1;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < counts && same; j++) {
            call k = config_call(c, backward);
            k.args.isa = isas[i];
            k.args.threads = thread_counts[j];
            config_reset(c);
            const trope_status status = config_run(c, call_args(&k), backward);
            if (status == TROPE_ERROR_UNSUPPORTED)
                break;
            CHECK_MESSAGE(status == TROPE_OK, "%s", trope_last_error());
            runs[i]++;
            if (!first)
                first = snapshot(c);
            same = is_snapshot(c, first);
            if (!same)
                printf("%s, %d threads:\n", isa_names[i], k.args.threads);
        }
    free(first);
    return same;
}

static int64_t bytes_read(const config *c)
{
    int64_t bytes = 0;
    for (int i = 0; i < c->args.operand_count; i++) {
        const tensor dy = tensor_of(&c->args, i, TENSOR_SRC, 1);
        bytes += tensor_count(&dy) * (int64_t)number_size(c->args.dtype);
    }
    return bytes;
}

/* Makes a config that reads at least about this many bytes. It writes as many, unless heads are shared. */
static config *make(uint64_t seed, int64_t bytes)
{
    const uint8_t fixed[][2] = {{OPTION_ELEMENTS, ELEMENTS_ADJACENT}, {OPTION_PLACE, PLACE_OUT}};
    config_choices choices = config_choose_with(seed, fixed, bytes ? 2 : 0);
    choices.specials = (int32_t)(seed % 2);
    config *c = config_make(seed, &choices);
    if (bytes_read(c) >= bytes)
        return c;
    choices.times = (int32_t)(1 + bytes / bytes_read(c));
    config_free(c);
    return config_make(seed, &choices);
}

static void check(config *c, int counts)
{
    check_parity(c, same_everywhere(c, 0, counts) && same_everywhere(c, 1, counts), "parity_isa_threads");
    config_free(c);
}

int main(int argc, char **argv)
{
    const seed_range seeds = parse_seeds(argc, argv, 2000);
    for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; seed++) {
        check(make(seed, 0), 1);
        if (seed % 50 == 0)
            check(make(seed, 1600000), 4);
        if (seed % 500 == 0)
            check(make(seed, 9 << 20), 3);
    }
    for (int i = 0; i < 4; i++)
        printf("%-8s %ld runs%s\n", isa_names[i], runs[i],
               runs[i] ? "" : ": not available on this machine or in this build");
    return check_result();
}
