/* Calls without tokens. Whichever way they would go, they succeed and leave memory as the CPU leaves it: all of it as it
 * was, but for sums of angles, which are then 0. Boundaries of sequences that the CPU refuses set their bit of the status
 * word all the same. */
#include <stdlib.h>
#include <string.h>

#include "cuda/device_call.h"
#include "support/call.h"
#include "support/check.h"
#include "support/random.h"

enum { ROWS = 24, BYTES_OF_TENSOR = 1 << 16, MOST_COLUMNS = 128, MOST_SEQUENCES = 1500, TOO_FAR = 3 };

/* What a call reads and writes, at the same offsets on host and device, and beside each other, so that what is written
 * beyond one of them is in another. */
typedef struct memory {
    unsigned char src[BYTES_OF_TENSOR], dst[BYTES_OF_TENSOR], forward_src[BYTES_OF_TENSOR];
    double freqs[ROWS * MOST_COLUMNS], sums[ROWS * MOST_COLUMNS]; /* or as many floats */
    int32_t cu_seqlens[MOST_SEQUENCES + 1], padded[MOST_SEQUENCES + 1];
    int32_t status;
} memory;

/* Ways that a call can go. */
typedef enum gradient { NO_GRADIENT, OF_FREQS, OF_INV_FREQ } gradient;

typedef struct shape {
    const char *name, *kernel;                       /* what the kernel's name says */
    int32_t dtype, heads, head_dim, rotary_dim, gap; /* `gap` elements between heads */
    int has_freqs, in_place;
    gradient gradient;
} shape;

/* clang-format off */
static const shape shapes[] = {
    {"one row", "vectors", TROPE_BF16, 32, 128, 128, 0, 0, 0, NO_GRADIENT},
    {"several rows, freqs", "vectors", TROPE_F32, 9, 32, 16, 0, 1, 0, NO_GRADIENT},
    {"rows of one head", "f16", TROPE_F16, 1, 128, 128, 0, 0, 0, NO_GRADIENT},
    {"windows in place", "vectors", TROPE_BF16, 32, 128, 64, 0, 0, 1, NO_GRADIENT},
    {"pairs", "elements", TROPE_F32, 3, 6, 6, 0, 0, 0, NO_GRADIENT},
    {"pairs in place, freqs", "elements", TROPE_F64, 3, 7, 4, 0, 1, 1, NO_GRADIENT},
    {"heads at odd places", "elements", TROPE_BF16, 8, 64, 64, 1, 0, 0, NO_GRADIENT},
    {"gradient of freqs", "vectors", TROPE_BF16, 8, 128, 128, 0, 1, 0, OF_FREQS},
    {"gradient of inv_freq", "vectors", TROPE_F32, 8, 64, 64, 0, 0, 1, OF_INV_FREQ},
    {"gradient of freqs, pairs", "elements", TROPE_F16, 3, 6, 6, 0, 1, 0, OF_FREQS},
    {"gradient of inv_freq, pairs", "elements", TROPE_F32, 3, 6, 6, 0, 0, 0, OF_INV_FREQ},
};
/* clang-format on */

/* The last of so many boundaries, and those before it. */
typedef struct boundaries {
    const char *what;
    int64_t sequences;
    int32_t first, others, last, longer; /* `longer`: tokens that the last sequence has more than are stored */
    int32_t is_bad;
} boundaries;

/* clang-format off */
static const boundaries all_boundaries[] = {
    {"empty sequences", 3, 0, 0, 0, 0, 0},
    {"many empty sequences", MOST_SEQUENCES, 0, 0, 0, 0, 0},
    {"no sequences", 0, 0, 0, 0, 0, 0},
    {"no sequences, too far", 0, TOO_FAR, 0, TOO_FAR, 0, 1},
    {"boundaries that decrease", 3, 0, 2, 0, 0, 1},
    {"a last boundary too far", 3, 0, 0, TOO_FAR, 0, 1},
    {"a last boundary of many", MOST_SEQUENCES, 0, 0, TOO_FAR, 0, 1},
    {"a first boundary below 0", 3, -1, 0, 0, 0, 1},
    {"more than is stored", 2, 0, 0, 0, 1, 1},
};
/* clang-format on */

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

/* ---- a call ---- */

static void draw(memory *m)
{
    random_state random = {5};
    for (size_t i = 0; i < sizeof *m / sizeof(uint64_t); i++) {
        const uint64_t bits = random_bits(&random);
        memcpy((unsigned char *)m + i * sizeof bits, &bits, sizeof bits);
    }
    m->status = 0x100;
}

static void set_boundaries(const boundaries *b, memory *m)
{
    for (int64_t i = 0; i <= b->sequences; i++)
        m->padded[i] = m->cu_seqlens[i] = i == 0 ? b->first : i < b->sequences ? b->others : b->last;
    m->cu_seqlens[b->sequences] += b->longer;
}

static void set_operand(const shape *s, memory *m, call *c)
{
    trope_operand *const o = call_add(c, s->in_place ? m->src : m->dst, TROPE_BSHD, s->heads, s->head_dim, s->rotary_dim);
    o->src = m->src;
    o->forward_src = s->gradient ? m->forward_src : NULL;
    o->forward_src_layout = s->gradient ? TROPE_BSHD : 0;
    if (!s->gap)
        return;
    o->src_layout = o->dst_layout = TROPE_STRIDED;
    CHECK(trope_fill_strides(o->src_stride, TROPE_BSHD, c->args.batch, c->args.tokens, s->heads, s->head_dim + s->gap) ==
          TROPE_OK);
    memcpy(o->dst_stride, o->src_stride, sizeof o->dst_stride);
}

static void set_angles(const shape *s, memory *m, call *c)
{
    static const double inv_freq[MOST_COLUMNS / 2] = {1, 0.5, 0.25};
    c->args.d_freqs = s->gradient == OF_FREQS ? m->sums : NULL;
    c->args.d_freqs_layout = s->gradient == OF_FREQS ? TROPE_TABLE_ROWS : 0;
    c->args.d_inv_freq = s->gradient == OF_INV_FREQ ? m->sums : NULL;
    if (s->has_freqs)
        call_freqs(c, m->freqs, TROPE_COLUMNS_PAIR, ROWS);
    else
        c->args.inv_freq = inv_freq;
}

/* `b`: NULL for a call without sequences. */
static call make_call(const shape *s, memory *m, int64_t batch, const boundaries *b)
{
    call c = call_make(s->dtype, batch, 0);
    set_operand(s, m, &c);
    set_angles(s, m, &c);
    c.args.status = &m->status;
    if (!b)
        return c;
    call_cu_seqlens(&c, m->cu_seqlens, TROPE_I32, b->sequences);
    c.args.cu_seqlens_padded = b->longer ? m->padded : NULL;
    c.args.padding = TROPE_PADDING_ZERO;
    return c;
}

static trope_status run(call *c, int32_t device, const shape *s)
{
    trope_args *const a = call_args(c);
    a->device = device;
    if (s->gradient)
        CHECK_MESSAGE(trope_workspace_size(a, &a->workspace_size) == TROPE_OK, "%s", trope_last_error());
    if (a->workspace_size && device == TROPE_DEVICE_CUDA)
        CUDA_MUST(cudaMalloc(&a->workspace, a->workspace_size));
    else if (a->workspace_size)
        a->workspace = malloc(a->workspace_size);
    const trope_status status = s->gradient ? trope_backward(a) : trope_forward(a);
    if (device == TROPE_DEVICE_CUDA)
        CUDA_MUST(cudaFree(a->workspace));
    else
        free(a->workspace);
    return status;
}

/* ---- on both devices ---- */

typedef struct place {
    memory *host, *found, *device;
} place;

static void check_call(place *p, const shape *s, int64_t batch, const boundaries *b)
{
    char name[64] = "";
    const char *const what = b ? b->what : "no cu_seqlens";
    draw(p->host);
    if (b)
        set_boundaries(b, p->host);
    CUDA_MUST(cudaMemcpy(p->device, p->host, sizeof *p->host, cudaMemcpyHostToDevice));
    call on_device = make_call(s, p->device, batch, b), on_host = make_call(s, p->host, batch, b);
    const trope_status status = run(&on_device, TROPE_DEVICE_CUDA, s);
    CHECK_MESSAGE(status == TROPE_OK, "%s, %s: %s", s->name, what, trope_last_error());
    CHECK(trope_kernel_name(&on_device.args, s->gradient != NO_GRADIENT, name, sizeof name) == TROPE_OK);
    const char *const kernel = b && b->sequences == 0 ? "elements" : s->kernel; /* a search in 32 bits needs a sequence */
    CHECK_MESSAGE(strstr(name, kernel), "%s, %s: goes by %s", s->name, what, name);
    CUDA_MUST(cudaMemcpy(p->found, p->device, sizeof *p->found, cudaMemcpyDeviceToHost));

    const int is_bad = b && b->is_bad;
    CHECK_MESSAGE(run(&on_host, TROPE_DEVICE_CPU, s) == (is_bad ? TROPE_ERROR_DATA : TROPE_OK), "%s, %s: on the CPU: %s",
                  s->name, what, trope_last_error());
    const int32_t expected = p->host->status | (is_bad ? TROPE_STATUS_CU_SEQLENS : 0);
    CHECK_MESSAGE(p->found->status == expected, "%s, %s: status is 0x%x, expected 0x%x", s->name, what, p->found->status,
                  expected);
    if (is_bad) /* the CPU has left the sums as they were */
        memcpy(p->host->sums, p->found->sums, sizeof p->host->sums);
    p->host->status = p->found->status;
    CHECK_MESSAGE(!memcmp(p->found, p->host, sizeof *p->host), "%s, %s: memory is not as on the CPU", s->name, what);
}

int main(void)
{
    device_require();
    place p = {malloc(sizeof *p.host), malloc(sizeof *p.found), NULL};
    CUDA_MUST(cudaMalloc((void **)&p.device, sizeof *p.device));
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        check_call(&p, &shapes[i], 1, NULL);
        check_call(&p, &shapes[i], 3, NULL);
        for (size_t j = 0; j < COUNT_OF(all_boundaries); j++)
            check_call(&p, &shapes[i], 1, &all_boundaries[j]);
    }
    CUDA_MUST(cudaFree(p.device));
    free(p.host);
    free(p.found);
    return check_result();
}
