/* Calls without tokens succeed with every kernel, and leave the same memory as the CPU: gradients of angles become 0, and
 * nothing else changes. Wrong boundaries of sequences, which the CPU refuses, set TROPE_STATUS_CU_SEQLENS even without
 * tokens. */
#include <string.h>

#include "cuda/device_call.h"
#include "cuda/problem.h"
#include "support/check.h"
#include "support/number.h"

enum { MANY = 1500, TOO_FAR = 3 };

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

/* A call, and a part of the name of the kernel that it must use. */
typedef struct empty_case {
    const char *kernel;
    call_case k;
} empty_case;

#define ONE(...)   .operands = {{__VA_ARGS__, 0}}
#define WITH_FREQS .angles = FREQS, .rows = 24
#define D_SUMS     .gradient = WITH_GRADIENT

/* clang-format off */
static const empty_case cases[] = {
    {"vectors", {"one token per block", TROPE_BF16, TROPE_BSHD, ONE(32, 128, 128)}},
    {"vectors", {"several tokens per block, freqs", TROPE_F32, TROPE_BSHD, ONE(9, 32, 16), WITH_FREQS}},
    {"f16", {"tokens with one head", TROPE_F16, TROPE_BSHD, ONE(1, 128, 128)}},
    {"vectors", {"windows in place", TROPE_BF16, TROPE_BSHD, ONE(32, 128, 64), .in_place = 1}},
    {"elements", {"pairs", TROPE_F32, TROPE_BSHD, ONE(3, 6, 6)}},
    {"elements", {"pairs in place, freqs", TROPE_F64, TROPE_BSHD, ONE(3, 7, 4), WITH_FREQS, .in_place = 1}},
    {"elements", {"heads that are not aligned", TROPE_BF16, TROPE_BSHD, ONE(8, 64, 64), .first = 1}},
    {"vectors", {"gradient of freqs", TROPE_BF16, TROPE_BSHD, ONE(8, 128, 128), WITH_FREQS, D_SUMS}},
    {"vectors", {"gradient of inv_freq", TROPE_F32, TROPE_BSHD, ONE(8, 64, 64), D_SUMS, .in_place = 1}},
    {"elements", {"gradient of freqs, pairs", TROPE_F16, TROPE_BSHD, ONE(3, 6, 6), WITH_FREQS, D_SUMS}},
    {"elements", {"gradient of inv_freq, pairs", TROPE_F32, TROPE_BSHD, ONE(3, 6, 6), D_SUMS}},
};
/* clang-format on */

/* The values of the first boundary, the last boundary, and all others. */
typedef struct boundaries {
    const char *what;
    int64_t sequences;
    int32_t first, others, last, longer; /* `longer`: how many tokens of the last sequence do not fit in its storage */
    int32_t is_bad;
} boundaries;

/* clang-format off */
static const boundaries all_boundaries[] = {
    {"empty sequences", 3, 0, 0, 0, 0, 0},
    {"many empty sequences", MANY, 0, 0, 0, 0, 0},
    {"no sequences", 0, 0, 0, 0, 0, 0},
    {"no sequences, a boundary too large", 0, TOO_FAR, 0, TOO_FAR, 0, 1},
    {"decreasing boundaries", 3, 0, 2, 0, 0, 1},
    {"the last boundary is too large", 3, 0, 0, TOO_FAR, 0, 1},
    {"the last of many boundaries is too large", MANY, 0, 0, TOO_FAR, 0, 1},
    {"the first boundary is negative", 3, -1, 0, 0, 0, 1},
    {"a sequence longer than its storage", 2, 0, 0, 0, 1, 1},
};
/* clang-format on */

static void set_boundaries(const boundaries *b, problem *p)
{
    int32_t *const cu_seqlens = problem_region(p, REGION_CU_SEQLENS), *const padded = problem_region(p, REGION_PADDED);
    for (int64_t i = 0; i <= b->sequences; i++)
        padded[i] = cu_seqlens[i] = i == 0 ? b->first : i < b->sequences ? b->others : b->last;
    cu_seqlens[b->sequences] += b->longer;
    if (b->longer) {
        p->on_host.args.cu_seqlens_padded = padded;
        p->on_device.args.cu_seqlens_padded = p->device + p->map.regions[REGION_PADDED].at;
    }
    problem_upload(p, NULL);
}

/* Returns how many bytes of the sums are 0. Gaps between rows contain 0xff and do not count. */
static size_t count_zeros(const problem *p)
{
    const case_region sums = p->map.regions[REGION_SUMS];
    size_t zeros = 0;
    for (size_t i = 0; i < sums.bytes; i++)
        zeros += p->found[sums.at + i] == 0;
    return zeros;
}

static void check_memory(problem *p, const char *what, int is_bad)
{
    const size_t sum_bytes = p->map.regions[REGION_SUMS].bytes;
    int32_t *const status = problem_region(p, REGION_STATUS);
    CHECK_MESSAGE(problem_run_on_host(p) == (is_bad ? TROPE_ERROR_DATA : TROPE_OK),
                  "%s, %s: unexpected status on the CPU: %s", p->k.name, what, trope_last_error());
    if (is_bad) { /* the CPU refused the call and did not write the results */
        memcpy(problem_region(p, REGION_SUMS), p->found + p->map.regions[REGION_SUMS].at, sum_bytes);
        *status |= TROPE_STATUS_CU_SEQLENS;
    }
    CHECK_MESSAGE(!memcmp(p->found, p->host, p->map.end), "%s, %s: memory differs from the CPU's", p->k.name, what);
}

/* `b` is NULL for a call without sequences. `kernel` is NULL if the call may use any kernel. */
static void check_call(call_case k, const char *kernel, int64_t batch, size_t zeros, const boundaries *b)
{
    const char *const what = b ? b->what : "no cu_seqlens";
    char name[64] = "";
    k.batch = batch;
    k.cu_dtype = b ? TROPE_I32 : 0;
    k.sequences = b ? b->sequences : 0;
    k.padding = TROPE_PADDING_ZERO;
    problem *const p = problem_new(&k, 5);
    if (b)
        set_boundaries(b, p);
    CHECK_MESSAGE(problem_queue(p, NULL) == TROPE_OK, "%s, %s: %s", k.name, what, trope_last_error());
    CHECK(trope_kernel_name(call_args(&p->on_device), k.gradient != NO_GRADIENT, name, sizeof name) == TROPE_OK);
    if (b && b->sequences == 0)
        kernel = "elements"; /* a search in 32 bits needs at least one sequence */
    CHECK_MESSAGE(!kernel || strstr(name, kernel), "%s, %s: unexpected kernel %s", k.name, what, name);
    problem_bring(p, NULL);
    CHECK_MESSAGE(count_zeros(p) == zeros, "%s, %s, batch %d: %zu bytes of the sums are 0, expected %zu", k.name, what,
                  (int)batch, count_zeros(p), zeros);
    check_memory(p, what, b && b->is_bad);
    problem_free(p);
}

static void check_cases(void)
{
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const call_case *const k = &cases[i].k;
        const size_t zeros = case_plan(k).regions[REGION_SUMS].bytes;
        check_call(*k, cases[i].kernel, 1, zeros, NULL);
        check_call(*k, cases[i].kernel, 3, zeros, NULL);
        for (size_t j = 0; j < COUNT_OF(all_boundaries); j++)
            check_call(*k, cases[i].kernel, 1, zeros, &all_boundaries[j]);
    }
}

/* ---- gradients in every layout ---- */

typedef enum option { PER_BATCH = 1, OWN_ANGLES = 2, WITH_IDS = 4, FREQUENCIES = 8, OPTIONS = 16 } option;

static void check_gradient_layouts(int32_t dtype, int64_t batch, int options)
{
    enum { ROWS = 6, DIM = 8, ROW_STRIDE = 11 };
    call_case k = {"sums", dtype, TROPE_BSHD, .operands = {{2, DIM, DIM, 0}}, .gradient = GRADIENT_ALONE, .rows = ROWS};
    const int64_t columns = options & OWN_ANGLES ? DIM : DIM / 2;
    size_t zeros = DIM / 2 * sizeof(double);
    k.ids_dtype = options & WITH_IDS ? TROPE_I32 : 0;
    if (!(options & FREQUENCIES)) {
        k.angles = FREQS;
        k.columns = options & OWN_ANGLES ? TROPE_COLUMNS_HALF : TROPE_COLUMNS_PAIR;
        k.row_stride = ROW_STRIDE;
        k.per_batch = options & PER_BATCH;
        zeros = (size_t)((k.per_batch ? batch : 1) * ROWS * columns) * (dtype == TROPE_F64 ? 8 : 4);
    }
    check_call(k, NULL, batch, zeros, NULL);
}

int main(void)
{
    device_require();
    check_cases();
    for (int64_t batch = 1; batch <= 3; batch++)
        for (int32_t dtype = TROPE_F32; dtype <= TROPE_F64; dtype++)
            for (int options = 0; options < OPTIONS; options++)
                if (!(options & FREQUENCIES) || !(options & (PER_BATCH | OWN_ANGLES)))
                    check_gradient_layouts(dtype, batch, options);
    return check_result();
}
