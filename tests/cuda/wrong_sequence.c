/* One wrong sequence among few or many, up to 70,000: its bit is set wherever it is, by every kernel of packed calls, and
 * its tokens are NaN. And a right one that needs 64 bits, because so many ranks share it: nothing is reported, and the result has the
 * CPU's bits.
 *
 *     cuda_wrong_sequence [--part N]        an N-th of the tokens, for devices that are as much smaller */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/device_call.h"
#include "support/call.h"
#include "support/check.h"
#include "support/number.h"

/* Whose calls go different ways: a block for a row, for several, rows of one head, and elements. */
typedef struct packed_shape {
    int64_t tokens;
    int32_t heads, dim;
} packed_shape;
static const packed_shape packed_shapes[] = {{64, 32, 128}, {3000, 32, 128}, {500, 3, 32}, {3000, 1, 128}, {70, 3, 20}};

enum { MANY = 70000 };
enum { TABLE = 1, BACKWARD = 2, KINDS = 4 }; /* a kind of call is a sum of TABLE and BACKWARD */

typedef struct packed_call {
    call call;
    trope_args *args; /* of the call */
    double inv_freq[64];
    int32_t *boundaries, *on_device;
    int kind;
} packed_call;

static void *device_bytes(size_t bytes)
{
    void *p;
    CUDA_MUST(cudaMalloc(&p, bytes + 1));
    CUDA_MUST(cudaMemset(p, 0, bytes + 1));
    return p;
}

static void ask_for_gradient(packed_call *c, size_t rows, size_t pairs)
{
    trope_args *a = c->args;
    trope_operand *o = &c->call.operands[0];
    o->forward_src = o->src;
    o->forward_src_layout = o->src_layout;
    if (c->kind & TABLE) {
        a->d_freqs = device_bytes(rows * pairs * sizeof(float));
        a->d_freqs_layout = TROPE_TABLE_ROWS;
    } else {
        a->d_inv_freq = device_bytes(pairs * sizeof(double));
    }
    a->sequences = MANY;
    CHECK_MESSAGE(trope_workspace_size(a, &a->workspace_size) == TROPE_OK, "%s", trope_last_error());
    a->workspace = device_bytes(a->workspace_size);
}

static packed_call *packed_new(const packed_shape *shape, int kind)
{
    packed_call *c = calloc(1, sizeof *c);
    const size_t bytes = (size_t)(shape->tokens * shape->heads * shape->dim) * 2;
    const size_t pairs = (size_t)shape->dim / 2, rows = (size_t)shape->tokens;
    c->kind = kind;
    c->boundaries = calloc(MANY + 1, sizeof *c->boundaries);
    c->on_device = device_bytes((MANY + 1) * sizeof *c->boundaries);
    for (size_t i = 0; i < pairs; i++)
        c->inv_freq[i] = 1 / (double)(i + 1);
    c->call = call_make(TROPE_BF16, 1, shape->tokens);
    c->args = call_args(&c->call);
    c->args->device = TROPE_DEVICE_CUDA;
    call_add(&c->call, device_bytes(bytes), TROPE_THD, shape->heads, shape->dim, shape->dim)->src = device_bytes(bytes);
    call_cu_seqlens(&c->call, c->on_device, TROPE_I32, 0); /* how many varies */
    c->args->padding = TROPE_PADDING_ZERO;
    c->args->status = device_bytes(sizeof *c->args->status);
    if (kind & TABLE)
        call_freqs(&c->call, device_bytes(rows * pairs * sizeof(float)), TROPE_COLUMNS_PAIR, shape->tokens);
    else
        c->args->inv_freq = c->inv_freq;
    if (kind & BACKWARD)
        ask_for_gradient(c, rows, pairs);
    return c;
}

static void packed_free(packed_call *c)
{
    const trope_args *a = c->args;
    const void *const all[] = {a->operands[0].src, a->operands[0].dst, a->freqs,     a->d_freqs,
                               a->d_inv_freq,      a->workspace,       c->on_device, a->status};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        CUDA_MUST(cudaFree((void *)(uintptr_t)all[i]));
    free(c->boundaries);
    free(c);
}

static int32_t packed_status(packed_call *c)
{
    const size_t bytes = ((size_t)c->args->sequences + 1) * sizeof *c->boundaries;
    int32_t status = 0;
    CUDA_MUST(cudaMemcpy(c->on_device, c->boundaries, bytes, cudaMemcpyHostToDevice));
    CUDA_MUST(cudaMemset(c->args->status, 0, sizeof status));
    const trope_status returned = c->kind & BACKWARD ? trope_backward(c->args) : trope_forward(c->args);
    CHECK_MESSAGE(returned == TROPE_OK, "%s", trope_last_error());
    CUDA_MUST(cudaMemcpy(&status, c->args->status, sizeof status, cudaMemcpyDeviceToHost));
    return status;
}

/* With boundary `at` replaced by `value`. */
static void check_wrong_boundary(packed_call *c, int64_t at, int64_t value)
{
    const int32_t right = c->boundaries[at];
    c->boundaries[at] = (int32_t)value;
    const int32_t status = packed_status(c);
    CHECK_MESSAGE(status & TROPE_STATUS_CU_SEQLENS,
                  "kind %d, %lld tokens, %d heads: boundary %lld of %lld sequences is %lld: status is 0x%x", c->kind,
                  (long long)c->args->tokens, (int)c->args->operands[0].heads_per_group, (long long)at,
                  (long long)c->args->sequences, (long long)value, status);
    c->boundaries[at] = right;
}

/* The last result has NaN in all of a token. */
static void check_poisoned(const packed_call *c, int64_t token)
{
    const trope_operand *o = &c->args->operands[0];
    uint16_t found[32 * 128];
    const int count = o->heads_per_group * o->head_dim;
    int numbers = 0;
    CUDA_MUST(cudaMemcpy(found, (const uint16_t *)o->dst + token * count, (size_t)count * 2, cudaMemcpyDeviceToHost));
    for (int i = 0; i < count; i++)
        numbers += !isnan(number_load(TROPE_BF16, &found[i]));
    CHECK_MESSAGE(numbers == 0, "kind %d, %lld tokens, %d heads, %lld sequences: %d elements of token %lld are numbers",
                  c->kind, (long long)c->args->tokens, (int)o->heads_per_group, (long long)c->args->sequences, numbers,
                  (long long)token);
}

/* One sequence that is wrong is seen wherever it is, also where it holds no token; and nothing is seen that is not there.
 */
static void check_one_among(packed_call *c, int64_t count)
{
    const int64_t tokens = c->args->tokens, places[] = {0, 1, count / 3, count - 2, count - 1};
    c->args->sequences = count;
    for (int64_t b = 0; b <= count; b++)
        c->boundaries[b] = (int32_t)(b * tokens / count);
    CHECK_MESSAGE(packed_status(c) == 0, "kind %d, %lld tokens, %lld sequences that are right", c->kind, (long long)tokens,
                  (long long)count);
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

static void check_one_among_many(packed_shape shape, int64_t part)
{
    static const int64_t counts[] = {1, 2, 4, 31, 32, 200, 1023, 1024, MANY};
    shape.tokens = (shape.tokens + part - 1) / part;
    for (int kind = 0; kind < KINDS; kind++) {
        packed_call *c = packed_new(&shape, kind);
        for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++)
            check_one_among(c, counts[k]);
        packed_free(c);
    }
}

enum { WIDE_TOKENS = 64, WIDE_HEADS = 3, WIDE_DIM = 20, WIDE_RANKS = 1 << 25 }; /* 2^31 tokens in all */

static call make_wide_call(int32_t device, void *x, void *y, void *cu_seqlens, const double *inv_freq, int32_t layout)
{
    call c = call_make(TROPE_BF16, 1, WIDE_TOKENS);
    call_add(&c, y, TROPE_THD, WIDE_HEADS, WIDE_DIM, WIDE_DIM)->src = x;
    call_cu_seqlens(&c, cu_seqlens, TROPE_I64, 1);
    c.args.device = device;
    c.args.inv_freq = inv_freq;
    c.args.padding = TROPE_PADDING_ZERO;
    c.args.cp_size = WIDE_RANKS;
    c.args.cp_rank = WIDE_RANKS - 1;
    c.args.cp_layout = layout;
    return c;
}

static void check_wide_stream(int32_t layout)
{
    enum { COUNT = WIDE_TOKENS * WIDE_HEADS * WIDE_DIM };
    static uint16_t x[COUNT], expected[COUNT], found[COUNT];
    int64_t cu_seqlens[] = {0, (int64_t)WIDE_TOKENS * WIDE_RANKS};
    const double inv_freq[WIDE_DIM / 2] = {1, 0.5, 0.25};
    int32_t status;
    for (int i = 0; i < COUNT; i++)
        x[i] = (uint16_t)(0x3f80 + i % 64);
    void *const on_device[] = {device_bytes(sizeof x), device_bytes(sizeof x), device_bytes(sizeof cu_seqlens),
                               device_bytes(sizeof status)};
    CUDA_MUST(cudaMemcpy(on_device[0], x, sizeof x, cudaMemcpyHostToDevice));
    CUDA_MUST(cudaMemcpy(on_device[2], cu_seqlens, sizeof cu_seqlens, cudaMemcpyHostToDevice));
    call on_host = make_wide_call(TROPE_DEVICE_CPU, x, expected, cu_seqlens, inv_freq, layout);
    call c = make_wide_call(TROPE_DEVICE_CUDA, on_device[0], on_device[1], on_device[2], inv_freq, layout);
    call_args(&c)->status = on_device[3];
    CHECK_MESSAGE(trope_forward(call_args(&on_host)) == TROPE_OK, "%s", trope_last_error());
    CHECK_MESSAGE(trope_forward(call_args(&c)) == TROPE_OK, "%s", trope_last_error());
    CUDA_MUST(cudaMemcpy(found, on_device[1], sizeof found, cudaMemcpyDeviceToHost));
    CUDA_MUST(cudaMemcpy(&status, on_device[3], sizeof status, cudaMemcpyDeviceToHost));
    CHECK_MESSAGE(status == 0 && !memcmp(found, expected, sizeof found), "cp_layout %d, 2^31 tokens: status is 0x%x",
                  (int)layout, status);
    for (size_t i = 0; i < sizeof on_device / sizeof on_device[0]; i++)
        CUDA_MUST(cudaFree(on_device[i]));
}

int main(int argc, char **argv)
{
    device_require();
    const long part = device_option(argc, argv, "--part", 1);
    for (size_t i = 0; i < sizeof packed_shapes / sizeof packed_shapes[0]; i++)
        check_one_among_many(packed_shapes[i], part);
    for (int32_t layout = TROPE_CP_CONTIGUOUS; layout <= TROPE_CP_FLAT; layout++)
        check_wide_stream(layout);
    return check_result();
}
