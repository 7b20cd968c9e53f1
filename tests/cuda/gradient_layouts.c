/* The gradient of the angles in other layouts of the same tensors: the same bits, whether the pass is by vectors or by
 * elements, and whatever the strides. The kernel's name says which of both a layout is for. */
#include <stdlib.h>
#include <string.h>

#include "cuda/device_call.h"
#include "support/call.h"
#include "support/check.h"
#include "support/number.h"
#include "support/random.h"

enum { ROWS = 40 };

/* What is summed over, and how. head_dim is a multiple of 16: then all heads of a contiguous layout are vectors. */
typedef struct shape {
    int64_t batch, tokens;
    int32_t heads, head_dim, rotary_dim, rotary_offset;
} shape;

static const shape shapes[] = {
    {1, 33, 32, 128, 128, 0}, {1, 37, 8, 64, 64, 0}, {4, 9, 5, 128, 64, 64}, {3, 40, 2, 32, 32, 0},
    {1, 5, 40, 256, 256, 0},  {2, 7, 24, 96, 96, 0}, {5, 20, 1, 16, 16, 0},  {1, 3, 5, 1024, 1024, 0},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

typedef enum option { OWN_ANGLES = 1, PACKED = 2, FREQUENCIES = 4, INTERLEAVED = 8, OPTIONS = 16 } option;

/* Layouts, in elements: the order of dimensions, the distance of neighbouring elements, and where the tensor starts. The
 * first three are for vectors. */
typedef struct layout {
    const char *name;
    int32_t order, step, first;
} layout;

static const layout layouts[] = {
    {"bshd", TROPE_BSHD, 1, 0},          {"sbhd", TROPE_SBHD, 1, 0},         {"bhsd", TROPE_BHSD, 1, 0},
    {"bshd, strided", TROPE_BSHD, 2, 0}, {"sbhd, one on", TROPE_SBHD, 1, 1}, {"bhsd, strided", TROPE_BHSD, 3, 2},
};
enum { LAYOUTS = sizeof layouts / sizeof layouts[0], VECTOR_LAYOUTS = 3 };

/* ---- tensors ---- */

typedef struct tensors {
    shape s;
    int32_t dtype;
    double *x, *dy; /* [batch, tokens, heads, head_dim] */
    float *freqs;   /* [ROWS, columns] */
    int32_t columns;
    double inv_freq[512];
    int32_t cu_seqlens[3];
} tensors;

static int64_t count_of(const shape *s)
{
    return s->batch * s->tokens * s->heads * s->head_dim;
}

static void make_tensors(tensors *t, int options, uint64_t seed)
{
    random_state random = {seed};
    const int64_t count = count_of(&t->s);
    t->x = malloc((size_t)count * sizeof *t->x);
    t->dy = malloc((size_t)count * sizeof *t->dy);
    for (int64_t i = 0; i < count; i++) {
        t->x[i] = random_real(&random);
        t->dy[i] = random_real(&random);
    }
    t->columns = options & OWN_ANGLES ? t->s.rotary_dim : t->s.rotary_dim / 2;
    t->freqs = malloc((size_t)(ROWS * t->columns) * sizeof *t->freqs);
    for (int i = 0; i < ROWS * t->columns; i++)
        t->freqs[i] = (float)(30 * random_real(&random));
    for (int i = 0; i < t->s.rotary_dim / 2; i++)
        t->inv_freq[i] = random_real(&random);
    t->cu_seqlens[1] = (int32_t)random_between(&random, 0, t->s.tokens);
    t->cu_seqlens[2] = (int32_t)t->s.tokens;
}

static void free_tensors(tensors *t)
{
    free(t->x);
    free(t->dy);
    free(t->freqs);
}

static void fill_strides(const shape *s, const layout *l, int64_t *stride)
{
    trope_fill_strides(stride, l->order, s->batch, s->tokens, s->heads, s->head_dim);
    for (int d = 0; d < TROPE_MAX_DIMS; d++)
        stride[d] *= l->step;
}

/* Where element i of a tensor is in a layout. */
static int64_t place_of(const shape *s, const layout *l, int64_t i)
{
    int64_t stride[TROPE_MAX_DIMS];
    fill_strides(s, l, stride);
    const int64_t element = i % s->head_dim, head = i / s->head_dim % s->heads, row = i / s->head_dim / s->heads;
    return l->first + row / s->tokens * stride[TROPE_DIM_BATCH] + row % s->tokens * stride[TROPE_DIM_TOKEN] +
           head * stride[TROPE_DIM_HEAD] + element * stride[TROPE_DIM_ELEMENT];
}

static size_t bytes_of(const tensors *t, const layout *l)
{
    return (size_t)(count_of(&t->s) * l->step + l->first) * number_size(t->dtype);
}

static void *upload(const tensors *t, const layout *l, const double *from)
{
    char *elements = calloc(1, bytes_of(t, l));
    void *device;
    for (int64_t i = 0; i < count_of(&t->s); i++)
        number_store(t->dtype, elements + (size_t)place_of(&t->s, l, i) * number_size(t->dtype), from[i]);
    CUDA_MUST(cudaMalloc(&device, bytes_of(t, l)));
    CUDA_MUST(cudaMemcpy(device, elements, bytes_of(t, l), cudaMemcpyHostToDevice));
    free(elements);
    return device;
}

static void *copy_up(const void *from, size_t bytes)
{
    void *device;
    CUDA_MUST(cudaMalloc(&device, bytes));
    CUDA_MUST(cudaMemcpy(device, from, bytes, cudaMemcpyHostToDevice));
    return device;
}

/* ---- a call ---- */

/* What a call gives: dx in the order of `tensors`, and the gradient. */
typedef struct outcome {
    char *dx, *gradient;
    size_t dx_bytes, gradient_bytes;
    char kernel[64];
} outcome;

static size_t gradient_bytes_of(const tensors *t, int options)
{
    return options & FREQUENCIES ? (size_t)(t->s.rotary_dim / 2) * sizeof(double)
                                 : (size_t)(ROWS * t->columns) * (t->dtype == TROPE_F64 ? 8 : 4);
}

static int32_t columns_of(int options)
{
    if (options & OWN_ANGLES)
        return options & INTERLEAVED ? TROPE_COLUMNS_INTERLEAVED : TROPE_COLUMNS_HALF;
    return TROPE_COLUMNS_PAIR;
}

/* The tensors of a call, where those are on the device. */
static void add_operand(const tensors *t, const layout *l, char *dy, char *x, char *dx, call *c)
{
    const shape *s = &t->s;
    const size_t first = (size_t)l->first * number_size(t->dtype);
    trope_operand *o = call_add(c, dx + first, l->order, s->heads, s->head_dim, s->rotary_dim);
    o->src = dy + first;
    o->forward_src = x + first;
    o->forward_src_layout = o->src_layout;
    o->rotary_offset = s->rotary_offset;
    if (l->step == 1)
        return;
    o->src_layout = o->dst_layout = o->forward_src_layout = TROPE_STRIDED;
    fill_strides(s, l, o->src_stride);
    memcpy(o->dst_stride, o->src_stride, sizeof o->dst_stride);
    memcpy(o->forward_src_stride, o->src_stride, sizeof o->forward_src_stride);
}

/* What angles come from, and where their gradient goes. */
static void set_angles(const tensors *t, int options, const void *freqs, void *gradient, call *c)
{
    if (options & FREQUENCIES) {
        c->args.inv_freq = t->inv_freq;
        c->args.d_inv_freq = gradient;
        return;
    }
    call_freqs(c, freqs, columns_of(options), ROWS);
    c->args.d_freqs = gradient;
    c->args.d_freqs_layout = TROPE_TABLE_ROWS;
}

static void download(const tensors *t, const layout *l, const void *from, outcome *o)
{
    const size_t size = number_size(t->dtype);
    char *elements = malloc(bytes_of(t, l));
    CUDA_MUST(cudaMemcpy(elements, from, bytes_of(t, l), cudaMemcpyDeviceToHost));
    o->dx_bytes = (size_t)count_of(&t->s) * size;
    o->dx = malloc(o->dx_bytes);
    for (int64_t i = 0; i < count_of(&t->s); i++)
        memcpy(o->dx + (size_t)i * size, elements + (size_t)place_of(&t->s, l, i) * size, size);
    free(elements);
}

static void run_backward(trope_args *a, outcome *o)
{
    if (!CHECK_MESSAGE(trope_workspace_size(a, &a->workspace_size) == TROPE_OK, "%s", trope_last_error()))
        return;
    CUDA_MUST(cudaMalloc(&a->workspace, a->workspace_size + 1));
    CHECK_MESSAGE(trope_backward(a) == TROPE_OK, "%s", trope_last_error());
    CUDA_MUST(cudaDeviceSynchronize());
    CUDA_MUST(cudaFree(a->workspace));
    trope_kernel_name(a, 1, o->kernel, sizeof o->kernel);
}

static outcome run(const tensors *t, const layout *l, int options)
{
    outcome o = {.gradient_bytes = gradient_bytes_of(t, options)};
    void *gradient, *const dy = upload(t, l, t->dy), *const x = upload(t, l, t->x), *const dx = upload(t, l, t->dy);
    void *const freqs = copy_up(t->freqs, (size_t)(ROWS * t->columns) * sizeof *t->freqs);
    void *const cu_seqlens = copy_up(t->cu_seqlens, sizeof t->cu_seqlens);
    CUDA_MUST(cudaMalloc(&gradient, o.gradient_bytes));
    CUDA_MUST(cudaMemset(gradient, 0xa5, o.gradient_bytes));
    call c = call_make(t->dtype, t->s.batch, t->s.tokens);
    c.args.device = TROPE_DEVICE_CUDA;
    c.args.pairing = options & INTERLEAVED ? TROPE_PAIRING_INTERLEAVED : TROPE_PAIRING_HALF;
    add_operand(t, l, dy, x, dx, &c);
    set_angles(t, options, freqs, gradient, &c);
    if (options & PACKED) {
        call_cu_seqlens(&c, cu_seqlens, TROPE_I32, 2);
        c.args.padding = TROPE_PADDING_ZERO;
    }
    run_backward(call_args(&c), &o);
    o.gradient = malloc(o.gradient_bytes);
    CUDA_MUST(cudaMemcpy(o.gradient, gradient, o.gradient_bytes, cudaMemcpyDeviceToHost));
    download(t, l, dx, &o);
    void *const all[] = {dy, x, dx, freqs, cu_seqlens, gradient};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        CUDA_MUST(cudaFree(all[i]));
    return o;
}

/* ---- comparing ---- */

static void compare(const tensors *t, int options, const layout *l, const outcome *first, const outcome *o)
{
    CHECK_MESSAGE(!memcmp(o->dx, first->dx, o->dx_bytes), "%s, heads of %d, options %d, %s: another dx",
                  number_name(t->dtype), t->s.head_dim, options, l->name);
    CHECK_MESSAGE(!memcmp(o->gradient, first->gradient, o->gradient_bytes),
                  "%s, heads of %d, options %d, %s: another gradient", number_name(t->dtype), t->s.head_dim, options,
                  l->name);
}

/* Whether the pass by vectors does what is asked for, where the layout has some. */
static int can_be_vectors(int32_t dtype, const shape *s, int options)
{
    return dtype != TROPE_F64 && s->rotary_dim <= 256 && !(options & OWN_ANGLES);
}

static void check_case(int32_t dtype, const shape *s, int options)
{
    tensors t = {.s = *s, .dtype = dtype};
    outcome first = {0};
    make_tensors(&t, options, (uint64_t)((s - shapes) * OPTIONS + options));
    for (int i = 0; i < LAYOUTS; i++) {
        outcome o = run(&t, &layouts[i], options);
        CHECK_MESSAGE(strstr(o.kernel, i < VECTOR_LAYOUTS && can_be_vectors(dtype, s, options) ? "vectors" : "elements") !=
                          NULL,
                      "%s, heads of %d, options %d: kernel %s", layouts[i].name, s->head_dim, options, o.kernel);
        if (i == 0) {
            first = o;
            continue;
        }
        compare(&t, options, &layouts[i], &first, &o);
        free(o.dx);
        free(o.gradient);
    }
    free(first.dx);
    free(first.gradient);
    free_tensors(&t);
}

static int is_legal(const shape *s, int options)
{
    return !(options & PACKED && s->batch > 1) && !(options & FREQUENCIES && options & OWN_ANGLES);
}

int main(void)
{
    device_require();
    for (int32_t dtype = TROPE_F32; dtype <= TROPE_F64; dtype++)
        for (int i = 0; i < SHAPES; i++)
            for (int options = 0; options < OPTIONS; options++)
                if (is_legal(&shapes[i], options))
                    check_case(dtype, &shapes[i], options);
    return check_result();
}
