/* The status word, and what becomes of data that no host could check: positions out of range, cu_seqlens that decrease or
 * do not fit, lengths that context parallel ranks cannot share. Whatever it is, every element is written, nothing else is,
 * and bits that were set stay set. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/device_call.h"
#include "support/call.h"
#include "support/check.h"
#include "support/number.h"
#include "support/random.h"

enum { TOKENS = 48, HEADS = 3, DIM = 32, ROWS = 40, COUNT = TOKENS * HEADS * DIM, GUARD = 256, MOST_SEQUENCES = 8 };

typedef struct memory {
    uint16_t src[COUNT], before[GUARD], dst[COUNT], after[GUARD];
    float freqs[ROWS * DIM / 2];
    int64_t cu_seqlens[MOST_SEQUENCES + 1], ids[TOKENS];
    int32_t status;
} memory;

typedef struct state {
    memory *device;
    memory host, found;
    call call;
    trope_args *args; /* of the call */
} state;

static void start(state *s)
{
    random_state random = {7};
    memset(&s->host, 0xff, sizeof s->host);
    for (int i = 0; i < COUNT; i++)
        number_store(TROPE_BF16, &s->host.src[i], 1 + random_real(&random) / 2);
    for (int i = 0; i < ROWS * DIM / 2; i++)
        s->host.freqs[i] = (float)(3 * random_real(&random));
    for (int i = 0; i < TOKENS; i++)
        s->host.ids[i] = i % ROWS;
    s->host.status = 0x100;
    s->call = call_make(TROPE_BF16, 1, TOKENS);
    s->call.args.device = TROPE_DEVICE_CUDA;
    call_add(&s->call, s->device->dst, TROPE_THD, HEADS, DIM, DIM)->src = s->device->src;
    call_freqs(&s->call, s->device->freqs, TROPE_COLUMNS_PAIR, ROWS);
    s->args = call_args(&s->call);
    s->args->status = &s->device->status;
}

static void set_sequences(state *s, int count, const int64_t *boundaries)
{
    memcpy(s->host.cu_seqlens, boundaries, ((size_t)count + 1) * sizeof *boundaries);
    call_cu_seqlens(&s->call, s->device->cu_seqlens, TROPE_I64, count);
    s->args->padding = TROPE_PADDING_ZERO;
}

static void run(state *s)
{
    CUDA_MUST(cudaMemcpy(s->device, &s->host, sizeof s->host, cudaMemcpyHostToDevice));
    CHECK_MESSAGE(trope_forward(s->args) == TROPE_OK, "%s", trope_last_error());
    CUDA_MUST(cudaMemcpy(&s->found, s->device, sizeof s->found, cudaMemcpyDeviceToHost));
}

static int is_nan(const state *s, int token, int element)
{
    return isnan(number_load(TROPE_BF16, &s->found.dst[token * HEADS * DIM + element]));
}

/* Every element is written, nothing beside them, and a second call gives the same bits. */
static void check_defined(state *s, const char *what)
{
    static memory first;
    int unwritten = 0;
    for (int i = 0; i < COUNT; i++)
        unwritten += s->found.dst[i] == 0xffff;
    CHECK_MESSAGE(unwritten == 0, "%s: %d elements were not written", what, unwritten);
    CHECK_MESSAGE(!memcmp(s->found.src, s->host.src, sizeof s->host.src), "%s: the source was written", what);
    CHECK_MESSAGE(!memcmp(s->found.before, s->host.before, sizeof s->host.before), "%s: written in front of dst", what);
    CHECK_MESSAGE(!memcmp(s->found.after, s->host.after, sizeof s->host.after), "%s: written behind dst", what);
    first = s->found;
    run(s);
    CHECK_MESSAGE(!memcmp(&first, &s->found, sizeof first), "%s: a second call differs", what);
}

static void check_status(const state *s, int32_t bits, const char *what)
{
    CHECK_MESSAGE(s->found.status == (0x100 | bits), "%s: status is 0x%x, expected 0x%x", what, s->found.status,
                  0x100 | bits);
}

/* ---- positions ---- */

static int count_nan_tokens(const state *s)
{
    int tokens = 0;
    for (int token = 0; token < TOKENS; token++) {
        int elements = 0;
        for (int e = 0; e < HEADS * DIM; e++)
            elements += is_nan(s, token, e);
        CHECK_MESSAGE(elements == 0 || elements == HEADS * DIM, "token %d is poisoned in part", token);
        tokens += elements > 0;
    }
    return tokens;
}

static void check_positions(state *s)
{
    start(s);
    s->args->position_ids = s->device->ids;
    s->args->position_dtype = TROPE_I64;
    s->args->ids_layout = TROPE_IDS_TOKENS;
    run(s);
    check_status(s, 0, "positions inside");
    CHECK(count_nan_tokens(s) == 0);
    s->host.ids[5] = ROWS;
    s->host.ids[17] = -1;
    s->host.ids[TOKENS - 1] = INT64_MAX;
    run(s);
    check_status(s, TROPE_STATUS_POSITION, "positions outside");
    CHECK(count_nan_tokens(s) == 3 && is_nan(s, 5, 0) && is_nan(s, 17, 0) && is_nan(s, TOKENS - 1, 0));
    check_defined(s, "positions outside");
    s->args->out_of_range = TROPE_RANGE_CLAMP;
    run(s);
    check_status(s, 0, "positions clamped");
    CHECK(count_nan_tokens(s) == 0);
    check_defined(s, "positions clamped");
    s->args->out_of_range = TROPE_RANGE_POISON;
    s->args->status = NULL;
    run(s);
    check_status(s, 0, "no status word");
    CHECK(count_nan_tokens(s) == 3);
}

/* ---- sequences ---- */

/* Whether tokens [begin, end) are what they are when all sequences are right. */
static int same_tokens(const state *s, const memory *good, int begin, int end)
{
    return !memcmp(s->found.dst + begin * HEADS * DIM, good->dst + begin * HEADS * DIM,
                   (size_t)((end - begin) * HEADS * DIM) * sizeof *s->found.dst);
}

static void check_sequences(state *s)
{
    static memory good;
    static const int64_t right[] = {0, 10, 10, 30, 48};
    static const int64_t wrong[][5] = {{0, 30, 20, 40, 48},
                                       {0, 10, 20, 30, 49},
                                       {-1, 10, 20, 30, 48},
                                       {48, 40, 30, 20, 0},
                                       {0, 10, 1000, 30, 48},
                                       {0, 10, -1000, 30, 48},
                                       {INT64_MIN, INT64_MAX, 20, 30, 48},
                                       {0, 10, 20, 30, INT64_MIN}};
    start(s);
    set_sequences(s, 4, right);
    run(s);
    check_status(s, 0, "sequences that are right");
    good = s->found;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        start(s);
        set_sequences(s, 4, wrong[i]);
        run(s);
        CHECK_MESSAGE(s->found.status & TROPE_STATUS_CU_SEQLENS, "cu_seqlens %d: status is 0x%x", (int)i, s->found.status);
        check_defined(s, "cu_seqlens that are wrong");
    }
    /* A sequence that is wrong leaves those in front of it alone. */
    static const int64_t late[] = {0, 10, 10, 30, 29};
    start(s);
    set_sequences(s, 4, late);
    run(s);
    CHECK(s->found.status & TROPE_STATUS_CU_SEQLENS);
    CHECK(same_tokens(s, &good, 0, 10));
}

/* The real lengths are longer than what is stored. */
static void check_padded(state *s)
{
    static const int64_t stored[] = {0, 10, 20, 30, 48}, real[] = {0, 10, 21, 30, 40};
    start(s);
    set_sequences(s, 4, real);
    memcpy(s->host.ids, stored, sizeof stored);
    s->args->cu_seqlens_padded = s->device->ids;
    run(s);
    check_status(s, TROPE_STATUS_CU_SEQLENS, "a sequence longer than its storage");
    check_defined(s, "a sequence longer than its storage");
    s->host.cu_seqlens[0] = -1;
    s->host.cu_seqlens[2] = 20;
    run(s);
    check_status(s, TROPE_STATUS_CU_SEQLENS, "a length that begins in front of everything");
}

static void check_lengths(state *s)
{
    static const struct {
        int32_t layout, size;
        int64_t boundaries[4];
        int32_t bits;
    } cases[] = {
        {TROPE_CP_ZIGZAG, 2, {0, 40, 80, 96}, 0},
        {TROPE_CP_ZIGZAG, 2, {0, 42, 80, 96}, TROPE_STATUS_CP_LENGTH},
        {TROPE_CP_CONTIGUOUS, 2, {0, 42, 80, 96}, 0},
        {TROPE_CP_CONTIGUOUS, 2, {0, 41, 80, 96}, TROPE_STATUS_CP_LENGTH},
        {TROPE_CP_STRIPED, 3, {0, 41, 81, 144}, TROPE_STATUS_CP_LENGTH},
        {TROPE_CP_STRIPED, 3, {0, 42, 81, 144}, 0},
        {TROPE_CP_FLAT, 2, {0, 41, 81, 96}, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        start(s);
        set_sequences(s, 3, cases[i].boundaries);
        s->args->cp_layout = cases[i].layout;
        s->args->cp_size = cases[i].size;
        s->args->cp_rank = 1;
        s->args->out_of_range = TROPE_RANGE_CLAMP;
        run(s);
        check_status(s, cases[i].bits, "context parallel");
        check_defined(s, "context parallel");
    }
}

/* Sequences of which no token is on this rank, or that are empty, are looked at all the same. */
static void check_unseen(state *s)
{
    static const int64_t unseen[] = {0, 48, 100, 96}, zigzag[] = {0, 40, 82, 82, 96};
    start(s);
    set_sequences(s, 3, unseen);
    s->args->cp_layout = TROPE_CP_FLAT;
    s->args->cp_size = 2;
    s->args->out_of_range = TROPE_RANGE_CLAMP;
    run(s);
    check_status(s, TROPE_STATUS_CU_SEQLENS, "sequences of another rank");
    start(s);
    set_sequences(s, 4, zigzag);
    s->args->cp_layout = TROPE_CP_ZIGZAG;
    s->args->cp_size = 2;
    s->args->out_of_range = TROPE_RANGE_CLAMP;
    run(s);
    CHECK(s->found.status & TROPE_STATUS_CP_LENGTH);
}

int main(void)
{
    state *s = calloc(1, sizeof *s);
    device_require();
    CUDA_MUST(cudaMalloc((void **)&s->device, sizeof *s->device));
    check_positions(s);
    check_sequences(s);
    check_padded(s);
    check_lengths(s);
    check_unseen(s);
    CUDA_MUST(cudaFree(s->device));
    free(s);
    return check_result();
}
