#include "cuda/chain.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/call_case.h"
#include "cuda/device_call.h"
#include "support/number.h"
#include "support/tensor.h"

/* chain_copy_by_call copies tokens with one head of WIDTH elements. The library has no calls that only copy, so each token
 * also rotates UNSEEN elements of the scratch memory. */
enum { REPLAYS = 2, ALIGNMENT = 256, WIDTH = ALIGNMENT / sizeof(float), UNSEEN = 16 };

/* ---- memory ---- */

chain_memory *chain_memory_new(size_t room)
{
    chain_memory *m = calloc(1, sizeof *m);
    m->room = room;
    CUDA_MUST(cudaMallocHost((void **)&m->host, room));
    CUDA_MUST(cudaMallocHost((void **)&m->found, room));
    CUDA_MUST(cudaMalloc((void **)&m->device, room));
    CUDA_MUST(cudaStreamCreateWithFlags(&m->stream, cudaStreamNonBlocking));
    return m;
}

void chain_memory_free(chain_memory *m)
{
    CUDA_MUST(cudaFreeHost(m->host));
    CUDA_MUST(cudaFreeHost(m->found));
    CUDA_MUST(cudaFree(m->device));
    CUDA_MUST(cudaStreamDestroy(m->stream));
    free(m);
}

static chain_place on_host(const chain_memory *m)
{
    return (chain_place){m->host, TROPE_DEVICE_CPU, NULL};
}

static chain_place on_device(const chain_memory *m)
{
    return (chain_place){m->device, TROPE_DEVICE_CUDA, m->stream};
}

/* ---- running a chain on both devices ---- */

/* Waits for the device, for the first time since the chain was queued. */
static void bring_back(chain_memory *m, const chain *c)
{
    CUDA_MUST(cudaStreamSynchronize(m->stream));
    CUDA_MUST(cudaMemcpyAsync(m->found, m->device, c->compared, cudaMemcpyDeviceToHost, m->stream));
    CUDA_MUST(cudaStreamSynchronize(m->stream));
}

static int same_bytes(const chain_memory *m, const chain *c, const char *how)
{
    if (!memcmp(m->found, m->host, c->compared))
        return 1;
    size_t at = 0;
    while (m->found[at] == m->host[at])
        at++;
    printf("%s, %s: byte %zu differs from the CPU's\n", c->name, how, at);
    return 0;
}

static int queue_once(chain_memory *m, const chain *c)
{
    memset(m->host, 0xff, c->bytes);
    c->fill(c->what, m->host);
    CUDA_MUST(cudaMemcpyAsync(m->device, m->host, c->bytes, cudaMemcpyHostToDevice, m->stream));
    c->run(c->what, on_device(m));
    bring_back(m, c);
    c->run(c->what, on_host(m));
    return same_bytes(m, c, "queued");
}

static int replay(chain_memory *m, const chain *c)
{
    chain_launch(c, on_device(m), REPLAYS);
    bring_back(m, c);
    for (int i = 0; i < REPLAYS; i++)
        c->run(c->what, on_host(m));
    return same_bytes(m, c, "as a graph");
}

int chain_numbers(const chain_memory *m, const chain_result *r)
{
    random_state random = {r->bytes};
    const size_t size = number_size(r->dtype);
    int numbers = 0;
    for (int i = 0; i < 1000; i++) {
        const size_t which = (size_t)random_between(&random, 0, (int64_t)(r->bytes / size) - 1);
        const double number = number_load(r->dtype, m->found + r->at + which * size);
        numbers += isfinite(number) && number != 0;
    }
    return numbers;
}

int chain_holds(chain_memory *m, const chain *c)
{
    if (c->bytes > m->room) {
        printf("%s: a chain of %zu bytes does not fit in its memory\n", c->name, c->bytes);
        exit(1);
    }
    return queue_once(m, c) && replay(m, c);
}

/* ---- steps ---- */

void chain_call(call *c, chain_place at, int backward)
{
    trope_args *const a = call_args(c);
    a->device = at.device;
    a->stream = at.stream;
    if ((backward ? trope_backward(a) : trope_forward(a)) == TROPE_OK)
        return;
    printf("a call of a chain was refused: %s\n", trope_last_error());
    exit(1);
}

void chain_copy(chain_place at, size_t to, size_t from, size_t bytes)
{
    if (at.device == TROPE_DEVICE_CPU)
        memcpy(at.memory + to, at.memory + from, bytes);
    else
        CUDA_MUST(cudaMemcpyAsync(at.memory + to, at.memory + from, bytes, cudaMemcpyDeviceToDevice, at.stream));
}

static int64_t lines_of(size_t bytes)
{
    return (int64_t)((bytes + ALIGNMENT - 1) / ALIGNMENT);
}

size_t chain_scratch_bytes(size_t bytes)
{
    return (size_t)lines_of(bytes) * UNSEEN * sizeof(float);
}

void chain_copy_by_call(chain_place at, size_t to, size_t from, size_t bytes, size_t scratch)
{
    static const double inv_freq[UNSEEN / 2] = {1, 0.5, 0.25, 0.125};
    call c = call_make(TROPE_F32, 1, lines_of(bytes));
    unsigned char *src = at.memory + from, *dst = at.memory + to;
    c.args.inv_freq = inv_freq;
    trope_operand *const o = call_add(&c, dst, TROPE_THD, 1, WIDTH, TROPE_COPY);
    call_add(&c, at.memory + scratch, TROPE_THD, 1, UNSEEN, UNSEEN);
    tensor_say_strides(call_args(&c), c.operands, 0);
    case_reverse(c.args.tokens, sizeof(float), &src, o->src_stride);
    case_reverse(c.args.tokens, sizeof(float), &dst, o->dst_stride);
    o->src = src;
    o->dst = dst;
    chain_call(&c, at, 0);
}
