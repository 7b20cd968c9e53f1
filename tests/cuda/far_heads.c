/* Heads with a stride so large that 32 heads span more than 2^31 bytes. One call is a rotation. The other is MLA's kv
 * backward: k_pe is a sum over all heads, and the other elements are copied. The results are compared with the CPU, on which
 * the same heads are adjacent. */
#include <string.h>

#include "cuda/device_call.h"
#include "cuda/problem.h"
#include "support/check.h"

enum { HEADS = 64, TOKENS = 3, FAR = 34 << 20 /* elements from one head to the next */ };

static const call_case rotation = {"rotation", TROPE_BF16, TROPE_BHSD, .tokens = TOKENS,
                                   .operands = {{HEADS, 128, 128, 0}}};

/* The first operand is copied, the second is summed. */
static const call_case sum = {"sum",         TROPE_BF16,
                              TROPE_BHSD,    .tokens = TOKENS,
                              .backward = 1, .operands = {{HEADS, 128, TROPE_COPY, 0}, {HEADS, 64, 64, 0}}};

static size_t bytes_of_head(const call_case *c, int operand)
{
    return (size_t)(TOKENS * c->operands[operand].head_dim) * sizeof(uint16_t);
}

/* Allocates device memory for heads that are far apart. */
static void *take_far(const call_case *c, int operand, int heads)
{
    void *far;
    CUDA_MUST(cudaMalloc(&far, (size_t)(heads - 1) * FAR * sizeof(uint16_t) + bytes_of_head(c, operand)));
    return far;
}

static void move_far(const call_case *c, int32_t *layout, int64_t *stride, int operand)
{
    *layout = TROPE_STRIDED;
    trope_fill_strides(stride, TROPE_BHSD, 1, TOKENS, HEADS, c->operands[operand].head_dim);
    stride[TROPE_DIM_HEAD] = FAR;
}

/* Runs a case on both devices. `summed` is the operand whose heads are summed, or -1. */
static void check(const call_case *c, int operands, int summed)
{
    problem *const p = problem_new(c, 1);
    if (summed >= 0)
        p->on_host.operands[summed].shared_heads = TROPE_SHARED_ALL;
    call far = p->on_host;
    far.args.device = TROPE_DEVICE_CUDA;
    far.args.status = NULL;
    for (int i = 0; i < operands; i++) {
        trope_operand *const o = &far.operands[i];
        uint16_t *const src = take_far(c, i, HEADS);
        o->src = src;
        o->dst = take_far(c, i, i == summed ? 1 : HEADS);
        move_far(c, &o->src_layout, o->src_stride, i);
        if (i != summed)
            move_far(c, &o->dst_layout, o->dst_stride, i);
        for (size_t h = 0; h < HEADS; h++)
            CUDA_MUST(cudaMemcpy(src + h * FAR, (char *)problem_region(p, REGION_SRC + i) + h * bytes_of_head(c, i),
                                 bytes_of_head(c, i), cudaMemcpyHostToDevice));
    }
    CHECK_MESSAGE(problem_run_on_host(p) == TROPE_OK, "CPU: %s", trope_last_error());
    const trope_status status = c->backward ? trope_backward(call_args(&far)) : trope_forward(call_args(&far));
    CHECK_MESSAGE(status == TROPE_OK, "CUDA: %s", trope_last_error());
    CUDA_MUST(cudaDeviceSynchronize());
    for (int i = 0; i < operands; i++) {
        for (size_t h = 0; h < (i == summed ? 1 : HEADS); h++) {
            char found[TOKENS * 128 * sizeof(uint16_t)];
            CUDA_MUST(
                cudaMemcpy(found, (uint16_t *)far.operands[i].dst + h * FAR, bytes_of_head(c, i), cudaMemcpyDeviceToHost));
            CHECK_MESSAGE(
                !memcmp(found, (char *)problem_region(p, REGION_DST + i) + h * bytes_of_head(c, i), bytes_of_head(c, i)),
                "%s, operand %d, head %zu: dst differs from the CPU's", c->name, i, h);
        }
        CUDA_MUST(cudaFree((void *)(uintptr_t)far.operands[i].src));
        CUDA_MUST(cudaFree(far.operands[i].dst));
    }
    problem_free(p);
}

int main(void)
{
    device_require();
    check(&rotation, 1, -1);
    check(&sum, 2, 1);
    return check_result();
}
