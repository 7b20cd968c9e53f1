/* The gradient of the angles at both ends of its shapes: without any token, where all that is left is zeros, and of a batch
 * of 2^26, whose sums are known exactly. There the data are small integers, random and with a period, the tables are
 * quarters, and so a sum in double is the same in any order; one entry too many or too few is seen in it.
 *
 *     cuda_gradient_shapes [--part N]        an N-th of the batches */
#include <stdlib.h>
#include <string.h>

#include "cuda/device_call.h"
#include "support/call.h"
#include "support/check.h"
#include "support/number.h"
#include "support/random.h"

/* Of heads of so many elements, the first of them rotated, that are `step` elements apart. */
typedef struct heads {
    int32_t count, head_dim, rotary_dim, step;
} heads;

/* A call of one operand, for the gradient alone. */
static call begin_call(int32_t dtype, int64_t batch, int64_t tokens, heads h)
{
    call c = call_make(dtype, batch, tokens);
    trope_operand *const o = call_add(&c, NULL, TROPE_BSHD, h.count, h.head_dim, h.rotary_dim);
    o->dst_layout = 0;
    o->src_layout = o->forward_src_layout = TROPE_STRIDED;
    trope_fill_strides(o->src_stride, TROPE_BSHD, batch, tokens, h.count, h.step);
    memcpy(o->forward_src_stride, o->src_stride, sizeof o->forward_src_stride);
    return c;
}

/* Ids [batch, tokens]. */
static void set_ids(trope_args *a, const void *ids)
{
    a->position_ids = ids;
    a->position_dtype = TROPE_I32;
    a->ids_layout = TROPE_IDS_BATCH_TOKENS;
}

/* With the workspace that the call asks for. */
static trope_status run_on_device(call *c, uint64_t *workspace)
{
    trope_args *const a = call_args(c);
    a->device = TROPE_DEVICE_CUDA;
    trope_status status = trope_workspace_size(a, workspace);
    if (status)
        return status;
    a->workspace_size = *workspace;
    CUDA_MUST(cudaMalloc(&a->workspace, *workspace + 1));
    status = trope_backward(a);
    CUDA_MUST(cudaDeviceSynchronize());
    CUDA_MUST(cudaFree(a->workspace));
    return status;
}

/* ---- nothing to sum ---- */

enum { ROWS = 6, PAIRS = 4, ROW_STRIDE = 11, MOST_BATCH = 3, BATCH_STRIDE = 70, WORDS = 2 * MOST_BATCH * BATCH_STRIDE };

/* 32-bit words, of which f64 has two to an element. */
typedef struct empty_memory {
    uint32_t cos[WORDS], sin[WORDS], gradient[WORDS];
} empty_memory;

typedef enum empty_option { PER_BATCH = 1, OWN_ANGLES = 2, WITH_IDS = 4, PHASES = 8, OPTIONS = 16 } empty_option;

static call empty_call(int32_t dtype, int64_t batch, int options, empty_memory *m)
{
    static const double inv_freq[PAIRS] = {1, 0.5, 0.25, 0.125};
    const int64_t stride[4] = {0, options & PER_BATCH ? BATCH_STRIDE : 0, ROW_STRIDE, 1};
    call c = begin_call(dtype, batch, 0, (heads){2, 2 * PAIRS, 2 * PAIRS, 2 * PAIRS});
    c.operands[0].src = c.operands[0].forward_src = m->cos; /* there is nothing to read */
    if (options & WITH_IDS)
        set_ids(&c.args, m->cos);
    if (options & PHASES) {
        c.args.inv_freq = inv_freq;
        c.args.d_inv_freq = (double *)(void *)m->gradient;
        return c;
    }
    call_tables(&c, m->cos, m->sin, dtype == TROPE_F64 ? TROPE_F64 : TROPE_F32,
                options & OWN_ANGLES ? TROPE_COLUMNS_HALF : TROPE_COLUMNS_PAIR, ROWS);
    c.args.d_freqs = m->gradient;
    c.args.angle_layout = c.args.d_freqs_layout = TROPE_TABLE_STRIDED;
    memcpy(c.args.angle_stride, stride, sizeof stride);
    memcpy(c.args.d_freqs_stride, stride, sizeof stride);
    return c;
}

/* Whether word i of the gradient is to be cleared: it is of a row's columns, not of the gaps behind them. */
static int is_result(const trope_args *a, int options, int64_t i)
{
    const int64_t element = a->d_inv_freq || a->dtype == TROPE_F64 ? i / 2 : i;
    if (a->d_inv_freq)
        return element < PAIRS;
    const int64_t batch = options & PER_BATCH ? element / BATCH_STRIDE : 0, row_element = element - batch * BATCH_STRIDE;
    return batch < (options & PER_BATCH ? a->batch : 1) && row_element / ROW_STRIDE < ROWS &&
           row_element % ROW_STRIDE < (options & OWN_ANGLES ? 2 * PAIRS : PAIRS);
}

/* The same on the CPU must leave the same bytes. */
static void compare_with_cpu(int32_t dtype, int64_t batch, int options, const empty_memory *found)
{
    static empty_memory cpu;
    static _Alignas(16) char workspace[1024];
    memset(&cpu, 0xa5, sizeof cpu);
    call c = empty_call(dtype, batch, options, &cpu);
    c.args.workspace = workspace;
    c.args.workspace_size = sizeof workspace;
    CHECK_MESSAGE(trope_backward(call_args(&c)) == TROPE_OK, "%s", trope_last_error());
    CHECK(!memcmp(&cpu, found, sizeof cpu));
}

static void check_empty_call(int32_t dtype, int64_t batch, int options)
{
    static empty_memory found;
    empty_memory *device;
    uint64_t workspace;
    CUDA_MUST(cudaMalloc((void **)&device, sizeof *device));
    CUDA_MUST(cudaMemset(device, 0xa5, sizeof *device));
    call c = empty_call(dtype, batch, options, device);
    CHECK_MESSAGE(run_on_device(&c, &workspace) == TROPE_OK, "%s", trope_last_error());
    CUDA_MUST(cudaMemcpy(&found, device, sizeof found, cudaMemcpyDeviceToHost));
    CUDA_MUST(cudaFree(device));
    long wrong = 0;
    for (int64_t i = 0; i < WORDS; i++)
        wrong += found.gradient[i] != (is_result(&c.args, options, i) ? 0 : 0xa5a5a5a5);
    CHECK_MESSAGE(wrong == 0, "%s, batch %d, options %d: %ld of %d words are wrong", number_name(dtype), (int)batch,
                  options, wrong, (int)WORDS);
    compare_with_cpu(dtype, batch, options, &found);
}

static void check_empty(void)
{
    static const int64_t batches[] = {1, 2, MOST_BATCH};
    for (size_t i = 0; i < sizeof batches / sizeof batches[0]; i++)
        for (int32_t dtype = TROPE_F32; dtype <= TROPE_F64; dtype++)
            for (int options = 0; options < OPTIONS; options++)
                if (!(options & PHASES) || !(options & (PER_BATCH | OWN_ANGLES)))
                    check_empty_call(dtype, batches[i], options);
}

/* ---- a large batch ---- */

/* Data repeat after so many batch entries, a prime: what is read from a wrong one is seen. */
#define PERIOD   4099
#define MOST_DIM 16

typedef struct large_case {
    const char *name;
    int64_t batch, tokens;
    int32_t head_dim, rotary_dim;
    int32_t step; /* elements from a row to the next, less than head_dim where heads overlap in memory */
    int32_t pairing, angle_rows, options;
} large_case;

#define LARGE ((int64_t)1 << 26)

/* A head of 2048 of which little is rotated makes for 2^37 elements in little memory. */
static const large_case large_cases[] = {
    {"a head of 2", LARGE, 1, 2, 2, 2, TROPE_PAIRING_HALF, 1, 0},
    {"a head of 6, angles of its own", LARGE, 1, 6, 6, 6, TROPE_PAIRING_INTERLEAVED, 2, OWN_ANGLES},
    {"a head of 8", LARGE, 1, 8, 8, 8, TROPE_PAIRING_INTERLEAVED, 3, 0},
    {"a quarter of the batch, 3 tokens", LARGE / 4 - 1, 3, 4, 4, 4, TROPE_PAIRING_HALF, 5, 0},
    {"vectors", LARGE, 1, 16, 16, 8, TROPE_PAIRING_HALF, 1, 0},
    {"vectors, interleaved", LARGE - 5, 1, 16, 16, 8, TROPE_PAIRING_INTERLEAVED, 1, OWN_ANGLES},
    {"2^37 elements", LARGE, 1, 2048, 8, 8, TROPE_PAIRING_HALF, 1, 0},
    {"2^37 elements, vectors", LARGE, 1, 2048, 16, 8, TROPE_PAIRING_HALF, 2, 0},
    {"a table for each batch entry", LARGE, 1, 2, 2, 2, TROPE_PAIRING_HALF, 1, PER_BATCH},
    {"position_ids", LARGE, 1, 2, 2, 2, TROPE_PAIRING_HALF, 3, WITH_IDS},
    {"d_inv_freq", LARGE, 1, 4, 4, 4, TROPE_PAIRING_HALF, 3, WITH_IDS | PHASES},
    {"d_inv_freq, 2^37 elements", LARGE, 1, 2048, 8, 8, TROPE_PAIRING_HALF, 2, WITH_IDS | PHASES},
};

/* One period of everything. cos and sin are in quarters. */
typedef struct large_data {
    const large_case *c;
    uint64_t seed;
    int64_t rows, columns, tables; /* rows of a period; columns and tables of the angles, in a period */
    int8_t *x, *dy;                /* [rows, step] */
    int32_t *ids;                  /* [rows] */
    float *cos, *sin;              /* [tables, angle_rows, columns] */
    uint16_t *elements;            /* scratch: x or dy as they are uploaded */
    double *sums;                  /* like cos: what d_freqs or d_inv_freq must be */
} large_data;

static int64_t angle_count(const large_data *d)
{
    return d->tables * (d->c->options & PHASES ? 1 : d->c->angle_rows) * d->columns;
}

static void make_angles(large_data *d, random_state *random)
{
    const size_t count = (size_t)angle_count(d);
    d->cos = malloc(count * sizeof *d->cos);
    d->sin = malloc(count * sizeof *d->sin);
    d->sums = calloc(count, sizeof *d->sums);
    for (size_t i = 0; i < count; i++) {
        const int phase = d->c->options & PHASES; /* frequencies of 0 */
        d->cos[i] = phase ? 1 : (float)random_between(random, -4, 4) / 4;
        d->sin[i] = phase ? 0 : (float)random_between(random, -4, 4) / 4;
    }
}

static void make_data(large_data *d)
{
    const large_case *c = d->c;
    random_state random = {d->seed};
    d->rows = PERIOD * c->tokens;
    d->columns = c->options & OWN_ANGLES ? c->rotary_dim : c->rotary_dim / 2;
    d->tables = c->options & PER_BATCH ? PERIOD : 1;
    const size_t count = (size_t)(d->rows * c->step);
    d->x = malloc(count);
    d->dy = malloc(count);
    d->elements = calloc(count, sizeof *d->elements);
    d->ids = malloc((size_t)d->rows * sizeof *d->ids);
    for (size_t i = 0; i < count; i++) {
        d->x[i] = (int8_t)random_between(&random, -3, 3);
        d->dy[i] = (int8_t)random_between(&random, -3, 3);
    }
    for (int64_t i = 0; i < d->rows; i++)
        d->ids[i] = (int32_t)random_between(&random, 0, c->angle_rows - 1);
    make_angles(d, &random);
}

static void free_data(large_data *d)
{
    void *const all[] = {d->x, d->dy, d->elements, d->ids, d->cos, d->sin, d->sums};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}

/* ---- what the sums are ---- */

/* Where the elements of a pair are in a window, and in columns. */
static int64_t element_of(const large_case *c, int pair, int which)
{
    return c->pairing == TROPE_PAIRING_INTERLEAVED ? 2 * pair + which : pair + which * c->rotary_dim / 2;
}

static double load(const large_data *d, const int8_t *from, int64_t row, int64_t element)
{
    return from[(row * d->c->step + element) % (d->rows * d->c->step)];
}

/* Adds `times` the terms of one pair of a row of the period to the sums of its angles, which start at column `base`. */
static void add_pair(large_data *d, int64_t row, int pair, int64_t base, double times)
{
    const int64_t first = element_of(d->c, pair, 0), second = element_of(d->c, pair, 1);
    const int own = d->c->options & OWN_ANGLES;
    const int64_t a1 = base + (own ? first : pair), a2 = base + (own ? second : pair);
    const double x1 = load(d, d->x, row, first), x2 = load(d, d->x, row, second);
    d->sums[a1] += times * load(d, d->dy, row, first) * (-x1 * d->sin[a1] - x2 * d->cos[a1]);
    d->sums[a2] += times * load(d, d->dy, row, second) * (x1 * d->cos[a2] - x2 * d->sin[a2]);
}

static void add_terms(large_data *d)
{
    const large_case *c = d->c;
    const int64_t rows = c->batch * c->tokens;
    for (int64_t row = 0; row < d->rows; row++) {
        const int64_t position = c->options & WITH_IDS ? d->ids[row] : row % c->tokens;
        const int64_t table = c->options & PER_BATCH ? row / c->tokens : 0;
        double times = c->options & PER_BATCH ? 1 : (double)((rows - row + d->rows - 1) / d->rows);
        times *= c->options & PHASES ? (double)position : 1;
        const int64_t base = c->options & PHASES ? 0 : (table * c->angle_rows + position) * d->columns;
        for (int pair = 0; pair < c->rotary_dim / 2; pair++)
            add_pair(d, row, pair, base, times);
    }
}

/* ---- the call ---- */

typedef struct large_memory {
    void *x, *dy, *ids, *cos, *sin, *gradient;
    size_t bytes;
} large_memory;

/* `bytes` on the device that repeat a period of `period` bytes. */
static void *repeat(large_memory *m, const void *from, size_t period, size_t bytes)
{
    char *to;
    CUDA_MUST(cudaMalloc((void **)&to, bytes));
    CUDA_MUST(cudaMemcpy(to, from, period < bytes ? period : bytes, cudaMemcpyHostToDevice));
    for (size_t done = period; done < bytes; done *= 2)
        CUDA_MUST(cudaMemcpy(to + done, to, done < bytes - done ? done : bytes - done, cudaMemcpyDeviceToDevice));
    m->bytes += bytes;
    return to;
}

static void *repeat_elements(large_memory *m, const large_data *d, const int8_t *from)
{
    const large_case *c = d->c;
    const int64_t period = d->rows * c->step, count = c->batch * c->tokens * c->step + c->head_dim - c->step;
    for (int64_t i = 0; i < period; i++)
        number_store(TROPE_F16, &d->elements[i], from[i]);
    return repeat(m, d->elements, (size_t)period * sizeof *d->elements, (size_t)count * sizeof *d->elements);
}

/* How many angles the call has. */
static int64_t gradient_count(const large_data *d)
{
    return angle_count(d) / d->tables * (d->c->options & PER_BATCH ? d->c->batch : 1);
}

static large_memory upload(const large_data *d)
{
    const large_case *c = d->c;
    const size_t period = (size_t)angle_count(d) * sizeof(float), all = (size_t)gradient_count(d) * sizeof(float);
    large_memory m = {.bytes = 0};
    m.x = repeat_elements(&m, d, d->x);
    m.dy = repeat_elements(&m, d, d->dy);
    m.cos = repeat(&m, d->cos, period, all);
    m.sin = repeat(&m, d->sin, period, all);
    if (c->options & WITH_IDS)
        m.ids = repeat(&m, d->ids, (size_t)d->rows * sizeof *d->ids, (size_t)(c->batch * c->tokens) * sizeof *d->ids);
    CUDA_MUST(cudaMalloc(&m.gradient, 2 * all));
    CUDA_MUST(cudaMemset(m.gradient, 0xa5, 2 * all));
    m.bytes += 2 * all;
    return m;
}

static void free_memory(large_memory *m)
{
    void *const all[] = {m->x, m->dy, m->ids, m->cos, m->sin, m->gradient};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        CUDA_MUST(cudaFree(all[i]));
}

static int32_t columns_of(const large_case *c)
{
    if (c->options & OWN_ANGLES)
        return c->pairing == TROPE_PAIRING_INTERLEAVED ? TROPE_COLUMNS_INTERLEAVED : TROPE_COLUMNS_HALF;
    return TROPE_COLUMNS_PAIR;
}

static call large_call(const large_data *d, const large_memory *m)
{
    static const double zeros[MOST_DIM / 2];
    const large_case *c = d->c;
    call k = begin_call(TROPE_F16, c->batch, c->tokens, (heads){1, c->head_dim, c->rotary_dim, c->step});
    k.operands[0].src = m->dy;
    k.operands[0].forward_src = m->x;
    k.args.pairing = c->pairing;
    if (m->ids)
        set_ids(&k.args, m->ids);
    if (c->options & PHASES) {
        k.args.inv_freq = zeros;
        k.args.d_inv_freq = m->gradient;
        return k;
    }
    call_tables(&k, m->cos, m->sin, TROPE_F32, columns_of(c), c->angle_rows);
    k.args.angle_layout = c->options & PER_BATCH ? TROPE_TABLE_BATCH_ROWS : TROPE_TABLE_ROWS;
    k.args.d_freqs = m->gradient;
    k.args.d_freqs_layout = k.args.angle_layout;
    return k;
}

/* How many angles have the wrong sum. */
static int64_t count_wrong(const large_data *d, const void *gradient)
{
    const int64_t count = gradient_count(d), period = angle_count(d);
    const int phases = d->c->options & PHASES;
    const size_t bytes = (size_t)count * (phases ? sizeof(double) : sizeof(float));
    void *found = malloc(bytes);
    int64_t wrong = 0;
    CUDA_MUST(cudaMemcpy(found, gradient, bytes, cudaMemcpyDeviceToHost));
    for (int64_t i = 0; i < count; i++) {
        const double expected = d->sums[i % period];
        wrong += phases ? ((const double *)found)[i] != expected : ((const float *)found)[i] != (float)expected;
    }
    free(found);
    return wrong;
}

static void check_large(const large_case *of, int64_t part)
{
    large_case smaller = *of;
    const large_case *const c = &smaller;
    smaller.batch /= part;
    large_data d = {.c = c, .seed = (uint64_t)(of - large_cases)};
    uint64_t workspace = 0;
    make_data(&d);
    add_terms(&d);
    large_memory m = upload(&d);
    call k = large_call(&d, &m);
    if (CHECK_MESSAGE(run_on_device(&k, &workspace) == TROPE_OK, "%s: %s", c->name, trope_last_error())) {
        const int64_t wrong = count_wrong(&d, m.gradient);
        CHECK_MESSAGE(wrong == 0, "%s: %lld of %lld sums are wrong", c->name, (long long)wrong,
                      (long long)gradient_count(&d));
    }
    printf("%-34s batch %lld, %.2f GB\n", c->name, (long long)c->batch, (double)(m.bytes + workspace) * 1e-9);
    free_memory(&m);
    free_data(&d);
}

int main(int argc, char **argv)
{
    device_require();
    const long part = device_option(argc, argv, "--part", 1);
    check_empty();
    for (size_t i = 0; i < sizeof large_cases / sizeof large_cases[0]; i++)
        check_large(&large_cases[i], part);
    return check_result();
}
