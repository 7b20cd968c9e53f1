#include "cuda/problem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/device_call.h"
#include "support/number.h"

static const int32_t heads[4] = {4, 2, 1, 3};

static void bind_operand(trope_operand *o, problem_memory *m, int i, int has_input)
{
    o->src = m->src[i];
    o->dst = m->dst[i];
    o->heads_per_group = heads[i];
    o->head_dim = PROBLEM_DIM;
    o->rotary_dim = i == 2 ? 0 : i == 3 ? PROBLEM_ROTARY * 2 / 3 : PROBLEM_ROTARY;
    o->rotary_offset = i == 1 ? 16 : 0;
    trope_fill_strides(o->src_stride, TROPE_THD, 1, PROBLEM_TOKENS, heads[i], PROBLEM_DIM);
    memcpy(o->dst_stride, o->src_stride, sizeof o->dst_stride);
    memcpy(o->input_stride, o->src_stride, sizeof o->input_stride);
    if (has_input && o->rotary_dim)
        o->input = m->input[i];
}

static void bind(problem *p, problem_memory *m, trope_args *a)
{
    *a = (trope_args){.struct_size = sizeof *a, .dtype = TROPE_BF16, .operand_count = p->operands, .batch = 1};
    a->tokens = PROBLEM_TOKENS;
    for (int i = 0; i < p->operands; i++)
        bind_operand(&a->operands[i], m, i, p->kind == PROBLEM_GRADIENT);
    a->cu_seqlens = m->cu_seqlens;
    a->sequences = PROBLEM_SEQUENCES;
    a->status = &m->status;
    a->position_dtype = p->kind == PROBLEM_INV_FREQ ? TROPE_I32 : TROPE_I64;
    if (p->kind == PROBLEM_INV_FREQ) {
        a->start_positions = m->starts;
        a->inv_freq = p->inv_freq;
        return;
    }
    a->position_ids = m->ids;
    a->freqs = m->freqs;
    a->angle_rows = PROBLEM_ROWS;
    a->angle_cols = PROBLEM_ROTARY / 2;
    if (p->kind == PROBLEM_GRADIENT)
        a->d_freqs = m->d_freqs;
}

static void find_workspace(trope_args *a)
{
    if (trope_workspace_size(a, &a->workspace_size)) {
        printf("%s\n", trope_last_error());
        exit(1);
    }
}

problem *problem_new(problem_kind kind, int operands, uint64_t seed)
{
    problem *p = calloc(1, sizeof *p);
    p->kind = kind;
    p->operands = operands;
    for (int i = 0; i < PROBLEM_ROTARY / 2; i++)
        p->inv_freq[i] = pow(10000, -2.0 * i / PROBLEM_ROTARY);
    CUDA_MUST(cudaMallocHost((void **)&p->host, sizeof *p->host));
    CUDA_MUST(cudaMallocHost((void **)&p->found, sizeof *p->found));
    CUDA_MUST(cudaMalloc((void **)&p->device, sizeof *p->device));
    bind(p, p->host, &p->on_host);
    bind(p, p->device, &p->on_device);
    p->on_host.device = TROPE_DEVICE_CPU;
    p->on_host.threads = 1;
    p->on_device.device = TROPE_DEVICE_CUDA;
    if (p->kind == PROBLEM_GRADIENT) {
        find_workspace(&p->on_host);
        find_workspace(&p->on_device);
        p->on_host.workspace = p->host_workspace = malloc(p->on_host.workspace_size);
        CUDA_MUST(cudaMalloc(&p->device_workspace, p->on_device.workspace_size));
        p->on_device.workspace = p->device_workspace;
    }
    problem_draw(p, seed, NULL);
    CUDA_MUST(cudaDeviceSynchronize());
    return p;
}

void problem_free(problem *p)
{
    CUDA_MUST(cudaFree(p->device));
    CUDA_MUST(cudaFree(p->device_workspace));
    free(p->host_workspace);
    CUDA_MUST(cudaFreeHost(p->host));
    CUDA_MUST(cudaFreeHost(p->found));
    free(p);
}

/* Numbers of magnitude 1/8 to 2 and both signs. */
static void draw_numbers(uint16_t *to, int count, random_state *r)
{
    for (int i = 0; i < count; i += 4) {
        const uint64_t four = (random_bits(r) & 0x81ff81ff81ff81ffu) | 0x3e003e003e003e00u;
        memcpy(to + i, &four, sizeof four);
    }
}

static void draw_boundaries(problem_memory *m, random_state *r)
{
    m->cu_seqlens[0] = 0;
    for (int i = 1; i < PROBLEM_SEQUENCES; i++) {
        const int32_t left = PROBLEM_TOKENS - m->cu_seqlens[i - 1];
        m->cu_seqlens[i] = m->cu_seqlens[i - 1] + (int32_t)random_between(r, 0, left < 160 ? left : 160);
    }
    m->cu_seqlens[PROBLEM_SEQUENCES] = PROBLEM_TOKENS - (int32_t)random_between(r, 0, 5);
    if (m->cu_seqlens[PROBLEM_SEQUENCES] < m->cu_seqlens[PROBLEM_SEQUENCES - 1])
        m->cu_seqlens[PROBLEM_SEQUENCES] = PROBLEM_TOKENS;
}

void problem_draw(problem *p, uint64_t seed, cudaStream_t stream)
{
    random_state r = {seed};
    problem_memory *m = p->host;
    memset(m, 0xff, sizeof *m);
    draw_numbers(m->src[0], 4 * PROBLEM_TOKENS * 4 * PROBLEM_DIM, &r);
    draw_numbers(m->input[0], 4 * PROBLEM_TOKENS * 4 * PROBLEM_DIM, &r);
    for (int i = 0; i < PROBLEM_ROWS * PROBLEM_ROTARY / 2; i++)
        m->freqs[i] = (float)(100 * random_real(&r));
    for (int i = 0; i < PROBLEM_TOKENS; i++)
        m->ids[i] = random_between(&r, 0, PROBLEM_ROWS - 1);
    for (int i = 0; i < PROBLEM_SEQUENCES; i++)
        m->starts[i] = (int32_t)random_between(&r, 0, 1000000);
    draw_boundaries(m, &r);
    m->status = 0;
    CUDA_MUST(cudaMemcpyAsync(p->device, m, sizeof *m, cudaMemcpyHostToDevice, stream));
    CUDA_MUST(cudaStreamSynchronize(stream));
}

int problem_is_backward(const problem *p)
{
    return p->kind == PROBLEM_GRADIENT;
}

trope_status problem_queue(problem *p, cudaStream_t stream)
{
    p->on_device.stream = stream;
    return problem_is_backward(p) ? trope_backward(&p->on_device) : trope_forward(&p->on_device);
}

static int same_sums(const float *a, const float *b)
{
    for (int i = 0; i < PROBLEM_ROWS * PROBLEM_ROTARY / 2; i++)
        if (!(fabs((double)a[i] - (double)b[i]) <= 4 * number_half_ulp(TROPE_F32, (double)b[i]) + 1e-14)) {
            printf("d_freqs[%d]: %.9g, on the CPU %.9g\n", i, (double)a[i], (double)b[i]);
            return 0;
        }
    return 1;
}

int problem_holds(problem *p, cudaStream_t stream)
{
    problem_memory *found = p->found, *expected = p->host;
    CUDA_MUST(cudaStreamSynchronize(stream));
    CUDA_MUST(cudaMemcpyAsync(found, p->device, sizeof *found, cudaMemcpyDeviceToHost, stream));
    CUDA_MUST(cudaStreamSynchronize(stream));
    const trope_status status = problem_is_backward(p) ? trope_backward(&p->on_host) : trope_forward(&p->on_host);
    if (status)
        printf("on the CPU: %s\n", trope_last_error());
    int holds = !status && !memcmp(found->dst, expected->dst, sizeof found->dst);
    holds = holds && found->status == expected->status && !memcmp(found->src, expected->src, sizeof found->src);
    if (problem_is_backward(p))
        holds = holds && same_sums(found->d_freqs, expected->d_freqs);
    return holds;
}
