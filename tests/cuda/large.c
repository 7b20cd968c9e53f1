/* No limit shows: a tensor of more than 2^31 elements, 70,000 sequences, a batch of 70,000, wide heads. Data is made on the
 * device; of the large tensor, rows at random and the last ones are computed again on the CPU, of the others all.
 *
 *     cuda_large [--rows N] */
#include <stdlib.h>
#include <string.h>

#include "cuda/device_call.h"
#include "cuda/fill.h"
#include "support/call.h"
#include "support/check.h"
#include "support/random.h"

#define SMALL 100000000 /* elements: all tokens are compared */
#define GAP   7         /* tokens before the first sequence, and behind the last one */

/* What a call is, and how many tokens are compared. */
typedef struct large_case {
    const char *name;
    int32_t layout;
    int64_t batch, tokens;
    int32_t heads, head_dim, rotary_dim, rotary_offset, pairing;
    int backward, in_place;
    int64_t sequences;
} large_case;

static const large_case cases[] = {
    {"2^31 elements, sbhd", TROPE_SBHD, 1, 131200, 128, 128, 128, 0, TROPE_PAIRING_HALF, 0, 0, 0},
    {"2^31 elements, bhsd, backward", TROPE_BHSD, 2, 65600, 128, 128, 64, 64, TROPE_PAIRING_INTERLEAVED, 1, 0, 0},
    {"2^31 elements, bshd, in place", TROPE_BSHD, 41, 3200, 128, 128, 128, 0, TROPE_PAIRING_INTERLEAVED, 0, 1, 0},
    {"2^31 elements, an odd head", TROPE_SBHD, 1, 131200, 131, 126, 120, 3, TROPE_PAIRING_HALF, 0, 0, 0},
    {"70,000 sequences", TROPE_THD, 1, 200000, 2, 64, 64, 0, TROPE_PAIRING_HALF, 0, 0, 70000},
    {"70,000 sequences, backward", TROPE_THD, 1, 200000, 1, 128, 96, 32, TROPE_PAIRING_INTERLEAVED, 1, 0, 70000},
    {"batch 70,000, bshd", TROPE_BSHD, 70000, 3, 2, 64, 64, 0, TROPE_PAIRING_HALF, 0, 0, 0},
    {"batch 70,000, sbhd", TROPE_SBHD, 70000, 3, 2, 64, 64, 0, TROPE_PAIRING_HALF, 1, 0, 0},
    {"70,000 heads", TROPE_BSHD, 2, 5, 70000, 64, 64, 0, TROPE_PAIRING_HALF, 0, 1, 0},
    {"heads of 8 KB", TROPE_THD, 1, 1500, 2, 4096, 1024, 64, TROPE_PAIRING_HALF, 0, 0, 500},
};

typedef struct state {
    const large_case *c;
    cudaStream_t stream;
    void *src, *dst, *cu_seqlens;
    int64_t *positions; /* of a token without cu_seqlens: its index */
    double inv_freq[TROPE_MAX_ROTARY_DIM / 2];
    call call;
    int64_t stride[TROPE_MAX_DIMS];
    random_state random;
} state;

static int64_t elements(const large_case *c)
{
    return c->batch * c->tokens * c->heads * c->head_dim;
}

/* ---- the call ---- */

static void set_positions(state *s, int64_t begin, int64_t end)
{
    for (int64_t token = begin; token < end; token++)
        s->positions[token] = token - begin;
}

static void make_sequences(state *s)
{
    const large_case *c = s->c;
    int32_t *boundaries = malloc(((size_t)c->sequences + 1) * sizeof *boundaries);
    s->positions = malloc((size_t)c->tokens * sizeof *s->positions);
    boundaries[0] = GAP;
    for (int64_t i = 1; i <= c->sequences; i++) {
        const int64_t left = c->tokens - GAP - boundaries[i - 1], length = random_between(&s->random, 0, 5);
        boundaries[i] = boundaries[i - 1] + (int32_t)(i == c->sequences || length > left ? left : length);
        set_positions(s, boundaries[i - 1], boundaries[i]);
    }
    set_positions(s, 0, GAP);
    set_positions(s, c->tokens - GAP, c->tokens);
    CUDA_MUST(cudaMalloc(&s->cu_seqlens, ((size_t)c->sequences + 1) * sizeof *boundaries));
    CUDA_MUST(
        cudaMemcpy(s->cu_seqlens, boundaries, ((size_t)c->sequences + 1) * sizeof *boundaries, cudaMemcpyHostToDevice));
    free(boundaries);
}

/* The case's rotation of so many tokens. */
static call begin_call(const state *s, int32_t layout, int64_t batch, int64_t tokens, void *dst)
{
    const large_case *c = s->c;
    call k = call_make(TROPE_BF16, batch, tokens);
    call_add(&k, dst, layout, c->heads, c->head_dim, c->rotary_dim)->rotary_offset = c->rotary_offset;
    k.args.pairing = c->pairing;
    k.args.inv_freq = s->inv_freq;
    return k;
}

static void prepare_call(state *s)
{
    const large_case *c = s->c;
    s->call = begin_call(s, c->layout, c->batch, c->tokens, c->in_place ? s->src : s->dst);
    s->call.operands[0].src = s->src;
    s->call.args.device = TROPE_DEVICE_CUDA;
    s->call.args.stream = s->stream;
    trope_fill_strides(s->stride, c->layout, c->batch, c->tokens, c->heads, c->head_dim);
    if (!c->sequences)
        return;
    call_cu_seqlens(&s->call, s->cu_seqlens, TROPE_I32, c->sequences);
    s->call.args.padding = TROPE_PADDING_ROTATE;
}

/* ---- rows ---- */

/* Copies the heads of one token to the host, one after the other. */
static void download_row(const state *s, const void *tensor, int64_t row, uint16_t *to)
{
    const large_case *c = s->c;
    const int64_t *stride = s->stride;
    const int64_t offset = row / c->tokens * stride[TROPE_DIM_BATCH] + row % c->tokens * stride[TROPE_DIM_TOKEN];
    const size_t width = (size_t)c->head_dim * 2, pitch = (size_t)stride[TROPE_DIM_HEAD] * 2;
    CUDA_MUST(cudaMemcpy2DAsync(to, width, (const uint16_t *)tensor + offset, pitch, width, (size_t)c->heads,
                                cudaMemcpyDeviceToHost, s->stream));
}

typedef struct sample {
    int64_t count, *rows, *positions;
    uint16_t *src, *dst, *expected;
} sample;

static sample choose_rows(state *s, int64_t most)
{
    const int64_t all = s->c->batch * s->c->tokens;
    sample p = {.count = most < all ? most : all};
    const size_t bytes = (size_t)(p.count * s->c->heads * s->c->head_dim) * 2;
    p.rows = malloc((size_t)p.count * sizeof *p.rows);
    p.positions = malloc((size_t)p.count * sizeof *p.positions);
    p.src = malloc(bytes);
    p.dst = malloc(bytes);
    p.expected = malloc(bytes);
    for (int64_t i = 0; i < p.count; i++) {
        p.rows[i] = i < 4 ? all - 1 - i : random_between(&s->random, 0, all - 1);
        if (p.count == all)
            p.rows[i] = i;
        p.positions[i] = s->positions ? s->positions[p.rows[i]] : p.rows[i] % s->c->tokens;
    }
    return p;
}

static void free_sample(sample *p)
{
    free(p->rows);
    free(p->positions);
    free(p->src);
    free(p->dst);
    free(p->expected);
}

/* All tokens at once: with the whole tensor on the host. Their heads are next to each other there. */
static void download_all(const state *s, const void *tensor, uint16_t *to)
{
    const large_case *c = s->c;
    const int64_t *stride = s->stride, width = (int64_t)c->heads * c->head_dim;
    uint16_t *whole = malloc((size_t)elements(c) * 2);
    CUDA_MUST(cudaMemcpyAsync(whole, tensor, (size_t)elements(c) * 2, cudaMemcpyDeviceToHost, s->stream));
    CUDA_MUST(cudaStreamSynchronize(s->stream));
    for (int64_t row = 0; row < c->batch * c->tokens; row++) {
        const int64_t offset = row / c->tokens * stride[TROPE_DIM_BATCH] + row % c->tokens * stride[TROPE_DIM_TOKEN];
        memcpy(to + row * width, whole + offset, (size_t)width * 2);
    }
    free(whole);
}

static void download_rows(const state *s, const sample *p, const void *tensor, uint16_t *to)
{
    const int64_t width = (int64_t)s->c->heads * s->c->head_dim;
    if (p->count == s->c->batch * s->c->tokens) {
        download_all(s, tensor, to);
        return;
    }
    for (int64_t i = 0; i < p->count; i++)
        download_row(s, tensor, p->rows[i], to + i * width);
    CUDA_MUST(cudaStreamSynchronize(s->stream));
}

static void run(const state *s, call *k)
{
    const trope_status status = s->c->backward ? trope_backward(call_args(k)) : trope_forward(call_args(k));
    CHECK_MESSAGE(status == TROPE_OK, "%s: %s", s->c->name, trope_last_error());
}

/* The rows as a call of their own on the CPU, at the same positions. */
static void compute_rows(const state *s, const sample *p)
{
    call k = begin_call(s, TROPE_THD, 1, p->count, p->expected);
    k.operands[0].src = p->src;
    k.args.threads = 0;
    k.args.position_ids = p->positions;
    k.args.position_dtype = TROPE_I64;
    k.args.ids_layout = TROPE_IDS_TOKENS;
    run(s, &k);
}

static void start(state *s)
{
    const size_t bytes = ((size_t)elements(s->c) * 2 + 15) / 16 * 16;
    for (int i = 0; i < TROPE_MAX_ROTARY_DIM / 2; i++)
        s->inv_freq[i] = 1.0 / (1 + i * i);
    CUDA_MUST(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking));
    CUDA_MUST(cudaMalloc(&s->src, bytes));
    CUDA_MUST(fill_bf16(s->src, bytes, bytes, s->stream));
    if (!s->c->in_place) {
        CUDA_MUST(cudaMalloc(&s->dst, bytes));
        CUDA_MUST(cudaMemsetAsync(s->dst, 0xff, bytes, s->stream));
    }
    if (s->c->sequences)
        make_sequences(s);
    prepare_call(s);
}

static void finish(state *s)
{
    free(s->positions);
    CUDA_MUST(cudaFree(s->src));
    CUDA_MUST(cudaFree(s->dst));
    CUDA_MUST(cudaFree(s->cu_seqlens));
    CUDA_MUST(cudaStreamDestroy(s->stream));
}

static void check_case(const large_case *c, int64_t rows)
{
    state s = {.c = c, .random = {(uint64_t)elements(c)}};
    const int64_t width = (int64_t)c->heads * c->head_dim;
    long wrong = 0;
    start(&s);
    sample p = choose_rows(&s, elements(c) < SMALL ? INT64_MAX : rows);
    download_rows(&s, &p, s.src, p.src);
    run(&s, &s.call);
    download_rows(&s, &p, s.call.operands[0].dst, p.dst);
    compute_rows(&s, &p);
    for (int64_t i = 0; i < p.count; i++)
        wrong += !!memcmp(p.dst + i * width, p.expected + i * width, (size_t)width * 2);
    CHECK_MESSAGE(wrong == 0, "%s: %ld of %lld tokens differ from the CPU", c->name, wrong, (long long)p.count);
    printf("%-32s %11lld elements, %lld tokens compared\n", c->name, (long long)elements(c), (long long)p.count);
    free_sample(&p);
    finish(&s);
}

int main(int argc, char **argv)
{
    device_require();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_case(&cases[i], device_option(argc, argv, "--rows", 2000));
    return check_result();
}
