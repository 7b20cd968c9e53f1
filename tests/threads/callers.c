/* Many threads of a program may make calls at the same time, each with any number of threads, and some on small stacks. All
 * calls finish, and their results have the same bits as with one thread. */
#include <pthread.h>

#include "support/check.h"
#include "threads/call.h"

#ifdef SANITIZED /* stack frames are larger */
enum { SMALL_STACK = 512 << 10 };
#else
enum { SMALL_STACK = 80 << 10 }; /* 60 KB for a call, and thread-local storage (12 KB for the CUDA runtime) */
#endif
enum { CALLERS = 12, ROUNDS = 40 };

typedef struct caller {
    pthread_t thread;
    threaded_call *few, *many;
    int number, wrong;
} caller;

static void *keep_calling(void *context)
{
    static const int counts[] = {2, 0, 8, 1, 3};
    caller *c = context;
    for (int i = 0; i < ROUNDS; i++) {
        const int threads = counts[(c->number + i) % 5];
        c->wrong += !run_forward(c->many, trope_forward, threads, c->many->forward);
        c->wrong += !run_forward(c->few, trope_forward, threads, c->few->forward);
        c->wrong += !run_backward(c->few, trope_backward, threads, c->few->backward);
        if (i % 10 == 0)
            c->wrong += !run_backward(c->many, trope_backward, threads, c->many->backward);
    }
    return NULL;
}

static void start(caller *c)
{
    pthread_attr_t attributes;
    c->few = make_call(FEW);
    c->many = make_call(MANY);
    CHECK(expect(c->few, trope_forward, trope_backward) && expect(c->many, trope_forward, trope_backward));
    CHECK(!pthread_attr_init(&attributes));
    if (c->number % 2 == 0)
        CHECK(!pthread_attr_setstacksize(&attributes, SMALL_STACK));
    CHECK(!pthread_create(&c->thread, &attributes, keep_calling, c));
    pthread_attr_destroy(&attributes);
}

int main(void)
{
    static caller callers[CALLERS];
    for (int i = 0; i < CALLERS; i++) {
        callers[i].number = i;
        start(&callers[i]);
    }
    for (int i = 0; i < CALLERS; i++) {
        CHECK(!pthread_join(callers[i].thread, NULL));
        CHECK_MESSAGE(callers[i].wrong == 0, "caller %d: %d wrong results", i, callers[i].wrong);
        free_call(callers[i].few);
        free_call(callers[i].many);
    }
    return check_result();
}
