/* If no thread can be created, calls run on the caller's thread and give the same bits. Later calls try to create threads
 * again. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#include "support/check.h"
#include "threads/call.h"

static atomic_int refused;

/* The library uses this function instead of the C library's. */
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *context)
{
    (void)thread;
    (void)attributes;
    (void)body;
    (void)context;
    atomic_fetch_add(&refused, 1);
    return EAGAIN;
}

int main(void)
{
    threaded_call *c = make_call(MANY);
    CHECK(expect(c, trope_forward, trope_backward));
    CHECK(refused == 0);
    for (int threads = 0; threads <= 8; threads += 4) {
        const int before = refused;
        CHECK(run_forward(c, trope_forward, threads, c->forward));
        CHECK(run_backward(c, trope_backward, threads, c->backward));
        CHECK(threads == 0 || refused > before);
    }
    free_call(c);
    return check_result();
}
