/* The gradient of the angles of packed sequences, from one to more than are looked at one by one, and to so many that they
 * are looked for near where they would be if all were of the same length; where empty ones, gaps before, behind and
 * positions that have no angle are all there, against sums that are known exactly: the data are small integers and the
 * tables quarters, so a sum in double is the same in any order. With freqs they are known but for the error of the
 * library's sines and cosines, for which there is a bound. And of cu_seqlens that cannot be: what comes of them must not
 * depend on what the workspace held before.
 *
 *     cuda_gradient_sequences [--elements N]        leaves out the tensors of more than N elements */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/device_call.h"
#include "support/call.h"
#include "support/check.h"
#include "support/number.h"
#include "support/random.h"

typedef struct shape {
    int32_t heads, head_dim, rotary_dim; /* vectors or not, one round of heads or many */
    int32_t longest, most;               /* the tokens of a sequence, and how many of these */
    int is_64;                           /* cu_seqlens, which are then sorted */
    int own_angles;
    int with_freqs; /* instead of cos and sin: for these there are kernels of their own */
} shape;

/* clang-format off */
static const shape shapes[] = {
    {1, 16, 16, 40, 700, 0, 0, 0}, {4, 128, 128, 10, 700, 0, 0, 0}, {32, 128, 64, 12, 63, 0, 0, 0},
    {128, 128, 128, 6, 31, 0, 0, 0}, {3, 6, 6, 40, 700, 0, 0, 0}, {4, 64, 64, 10, 700, 0, 1, 0},
    {1, 300, 300, 6, 700, 0, 0, 0}, {4, 128, 128, 10, 700, 1, 0, 0}, {2, 16, 16, 1500, 63, 0, 0, 0},
    {8, 128, 128, 5, 3000, 0, 0, 1}, {32, 128, 128, 12, 63, 0, 1, 1}, {128, 128, 128, 6, 31, 0, 0, 1},
};
/* clang-format on */

static const int64_t counts[] = {1, 2, 29, 30, 31, 62, 63, 255, 509, 510, 511, 700, 1023, 1024, 3000};

typedef struct packed_case {
    const shape *s;
    int64_t sequences, tokens, rows, columns;
    int32_t padding, out_of_range;
    int32_t *boundaries; /* [sequences + 1] */
    int8_t *x, *dy;      /* [tokens, heads, head_dim] */
    float *freqs;        /* [rows, columns], and so are the others */
    double *cos, *sin;
    double *sums;    /* what d_freqs must be */
    double *weights; /* what they can be wrong by, for each unit that a sine or cosine is */
} packed_case;

static int64_t element_count(const packed_case *c)
{
    return c->tokens * c->s->heads * c->s->head_dim;
}

static void make_boundaries(packed_case *c, random_state *random)
{
    c->boundaries = malloc((size_t)(c->sequences + 1) * sizeof *c->boundaries);
    int64_t at = random_between(random, 0, 1) ? random_between(random, 1, 50) : 0;
    for (int64_t i = 0; i <= c->sequences; i++) {
        c->boundaries[i] = (int32_t)at;
        at += random_between(random, 0, 3) ? random_between(random, 1, c->s->longest) : 0;
    }
    c->tokens = c->boundaries[c->sequences] + (random_between(random, 0, 1) ? random_between(random, 1, 50) : 0);
}

static void make_case(packed_case *c, uint64_t seed)
{
    random_state random = {seed};
    make_boundaries(c, &random);
    c->rows = random_between(&random, 1, 2 * c->s->longest);
    c->columns = c->s->own_angles ? c->s->rotary_dim : c->s->rotary_dim / 2;
    c->padding = (int32_t)random_between(&random, TROPE_PADDING_ZERO, TROPE_PADDING_ROTATE);
    c->out_of_range = random_between(&random, 0, 3) ? TROPE_RANGE_POISON : TROPE_RANGE_CLAMP;
    const size_t elements = (size_t)element_count(c), angles = (size_t)(c->rows * c->columns);
    c->x = malloc(elements + 1);
    c->dy = malloc(elements + 1);
    c->freqs = malloc(angles * sizeof *c->freqs);
    c->cos = malloc(angles * sizeof *c->cos);
    c->sin = malloc(angles * sizeof *c->sin);
    c->sums = calloc(angles, sizeof *c->sums);
    c->weights = calloc(angles, sizeof *c->weights);
    for (size_t i = 0; i < elements; i++) {
        c->x[i] = (int8_t)random_between(&random, -3, 3);
        c->dy[i] = (int8_t)random_between(&random, -3, 3);
    }
    for (size_t i = 0; i < angles; i++) {
        c->freqs[i] = (float)(3 * random_real(&random));
        c->cos[i] = c->s->with_freqs ? cos((double)c->freqs[i]) : (double)random_between(&random, -4, 4) / 4;
        c->sin[i] = c->s->with_freqs ? sin((double)c->freqs[i]) : (double)random_between(&random, -4, 4) / 4;
    }
}

static void free_case(packed_case *c)
{
    void *const all[] = {c->boundaries, c->x, c->dy, c->freqs, c->cos, c->sin, c->sums, c->weights};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}

/* ---- what the sums are ---- */

static void add_token(packed_case *c, int64_t token, int64_t row)
{
    const shape *s = c->s;
    for (int32_t head = 0; head < s->heads; head++) {
        const int8_t *const x = c->x + (token * s->heads + head) * s->head_dim, *const dy = c->dy + (x - c->x);
        for (int32_t pair = 0; pair < s->rotary_dim / 2; pair++) {
            const int32_t second = pair + s->rotary_dim / 2;
            const int64_t a1 = row * c->columns + pair, a2 = row * c->columns + (s->own_angles ? second : pair);
            c->sums[a1] += dy[pair] * (-x[pair] * c->sin[a1] - x[second] * c->cos[a1]);
            c->sums[a2] += dy[second] * (x[pair] * c->cos[a2] - x[second] * c->sin[a2]);
            c->weights[a1] += abs(dy[pair]) * (abs(x[pair]) + abs(x[second]));
            c->weights[a2] += abs(dy[second]) * (abs(x[pair]) + abs(x[second]));
        }
    }
}

static void add_span(packed_case *c, int64_t begin, int64_t end)
{
    for (int64_t token = begin; token < end; token++) {
        const int64_t row = token - begin;
        if (row < c->rows || c->out_of_range == TROPE_RANGE_CLAMP)
            add_token(c, token, row < c->rows ? row : c->rows - 1);
    }
}

static void add_all(packed_case *c)
{
    for (int64_t i = 0; i < c->sequences; i++)
        add_span(c, c->boundaries[i], c->boundaries[i + 1]);
    if (c->padding == TROPE_PADDING_ROTATE) {
        add_span(c, 0, c->boundaries[0]);
        add_span(c, c->boundaries[c->sequences], c->tokens);
    }
}

/* ---- the call ---- */

static void *upload(const void *from, size_t bytes)
{
    void *to;
    CUDA_MUST(cudaMalloc(&to, bytes + 1));
    CUDA_MUST(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
    return to;
}

static void *upload_elements(const packed_case *c, const int8_t *from)
{
    const size_t count = (size_t)element_count(c);
    uint16_t *const elements = malloc((count + 1) * sizeof *elements);
    for (size_t i = 0; i < count; i++)
        number_store(TROPE_F16, &elements[i], from[i]);
    void *const to = upload(elements, count * sizeof *elements);
    free(elements);
    return to;
}

static void *upload_boundaries(const packed_case *c)
{
    const size_t count = (size_t)c->sequences + 1;
    if (!c->s->is_64)
        return upload(c->boundaries, count * sizeof *c->boundaries);
    int64_t *const wide = malloc(count * sizeof *wide);
    for (size_t i = 0; i < count; i++)
        wide[i] = c->boundaries[i];
    void *const to = upload(wide, count * sizeof *wide);
    free(wide);
    return to;
}

/* Quarters, which are numbers of fp32. */
static void *upload_table(const packed_case *c, const double *from)
{
    const size_t count = (size_t)(c->rows * c->columns);
    float *const numbers = malloc(count * sizeof *numbers);
    for (size_t i = 0; i < count; i++)
        numbers[i] = (float)from[i];
    void *const to = upload(numbers, count * sizeof *numbers);
    free(numbers);
    return to;
}

static void set_angles(const packed_case *c, call *k)
{
    const size_t bytes = (size_t)(c->rows * c->columns) * sizeof(float);
    const int32_t columns = c->s->own_angles ? TROPE_COLUMNS_HALF : TROPE_COLUMNS_PAIR;
    if (c->s->with_freqs)
        call_freqs(k, upload(c->freqs, bytes), columns, c->rows);
    else
        call_tables(k, upload_table(c, c->cos), upload_table(c, c->sin), TROPE_F32, columns, c->rows);
    k->args.out_of_range = c->out_of_range;
    k->args.d_freqs_layout = TROPE_TABLE_ROWS;
    CUDA_MUST(cudaMalloc(&k->args.d_freqs, bytes));
}

static call packed_call(const packed_case *c)
{
    const shape *s = c->s;
    call k = call_make(TROPE_F16, 1, c->tokens);
    trope_operand *const o = call_add(&k, upload_elements(c, c->dy), TROPE_THD, s->heads, s->head_dim, s->rotary_dim);
    o->dst = NULL;
    o->dst_layout = 0;
    o->forward_src = upload_elements(c, c->x);
    o->forward_src_layout = TROPE_THD;
    k.args.device = TROPE_DEVICE_CUDA;
    call_cu_seqlens(&k, upload_boundaries(c), s->is_64 ? TROPE_I64 : TROPE_I32, c->sequences);
    k.args.padding = c->padding;
    set_angles(c, &k);
    CHECK_MESSAGE(trope_workspace_size(call_args(&k), &k.args.workspace_size) == TROPE_OK, "%s", trope_last_error());
    CUDA_MUST(cudaMalloc(&k.args.workspace, k.args.workspace_size + 1));
    return k;
}

static void free_call(call *k)
{
    const trope_args *a = &k->args;
    const void *const all[] = {
        k->operands[0].src, k->operands[0].forward_src, a->cu_seqlens, a->freqs, a->cos, a->sin, a->d_freqs, a->workspace};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        CUDA_MUST(cudaFree((void *)(uintptr_t)all[i]));
}

/* Brings d_freqs of a call whose workspace and d_freqs held bytes of `before`. */
static float *run(const packed_case *c, call *k, int before)
{
    const trope_args *a = call_args(k);
    const size_t bytes = (size_t)(c->rows * c->columns) * sizeof(float);
    float *const found = malloc(bytes);
    CUDA_MUST(cudaMemset(a->workspace, before, a->workspace_size));
    CUDA_MUST(cudaMemset(a->d_freqs, before, bytes));
    CHECK_MESSAGE(trope_backward(a) == TROPE_OK, "%s", trope_last_error());
    CUDA_MUST(cudaDeviceSynchronize());
    CUDA_MUST(cudaMemcpy(found, a->d_freqs, bytes, cudaMemcpyDeviceToHost));
    return found;
}

/* ---- checks ---- */

/* docs/numerics.md has the bound. */
static int is_right(const packed_case *c, int64_t i, float found)
{
    const double bound = 1.2e-7 * c->weights[i] + number_half_ulp(TROPE_F32, c->sums[i]);
    return c->s->with_freqs ? fabs((double)found - c->sums[i]) <= bound : found == (float)c->sums[i];
}

static void check_sums(packed_case *c)
{
    int64_t wrong = 0;
    call k = packed_call(c);
    float *const found = run(c, &k, 0xff);
    add_all(c);
    for (int64_t i = 0; i < c->rows * c->columns; i++)
        wrong += !is_right(c, i, found[i]);
    CHECK_MESSAGE(wrong == 0,
                  "%d heads of %d, %lld sequences, %lld tokens, padding %d, range %d: %lld of %lld sums are wrong",
                  (int)c->s->heads, (int)c->s->head_dim, (long long)c->sequences, (long long)c->tokens, (int)c->padding,
                  (int)c->out_of_range, (long long)wrong, (long long)(c->rows * c->columns));
    free(found);
    free_call(&k);
}

/* Boundaries that descend, or are outside of the stream. */
static void spoil(packed_case *c, uint64_t seed)
{
    random_state random = {seed};
    for (int64_t i = random_between(&random, 0, 2); i <= c->sequences; i += random_between(&random, 1, 9))
        c->boundaries[i] = (int32_t)random_between(&random, -c->tokens, 2 * c->tokens);
}

static void check_defined(packed_case *c)
{
    const size_t bytes = (size_t)(c->rows * c->columns) * sizeof(float);
    call k = packed_call(c);
    float *const first = run(c, &k, 0xff), *const second = run(c, &k, 0x11);
    CHECK_MESSAGE(!memcmp(first, second, bytes), "%d heads of %d, %lld sequences that cannot be: d_freqs is not defined",
                  (int)c->s->heads, (int)c->s->head_dim, (long long)c->sequences);
    free(first);
    free(second);
    free_call(&k);
}

static void check_case(const shape *s, int64_t sequences, uint64_t seed, int64_t most_elements)
{
    packed_case c = {.s = s, .sequences = sequences};
    make_case(&c, seed);
    if (element_count(&c) <= most_elements) {
        check_sums(&c);
        spoil(&c, seed);
        check_defined(&c);
    }
    free_case(&c);
}

int main(int argc, char **argv)
{
    device_require();
    const long most_elements = device_option(argc, argv, "--elements", LONG_MAX);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (size_t k = 0; k < sizeof counts / sizeof counts[0] && counts[k] <= shapes[i].most; k++)
            check_case(&shapes[i], counts[k], i * 100 + k, most_elements);
    return check_result();
}
