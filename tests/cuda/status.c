/* The status word, and what becomes of data that no host could check: positions out of range, cu_seqlens that decrease or
 * do not fit, lengths that context parallel ranks cannot share. Whatever it is, every element is written, nothing else is,
 * and bits that were set stay set. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/device_call.h"
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
    trope_args args;
} state;

static void start(state *s)
{
    random_state random = {7};
    trope_args *a = &s->args;
    memset(&s->host, 0xff, sizeof s->host);
    for (int i = 0; i < COUNT; i++)
        number_store(TROPE_BF16, &s->host.src[i], 1 + random_real(&random) / 2);
    for (int i = 0; i < ROWS * DIM / 2; i++)
        s->host.freqs[i] = (float)(3 * random_real(&random));
    for (int i = 0; i < TOKENS; i++)
        s->host.ids[i] = i % ROWS;
    s->host.status = 0x100;
    *a = (trope_args){.struct_size = sizeof *a, .dtype = TROPE_BF16, .operand_count = 1, .batch = 1, .tokens = TOKENS};
    a->device = TROPE_DEVICE_CUDA;
    a->operands[0] =
        (trope_operand){.src = s->device->src, .dst = s->device->dst, .heads_per_group = HEADS, .head_dim = DIM};
    a->operands[0].rotary_dim = DIM;
    trope_fill_strides(a->operands[0].src_stride, TROPE_THD, 1, TOKENS, HEADS, DIM);
    memcpy(a->operands[0].dst_stride, a->operands[0].src_stride, sizeof a->operands[0].dst_stride);
    a->freqs = s->device->freqs;
    a->angle_rows = ROWS;
    a->angle_cols = DIM / 2;
    a->position_dtype = TROPE_I64;
    a->cu_seqlens_dtype = TROPE_I64;
    a->status = &s->device->status;
}

static void set_sequences(state *s, int count, const int64_t *boundaries)
{
    memcpy(s->host.cu_seqlens, boundaries, ((size_t)count + 1) * sizeof *boundaries);
    s->args.cu_seqlens = s->device->cu_seqlens;
    s->args.sequences = count;
}

static void run(state *s)
{
    CUDA_MUST(cudaMemcpy(s->device, &s->host, sizeof s->host, cudaMemcpyHostToDevice));
    CHECK_MESSAGE(trope_forward(&s->args) == TROPE_OK, "%s", trope_last_error());
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
    s->args.position_ids = s->device->ids;
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
    s->args.out_of_range = TROPE_RANGE_CLAMP;
    run(s);
    check_status(s, 0, "positions clamped");
    CHECK(count_nan_tokens(s) == 0);
    check_defined(s, "positions clamped");
    s->args.out_of_range = TROPE_RANGE_POISON;
    s->args.status = NULL;
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
    static const int64_t wrong[][5] = {{0, 30, 20, 40, 48}, {0, 10, 20, 30, 49},   {-1, 10, 20, 30, 48},
                                       {48, 40, 30, 20, 0}, {0, 10, 1000, 30, 48}, {0, 10, -1000, 30, 48}};
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
    s->args.cu_seqlens_padded = s->device->ids;
    run(s);
    check_status(s, TROPE_STATUS_CU_SEQLENS, "a sequence longer than its storage");
    check_defined(s, "a sequence longer than its storage");
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
        s->args.cp_layout = cases[i].layout;
        s->args.cp_size = cases[i].size;
        s->args.cp_rank = 1;
        s->args.out_of_range = TROPE_RANGE_CLAMP;
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
    s->args.cp_layout = TROPE_CP_FLAT;
    s->args.cp_size = 2;
    s->args.out_of_range = TROPE_RANGE_CLAMP;
    run(s);
    check_status(s, TROPE_STATUS_CU_SEQLENS, "sequences of another rank");
    start(s);
    set_sequences(s, 4, zigzag);
    s->args.cp_layout = TROPE_CP_ZIGZAG;
    s->args.cp_size = 2;
    s->args.out_of_range = TROPE_RANGE_CLAMP;
    run(s);
    CHECK(s->found.status & TROPE_STATUS_CP_LENGTH);
}

/* ---- one sequence among many ---- */

/* Whose calls go different ways: heads in registers, tiles of one row, of several rows, of rows of one head, and pairs. */
static const struct packed_shape {
    int64_t tokens;
    int32_t heads, dim;
} packed_shapes[] = {{64, 32, 128}, {3000, 32, 128}, {500, 3, 32}, {3000, 1, 128}, {70, 3, 20}};

enum { MANY = 70000 };
enum { TABLE = 1, BACKWARD = 2, CALLS = 4 }; /* a call is a sum of TABLE and BACKWARD */

typedef struct packed_call {
    trope_args args;
    double inv_freq[64];
    int32_t *boundaries, *on_device;
    int call;
} packed_call;

static void *device_bytes(size_t bytes)
{
    void *p;
    CUDA_MUST(cudaMalloc(&p, bytes + 1));
    CUDA_MUST(cudaMemset(p, 0, bytes + 1));
    return p;
}

static packed_call *packed_new(const struct packed_shape *shape, int call)
{
    packed_call *c = calloc(1, sizeof *c);
    trope_args *a = &c->args;
    trope_operand *o = &a->operands[0];
    const size_t bytes = (size_t)(shape->tokens * shape->heads * shape->dim) * 2;
    const size_t pairs = (size_t)shape->dim / 2, rows = (size_t)shape->tokens;
    c->call = call;
    c->boundaries = calloc(MANY + 1, sizeof *c->boundaries);
    c->on_device = device_bytes((MANY + 1) * sizeof *c->boundaries);
    for (size_t i = 0; i < pairs; i++)
        c->inv_freq[i] = 1 / (double)(i + 1);
    *a = (trope_args){.struct_size = sizeof *a, .device = TROPE_DEVICE_CUDA, .dtype = TROPE_BF16, .operand_count = 1};
    a->batch = 1;
    a->tokens = shape->tokens;
    *o = (trope_operand){.heads_per_group = shape->heads, .head_dim = shape->dim, .rotary_dim = shape->dim};
    o->src = device_bytes(bytes);
    o->dst = device_bytes(bytes);
    trope_fill_strides(o->src_stride, TROPE_THD, 1, shape->tokens, shape->heads, shape->dim);
    memcpy(o->dst_stride, o->src_stride, sizeof o->dst_stride);
    a->cu_seqlens = c->on_device;
    a->cu_seqlens_dtype = TROPE_I32;
    a->status = device_bytes(sizeof *a->status);
    if (call & TABLE) {
        a->freqs = device_bytes(rows * pairs * sizeof(float));
        a->angle_rows = shape->tokens;
        a->angle_cols = (int32_t)pairs;
    } else {
        a->inv_freq = c->inv_freq;
    }
    if (call & BACKWARD) {
        o->input = o->src;
        memcpy(o->input_stride, o->src_stride, sizeof o->input_stride);
        a->d_freqs = call & TABLE ? device_bytes(rows * pairs * sizeof(float)) : NULL;
        a->d_inv_freq = call & TABLE ? NULL : device_bytes(pairs * sizeof(double));
        a->sequences = MANY;
        CHECK_MESSAGE(trope_workspace_size(a, &a->workspace_size) == TROPE_OK, "%s", trope_last_error());
        a->workspace = device_bytes(a->workspace_size);
    }
    return c;
}

static void packed_free(packed_call *c)
{
    const trope_args *a = &c->args;
    const void *const all[] = {a->operands[0].src, a->operands[0].dst, a->freqs,     a->d_freqs,
                               a->d_inv_freq,      a->workspace,       c->on_device, a->status};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        CUDA_MUST(cudaFree((void *)(uintptr_t)all[i]));
    free(c->boundaries);
    free(c);
}

static int32_t packed_status(packed_call *c)
{
    const size_t bytes = ((size_t)c->args.sequences + 1) * sizeof *c->boundaries;
    int32_t status = 0;
    CUDA_MUST(cudaMemcpy(c->on_device, c->boundaries, bytes, cudaMemcpyHostToDevice));
    CUDA_MUST(cudaMemset(c->args.status, 0, sizeof status));
    const trope_status returned = c->call & BACKWARD ? trope_backward(&c->args) : trope_forward(&c->args);
    CHECK_MESSAGE(returned == TROPE_OK, "%s", trope_last_error());
    CUDA_MUST(cudaMemcpy(&status, c->args.status, sizeof status, cudaMemcpyDeviceToHost));
    return status;
}

/* With boundary `at` replaced by `value`. */
static void check_wrong_boundary(packed_call *c, int64_t at, int64_t value)
{
    const int32_t right = c->boundaries[at];
    c->boundaries[at] = (int32_t)value;
    const int32_t status = packed_status(c);
    CHECK_MESSAGE(status & TROPE_STATUS_CU_SEQLENS,
                  "call %d, %lld tokens, %d heads: boundary %lld of %lld sequences is %lld: status is 0x%x", c->call,
                  (long long)c->args.tokens, (int)c->args.operands[0].heads_per_group, (long long)at,
                  (long long)c->args.sequences, (long long)value, status);
    c->boundaries[at] = right;
}

/* The last result has NaN in all of a token. */
static void check_poisoned(const packed_call *c, int64_t token)
{
    const trope_operand *o = &c->args.operands[0];
    uint16_t found[32 * 128];
    const int count = o->heads_per_group * o->head_dim;
    int numbers = 0;
    CUDA_MUST(cudaMemcpy(found, (const uint16_t *)o->dst + token * count, (size_t)count * 2, cudaMemcpyDeviceToHost));
    for (int i = 0; i < count; i++)
        numbers += !isnan(number_load(TROPE_BF16, &found[i]));
    CHECK_MESSAGE(numbers == 0, "call %d, %lld tokens, %d heads, %lld sequences: %d elements of token %lld are numbers",
                  c->call, (long long)c->args.tokens, (int)o->heads_per_group, (long long)c->args.sequences, numbers,
                  (long long)token);
}

/* One sequence that is wrong is seen wherever it is, also where it holds no token; and nothing is seen that is not there.
 */
static void check_one_among_many(void)
{
    static const int64_t counts[] = {1, 2, 4, 31, 32, 200, 1023, 1024, MANY};
    for (size_t i = 0; i < CALLS * sizeof packed_shapes / sizeof packed_shapes[0]; i++) {
        packed_call *c = packed_new(&packed_shapes[i / CALLS], (int)(i % CALLS));
        const int64_t tokens = c->args.tokens;
        for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
            const int64_t count = c->args.sequences = counts[k];
            const int64_t places[] = {0, 1, count / 3, count - 2, count - 1};
            for (int64_t b = 0; b <= count; b++)
                c->boundaries[b] = (int32_t)(b * tokens / count);
            CHECK_MESSAGE(packed_status(c) == 0, "call %d, %lld tokens, %lld sequences that are right", c->call,
                          (long long)tokens, (long long)count);
            for (size_t j = 0; j < sizeof places / sizeof places[0]; j++)
                if (places[j] >= 0 && places[j] < count)
                    check_wrong_boundary(c, places[j] + 1, c->boundaries[places[j]] - 1);
            check_wrong_boundary(c, 0, -1);
            if (count <= tokens) /* the sequences at the ends hold a token */
                check_poisoned(c, 0);
            check_wrong_boundary(c, count, tokens + 1);
            if (count <= tokens)
                check_poisoned(c, tokens - 1);
        }
        packed_free(c);
    }
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
    check_one_among_many();
    CUDA_MUST(cudaFree(s->device));
    free(s);
    return check_result();
}
