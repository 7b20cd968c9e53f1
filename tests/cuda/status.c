/* The status word, and the results for invalid data that the host cannot check: positions out of range, cu_seqlens that
 * decrease or do not fit, lengths that context parallel ranks cannot share. In all cases the call writes every element and
 * nothing else, and bits of the status word that were set before stay set. */
#include <math.h>
#include <string.h>

#include "cuda/device_call.h"
#include "cuda/problem.h"
#include "support/check.h"
#include "support/number.h"

enum { TOKENS = 48, HEADS = 3, DIM = 32, ROWS = 40, COUNT = TOKENS * HEADS * DIM, OF_TOKEN = HEADS * DIM };
enum { MOST_BOUNDARIES = 5 };

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

static const call_case base = {.name = "status",
                               .dtype = TROPE_BF16,
                               .layout = TROPE_THD,
                               .tokens = TOKENS,
                               .operands = {{HEADS, DIM, DIM, 0}},
                               .angles = FREQS,
                               .rows = ROWS};

static const uint16_t *found_dst(const problem *p)
{
    return (const uint16_t *)(const void *)(p->found + p->map.regions[REGION_DST].at);
}

static void run(problem *p)
{
    problem_upload(p, NULL);
    CHECK_MESSAGE(problem_queue(p, NULL) == TROPE_OK, "%s", trope_last_error());
    problem_bring(p, NULL);
}

/* Checks that the call set exactly `bits` in the status word. It may also set the bits `others`. */
static void check_status(const problem *p, int32_t bits, int32_t others, const char *what)
{
    int32_t found;
    memcpy(&found, p->found + p->map.regions[REGION_STATUS].at, sizeof found);
    CHECK_MESSAGE((found & ~others) == (CASE_STATUS_BEFORE | bits), "%s: status is 0x%x, expected 0x%x", what, found,
                  CASE_STATUS_BEFORE | bits);
}

/* Checks that every element was written and nothing else, and that a second call gives the same bits. */
static void check_complete_and_repeatable(problem *p, const char *what)
{
    uint16_t first[COUNT];
    int unwritten = 0;
    memcpy(first, found_dst(p), sizeof first);
    for (int i = 0; i < COUNT; i++)
        unwritten += first[i] == 0xffff;
    CHECK_MESSAGE(unwritten == 0, "%s: the call did not write %d elements", what, unwritten);
    CHECK_MESSAGE(problem_stray_bytes(p) == 0, "%s: the call wrote %zu bytes outside of dst", what, problem_stray_bytes(p));
    run(p);
    CHECK_MESSAGE(!memcmp(first, found_dst(p), sizeof first), "%s: a second call differs", what);
}

/* ---- positions ---- */

typedef struct position_row {
    const char *what;
    int is_outside, has_status;
    int32_t out_of_range, bits;
} position_row;

static const position_row position_rows[] = {
    {"positions in range", 0, 1, TROPE_RANGE_POISON, 0},
    {"positions out of range", 1, 1, TROPE_RANGE_POISON, TROPE_STATUS_POSITION},
    {"positions clamped", 1, 1, TROPE_RANGE_CLAMP, 0},
    {"no status word", 1, 0, TROPE_RANGE_POISON, 0},
};

static int count_nan(const problem *p, int token)
{
    int count = 0;
    for (int i = 0; i < OF_TOKEN; i++)
        count += isnan(number_load(TROPE_BF16, found_dst(p) + token * OF_TOKEN + i));
    return count;
}

static void check_positions(const position_row *row)
{
    call_case k = base;
    k.ids_dtype = TROPE_I64;
    k.out_of_range = row->out_of_range;
    problem *const p = problem_new(&k, 7);
    int64_t *const ids = problem_region(p, REGION_IDS);
    if (!row->has_status)
        p->on_host.args.status = p->on_device.args.status = NULL;
    if (row->is_outside) {
        ids[5] = ROWS;
        ids[17] = -1;
        ids[TOKENS - 1] = INT64_MAX;
    }
    run(p);
    check_status(p, row->bits, 0, row->what);
    const int is_poisoned = row->is_outside && row->out_of_range == TROPE_RANGE_POISON;
    for (int token = 0; token < TOKENS; token++) {
        const int is_nan = is_poisoned && (ids[token] < 0 || ids[token] >= ROWS);
        CHECK_MESSAGE(count_nan(p, token) == (is_nan ? OF_TOKEN : 0), "%s: %d elements of token %d are NaN", row->what,
                      count_nan(p, token), token);
    }
    check_complete_and_repeatable(p, row->what);
    if (row->has_status) /* without a status word, the CPU refuses the call */
        CHECK_MESSAGE(problem_holds(p, NULL), "%s: differs from the CPU", row->what);
    problem_free(p);
}

/* ---- sequences ---- */

typedef struct sequence_row {
    const char *what;
    int sequences;
    int64_t boundaries[MOST_BOUNDARIES];
    int32_t bits, cp_layout, cp_size, cp_rank;
    int right_tokens; /* the number of first tokens whose results are the same as with sequence_rows[0] */
    int64_t padded[MOST_BOUNDARIES];
} sequence_row;

#define WRONG  TROPE_STATUS_CU_SEQLENS
#define UNEVEN TROPE_STATUS_CP_LENGTH
#define STORED                                                                                                             \
    {                                                                                                                      \
        0, 10, 20, 30, 48                                                                                                  \
    }
#define RANK(LAYOUT, SIZE, NUMBER) .cp_layout = TROPE_CP_##LAYOUT, .cp_size = SIZE, .cp_rank = NUMBER

/* clang-format off */
static const sequence_row sequence_rows[] = {
    {"valid", 4, {0, 10, 10, 30, 48}, .bits = 0, .right_tokens = TOKENS},
    {"one boundary decreases", 4, {0, 30, 20, 40, 48}, .bits = WRONG},
    {"the last boundary is too large", 4, {0, 10, 20, 30, 49}, .bits = WRONG},
    {"the first boundary is negative", 4, {-1, 10, 20, 30, 48}, .bits = WRONG},
    {"all boundaries decrease", 4, {48, 40, 30, 20, 0}, .bits = WRONG},
    {"one boundary is far too large", 4, {0, 10, 1000, 30, 48}, .bits = WRONG},
    {"one boundary is far below 0", 4, {0, 10, -1000, 30, 48}, .bits = WRONG},
    {"the least and greatest int64", 4, {INT64_MIN, INT64_MAX, 20, 30, 48}, .bits = WRONG},
    {"the last boundary is the least int64", 4, {0, 10, 20, 30, INT64_MIN}, .bits = WRONG},
    {"valid sequences before a wrong one", 4, {0, 10, 10, 30, 29}, .bits = WRONG, .right_tokens = 10},
    {"a sequence longer than its storage", 4, {0, 10, 21, 30, 40}, .bits = WRONG, .padded = STORED},
    {"an unpadded sequence with a negative begin", 4, {-1, 10, 20, 30, 40}, .bits = WRONG, .padded = STORED},
    {"zigzag", 3, {0, 40, 80, 96}, .bits = 0, RANK(ZIGZAG, 2, 1)},
    {"zigzag, an indivisible length", 3, {0, 42, 80, 96}, .bits = UNEVEN, RANK(ZIGZAG, 2, 1)},
    {"contiguous", 3, {0, 42, 80, 96}, .bits = 0, RANK(CONTIGUOUS, 2, 1)},
    {"contiguous, an indivisible length", 3, {0, 41, 80, 96}, .bits = UNEVEN, RANK(CONTIGUOUS, 2, 1)},
    {"striped, an indivisible length", 3, {0, 41, 81, 144}, .bits = UNEVEN, RANK(STRIPED, 3, 1)},
    {"striped", 3, {0, 42, 81, 144}, .bits = 0, RANK(STRIPED, 3, 1)},
    {"flat", 3, {0, 41, 81, 96}, .bits = 0, RANK(FLAT, 2, 1)},
    {"a wrong sequence of another rank", 3, {0, 48, 100, 96}, .bits = WRONG, RANK(FLAT, 2, 0)},
    {"zigzag, an indivisible length before an empty sequence", 4, {0, 40, 82, 82, 96}, .bits = UNEVEN, RANK(ZIGZAG, 2, 0)},
};
/* clang-format on */

static void set_ranks(const sequence_row *row, trope_args *a)
{
    a->cp_layout = row->cp_layout;
    a->cp_size = row->cp_size;
    a->cp_rank = row->cp_rank;
}

static void check_sequences(const sequence_row *row)
{
    call_case k = base;
    k.cu_dtype = TROPE_I64;
    k.sequences = row->sequences;
    k.padding = TROPE_PADDING_ZERO;
    k.out_of_range = row->cp_layout ? TROPE_RANGE_CLAMP : TROPE_RANGE_POISON;
    problem *const p = problem_new(&k, 7);
    memcpy(problem_region(p, REGION_CU_SEQLENS), row->boundaries, p->map.regions[REGION_CU_SEQLENS].bytes);
    memcpy(problem_region(p, REGION_PADDED), row->padded, p->map.regions[REGION_PADDED].bytes);
    if (row->padded[1])
        p->on_device.args.cu_seqlens_padded = p->device + p->map.regions[REGION_PADDED].at;
    set_ranks(row, &p->on_device.args);
    run(p);
    /* A wrong sequence can have positions that are not in the table of angles. */
    check_status(p, row->bits, row->bits == WRONG ? TROPE_STATUS_POSITION : 0, row->what);
    check_complete_and_repeatable(p, row->what);
    memcpy(problem_region(p, REGION_CU_SEQLENS), sequence_rows[0].boundaries, p->map.regions[REGION_CU_SEQLENS].bytes);
    if (row->right_tokens) {
        CHECK_MESSAGE(problem_run_on_host(p) == TROPE_OK, "%s", trope_last_error());
        CHECK_MESSAGE(!memcmp(found_dst(p), problem_region(p, REGION_DST), (size_t)row->right_tokens * OF_TOKEN * 2),
                      "%s: the tokens of valid sequences differ", row->what);
    }
    problem_free(p);
}

int main(void)
{
    device_require();
    for (size_t i = 0; i < COUNT_OF(position_rows); i++)
        check_positions(&position_rows[i]);
    for (size_t i = 0; i < COUNT_OF(sequence_rows); i++)
        check_sequences(&sequence_rows[i]);
    return check_result();
}
