/* No limit shows: tensors of more than 2^31 elements, 70,000 sequences, a batch of 70,000, wide heads, and the gradient of
 * the angles of a batch of 2^26.
 *
 * The large tensors repeat a prime number of elements or batch entries, so that what is read from a wrong place is seen.
 * Of the results some tokens at random and the last ones are computed again on the CPU, and sums from those of one period:
 * elements are whole numbers and tables are quarters, so that sums in double are the same in any order, and one entry too
 * many or too few is seen in them.
 *
 *     cuda_large [--part N]        an N-th of the tokens or of the batch; leaves out what is large even then */
#include <stdlib.h>
#include <string.h>

#include "cuda/device_call.h"
#include "cuda/problem.h"
#include "support/check.h"
#include "support/tensor.h"

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))
#define MOST_ELEMENTS   ((int64_t)1 << 33)
#define LARGE           ((int64_t)1 << 26)

/* ---- tensors that are compared as a whole ---- */

#define PACKED     .cu_dtype = TROPE_I32, .gap = 7, .padding = TROPE_PADDING_ROTATE
#define ONE(...)   .operands = {{__VA_ARGS__}}
#define NEIGHBOURS .pairing = TROPE_PAIRING_INTERLEAVED

/* clang-format off */
static const call_case whole_cases[] = {
    {"70,000 sequences", TROPE_BF16, TROPE_THD, 1, 200000, ONE(2, 64, 64, 0), PACKED, .sequences = 70000, .longest = 7},
    {"70,000 sequences, backward", TROPE_BF16, TROPE_THD, 1, 200000, ONE(1, 128, 96, 32), NEIGHBOURS, .backward = 1,
     PACKED, .sequences = 70000, .longest = 7},
    {"batch 70,000, bshd", TROPE_BF16, TROPE_BSHD, 70000, 3, ONE(2, 64, 64, 0)},
    {"batch 70,000, sbhd", TROPE_BF16, TROPE_SBHD, 70000, 3, ONE(2, 64, 64, 0), .backward = 1},
    {"70,000 heads", TROPE_BF16, TROPE_BSHD, 2, 5, ONE(70000, 64, 64, 0), .in_place = 1},
    {"heads of 8 KB", TROPE_BF16, TROPE_THD, 1, 1500, ONE(2, 4096, 1024, 64), PACKED, .sequences = 500, .longest = 7},
};
/* clang-format on */

static int64_t elements_of(const call_case *k)
{
    return k->batch * k->tokens * k->operands[0].heads * k->operands[0].head_dim;
}

/* Returns whether it is small enough then, and large enough for its gaps. */
static int cut(call_case *k, int64_t part)
{
    if (k->batch >= part)
        k->batch /= part;
    else
        k->tokens = (k->tokens + part - 1) / part;
    return elements_of(k) <= MOST_ELEMENTS / part && k->tokens > 2 * k->gap;
}

static void check_whole(call_case k, int64_t part)
{
    if (!cut(&k, part))
        return;
    problem *const p = problem_new(&k, 1);
    p->on_host.args.threads = 0;
    CHECK_MESSAGE(problem_queue(p, NULL) == TROPE_OK, "%s: %s", k.name, trope_last_error());
    CHECK_MESSAGE(problem_holds(p, NULL), "%s: not the CPU's bytes", k.name);
    printf("%-34s %11lld elements\n", k.name, (long long)elements_of(&k));
    problem_free(p);
}

/* ---- tensors of which tokens are compared ---- */

/* clang-format off */
static const call_case sampled_cases[] = {
    {"2^31 elements, sbhd", TROPE_BF16, TROPE_SBHD, 1, 131200, ONE(128, 128, 128, 0)},
    {"2^31 elements, bhsd, backward", TROPE_BF16, TROPE_BHSD, 2, 65600, ONE(128, 128, 64, 64), NEIGHBOURS, .backward = 1},
    {"2^31 elements, bshd, in place", TROPE_BF16, TROPE_BSHD, 41, 3200, ONE(128, 128, 128, 0), NEIGHBOURS, .in_place = 1},
    {"2^31 elements, an odd head", TROPE_BF16, TROPE_SBHD, 1, 131200, ONE(131, 126, 120, 3)},
};
/* clang-format on */

enum { PERIOD = 1000003, SAMPLE = 1000 };

/* Fills memory of the device with repetitions of a period. */
static void repeat(unsigned char *to, const void *from, size_t period, size_t bytes)
{
    CUDA_MUST(cudaMemcpy(to, from, period < bytes ? period : bytes, cudaMemcpyHostToDevice));
    for (size_t done = period; done < bytes; done *= 2)
        CUDA_MUST(cudaMemcpy(to + done, to, done < bytes - done ? done : bytes - done, cudaMemcpyDeviceToDevice));
}

/* The tensor as the device has it, and the tokens of it that are compared. */
typedef struct sample {
    tensor dst;
    int64_t rows[SAMPLE]; /* batch * tokens + token */
    uint16_t period[PERIOD];
} sample;

static void draw_sample(sample *s, const call_case *k)
{
    random_state random = {(uint64_t)elements_of(k)};
    const int64_t all = k->batch * k->tokens;
    for (int i = 0; i < SAMPLE; i++)
        s->rows[i] = i < 4 && i < all ? all - 1 - i : random_between(&random, 0, all - 1);
    for (int i = 0; i < PERIOD; i++)
        s->period[i] = (uint16_t)((random_bits(&random) & 0x81ff) | 0x3e00); /* 1/8 to 2, of both signs */
}

/* The sampled tokens as a call of their own on the CPU, at the same positions. */
static problem *compute_sample(const sample *s, const call_case *of)
{
    call_case k = *of;
    const int64_t of_token = k.operands[0].heads * k.operands[0].head_dim;
    k.layout = TROPE_THD;
    k.batch = 1;
    k.tokens = SAMPLE;
    k.in_place = 0;
    k.ids_dtype = TROPE_I64;
    k.rows = 1;
    problem *const p = problem_new(&k, 0);
    uint16_t *const src = problem_region(p, REGION_SRC);
    for (int64_t i = 0; i < SAMPLE * of_token; i++)
        src[i] = s->period[tensor_offset(&s->dst, s->rows[i / of_token] * of_token + i % of_token) % PERIOD];
    for (int i = 0; i < SAMPLE; i++)
        ((int64_t *)problem_region(p, REGION_IDS))[i] = s->rows[i] % of->tokens;
    CHECK_MESSAGE(problem_run_on_host(p) == TROPE_OK, "%s: on the CPU: %s", k.name, trope_last_error());
    return p;
}

/* How many heads of the sampled tokens differ from the CPU's. */
static int64_t count_wrong_heads(const sample *s, const call_case *k, const uint16_t *expected)
{
    const int64_t heads = k->operands[0].heads, head_dim = k->operands[0].head_dim;
    const size_t bytes = (size_t)head_dim * sizeof(uint16_t);
    uint16_t found[128];
    int64_t wrong = 0;
    for (int64_t i = 0; i < SAMPLE * heads; i++) {
        const int64_t number = (s->rows[i / heads] * heads + i % heads) * head_dim;
        CUDA_MUST(cudaMemcpy(found, (const uint16_t *)s->dst.base + tensor_offset(&s->dst, number), bytes,
                             cudaMemcpyDeviceToHost));
        wrong += !!memcmp(found, expected + i * head_dim, bytes);
    }
    return wrong;
}

static void check_sampled(call_case k, int64_t part)
{
    if (!cut(&k, part))
        return;
    const case_map map = case_plan(&k);
    sample *const s = malloc(sizeof *s);
    unsigned char *device;
    CUDA_MUST(cudaMalloc((void **)&device, map.end));
    CUDA_MUST(cudaMemset(device, 0xff, map.end));
    draw_sample(s, &k);
    repeat(device + map.regions[REGION_SRC].at, s->period, sizeof s->period, map.regions[REGION_SRC].bytes);
    call c = case_call(&k, &map, device, TROPE_DEVICE_CUDA);
    s->dst = tensor_of(call_args(&c), 0, TENSOR_DST, k.backward);
    CHECK_MESSAGE((k.backward ? trope_backward : trope_forward)(call_args(&c)) == TROPE_OK, "%s: %s", k.name,
                  trope_last_error());
    problem *const expected = compute_sample(s, &k);
    const int64_t wrong = count_wrong_heads(s, &k, problem_region(expected, REGION_DST));
    CHECK_MESSAGE(wrong == 0, "%s: %lld heads of %d tokens differ from the CPU", k.name, (long long)wrong, SAMPLE);
    printf("%-34s %11lld elements, %d tokens compared\n", k.name, (long long)elements_of(&k), SAMPLE);
    problem_free(expected);
    CUDA_MUST(cudaFree(device));
    free(s);
}

/* ---- the gradient of the angles of a large batch ---- */

enum { PERIOD_OF_BATCH = 4099 };

#define F16_SUMS     TROPE_F16, TROPE_BSHD, .gradient = GRADIENT_ALONE
#define OWN(COLUMNS) .columns = TROPE_COLUMNS_##COLUMNS
#define IDS          .ids_dtype = TROPE_I32

/* A head of 2048 of which little is rotated makes for 2^37 elements in little memory. */
/* clang-format off */
static const call_case gradient_cases[] = {
    {"a head of 2", F16_SUMS, .batch = LARGE, .tokens = 1, ONE(1, 2, 2), .angles = TABLES, .rows = 1},
    {"a head of 6, angles of its own", F16_SUMS, .batch = LARGE, .tokens = 1, ONE(1, 6, 6), NEIGHBOURS, .angles = TABLES,
     OWN(INTERLEAVED), .rows = 2},
    {"a head of 8", F16_SUMS, .batch = LARGE, .tokens = 1, ONE(1, 8, 8), NEIGHBOURS, .angles = TABLES, .rows = 3},
    {"a quarter of the batch, 3 tokens", F16_SUMS, .batch = LARGE / 4 - 1, .tokens = 3, ONE(1, 4, 4), .angles = TABLES,
     .rows = 5},
    {"vectors", F16_SUMS, .batch = LARGE, .tokens = 1, ONE(1, 16, 16), .token_step = 8, .angles = TABLES, .rows = 1},
    {"vectors, interleaved", F16_SUMS, .batch = LARGE - 5, .tokens = 1, ONE(1, 16, 16), .token_step = 8, NEIGHBOURS,
     .angles = TABLES, OWN(INTERLEAVED), .rows = 1},
    {"2^37 elements", F16_SUMS, .batch = LARGE, .tokens = 1, ONE(1, 2048, 8), .token_step = 8, .angles = TABLES, .rows = 1},
    {"2^37 elements, vectors", F16_SUMS, .batch = LARGE, .tokens = 1, ONE(1, 2048, 16), .token_step = 8, .angles = TABLES,
     .rows = 2},
    {"a table for each batch entry", F16_SUMS, .batch = LARGE, .tokens = 1, ONE(1, 2, 2), .angles = TABLES, .per_batch = 1,
     .rows = 1},
    {"position_ids", F16_SUMS, .batch = LARGE, .tokens = 1, ONE(1, 2, 2), .angles = TABLES, IDS, .rows = 3},
    {"d_inv_freq", F16_SUMS, .batch = LARGE, .tokens = 1, ONE(1, 4, 4), IDS, .rows = 3},
    {"d_inv_freq, 2^37 elements", F16_SUMS, .batch = LARGE, .tokens = 1, ONE(1, 2048, 8), .token_step = 8, IDS, .rows = 2},
};
/* clang-format on */

/* One period on the host. Frequencies are 0, and so sines as well. */
static problem *draw_period(const call_case *of)
{
    call_case k = *of;
    k.batch = PERIOD_OF_BATCH;
    problem *const p = problem_new(&k, 3);
    random_state random = {4};
    for (int region = REGION_SINES; region <= REGION_TABLE; region++)
        for (size_t i = 0; i < p->map.regions[region].bytes / sizeof(float); i++)
            ((float *)problem_region(p, region))[i] = (float)random_between(&random, -4, 4) / 4;
    memset(p->map.inv_freq, 0, sizeof p->map.inv_freq);
    return p;
}

/* The bytes after which a region of the period repeats. Behind a tensor's last token its first elements come again. */
static size_t wrap(const problem *p, int region)
{
    unsigned char *const bytes = problem_region(p, region);
    const size_t all = p->map.regions[region].bytes;
    if (region < REGION_FORWARD_SRC)
        return all;
    const int64_t step = p->k.token_step ? p->k.token_step : p->k.operands[0].head_dim;
    const size_t period = (size_t)(p->k.batch * p->k.tokens * step) * sizeof(uint16_t);
    for (size_t i = period; i < all; i++)
        bytes[i] = bytes[i - period];
    return period;
}

static double load_sum(const call_case *k, const void *sums, size_t i)
{
    return k->angles == INV_FREQ ? ((const double *)sums)[i] : ((const float *)sums)[i];
}

/* Runs the period's call with its first `batch` entries and adds `times` its sums to `to`. */
static void add_sums(problem *p, int64_t batch, double times, double *to)
{
    const size_t size = p->k.angles == INV_FREQ ? sizeof(double) : sizeof(float);
    p->on_host.args.batch = batch;
    CHECK_MESSAGE(problem_run_on_host(p) == TROPE_OK, "%s: on the CPU: %s", p->k.name, trope_last_error());
    for (size_t i = 0; i < p->map.regions[REGION_SUMS].bytes / size; i++)
        to[i] += times * load_sum(&p->k, problem_region(p, REGION_SUMS), i);
}

static int64_t count_wrong_sums(problem *p, const call_case *k, const void *found)
{
    const size_t size = k->angles == INV_FREQ ? sizeof(double) : sizeof(float);
    const size_t count = case_sum_bytes(k) / size, period = p->map.regions[REGION_SUMS].bytes / size;
    double *const expected = calloc(period, sizeof *expected);
    int64_t wrong = 0;
    add_sums(p, PERIOD_OF_BATCH, k->per_batch ? 1 : (double)(k->batch / PERIOD_OF_BATCH), expected);
    if (!k->per_batch && k->batch % PERIOD_OF_BATCH)
        add_sums(p, k->batch % PERIOD_OF_BATCH, 1, expected);
    for (size_t i = 0; i < count; i++) {
        const double sum = expected[i % period];
        wrong += load_sum(k, found, i) != (k->angles == INV_FREQ ? sum : (double)(float)sum);
    }
    free(expected);
    return wrong;
}

static void check_gradient(call_case k, int64_t part)
{
    k.batch /= part;
    problem *const p = draw_period(&k);
    case_map map = case_plan(&k);
    const case_region sums = map.regions[REGION_SUMS];
    unsigned char *device, *const found = malloc(sums.bytes);
    memset(map.inv_freq, 0, sizeof map.inv_freq);
    CUDA_MUST(cudaMalloc((void **)&device, map.end));
    CUDA_MUST(cudaMemset(device, 0xa5, map.end));
    for (int region = 0; region < REGION_DST; region++)
        if (map.regions[region].bytes)
            repeat(device + map.regions[region].at, problem_region(p, region), wrap(p, region), map.regions[region].bytes);
    call c = case_call(&k, &map, device, TROPE_DEVICE_CUDA);
    trope_args *const a = call_args(&c);
    CHECK_MESSAGE(trope_workspace_size(a, &a->workspace_size) == TROPE_OK, "%s: %s", k.name, trope_last_error());
    CUDA_MUST(cudaMalloc(&a->workspace, a->workspace_size + 1));
    CHECK_MESSAGE(trope_backward(a) == TROPE_OK, "%s: %s", k.name, trope_last_error());
    CUDA_MUST(cudaDeviceSynchronize());
    CUDA_MUST(cudaMemcpy(found, device + sums.at, sums.bytes, cudaMemcpyDeviceToHost));
    const int64_t wrong = count_wrong_sums(p, &k, found);
    CHECK_MESSAGE(wrong == 0, "%s: %lld sums are wrong", k.name, (long long)wrong);
    printf("%-34s batch %lld, %.2f GB\n", k.name, (long long)k.batch, (double)(map.end + a->workspace_size) * 1e-9);
    CUDA_MUST(cudaFree(a->workspace));
    CUDA_MUST(cudaFree(device));
    free(found);
    problem_free(p);
}

int main(int argc, char **argv)
{
    device_require();
    const long part = device_option(argc, argv, "--part", 1);
    for (size_t i = 0; i < COUNT_OF(whole_cases); i++)
        check_whole(whole_cases[i], part);
    for (size_t i = 0; i < COUNT_OF(sampled_cases); i++)
        check_sampled(sampled_cases[i], part);
    for (size_t i = 0; i < COUNT_OF(gradient_cases); i++)
        check_gradient(gradient_cases[i], part);
    return check_result();
}
