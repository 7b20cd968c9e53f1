/* Heads so far apart that 32 of them are more than 2^31 bytes apart: MLA's kv backward, whose k_pe is a sum over all heads and whose
 * other elements are copied beside it. Compared with the CPU, which has the same heads next to each other. */
#include <stdlib.h>
#include <string.h>

#include "cuda/device_call.h"
#include "support/call.h"
#include "support/check.h"

enum { HEADS = 64, TOKENS = 3, COPIED = 128, SUMMED = 64, FAR = 34 << 20 /* elements from one head to the next */ };

static const char *const names[] = {"a copy beside the sum", "the sum"};
static double inv_freq[SUMMED / 2];

/* dy of both operands, and what becomes of them. */
typedef struct tensors {
    uint16_t *dy[2], *dx[2];
} tensors;

static int32_t width_of(int i)
{
    return i ? SUMMED : COPIED;
}

/* Elements of a tensor whose heads follow each other, or are `far` apart. */
static size_t elements_of(int i, int heads, int64_t far)
{
    const size_t of_head = (size_t)TOKENS * (size_t)width_of(i);
    return far ? (size_t)(heads - 1) * (size_t)far + of_head : (size_t)heads * of_head;
}

static void set_far(int32_t *layout, int64_t *stride, int i, int64_t far)
{
    *layout = TROPE_STRIDED;
    trope_fill_strides(stride, TROPE_BHSD, 1, TOKENS, HEADS, width_of(i));
    stride[TROPE_DIM_HEAD] = far;
}

static call make_call(const tensors *t, int64_t far)
{
    call c = call_make(TROPE_BF16, 1, TOKENS);
    for (int i = 0; i < 2; i++) {
        trope_operand *const o = call_add(&c, t->dy[i], TROPE_BHSD, HEADS, width_of(i), i ? SUMMED : TROPE_COPY);
        o->dst = t->dx[i];
        if (i)
            o->shared_heads = TROPE_SHARED_ALL;
        if (far) {
            set_far(&o->src_layout, o->src_stride, i, far);
            if (!i)
                set_far(&o->dst_layout, o->dst_stride, i, far);
        }
    }
    c.args.inv_freq = inv_freq;
    return c;
}

/* Copies heads from where they are `from_far` apart to where they are `to_far` apart. */
static void move_heads(int i, int heads, uint16_t *to, int64_t to_far, const uint16_t *from, int64_t from_far,
                       enum cudaMemcpyKind kind)
{
    const size_t of_head = (size_t)TOKENS * (size_t)width_of(i);
    for (int h = 0; h < heads; h++)
        CUDA_MUST(cudaMemcpy(to + (to_far ? h * to_far : h * (int64_t)of_head),
                             from + (from_far ? h * from_far : h * (int64_t)of_head), of_head * sizeof *to, kind));
}

int main(void)
{
    tensors near, far;
    uint16_t *found[2];
    device_require();
    for (int i = 0; i < SUMMED / 2; i++)
        inv_freq[i] = 1.0 / (i + 1);
    for (int i = 0; i < 2; i++) {
        const int results = i ? 1 : HEADS; /* heads of dx */
        near.dy[i] = malloc(elements_of(i, HEADS, 0) * sizeof(uint16_t));
        near.dx[i] = malloc(elements_of(i, results, 0) * sizeof(uint16_t));
        found[i] = malloc(elements_of(i, results, 0) * sizeof(uint16_t));
        for (size_t j = 0; j < elements_of(i, HEADS, 0); j++)
            near.dy[i][j] = (uint16_t)(0x3f00 + j * 37 % 256 + (j % 3 ? 0 : 0x8000)); /* 0.5 to 2, of both signs */
        CUDA_MUST(cudaMalloc((void **)&far.dy[i], elements_of(i, HEADS, FAR) * sizeof(uint16_t)));
        CUDA_MUST(cudaMalloc((void **)&far.dx[i], elements_of(i, results, FAR) * sizeof(uint16_t)));
        move_heads(i, HEADS, far.dy[i], FAR, near.dy[i], 0, cudaMemcpyHostToDevice);
    }
    call on_cpu = make_call(&near, 0), on_cuda = make_call(&far, FAR);
    on_cuda.args.device = TROPE_DEVICE_CUDA;
    CHECK_MESSAGE(trope_backward(call_args(&on_cpu)) == TROPE_OK, "CPU: %s", trope_last_error());
    CHECK_MESSAGE(trope_backward(call_args(&on_cuda)) == TROPE_OK, "CUDA: %s", trope_last_error());
    CUDA_MUST(cudaDeviceSynchronize());
    for (int i = 0; i < 2; i++) {
        const int results = i ? 1 : HEADS;
        move_heads(i, results, found[i], 0, far.dx[i], i ? 0 : FAR, cudaMemcpyDeviceToHost);
        CHECK_MESSAGE(!memcmp(found[i], near.dx[i], elements_of(i, results, 0) * sizeof(uint16_t)),
                      "%s differs from the CPU's", names[i]);
        CUDA_MUST(cudaFree(far.dy[i]));
        CUDA_MUST(cudaFree(far.dx[i]));
        free(near.dy[i]);
        free(near.dx[i]);
        free(found[i]);
    }
    return check_result();
}
