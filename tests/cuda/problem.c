#include "cuda/problem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/device_call.h"

/* What calls of a kind have. `more_heads`: so many times the heads, which are turned whole, of as many times less tokens.
 */
typedef struct kind_options {
    int sequences, starts, ids, freqs, backward, gradient, more_heads;
} kind_options;

/* clang-format off */
static const kind_options options_of[PROBLEM_KINDS] = {
    [PROBLEM_INV_FREQ] = {.sequences = 1, .starts = 1},
    [PROBLEM_IDS] = {.sequences = 1, .ids = 1, .freqs = 1},
    [PROBLEM_BACKWARD] = {.sequences = 1, .ids = 1, .freqs = 1, .backward = 1},
    [PROBLEM_GRADIENT] = {.sequences = 1, .ids = 1, .freqs = 1, .backward = 1, .gradient = 1},
    [PROBLEM_PLAIN] = {.more_heads = 0},
    [PROBLEM_HELD] = {.more_heads = 7},
    [PROBLEM_PACKED] = {.sequences = 1},
    [PROBLEM_PACKED_GRADIENT] = {.sequences = 1, .freqs = 1, .backward = 1, .gradient = 1},
};
/* clang-format on */

static const int32_t heads[4] = {4, 2, 1, 3}, windows[4] = {PROBLEM_ROTARY, PROBLEM_ROTARY, 0, PROBLEM_ROTARY * 2 / 3};

static void bind_operand(trope_operand *o, problem_memory *m, int i, const trope_args *a, const kind_options *options)
{
    o->src = m->src[i];
    o->dst = m->dst[i];
    o->heads_per_group = heads[i] * (options->more_heads ? options->more_heads : 1);
    o->head_dim = PROBLEM_DIM;
    o->rotary_dim = options->more_heads && windows[i] ? PROBLEM_DIM : windows[i];
    o->rotary_offset = i == 1 && !options->more_heads ? 16 : 0;
    trope_fill_strides(o->src_stride, TROPE_THD, 1, a->tokens, o->heads_per_group, PROBLEM_DIM);
    memcpy(o->dst_stride, o->src_stride, sizeof o->dst_stride);
    memcpy(o->input_stride, o->src_stride, sizeof o->input_stride);
    if (options->gradient && o->rotary_dim)
        o->input = m->input[i];
}

static void bind_angles(problem *p, problem_memory *m, trope_args *a)
{
    const kind_options *options = &options_of[p->kind];
    a->inv_freq = options->freqs ? NULL : p->inv_freq;
    if (!options->freqs)
        return;
    a->freqs = m->freqs;
    a->d_freqs = options->gradient ? m->d_freqs : NULL;
    a->angle_rows = PROBLEM_ROWS;
    a->angle_cols = PROBLEM_ROTARY / 2;
}

static void bind(problem *p, problem_memory *m, trope_args *a)
{
    const kind_options *options = &options_of[p->kind];
    *a = (trope_args){.struct_size = sizeof *a, .dtype = TROPE_BF16, .operand_count = p->operands, .batch = 1};
    a->tokens = PROBLEM_TOKENS / (options->more_heads ? options->more_heads : 1);
    for (int i = 0; i < p->operands; i++)
        bind_operand(&a->operands[i], m, i, a, options);
    a->status = &m->status;
    a->cu_seqlens = options->sequences ? m->cu_seqlens : NULL;
    a->sequences = options->sequences ? PROBLEM_SEQUENCES : 0;
    a->start_positions = options->starts ? m->starts : NULL;
    a->position_ids = options->ids ? m->ids : NULL;
    a->position_dtype = options->ids ? TROPE_I64 : TROPE_I32;
    bind_angles(p, m, a);
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
    for (int i = 0; i < PROBLEM_DIM / 2; i++)
        p->inv_freq[i] = pow(10000, -2.0 * i / PROBLEM_DIM);
    CUDA_MUST(cudaMallocHost((void **)&p->host, sizeof *p->host));
    CUDA_MUST(cudaMallocHost((void **)&p->found, sizeof *p->found));
    CUDA_MUST(cudaMalloc((void **)&p->device, sizeof *p->device));
    bind(p, p->host, &p->on_host);
    bind(p, p->device, &p->on_device);
    p->on_host.device = TROPE_DEVICE_CPU;
    p->on_host.threads = 1;
    p->on_device.device = TROPE_DEVICE_CUDA;
    if (problem_has_gradient(p)) {
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

static void draw_whole_numbers(uint16_t *to, int count, random_state *r)
{
    static const uint16_t numbers[] = {0x3f80, 0x4000, 0x4040, 0xbf80, 0xc000, 0xc040}; /* 1, 2, 3 and -1, -2, -3 */
    for (int i = 0; i < count; i++)
        to[i] = numbers[random_between(r, 0, 5)];
}

/* Of whole numbers up to 3 and angles from 0.1 to 1.4, whose sines and cosines in fp32 are multiples of 2^-27, sums have
 * less than 53 bits. */
static void draw_for_sums(problem_memory *m, random_state *r)
{
    draw_whole_numbers(m->src[0], 4 * PROBLEM_TOKENS * 4 * PROBLEM_DIM, r);
    draw_whole_numbers(m->input[0], 4 * PROBLEM_TOKENS * 4 * PROBLEM_DIM, r);
    for (int i = 0; i < PROBLEM_ROWS * PROBLEM_ROTARY / 2; i++)
        m->freqs[i] = (float)(0.75 + 0.65 * random_real(r));
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
    for (int i = 0; i < PROBLEM_ROWS * PROBLEM_ROTARY / 2; i++)
        m->freqs[i] = (float)(100 * random_real(&r));
    if (problem_has_gradient(p))
        draw_for_sums(m, &r);
    for (int i = 0; i < PROBLEM_TOKENS; i++)
        m->ids[i] = random_between(&r, 0, PROBLEM_ROWS - 1);
    for (int i = 0; i < PROBLEM_SEQUENCES; i++)
        m->starts[i] = (int32_t)random_between(&r, 0, 1000000);
    draw_boundaries(m, &r);
    m->status = 0;
    CUDA_MUST(cudaMemcpyAsync(p->device, m, sizeof *m, cudaMemcpyHostToDevice, stream));
    CUDA_MUST(cudaStreamSynchronize(stream));
}

int problem_has_gradient(const problem *p)
{
    return options_of[p->kind].gradient;
}

static trope_status call(const problem *p, const trope_args *a)
{
    return options_of[p->kind].backward ? trope_backward(a) : trope_forward(a);
}

trope_status problem_queue(problem *p, cudaStream_t stream)
{
    p->on_device.stream = stream;
    return call(p, &p->on_device);
}

int problem_holds(problem *p, cudaStream_t stream)
{
    problem_memory *found = p->found, *expected = p->host;
    CUDA_MUST(cudaStreamSynchronize(stream));
    CUDA_MUST(cudaMemcpyAsync(found, p->device, sizeof *found, cudaMemcpyDeviceToHost, stream));
    CUDA_MUST(cudaStreamSynchronize(stream));
    if (call(p, &p->on_host)) {
        printf("on the CPU: %s\n", trope_last_error());
        return 0;
    }
    return !memcmp(found, expected, sizeof *found);
}
