#include "cuda/problem.h"

#include <stdio.h>
#include <stdlib.h>

#include "cuda/device_call.h"

/* ---- kinds ---- */

#define FOUR_OPERANDS                                                                                                      \
    {                                                                                                                      \
        {4, 64, 48, 0}, {2, 64, 48, 16}, {1, 64, TROPE_COPY, 0},                                                           \
        {                                                                                                                  \
            3, 64, 32, 0                                                                                                   \
        }                                                                                                                  \
    }
#define MANY_HEADS                                                                                                         \
    {                                                                                                                      \
        {28, 64, 64, 0}, {14, 64, 64, 0}, {7, 64, TROPE_COPY, 0},                                                          \
        {                                                                                                                  \
            21, 64, 64, 0                                                                                                  \
        }                                                                                                                  \
    }
#define PACKED      .cu_dtype = TROPE_I32, .sequences = 9, .longest = 160, .gap = 5, .padding = TROPE_PADDING_ZERO
#define BF16_TOKENS .dtype = TROPE_BF16, .layout = TROPE_THD, .batch = 1, .tokens = 700, .operands = FOUR_OPERANDS

/* clang-format off */
const call_case problem_kinds[PROBLEM_KINDS] = {
    {"starts", BF16_TOKENS, PACKED, .starts_dtype = TROPE_I32},
    {"ids", BF16_TOKENS, PACKED, .angles = FREQS, .rows = 900, .ids_dtype = TROPE_I64},
    {"ids, backward", BF16_TOKENS, PACKED, .angles = FREQS, .rows = 900, .ids_dtype = TROPE_I64, .backward = 1},
    {"ids, gradient", BF16_TOKENS, PACKED, .angles = FREQS, .rows = 900, .ids_dtype = TROPE_I64, .gradient = WITH_GRADIENT},
    {"positions from tokens", BF16_TOKENS},
    {"in registers", .dtype = TROPE_BF16, .layout = TROPE_THD, .batch = 1, .tokens = 100, .operands = MANY_HEADS},
    {"packed", BF16_TOKENS, PACKED},
    {"packed, gradient", BF16_TOKENS, PACKED, .angles = FREQS, .rows = 900, .gradient = WITH_GRADIENT},
};
/* clang-format on */

problem *problem_of_kind(int kind, int operands, uint64_t seed)
{
    call_case k = problem_kinds[kind];
    if (operands < CASE_OPERANDS)
        k.operands[operands].heads = 0;
    return problem_new(&k, seed);
}

/* ---- memory ---- */

static uint64_t workspace_of(call *c)
{
    if (trope_workspace_size(call_args(c), &c->args.workspace_size)) {
        printf("%s\n", trope_last_error());
        exit(1);
    }
    return c->args.workspace_size;
}

problem *problem_new(const call_case *k, uint64_t seed)
{
    problem *p = calloc(1, sizeof *p);
    p->k = *k;
    p->map = case_plan(k);
    CUDA_MUST(cudaMallocHost((void **)&p->host, p->map.end));
    CUDA_MUST(cudaMallocHost((void **)&p->found, p->map.end));
    CUDA_MUST(cudaMalloc((void **)&p->device, p->map.end));
    p->on_host = case_call(k, &p->map, p->host, TROPE_DEVICE_CPU);
    p->on_device = case_call(k, &p->map, p->device, TROPE_DEVICE_CUDA);
    if (k->gradient) {
        p->on_host.args.workspace = p->host_workspace = malloc(workspace_of(&p->on_host) + 1);
        CUDA_MUST(cudaMalloc(&p->device_workspace, workspace_of(&p->on_device) + 1));
        p->on_device.args.workspace = p->device_workspace;
    }
    problem_draw(p, seed, NULL);
    return p;
}

void problem_free(problem *p)
{
    CUDA_MUST(cudaFree(p->device));
    CUDA_MUST(cudaFree(p->device_workspace));
    CUDA_MUST(cudaFreeHost(p->host));
    CUDA_MUST(cudaFreeHost(p->found));
    free(p->host_workspace);
    free(p);
}

void *problem_region(const problem *p, int region)
{
    return p->host + p->map.regions[region].at;
}

void problem_upload(problem *p, cudaStream_t stream)
{
    CUDA_MUST(cudaMemcpyAsync(p->device, p->host, p->map.end, cudaMemcpyHostToDevice, stream));
    CUDA_MUST(cudaStreamSynchronize(stream));
}

void problem_draw(problem *p, uint64_t seed, cudaStream_t stream)
{
    memset(p->host, 0xff, p->map.end);
    case_draw(&p->k, &p->map, p->host, seed);
    *(int32_t *)problem_region(p, REGION_STATUS) = CASE_STATUS_BEFORE;
    problem_upload(p, stream);
}

/* ---- the call ---- */

static trope_status run(const problem *p, call *c)
{
    return case_is_backward(&p->k) ? trope_backward(call_args(c)) : trope_forward(call_args(c));
}

trope_status problem_queue(problem *p, cudaStream_t stream)
{
    p->on_device.args.stream = stream;
    return run(p, &p->on_device);
}

void problem_bring(problem *p, cudaStream_t stream)
{
    CUDA_MUST(cudaStreamSynchronize(stream));
    CUDA_MUST(cudaMemcpyAsync(p->found, p->device, p->map.end, cudaMemcpyDeviceToHost, stream));
    CUDA_MUST(cudaStreamSynchronize(stream));
}

trope_status problem_run_on_host(problem *p)
{
    return run(p, &p->on_host);
}

int problem_holds(problem *p, cudaStream_t stream)
{
    problem_bring(p, stream);
    if (problem_run_on_host(p)) {
        printf("%s, on the CPU: %s\n", p->k.name, trope_last_error());
        return 0;
    }
    return !memcmp(p->found, p->host, p->map.end);
}

size_t problem_stray_bytes(const problem *p)
{
    size_t stray = 0, at = 0;
    for (int i = REGION_DST; i <= REGIONS; i++) {
        const case_region end = {p->map.end, 0}, written = i < REGIONS ? p->map.regions[i] : end;
        for (; at < written.at; at++)
            stray += p->found[at] != p->host[at];
        at = written.at + written.bytes > at ? written.at + written.bytes : at;
    }
    return stray;
}
