/* A call uses only the stream in its arguments, from any thread, and allocates no memory.
 *
 *     cuda_streams [--calls N]        each thread makes N calls */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "cuda/device_call.h"
#include "cuda/problem.h"
#include "support/check.h"

enum { THREADS = PROBLEM_KINDS, SECONDS = 60 };

static void give_up(int signal)
{
    static const char message[] = "a call waits for the default stream\n";
    (void)signal;
    if (write(STDOUT_FILENO, message, sizeof message - 1))
        _exit(1);
    _exit(1);
}

/* ---- the default stream ---- */

static atomic_int is_open;

static void wait_for_gate(void *unused)
{
    (void)unused;
    while (!atomic_load(&is_open))
        usleep(100);
}

static void close_gate(cudaStream_t stream)
{
    atomic_store(&is_open, 0);
    CUDA_MUST(cudaLaunchHostFunc(stream, wait_for_gate, NULL));
}

/* While the default stream is blocked, calls on another stream finish, and a call on the default stream does not. */
static void check_default_stream(void)
{
    cudaStream_t stream;
    problem *p[PROBLEM_KINDS];
    CUDA_MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int kind = 0; kind < PROBLEM_KINDS; kind++) {
        p[kind] = problem_of_kind(kind, 3, 11);
        CHECK(problem_queue(p[kind], stream) == TROPE_OK && problem_holds(p[kind], stream)); /* loads the kernels */
        problem_draw(p[kind], 12, stream);
    }
    close_gate(NULL);
    alarm(SECONDS);
    for (int kind = 0; kind < PROBLEM_KINDS; kind++) {
        CHECK_MESSAGE(problem_queue(p[kind], stream) == TROPE_OK, "%s", trope_last_error());
        CHECK_MESSAGE(problem_holds(p[kind], stream), "kind %d, while the default stream is blocked: differs from the CPU",
                      kind);
        problem_draw(p[kind], 13, stream);
    }
    CHECK_MESSAGE(cudaStreamQuery(NULL) == cudaErrorNotReady, "the default stream did not stay blocked");
    CHECK_MESSAGE(problem_queue(p[0], NULL) == TROPE_OK, "%s", trope_last_error());
    CHECK_MESSAGE(cudaStreamQuery(NULL) == cudaErrorNotReady, "a call on the default stream ran before earlier work on it");
    atomic_store(&is_open, 1);
    CHECK_MESSAGE(problem_holds(p[0], NULL), "a call on the default stream: differs from the CPU");
    alarm(0);
    for (int kind = 0; kind < PROBLEM_KINDS; kind++)
        problem_free(p[kind]);
    CUDA_MUST(cudaStreamDestroy(stream));
}

/* ---- two streams at once ---- */

/* Queues a call on a blocked stream, then a call on another stream. The second call finishes first. */
static void check_two_streams(void)
{
    cudaStream_t streams[2];
    problem *p[2];
    for (int i = 0; i < 2; i++) {
        CUDA_MUST(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
        p[i] = problem_of_kind(i ? PROBLEM_GRADIENT_KIND : 0, 4, 21 + (uint64_t)i);
        CHECK(problem_queue(p[i], streams[i]) == TROPE_OK && problem_holds(p[i], streams[i]));
        problem_draw(p[i], 23, streams[i]);
    }
    close_gate(streams[0]);
    alarm(SECONDS);
    CHECK_MESSAGE(problem_queue(p[0], streams[0]) == TROPE_OK, "%s", trope_last_error());
    CHECK_MESSAGE(problem_queue(p[1], streams[1]) == TROPE_OK, "%s", trope_last_error());
    CHECK_MESSAGE(problem_holds(p[1], streams[1]), "the second stream: differs from the CPU");
    CHECK(cudaStreamQuery(streams[0]) == cudaErrorNotReady);
    atomic_store(&is_open, 1);
    CHECK_MESSAGE(problem_holds(p[0], streams[0]), "the first stream: differs from the CPU");
    alarm(0);
    for (int i = 0; i < 2; i++) {
        problem_free(p[i]);
        CUDA_MUST(cudaStreamDestroy(streams[i]));
    }
}

/* ---- many threads ---- */

typedef struct worker {
    pthread_t thread;
    int number, calls, failed;
} worker;

static void *work(void *context)
{
    worker *w = context;
    cudaStream_t stream;
    CUDA_MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    problem *p = problem_of_kind(w->number % PROBLEM_KINDS, 1 + w->number % 4, 100 + (uint64_t)w->number);
    for (int i = 0; i < w->calls; i++) {
        problem_draw(p, (uint64_t)(1000 * w->number + i), stream);
        w->failed += problem_queue(p, stream) != TROPE_OK;
        w->failed += !problem_holds(p, stream);
    }
    problem_free(p);
    CUDA_MUST(cudaStreamDestroy(stream));
    return NULL;
}

static void check_threads(int calls)
{
    worker workers[THREADS];
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (worker){.number = i, .calls = calls};
        CHECK(!pthread_create(&workers[i].thread, NULL, work, &workers[i]));
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK(!pthread_join(workers[i].thread, NULL));
        CHECK_MESSAGE(workers[i].failed == 0, "thread %d: %d of %d calls are wrong", i, workers[i].failed, calls);
    }
}

/* ---- memory ---- */

static void queue_many(problem **p, cudaStream_t stream, int count)
{
    for (int i = 0; i < count; i++)
        for (int kind = 0; kind < PROBLEM_KINDS; kind++)
            if (problem_queue(p[kind], stream))
                CHECK_MESSAGE(0, "%s", trope_last_error());
    CUDA_MUST(cudaStreamSynchronize(stream));
}

static void check_memory(void)
{
    cudaStream_t stream;
    problem *p[PROBLEM_KINDS];
    size_t before, after, total;
    CUDA_MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int kind = 0; kind < PROBLEM_KINDS; kind++)
        p[kind] = problem_of_kind(kind, 4, 31);
    queue_many(p, stream, 10);
    CUDA_MUST(cudaMemGetInfo(&before, &total));
    queue_many(p, stream, 1000);
    CUDA_MUST(cudaMemGetInfo(&after, &total));
    CHECK_MESSAGE(before == after, "%d calls changed the free memory from %zu to %zu bytes", 1000 * PROBLEM_KINDS, before,
                  after);
    for (int kind = 0; kind < PROBLEM_KINDS; kind++) {
        CHECK_MESSAGE(problem_holds(p[kind], stream), "kind %d after many calls: differs from the CPU", kind);
        problem_free(p[kind]);
    }
    CUDA_MUST(cudaStreamDestroy(stream));
}

int main(int argc, char **argv)
{
    device_require();
    signal(SIGALRM, give_up);
    check_default_stream();
    check_two_streams();
    check_memory();
    check_threads((int)device_option(argc, argv, "--calls", 20));
    return check_result();
}
