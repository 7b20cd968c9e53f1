/* Tests src/core/threads.c alone: which ranges it runs, on which threads, and the properties of these threads. The linker
 * replaces pthread_create by __wrap_pthread_create, so that a test can make creation fail or a worker start late. */
#define _GNU_SOURCE
#include <errno.h>
#include <fenv.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "core/threads.h"
#include "support/check.h"

enum { MOST = 8 };

/* ---- creating threads ---- */

typedef struct late_start {
    void *(*body)(void *);
    void *context;
} late_start;

static atomic_int may_be_made = MOST, may_start = 1;
static late_start late[MOST];

static void *start_late(void *context)
{
    const late_start *s = context;
    while (!atomic_load(&may_start))
        sched_yield();
    return s->body(s->context);
}

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *context);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *context);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *context)
{
    static int made;
    if (atomic_load(&may_be_made) <= 0 || made == MOST)
        return EAGAIN;
    atomic_fetch_sub(&may_be_made, 1);
    late[made] = (late_start){body, context};
    return __real_pthread_create(thread, attributes, start_late, &late[made++]);
}

/* ---- bodies ---- */

/* What happened in a call: how often each index ran, and which threads ran the ranges. */
typedef struct record {
    int meets;           /* how many threads must be in the body at the same time before any of them continues */
    int count;           /* the number of indices of the call */
    atomic_int runs[64]; /* by index */
    atomic_int ranges, strangers, met, wrong_thread;
    pthread_t caller;
} record;

static void check_worker(record *r)
{
    sigset_t blocked;
    char name[16] = "";
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    pthread_getname_np(pthread_self(), name, sizeof name);
    static const int kept_away[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGALRM, SIGUSR1, SIGUSR2, SIGCHLD, SIGPROF, SIGIO};
    for (size_t i = 0; i < sizeof kept_away / sizeof kept_away[0]; i++)
        atomic_fetch_add(&r->wrong_thread, !sigismember(&blocked, kept_away[i]));
    atomic_fetch_add(&r->wrong_thread, sigismember(&blocked, SIGSEGV) || sigismember(&blocked, SIGBUS));
    atomic_fetch_add(&r->wrong_thread, strcmp(name, "trope") != 0);
}

static void run(const void *context, int64_t begin, int64_t end)
{
    record *r = (record *)context;
    volatile double third = 3;
    third = 1 / third;
    atomic_fetch_add(&r->ranges, 1);
    atomic_fetch_add(&r->wrong_thread, third != 0x1.5555555555555p-2); /* rounding upwards would give 6p-2 */
    if (!pthread_equal(pthread_self(), r->caller)) {
        atomic_fetch_add(&r->strangers, 1);
        check_worker(r);
    }
    for (int64_t i = begin; i < end; i++)
        atomic_fetch_add(&r->runs[i], 1);
    atomic_fetch_add(&r->met, 1);
    while (atomic_load(&r->met) < r->meets)
        sched_yield();
}

/* Runs a call and checks that each index ran once. */
static void call(record *r, int threads, int count)
{
    r->caller = pthread_self();
    r->count = count;
    trope_parallel_for(threads, count, run, r);
    int wrong = 0;
    for (int i = 0; i < 64; i++)
        wrong += atomic_load(&r->runs[i]) != (i < count);
    CHECK_MESSAGE(wrong == 0, "%d threads, %d indices: %d indices did not run exactly once", threads, count, wrong);
    CHECK_MESSAGE(r->wrong_thread == 0, "%d threads: %d wrong properties of threads", threads, r->wrong_thread);
}

/* ---- tests ---- */

/* A call runs on as many threads as it requests and as can be created, all at the same time: their ranges wait for each
 * other. */
static void check_thread_count(int threads, int expected)
{
    record r = {.meets = expected};
    call(&r, threads, 64);
    CHECK_MESSAGE(r.ranges == expected && r.strangers == expected - 1, "%d threads: %d ranges, %d of them by workers",
                  threads, r.ranges, r.strangers);
}

static void check_failed_creation(void)
{
    atomic_store(&may_be_made, 0);
    check_thread_count(4, 1);
    atomic_store(&may_be_made, 2);
    check_thread_count(4, 3);
    check_thread_count(2, 2);
    atomic_store(&may_be_made, MOST);
    check_thread_count(4, 4);
}

/* A worker that starts late does not delay a call: the caller does the work of this worker. */
static void check_late_worker(void)
{
    atomic_store(&may_start, 0);
    for (int i = 0; i < 3; i++) {
        record r = {.meets = 4}; /* the running threads; the fifth thread is late */
        call(&r, 5, 64);
        CHECK_MESSAGE(r.ranges == 5 && r.strangers == 3, "%d ranges, %d by workers", r.ranges, r.strangers);
    }
    atomic_store(&may_start, 1);
    check_thread_count(5, 5);
}

static void check_ranges(void)
{
    for (int threads = 1; threads <= MOST; threads++) {
        for (int count = 0; count <= 64; count++) {
            record r = {.meets = 0};
            call(&r, threads, count);
            CHECK_MESSAGE(r.ranges == (threads < count ? threads : count), "%d threads, %d indices: %d ranges", threads,
                          count, r.ranges);
        }
    }
}

/* Makes calls from a body, on a worker or on the caller's thread. */
static void run_nested(const void *context, int64_t begin, int64_t end)
{
    record *inner = (record *)context;
    for (int64_t i = begin; i < end; i++) {
        inner[i].caller = pthread_self();
        trope_parallel_for(4, 64, run, &inner[i]);
    }
}

static void check_nested_call(void)
{
    static record inner[8];
    trope_parallel_for(4, 8, run_nested, inner);
    for (int i = 0; i < 8; i++)
        CHECK_MESSAGE(inner[i].ranges == 1 && inner[i].strangers == 0 && inner[i].wrong_thread == 0 &&
                          inner[i].runs[63] == 1,
                      "nested call %d: %d ranges, %d by workers", i, inner[i].ranges, inner[i].strangers);
}

/* A call that another thread makes while the first call uses the workers. */
static void *call_beside(void *context)
{
    record *r = context;
    r->caller = pthread_self();
    trope_parallel_for(4, 64, run, r);
    return NULL;
}

static void run_beside(const void *context, int64_t begin, int64_t end)
{
    (void)end;
    pthread_t thread;
    atomic_int *wrong = (atomic_int *)context;
    record r = {.meets = 0};
    if (begin)
        return;
    if (__real_pthread_create(&thread, NULL, call_beside, &r) || pthread_join(thread, NULL))
        atomic_fetch_add(wrong, 1);
    atomic_fetch_add(wrong, r.ranges != 1 || r.strangers != 0);
}

static void check_concurrent_call(void)
{
    atomic_int wrong = 0;
    trope_parallel_for(4, 64, run_beside, &wrong);
    CHECK(wrong == 0);
    check_thread_count(4, 4); /* the workers are free again */
}

/* The caller's rounding mode and signal mask are unchanged, although its calls created workers. */
static void check_caller(int rounding, const sigset_t *blocked)
{
    sigset_t now;
    CHECK(fegetround() == rounding);
    CHECK(!pthread_sigmask(SIG_SETMASK, NULL, &now));
    for (int i = 1; i < 32; i++)
        CHECK(sigismember(&now, i) == sigismember(blocked, i));
}

static void check_useful_threads(void)
{
    CHECK(trope_useful_threads(8, 0) == 1);
    CHECK(trope_useful_threads(0, 100000) == 1);
    CHECK(trope_useful_threads(8, INT64_C(1) << 40) == 8);
    CHECK(trope_useful_threads(1, INT64_C(1) << 40) == 1);
    CHECK(trope_useful_threads(0, INT64_C(1) << 40) == trope_default_threads());
    int before = 1;
    for (int64_t bytes = 1; bytes < INT64_C(1) << 40; bytes *= 2) {
        const int threads = trope_useful_threads(1000, bytes);
        CHECK(threads >= before && (int64_t)threads * 65536 <= bytes + 65536);
        before = threads;
    }
    CHECK(before == 1000);
}

int main(void)
{
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR2);
    CHECK(!pthread_sigmask(SIG_SETMASK, &blocked, NULL));
    CHECK(!fesetround(FE_UPWARD)); /* workers would inherit this mode */
    check_failed_creation();
    check_late_worker();
    check_ranges();
    check_nested_call();
    check_concurrent_call();
    check_caller(FE_UPWARD, &blocked);
    CHECK(!fesetround(FE_TONEAREST));
    check_useful_threads();
    return check_result();
}
