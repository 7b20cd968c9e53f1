/* Calls to make on threads: f32 [tokens, 4 heads, 64] rotated by freqs from a start position, and the backward call with
 * the gradient of the angles, both beside what one thread makes of them. */
#ifndef TESTS_THREADS_CALL_H
#define TESTS_THREADS_CALL_H

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "support/random.h"
#include "trope/trope.h"

enum { HEADS = 4, HEAD_DIM = 64, ROW = HEADS * HEAD_DIM, PAIRS = HEAD_DIM / 2, FIRST = 3 };
enum { FEW = 2, MANY = 2048 }; /* tokens: not worth a second thread; worth eight, as 4 MB are moved */

typedef struct threaded_call {
    trope_args args; /* of a backward call; forward ignores what it does not know */
    int32_t start[1];
    size_t bytes, angle_bytes;
    float *src, *dst, *forward_src, *freqs, *d_freqs;
    float *forward, *backward, *gradient; /* expected */
} threaded_call;

typedef trope_status (*direction)(const trope_args *args);

static inline float *make_floats(size_t bytes, uint64_t seed)
{
    random_state random = {seed};
    float *to = malloc(bytes);
    for (size_t i = 0; i < bytes / sizeof *to; i++)
        to[i] = (float)random_real(&random);
    return to;
}

static inline void make_args(threaded_call *c, int64_t tokens)
{
    const int64_t stride[TROPE_MAX_DIMS] = {tokens * ROW, ROW, ROW, HEAD_DIM, 1};
    trope_operand *o = &c->args.operands[0];
    c->args = (trope_args){.struct_size = sizeof c->args, .device = TROPE_DEVICE_CPU, .operand_count = 1};
    c->args.batch = 1;
    c->args.tokens = tokens;
    c->args.freqs = c->freqs;
    c->args.angle_rows = tokens + FIRST;
    c->args.angle_cols = PAIRS;
    c->args.start_positions = c->start;
    *o = (trope_operand){
        .src = c->src, .dst = c->dst, .heads_per_group = HEADS, .head_dim = HEAD_DIM, .rotary_dim = HEAD_DIM};
    memcpy(o->src_stride, stride, sizeof stride);
    memcpy(o->dst_stride, stride, sizeof stride);
    memcpy(o->input_stride, stride, sizeof stride);
}

/* Runs a call with so many threads; whether it was accepted and, if there is one, has the expected bits. */
static inline int run_forward(threaded_call *c, direction forward, int threads, const float *expected)
{
    memset(c->dst, 0xff, c->bytes);
    c->args.threads = threads;
    return forward(&c->args) == TROPE_OK && (!expected || !memcmp(c->dst, expected, c->bytes));
}

static inline int run_backward(threaded_call *c, direction backward, int threads, const float *expected)
{
    trope_args args = c->args;
    args.threads = threads;
    args.operands[0].input = c->forward_src;
    args.d_freqs = c->d_freqs;
    args.workspace_size = (uint64_t)(2 * args.tokens + FIRST + 1) * sizeof(int64_t);
    args.workspace = malloc(args.workspace_size);
    memset(c->dst, 0xff, c->bytes);
    memset(c->d_freqs, 0xff, c->angle_bytes);
    const trope_status status = backward(&args);
    free(args.workspace);
    return status == TROPE_OK &&
           (!expected || (!memcmp(c->dst, expected, c->bytes) && !memcmp(c->d_freqs, c->gradient, c->angle_bytes)));
}

/* Sources and angles. What is expected is made by `expect`. */
static inline threaded_call *make_call(int64_t tokens)
{
    threaded_call *c = calloc(1, sizeof *c);
    c->start[0] = FIRST;
    c->bytes = (size_t)tokens * ROW * sizeof(float);
    c->angle_bytes = (size_t)(tokens + FIRST) * PAIRS * sizeof(float);
    c->src = make_floats(c->bytes, 1);
    c->forward_src = make_floats(c->bytes, 2);
    c->freqs = make_floats(c->angle_bytes, 3);
    c->dst = malloc(c->bytes);
    c->d_freqs = malloc(c->angle_bytes);
    c->forward = malloc(c->bytes);
    c->backward = malloc(c->bytes);
    c->gradient = malloc(c->angle_bytes);
    make_args(c, tokens);
    return c;
}

/* Takes the results of one thread as those that are expected. */
static inline int expect(threaded_call *c, direction forward, direction backward)
{
    if (!run_forward(c, forward, 1, NULL))
        return 0;
    memcpy(c->forward, c->dst, c->bytes);
    if (!run_backward(c, backward, 1, NULL))
        return 0;
    memcpy(c->backward, c->dst, c->bytes);
    memcpy(c->gradient, c->d_freqs, c->angle_bytes);
    return 1;
}

static inline void free_call(threaded_call *c)
{
    float *const all[] = {c->src, c->dst, c->forward_src, c->freqs, c->d_freqs, c->forward, c->backward, c->gradient};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
    free(c);
}

/* The threads of this process, as the system counts them. */
static inline int count_threads(void)
{
    DIR *tasks = opendir("/proc/self/task");
    int count = -2; /* . and .. */
    while (tasks && readdir(tasks))
        count++;
    if (tasks)
        closedir(tasks);
    return count;
}

#endif
