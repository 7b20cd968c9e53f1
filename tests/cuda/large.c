/* Large calls: tensors of more than 2^31 elements, 70,000 sequences, a batch of 70,000, wide heads, and the gradient of the
 * angles for a batch of 2^26. All bytes equal the CPU's. Sums are exact in double in any order (call_case.h; the gradient
 * of the frequencies is exact because the frequencies are 0). So the test detects one entry too many or too few. The test
 * needs 20 GB of host memory and 9 GB of device memory.
 *
 *     cuda_large [--part N]        runs 1/N of the tokens or of the batch; leaves out cases that are still too large */
#include <string.h>

#include "cuda/device_call.h"
#include "cuda/problem.h"
#include "support/check.h"

#define MOST_BYTES ((size_t)1 << 35)
#define LARGE      ((int64_t)1 << 26)

#define ONE(...)            .operands = {{__VA_ARGS__}}
#define NEIGHBOURS          .pairing = TROPE_PAIRING_INTERLEAVED
#define PACKED(COUNT)       .cu_dtype = TROPE_I32, .sequences = COUNT, .longest = 7, .gap = 7, .padding = TROPE_PADDING_ROTATE
#define SUMS(BATCH, TOKENS) TROPE_F16, TROPE_BSHD, BATCH, TOKENS, .gradient = GRADIENT_ALONE
#define ANGLES(ROWS)        .angles = TABLES, .rows = ROWS
#define IDS(ROWS)           .ids_dtype = TROPE_I32, .rows = ROWS
#define OF_ELEMENTS         .columns = TROPE_COLUMNS_INTERLEAVED

/* The cases of 2^37 elements need little memory: their heads of 2048 elements overlap in memory, and few elements
 * rotate. */
/* clang-format off */
static const call_case cases[] = {
    {"2^31 elements, sbhd", TROPE_BF16, TROPE_SBHD, 1, 131200, ONE(128, 128, 128, 0)},
    {"2^31 elements, bhsd, backward", TROPE_BF16, TROPE_BHSD, 2, 65600, ONE(128, 128, 64, 64), NEIGHBOURS, .backward = 1},
    {"2^31 elements, bshd, in place", TROPE_BF16, TROPE_BSHD, 41, 3200, ONE(128, 128, 128, 0), NEIGHBOURS, .in_place = 1},
    {"2^31 elements, heads of 126", TROPE_BF16, TROPE_SBHD, 1, 131200, ONE(131, 126, 120, 3)},
    {"70,000 sequences", TROPE_BF16, TROPE_THD, 1, 200000, ONE(2, 64, 64, 0), PACKED(70000)},
    {"70,000 sequences, backward", TROPE_BF16, TROPE_THD, 1, 200000, ONE(1, 128, 96, 32), NEIGHBOURS, PACKED(70000),
     .backward = 1},
    {"batch 70,000, bshd", TROPE_BF16, TROPE_BSHD, 70000, 3, ONE(2, 64, 64, 0)},
    {"batch 70,000, sbhd", TROPE_BF16, TROPE_SBHD, 70000, 3, ONE(2, 64, 64, 0), .backward = 1},
    {"70,000 heads", TROPE_BF16, TROPE_BSHD, 2, 5, ONE(70000, 64, 64, 0), .in_place = 1},
    {"heads of 8 KB", TROPE_BF16, TROPE_THD, 1, 1500, ONE(2, 4096, 1024, 64), PACKED(500)},
    {"sums, heads of 2 elements", SUMS(LARGE, 1), ONE(1, 2, 2, 0), ANGLES(1)},
    {"sums, heads of 6, one angle per element", SUMS(LARGE, 1), ONE(1, 6, 6, 0), NEIGHBOURS, ANGLES(2), OF_ELEMENTS},
    {"sums, heads of 8 elements", SUMS(LARGE, 1), ONE(1, 8, 8, 0), NEIGHBOURS, ANGLES(3)},
    {"sums, a quarter of the batch, 3 tokens", SUMS(LARGE / 4 - 1, 3), ONE(1, 4, 4, 0), ANGLES(5)},
    {"sums, vectors", SUMS(LARGE, 1), ONE(1, 16, 16, 0), .token_step = 8, ANGLES(1)},
    {"sums, vectors, interleaved", SUMS(LARGE - 5, 1), ONE(1, 16, 16, 0), .token_step = 8, NEIGHBOURS, ANGLES(1), OF_ELEMENTS},
    {"sums, 2^37 elements", SUMS(LARGE, 1), ONE(1, 2048, 8, 0), .token_step = 8, ANGLES(1)},
    {"sums, 2^37 elements, vectors", SUMS(LARGE, 1), ONE(1, 2048, 16, 0), .token_step = 8, ANGLES(2)},
    {"sums, a table for each batch entry", SUMS(LARGE, 1), ONE(1, 2, 2, 0), ANGLES(1), .per_batch = 1},
    {"sums, position_ids", SUMS(LARGE, 1), ONE(1, 2, 2, 0), .angles = TABLES, IDS(3)},
    {"d_inv_freq", SUMS(LARGE, 1), ONE(1, 4, 4, 0), IDS(3)},
    {"d_inv_freq, 2^37 elements", SUMS(LARGE, 1), ONE(1, 2048, 8, 0), .token_step = 8, IDS(2)},
};
/* clang-format on */

static void check_case(call_case k, int64_t part)
{
    if (k.batch >= part)
        k.batch /= part;
    else
        k.tokens = (k.tokens + part - 1) / part;
    const size_t bytes = case_plan(&k).end;
    if (bytes > MOST_BYTES / (size_t)part || k.tokens <= 2 * k.gap)
        return;
    problem *const p = problem_new(&k, 1);
    if (k.gradient)
        memset(p->map.inv_freq, 0, sizeof p->map.inv_freq);
    p->on_host.args.threads = 0;
    CHECK_MESSAGE(problem_queue(p, NULL) == TROPE_OK, "%s: %s", k.name, trope_last_error());
    CHECK_MESSAGE(problem_holds(p, NULL), "%s: differs from the CPU", k.name);
    printf("%-40s batch %lld, %lld tokens, %.2f GB\n", k.name, (long long)k.batch, (long long)k.tokens,
           (double)bytes * 1e-9);
    problem_free(p);
}

int main(int argc, char **argv)
{
    device_require();
    const long part = device_option(argc, argv, "--part", 1);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_case(cases[i], part);
    return check_result();
}
