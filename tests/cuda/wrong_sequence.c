/* One wrong sequence among up to 70,000. Every kernel for packed sequences sets the bit of the status word, wherever the
 * wrong sequence is, and the tokens of a wrong sequence at either end are NaN. The test also has a valid sequence whose
 * length needs 64 bits, because many ranks share it: no kernel reports an error, and the results equal the CPU's.
 *
 *     cuda_wrong_sequence [--part N]        uses 1/N of the tokens, for a device with 1/N of the multiprocessors */
#include <math.h>
#include <string.h>

#include "cuda/device_call.h"
#include "cuda/problem.h"
#include "support/check.h"
#include "support/number.h"

enum { MANY = 70000 };

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))
#define PACKED          .dtype = TROPE_BF16, .layout = TROPE_THD, .cu_dtype = TROPE_I32, .padding = TROPE_PADDING_ZERO

/* Calls that use different kernels. Each runs forward and backward with a gradient, with freqs and with inv_freq. */
static const call_case cases[] = {
    {"one token per block", PACKED, .tokens = 64, .operands = {{32, 128, 128, 0}}},
    {"many tokens", PACKED, .tokens = 3000, .operands = {{32, 128, 128, 0}}},
    {"several tokens per block", PACKED, .tokens = 500, .operands = {{3, 32, 32, 0}}},
    {"tokens with one head", PACKED, .tokens = 3000, .operands = {{1, 128, 128, 0}}},
    {"elements", PACKED, .tokens = 70, .operands = {{3, 20, 20, 0}}},
};

/* ---- one wrong sequence among many ---- */

static int32_t status_of(problem *p)
{
    const case_region *regions = p->map.regions;
    const size_t bytes = (size_t)(p->on_device.args.sequences + 1) * sizeof(int32_t);
    int32_t status = 0;
    CUDA_MUST(cudaMemcpy(p->device + regions[REGION_CU_SEQLENS].at, problem_region(p, REGION_CU_SEQLENS), bytes,
                         cudaMemcpyHostToDevice));
    CUDA_MUST(cudaMemset(p->device + regions[REGION_STATUS].at, 0, sizeof status));
    CHECK_MESSAGE(problem_queue(p, NULL) == TROPE_OK, "%s", trope_last_error());
    CUDA_MUST(cudaMemcpy(&status, p->device + regions[REGION_STATUS].at, sizeof status, cudaMemcpyDeviceToHost));
    return status;
}

/* Checks that the status is set if `value` replaces boundary `at`. */
static void check_wrong_boundary(problem *p, int64_t at, int64_t value)
{
    int32_t *const boundary = (int32_t *)problem_region(p, REGION_CU_SEQLENS) + at, right = *boundary;
    *boundary = (int32_t)value;
    const int32_t status = status_of(p);
    CHECK_MESSAGE(status & TROPE_STATUS_CU_SEQLENS,
                  "%s, backward %d, freqs %d: boundary %lld of %lld sequences is %lld: status 0x%x", p->k.name,
                  p->k.gradient, p->k.angles, (long long)at, (long long)p->on_device.args.sequences, (long long)value,
                  status);
    *boundary = right;
}

/* Checks that all elements of a token are NaN in the last result. */
static void check_poisoned(const problem *p, int64_t token)
{
    uint16_t found[32 * 128];
    const int count = p->k.operands[0].heads * p->k.operands[0].head_dim;
    const unsigned char *const dst = p->device + p->map.regions[REGION_DST].at;
    int numbers = 0;
    CUDA_MUST(cudaMemcpy(found, dst + token * count * 2, (size_t)count * 2, cudaMemcpyDeviceToHost));
    for (int i = 0; i < count; i++)
        numbers += !isnan(number_load(TROPE_BF16, &found[i]));
    CHECK_MESSAGE(numbers == 0, "%s, backward %d, freqs %d, %lld sequences: %d elements of token %lld are not NaN",
                  p->k.name, p->k.gradient, p->k.angles, (long long)p->on_device.args.sequences, numbers, (long long)token);
}

/* Checks that one wrong sequence sets the status, at any place and even if the sequence contains no token. Without a wrong
 * sequence, the status must be 0. */
static void check_sequences(problem *p, int64_t count)
{
    const int64_t tokens = p->k.tokens, places[] = {0, 1, count / 3, count - 2, count - 1};
    int32_t *const boundaries = problem_region(p, REGION_CU_SEQLENS);
    p->on_device.args.sequences = count;
    for (int64_t i = 0; i <= count; i++)
        boundaries[i] = (int32_t)(i * tokens / count);
    CHECK_MESSAGE(status_of(p) == 0, "%s, %lld valid sequences: status is not 0", p->k.name, (long long)count);
    for (size_t i = 0; i < COUNT_OF(places); i++)
        if (places[i] >= 0 && places[i] < count)
            check_wrong_boundary(p, places[i] + 1, boundaries[places[i]] - 1);
    check_wrong_boundary(p, 0, -1);
    if (count <= tokens) /* the first and the last sequence contain a token */
        check_poisoned(p, 0);
    check_wrong_boundary(p, count, tokens + 1);
    if (count <= tokens)
        check_poisoned(p, tokens - 1);
}

static void check_case(call_case k, int64_t part)
{
    static const int64_t counts[] = {1, 2, 4, 31, 32, 200, 1023, 1024, MANY};
    k.tokens = (k.tokens + part - 1) / part;
    k.rows = k.tokens;
    k.sequences = MANY;
    for (int kind = 0; kind < 4; kind++) {
        k.angles = kind % 2 ? FREQS : INV_FREQ;
        k.gradient = kind / 2 ? WITH_GRADIENT : NO_GRADIENT;
        problem *const p = problem_new(&k, 1);
        for (size_t i = 0; i < COUNT_OF(counts); i++)
            check_sequences(p, counts[i]);
        problem_free(p);
    }
}

/* ---- a sequence that needs 64 bits ---- */

enum { WIDE_TOKENS = 64, WIDE_RANKS = 1 << 25 }; /* 2^31 tokens in total */

static void check_64_bit_length(int32_t layout)
{
    const call_case k = {"2^31 tokens",
                         TROPE_BF16,
                         TROPE_THD,
                         .tokens = WIDE_TOKENS,
                         .operands = {{3, 20, 20, 0}},
                         .cu_dtype = TROPE_I64,
                         .sequences = 1,
                         .longest = WIDE_TOKENS,
                         .padding = TROPE_PADDING_ZERO};
    problem *const p = problem_new(&k, 1);
    trope_args *const both[] = {&p->on_host.args, &p->on_device.args};
    for (int i = 0; i < 2; i++) {
        both[i]->cp_size = WIDE_RANKS;
        both[i]->cp_rank = WIDE_RANKS - 1;
        both[i]->cp_layout = layout;
    }
    ((int64_t *)problem_region(p, REGION_CU_SEQLENS))[1] = (int64_t)WIDE_TOKENS * WIDE_RANKS;
    problem_upload(p, NULL);
    CHECK_MESSAGE(problem_queue(p, NULL) == TROPE_OK, "%s", trope_last_error());
    CHECK_MESSAGE(problem_holds(p, NULL), "cp_layout %d, %s: differs from the CPU", (int)layout, k.name);
    CHECK(*(int32_t *)problem_region(p, REGION_STATUS) == CASE_STATUS_BEFORE); /* on both devices */
    problem_free(p);
}

int main(int argc, char **argv)
{
    device_require();
    const long part = device_option(argc, argv, "--part", 1);
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        check_case(cases[i], part);
    for (int32_t layout = TROPE_CP_CONTIGUOUS; layout <= TROPE_CP_FLAT; layout++)
        check_64_bit_length(layout);
    return check_result();
}
