/* Calls for tests of threads: f32 [tokens, 4 heads, 64] rotated by freqs from a start position, and the backward call with
 * the gradient of the angles. Their results are compared with the results of one thread. */
#ifndef TESTS_THREADS_CALL_H
#define TESTS_THREADS_CALL_H

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "support/call.h"
#include "support/random.h"

enum { HEADS = 4, HEAD_DIM = 64, ROW = HEADS * HEAD_DIM, PAIRS = HEAD_DIM / 2, FIRST = 3 };
enum { FEW = 2, MANY = 2048 }; /* tokens for one thread; tokens for eight threads: the call moves 4 MB */

typedef struct threaded_call {
    call call; /* for both directions; backward adds the gradient */
    int32_t start[1];
    size_t bytes, angle_bytes;
    float *src, *dst, *forward_src, *freqs, *d_freqs;
    float *forward, *backward, *gradient; /* the expected results */
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

/* Fills in the operand without trope_fill_operand, because a test loads the library with dlopen. */
static inline void make_args(threaded_call *c, int64_t tokens)
{
    c->call = call_make(TROPE_F32, 1, tokens);
    call_freqs(&c->call, c->freqs, TROPE_COLUMNS_PAIR, tokens + FIRST);
    c->call.args.start_positions = c->start;
    c->call.args.position_dtype = TROPE_I32;
    c->call.args.operand_count = 1;
    c->call.operands[0] = (trope_operand){.src = c->src, .dst = c->dst, .src_layout = TROPE_SBHD, .dst_layout = TROPE_SBHD};
    c->call.operands[0].heads_per_group = HEADS;
    c->call.operands[0].head_dim = c->call.operands[0].rotary_dim = HEAD_DIM;
}

/* Runs a call with this many threads. Returns whether the call succeeded and, if `expected` is not NULL, has the expected
 * bits. */
static inline int run_forward(threaded_call *c, direction forward, int threads, const float *expected)
{
    memset(c->dst, 0xff, c->bytes);
    c->call.args.threads = threads;
    return forward(call_args(&c->call)) == TROPE_OK && (!expected || !memcmp(c->dst, expected, c->bytes));
}

static inline int run_backward(threaded_call *c, direction backward, int threads, const float *expected)
{
    call gradient = c->call;
    trope_args *args = call_args(&gradient);
    args->threads = threads;
    gradient.operands[0].forward_src = c->forward_src;
    gradient.operands[0].forward_src_layout = TROPE_SBHD;
    args->d_freqs = c->d_freqs;
    args->d_freqs_layout = TROPE_TABLE_ROWS;
    args->workspace_size = (uint64_t)(2 * args->tokens + FIRST + 1) * sizeof(int64_t);
    args->workspace = malloc(args->workspace_size);
    memset(c->dst, 0xff, c->bytes);
    memset(c->d_freqs, 0xff, c->angle_bytes);
    const trope_status status = backward(args);
    free(args->workspace);
    return status == TROPE_OK &&
           (!expected || (!memcmp(c->dst, expected, c->bytes) && !memcmp(c->d_freqs, c->gradient, c->angle_bytes)));
}

/* Makes the inputs of a call. `expect` makes the expected results. */
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

/* Runs the calls on one thread and keeps their results as the expected results. */
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

/* Returns the system's count of the threads of this process. */
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
