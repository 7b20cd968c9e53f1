#include "cuda/problem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/device_call.h"

/* What calls of a kind have. `more_heads`: so many times the heads, which are rotated whole, of as many times less tokens.
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

static const int32_t heads[PROBLEM_OPERANDS] = {4, 2, 1, 3},
                     windows[PROBLEM_OPERANDS] = {PROBLEM_ROTARY, PROBLEM_ROTARY, TROPE_COPY, PROBLEM_ROTARY * 2 / 3};

static void add_operand(const problem *p, problem_memory *m, int i, call *c)
{
    const kind_options *options = &options_of[p->kind];
    const int32_t more = options->more_heads ? options->more_heads : 1;
    const int32_t window = options->more_heads && windows[i] != TROPE_COPY ? PROBLEM_DIM : windows[i];
    trope_operand *o = call_add(c, m->dst[i], TROPE_THD, heads[i] * more, PROBLEM_DIM, window);
    o->src = m->src[i];
    o->rotary_offset = i == 1 && !options->more_heads ? 16 : 0;
    if (!options->gradient || window == TROPE_COPY)
        return;
    o->forward_src = m->forward_src[i];
    o->forward_src_layout = TROPE_THD;
}

static void set_angles(const problem *p, problem_memory *m, call *c)
{
    const kind_options *options = &options_of[p->kind];
    if (options->freqs)
        call_freqs(c, m->freqs, TROPE_COLUMNS_PAIR, PROBLEM_ROWS);
    else
        c->args.inv_freq = p->inv_freq;
    if (!options->gradient)
        return;
    c->args.d_freqs = m->d_freqs;
    c->args.d_freqs_layout = TROPE_TABLE_ROWS;
}

static void set_positions(const problem *p, problem_memory *m, call *c)
{
    const kind_options *options = &options_of[p->kind];
    trope_args *a = &c->args;
    if (options->sequences) {
        call_cu_seqlens(c, m->cu_seqlens, TROPE_I32, PROBLEM_SEQUENCES);
        a->padding = TROPE_PADDING_ZERO;
    }
    if (options->starts) {
        a->start_positions = m->starts;
        a->position_dtype = TROPE_I32;
    }
    if (options->ids) {
        a->position_ids = m->ids;
        a->position_dtype = TROPE_I64;
        a->ids_layout = TROPE_IDS_TOKENS;
    }
}

static call make_call(const problem *p, problem_memory *m, int32_t device)
{
    const int32_t more = options_of[p->kind].more_heads;
    call c = call_make(TROPE_BF16, 1, PROBLEM_TOKENS / (more ? more : 1));
    c.args.device = device;
    c.args.status = &m->status;
    for (int i = 0; i < p->operands; i++)
        add_operand(p, m, i, &c);
    set_angles(p, m, &c);
    set_positions(p, m, &c);
    return c;
}

static uint64_t workspace_of(call *c)
{
    if (trope_workspace_size(call_args(c), &c->args.workspace_size)) {
        printf("%s\n", trope_last_error());
        exit(1);
    }
    return c->args.workspace_size;
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
    p->on_host = make_call(p, p->host, TROPE_DEVICE_CPU);
    p->on_device = make_call(p, p->device, TROPE_DEVICE_CUDA);
    if (problem_has_gradient(p)) {
        p->on_host.args.workspace = p->host_workspace = malloc(workspace_of(&p->on_host));
        CUDA_MUST(cudaMalloc(&p->device_workspace, workspace_of(&p->on_device)));
        p->on_device.args.workspace = p->device_workspace;
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
    draw_whole_numbers(m->src[0], PROBLEM_OPERANDS * PROBLEM_TOKENS * 4 * PROBLEM_DIM, r);
    draw_whole_numbers(m->forward_src[0], PROBLEM_OPERANDS * PROBLEM_TOKENS * 4 * PROBLEM_DIM, r);
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
    draw_numbers(m->src[0], PROBLEM_OPERANDS * PROBLEM_TOKENS * 4 * PROBLEM_DIM, &r);
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

static trope_status run(const problem *p, call *c)
{
    return options_of[p->kind].backward ? trope_backward(call_args(c)) : trope_forward(call_args(c));
}

trope_status problem_queue(problem *p, cudaStream_t stream)
{
    p->on_device.args.stream = stream;
    return run(p, &p->on_device);
}

int problem_holds(problem *p, cudaStream_t stream)
{
    problem_memory *found = p->found, *expected = p->host;
    CUDA_MUST(cudaStreamSynchronize(stream));
    CUDA_MUST(cudaMemcpyAsync(found, p->device, sizeof *found, cudaMemcpyDeviceToHost, stream));
    CUDA_MUST(cudaStreamSynchronize(stream));
    if (run(p, &p->on_host)) {
        printf("on the CPU: %s\n", trope_last_error());
        return 0;
    }
    return !memcmp(found, expected, sizeof *found);
}
